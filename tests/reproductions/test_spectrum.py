"""Limiting spectra against exact kernels."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import shoal
from shoal.lab import Result
from shoal.reproductions.findings.spectrum import SpectrumError, _distance, _spike_error


@pytest.fixture(scope="module")
def results(quick_run) -> list[Result]:
    return quick_run(SpectrumError).results


def test_limits_predict_the_eigenvalues(results: list[Result]) -> None:
    summary = SpectrumError.quick().summarize(results)
    for ratio in (0.5, 1.25, 2.0):
        for kind in ("ck", "ntk"):
            key = f"{ratio}_{kind}"
            assert summary[f"{key}_ks"] < 0.06
            assert abs(summary[f"{key}_high"]) < 0.1
            assert summary[f"{key}_spikes_exact"] < 0.06
            assert summary[f"{key}_spikes_count"] >= 2  # two means, and perhaps the norms
    assert summary["0.5_ck_atom"] == pytest.approx(0.5)
    assert abs(summary["0.5_ck_atom_shift"]) < summary["0.5_ck_atom_smear"]  # within its spread
    assert "2.0_ck_atom" not in summary


def test_densities_have_the_mass_of_the_continuous_part(results: list[Result]) -> None:
    for result in results:
        mass = np.trapezoid(result.arrays["ck_density"], result.arrays["ck_grid"])
        assert mass == pytest.approx(min(1.0, float(result.point["ratio"])), abs=0.02)


def test_the_figure_has_a_panel_for_each(results: list[Result]) -> None:
    assert len(SpectrumError.quick().plot(results).axes) == 6


def test_the_distance_is_that_of_kolmogorov_and_smirnov() -> None:
    limit = SimpleNamespace(cdf=stats.norm.cdf, atoms=())
    values = np.sort(np.random.default_rng(0).normal(0.1, 1.1, 200))
    found = _distance(limit, values)  # type: ignore[arg-type]
    assert found == pytest.approx(stats.ks_1samp(values, stats.norm.cdf).statistic)


def test_isolated_values_are_matched_in_order() -> None:
    spikes = tuple(SimpleNamespace(value=v) for v in (0.5, 4.0, 5.0))
    limit = SimpleNamespace(edges=np.array([[1.0, 2.0]]), spikes=spikes, atoms=())
    values = np.array([0.55, 1.0, 1.5, 2.0, 4.0, 5.5])
    assert _spike_error(limit, values, hidden=True) == pytest.approx(0.1)  # type: ignore[arg-type]


def test_classes_are_unequal_and_their_traces_near() -> None:
    mixture = SpectrumError().mixture(0.5)
    assert mixture.proportions.tolist() == [0.5, 0.3, 0.2]
    assert float(mixture.trace_deviations.abs().max()) < 5
    assert isinstance(mixture, shoal.GaussianMixture)
