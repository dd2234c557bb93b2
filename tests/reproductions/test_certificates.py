"""Certificates in experiments: one that is kept, some that refuse, and how wide is wide enough."""

from dataclasses import replace

import numpy as np
import pytest

import shoal
from lab.computing import CPU
from shoal.reproductions.findings.certificate import CertifiedTraining
from shoal.reproductions.findings.required import RequiredWidths


def test_a_proved_certificate_is_kept_and_refusals_have_their_reasons(quick_run) -> None:
    _, experiment, results = quick_run(CertifiedTraining)
    summary = experiment.summarize(results)
    certified, step, gain, equilibrium = (result.arrays for result in results)
    # proved, and kept at every step
    assert summary["certified_status"] == 2
    assert summary["certified_broken"] == -1
    assert summary["certified_slack"] >= 1
    assert 0 < summary["certified_travel"] <= 1
    assert certified["steps"].tolist() == list(range(16))
    assert bool(np.all(certified["loss"] <= certified["bound"]))
    assert bool(np.all(certified["norm_upper"] < 1))
    assert float(certified["loss"][-1]) < 1e-3 * float(certified["loss"][0])
    # too large a step: the loss grows
    assert summary["step_status"] == 0
    assert str(step["failure"]) == "step size"
    assert summary["step_broken"] == 1
    assert float(step["loss"].max()) > 10 * float(step["loss"][0])
    # no contraction: refused, whether training works or not
    for arrays in (gain, equilibrium):
        assert float(arrays["status"]) == 0
        assert str(arrays["failure"]) == "contraction"
        assert float(arrays["norm"][0]) > 1
        assert not arrays["kept_gain"]
    assert bool(np.all(gain["loss"][1:] < gain["loss"][:-1]))
    assert not equilibrium["kept_equilibrium"]
    assert len(experiment.plot(results).axes) == 12


def test_the_bound_is_that_of_the_certificate() -> None:
    experiment = replace(CertifiedTraining.quick(), width=128, samples=2, steps=4)
    arrays = experiment.compute({"case": "certified"}, seed=0, device=CPU)
    x, y = experiment.task(CPU)
    assert y.tolist() == [0.1, -0.1]
    answer = shoal.certify(experiment.network("certified", CPU), x, y)
    assert answer.rate is not None
    expected = float(arrays["loss"][0]) * answer.rate ** np.arange(5)
    assert arrays["bound"] == pytest.approx(expected, rel=1e-9)
    assert float(arrays["loss"][0]) == pytest.approx(0.01)


def test_a_network_without_a_certificate_is_refused() -> None:
    hopeless = replace(CertifiedTraining.quick(), width=8, label=10.0)
    with pytest.raises(ValueError, match="the network must have a certificate"):
        hopeless.compute({"case": "certified"}, seed=0, device=CPU)


def test_theory_asks_for_more_than_certificates_and_they_for_more_than_experience(
    quick_run,
) -> None:
    _, experiment, results = quick_run(RequiredWidths)
    summary = experiment.summarize(results)
    for network in experiment.networks:
        small, paper = (f"{network}_{setting}_2" for setting in experiment.settings)
        assert summary[f"{small}_experience"] <= summary[f"{small}_certificate"]
        assert summary[f"{small}_certificate"] < 0.1 * summary[f"{small}_flow"]
        assert summary[f"{paper}_flow"] > 1e4 * summary[f"{small}_flow"]
        # no width for gradient descent as the papers start it
        assert f"{paper}_descent" not in summary
    assert summary["deq_small_2_descent"] > summary["deq_small_2_flow"]
    assert len(experiment.plot(results).axes) == 4
