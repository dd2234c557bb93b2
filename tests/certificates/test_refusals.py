"""Refusals are deserved and name what would help; arguments of ``certify``."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from certificates.networks import DOUBLE, data, explicit, implicit, inputs, ling2023, sphere
from shoal.certificates import plain

UNIT, LABELS = data(2, 10, norm=1.0, label=0.1)
TANH = shoal.FullyConnected.du2018(shoal.activations.Tanh(), 2)


def failure(net: Any, x: Any, y: Any) -> shoal.certificates.Condition:
    certificate = shoal.certify(net, x, y)
    assert not certificate.holds
    assert certificate.step_size is None
    assert certificate.rate is None
    assert certificate.first_failure is not None
    return certificate.first_failure


def test_a_frozen_readout_is_refused() -> None:
    net = ling2023(300, trainable={"recurrent", "input"})
    assert failure(net, *sphere(2, 0.1)).remedy == "train the readout"


def test_a_step_ten_times_too_large_is_refused_and_diverges() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(500, readout_scale=0.0)
    good = shoal.certify(net, x, y)
    assert good.step_size is not None
    assert shoal.certify(net, x, y, step_size=good.step_size).step_size == good.step_size
    bad = shoal.certify(net, x, y, step_size=10 * good.step_size)
    assert bad.step_size is None
    assert bad.first_failure is not None
    assert bad.first_failure.name == "step size"
    assert "smaller step" in bad.explanation
    run = plain.descend(net, x, y, 10 * good.step_size, 2)
    assert run[-1].loss > run[0].loss


def test_recurrent_weights_that_are_too_large_are_refused() -> None:
    refused = failure(ling2023(200, weight_variance=0.3), *sphere(2, 0.1))
    assert refused.name == "contraction"
    assert refused.value > 1


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_parallel_inputs_are_refused(factor: float) -> None:
    x, y = sphere(3, 0.1)
    x[1] = factor * x[0]
    for net in (ling2023(300, readout_scale=0.0), implicit(300)):
        assert "parallel" in failure(net, x, y).remedy
    twice = shoal.build(TANH, in_features=10, width=256, **DOUBLE)
    assert failure(twice, UNIT[:1].repeat(2, 1), LABELS).name == "rank"


def test_more_samples_than_units_have_no_rank() -> None:
    assert failure(ling2023(4, readout_scale=0.0), *sphere(5, 0.1)).name == "rank"


def test_inputs_of_zero_are_never_certified() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(100, readout_scale=0.0)  # its outputs are zero forever, whatever is trained
    refused = failure(net, 0 * x, y)
    assert refused.relation == "<"  # found 0, needed < 0
    assert refused.needed == "< 0"
    assert not shoal.certify(net, 0 * x, y).gradient_flow.holds


def test_remedies_work() -> None:
    x, y = sphere(3, 1.0)
    refused = failure(ling2023(200), x, y)
    assert refused.remedy.startswith("a zero readout (readout_scale=0) with smaller labels")
    assert shoal.certify(ling2023(200, readout_scale=0.0), x, 0.1 * y).holds
    x[1] = 2 * x[0]
    net = ling2023(200, readout_scale=0.0)
    assert "perturbed, merged or removed" in failure(net, x, 0.01 * y).remedy
    noise = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert shoal.certify(net, x + 0.3 * noise, 0.01 * y).holds
    assert shoal.certify(net, x[1:], 0.01 * y[1:]).holds


@pytest.mark.parametrize(
    "architecture",
    [
        shoal.FullyConnected.du2018(shoal.activations.ReLU(), 2),
        shoal.ResNet(shoal.activations.LeakyReLU(0.1), 2),
        shoal.FullyConnected((shoal.activations.Tanh(), shoal.activations.ReLU())),
    ],
)
def test_kinks_of_explicit_networks_are_refused(architecture: Any) -> None:
    net = shoal.build(architecture, in_features=10, width=32, **DOUBLE)
    assert failure(net, UNIT, LABELS).name == "smooth"
    assert "smooth activation" in shoal.certify(net, UNIT, LABELS).explanation


def test_a_fixed_readout_is_not_trained_by_asking_for_its_gradient() -> None:
    """It is a buffer, which no optimizer moves; while it is zero, nothing else moves."""
    net = shoal.build(TANH, in_features=10, width=200, readout_scale=0.0, **DOUBLE)
    net.readout.requires_grad_(True)
    assert "must not be zero" in failure(net, UNIT, LABELS).remedy
    assert "readout" not in shoal.certify(net, UNIT, LABELS).gradient_flow.promises.travel


@pytest.mark.parametrize("name", ["tanh", "convolutional"])
def test_a_network_without_trained_weights_is_told_to_train_some(name: str) -> None:
    net = explicit(name).requires_grad_(False)
    refused = failure(net, inputs(name), torch.ones(3).double())
    assert refused.remedy.startswith("train some weights")


def test_activations_without_bounds_prove_nothing() -> None:
    class Mine(shoal.activations.Activation):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x)

    deq = shoal.DEQ(Mine(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=100, readout_scale=0.0, **DOUBLE)
    assert shoal.certify(net, *sphere(2, 0.1)).status != "proved"


def test_arrays_and_single_precision() -> None:
    x, y = (t.float() for t in sphere(2, 0.1))
    deq = shoal.DEQ.ling2023(0.001, 10)
    single = shoal.build(deq, in_features=10, width=500, readout_scale=0.0, dtype=torch.float32)
    certificate = shoal.certify(single, x, y)
    assert certificate.status == "proved"
    assert shoal.certify(single, x.numpy(), y.numpy()).to_dict() == certificate.to_dict()
    text = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert text["holds"] is True
    assert text["conclusions"][0]["conditions"][0]["name"] == "contraction"
    assert "proved" in str(certificate)
    net = shoal.build(TANH, in_features=10, width=512, seed=1)
    unit = UNIT.float()
    assert shoal.certify(net, unit, net(unit).detach()[:, 0] + LABELS.float()).status == "proved"


@pytest.mark.parametrize(
    ("scale", "labels", "name"),
    [
        (1.0, 1e300, "remainder"),
        (1e150, 1.0, "travel"),
        (1e-150, 1.0, "remainder"),
        (0.0, 1.0, "rank"),
    ],
)
def test_extreme_inputs_and_labels_get_an_answer(scale: float, labels: float, name: str) -> None:
    x, y = sphere(3, 1.0)
    assert failure(ling2023(60), scale * x, labels * y).name == name


@pytest.mark.parametrize("number", [0.0, 1e-310, 1e-200, 1e160, 1e200, 1e300])
def test_extreme_weights_get_an_honest_answer(number: float) -> None:
    """No step size underflows to one that is not positive, and nothing overflows."""
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    for architecture in (shoal.ImplicitNetwork(0.1), shoal.DEQ.ling2023(0.001, 2), TANH):
        net = shoal.build(architecture, in_features=2, width=16, **DOUBLE)
        with torch.no_grad():
            net.get_parameter("layer1" if architecture is TANH else "readout").mul_(number)
        certificate = shoal.certify(net, x, y)
        json.dumps(certificate.to_dict(), allow_nan=False)
        assert number < 1 or not certificate.holds
        for conclusion in certificate.conclusions:
            assert conclusion.step_size is None or conclusion.step_size > 0
    net = shoal.build(TANH, in_features=2, width=16, **DOUBLE)
    with torch.no_grad():
        for weights in net.parameters():
            weights.mul_(number)
    assert not shoal.certify(net, x, y).holds


@pytest.mark.parametrize("samples", [1, 3])
def test_labels_may_be_a_column_of_a_table(samples: int) -> None:
    """And inputs its other columns: numbers that do not lie side by side."""
    table = data(10, 12, norm=0.3, label=1.0)[0][:samples]
    x, y = table[:, 2:], table[:, 1]
    net = ling2023(100, readout_scale=0.0)
    fingerprint = shoal.certify(net, x, y).fingerprint
    assert shoal.certify(net, x.clone(), y.clone()).fingerprint == fingerprint
    transposed = x.T.contiguous().T, y.expand(1, -1).T
    assert shoal.certify(net, *transposed).fingerprint == fingerprint


def test_weights_made_of_other_parameters_are_refused() -> None:
    x, y = sphere(2, 0.1)
    constrained, tied, added = ling2023(50), ling2023(10), ling2023(50)
    torch.nn.utils.parametrizations.spectral_norm(constrained, "recurrent")
    tied.input = tied.recurrent
    added.bias = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    for net in (constrained, tied, added):
        with pytest.raises(TypeError, match="net must have the parameters of"):
            shoal.certify(net, x, y)


@pytest.mark.parametrize(
    "gradient",
    [shoal.OneStep(), shoal.Neumann(0), shoal.Reversible(0.5), shoal.Unrolled()],
    ids=repr,
)
def test_networks_without_their_exact_gradient_are_refused(gradient: Any) -> None:
    """The theorems are about descent along the gradient of equilibria, and no other direction."""
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    options: dict[str, Any] = {"in_features": 2, "width": 64, "readout_scale": 0.0} | DOUBLE
    words = rf"the exact gradient .*={type(gradient).__name__}\(.*: build it with .*=Implicit\(\)"
    for architecture in (shoal.ImplicitNetwork(0.1), shoal.DEQ.ling2023(0.001, 2)):
        with pytest.raises(ValueError, match=words):
            shoal.certify(shoal.build(architecture, gradient=gradient, **options), x, y)
        assert shoal.certify(shoal.build(architecture, **options), x, y).holds


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    net, broken = ling2023(50), ling2023(50)
    gated = shoal.FullyConnected((shoal.activations.Tanh(),), norm_gated=True)
    other = shoal.build(gated, in_features=10, width=50, **DOUBLE)
    with torch.no_grad():
        broken.readout[0, 0] = math.nan
    for error, words, arguments in (
        (TypeError, "net must be", (shoal.activations.ReLU(), x, y)),
        (ValueError, "y must have shape", (net, x, y[:1])),
        (ValueError, r"y must have shape .* got \(\)", (net, x, 0.1)),
        (ValueError, "x must have entries up to 1e\\+152", (net, 1e160 * x, y)),
        (ValueError, r"net\.readout must be finite", (broken, x, y)),
        (ValueError, "y must be finite", (net, x, y * math.nan)),
        (ValueError, "x must have shape", (net, x[:, :3], y)),
        (TypeError, "must be float32 or float64", (net, np.ones((2, 10), dtype=int), y)),
        (TypeError, "no theorem is known for networks that are gated by the norm", (other, x, y)),
    ):
        with pytest.raises(error, match=words):
            shoal.certify(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_size must be > 0"):
        shoal.certify(net, x, y, step_size=0.0)
