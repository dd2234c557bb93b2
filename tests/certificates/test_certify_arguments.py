"""What ``certify`` takes: arrays, single precision, extreme numbers; and what it refuses."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import shoal
from certificates.networks import data, ling2023, sphere
from shoal.equilibrium import Gradient


def test_arrays_and_single_precision() -> None:
    x, y = sphere(2, 0.1)
    single = shoal.build(
        shoal.DEQ.ling2023(0.001, 10),
        in_features=10,
        width=500,
        readout_scale=0.0,
        dtype=torch.float32,
    )
    certificate = shoal.certify(single, x.float(), y.float())
    assert certificate.status == "proved"
    same = shoal.certify(single, x.float().numpy(), y.float().numpy())
    assert same.to_dict() == certificate.to_dict()
    text = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert text["holds"] is True
    assert text["conclusions"][0]["conditions"][0]["name"] == "contraction"
    assert "proved" in str(certificate)


@pytest.mark.parametrize(
    ("inputs", "labels", "failure"),
    [
        (1.0, 1e300, "remainder"),
        (1e150, 1.0, "travel"),
        (1e-150, 1.0, "remainder"),
        (0.0, 1.0, "rank"),
    ],
)
def test_extreme_numbers_get_an_answer(inputs: float, labels: float, failure: str) -> None:
    x, y = sphere(3, 1.0)
    certificate = shoal.certify(ling2023(60), inputs * x, labels * y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == failure
    assert failure in str(certificate)


@pytest.mark.thorough("1e-310-architecture1")
@pytest.mark.parametrize("architecture", [shoal.ImplicitNetwork(0.1), shoal.DEQ.ling2023(0.001, 2)])
@pytest.mark.parametrize("number", [1e-310, 1e160, 1e300])
def test_readouts_of_any_size_get_an_honest_answer(
    architecture: shoal.DEQ | shoal.ImplicitNetwork, number: float
) -> None:
    """No step size underflows to one that is not positive, and nothing overflows."""
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    net = shoal.build(architecture, in_features=2, width=8, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("readout").fill_(number)
    certificate = shoal.certify(net, x, y)
    for found in certificate.conclusions:
        assert found.step_size is None or found.step_size > 0
    assert number < 1 or not certificate.holds


@pytest.mark.parametrize("samples", [1, 3])
def test_labels_may_be_a_column_of_a_table(samples: int) -> None:
    """And inputs its other columns: numbers that do not lie side by side."""
    table = data(10, 12, norm=0.3, label=1.0)[0][:samples]
    x, y = table[:, 2:], table[:, 1]
    certificate = shoal.certify(ling2023(100, readout_scale=0.0), x, y)
    same = shoal.certify(ling2023(100, readout_scale=0.0), x.clone(), y.clone())
    assert certificate.fingerprint == same.fingerprint
    transposed = x.T.contiguous().T
    again = shoal.certify(ling2023(100, readout_scale=0.0), transposed, y.expand(1, -1).T)
    assert again.fingerprint == same.fingerprint


@pytest.mark.parametrize("trained", [False, True])
def test_gradients_that_overflow_are_refused_for_their_rank(trained: bool) -> None:
    x, y = data(2, 3, norm=1.0, label=1.0)
    architecture = shoal.FullyConnected((shoal.activations.Softplus(),), fixed_readout=not trained)
    net = shoal.build(architecture, in_features=3, width=16, dtype=torch.float64)
    with torch.no_grad():
        net.get_parameter("layer1").mul_(1e200)
        net.readout.mul_(1e200)
    certificate = shoal.certify(net, x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"
    json.dumps(certificate.to_dict(), allow_nan=False)


def test_subclasses_of_the_relu_prove_nothing() -> None:
    class Mine(shoal.activations.ReLU):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return super().function(x)

    x, y = sphere(2, 0.1)
    deq = shoal.DEQ(Mine(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=100, readout_scale=0.0, dtype=torch.float64)
    assert shoal.certify(net, x, y).status != "proved"


def test_a_fixed_readout_is_not_trained_by_asking_for_its_gradient() -> None:
    """It is a buffer, which no optimizer moves."""
    x, y = data(2, 10, norm=1.0, label=0.1)
    architecture = shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1)
    net = shoal.build(
        architecture, in_features=10, width=200, readout_scale=0.0, dtype=torch.float64
    )
    net.readout.requires_grad_(True)
    certificate = shoal.certify(net, x, y)
    assert not certificate.holds  # nothing moves while the readout is zero
    assert all("readout" not in c.promises.travel for c in certificate.conclusions)


def test_weights_made_of_other_parameters_are_refused() -> None:
    x, y = sphere(2, 0.1)
    constrained, tied, added = ling2023(50), ling2023(10), ling2023(50)
    torch.nn.utils.parametrizations.spectral_norm(constrained, "recurrent")
    tied.input = tied.recurrent
    added.bias = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    for net in (constrained, tied, added):
        with pytest.raises(TypeError, match="net must have the parameters of"):
            shoal.certify(net, x, y)


INEXACT = [
    shoal.OneStep(),
    shoal.Neumann(0),
    shoal.Neumann(2),
    shoal.Reversible(0.5),
    shoal.Reversible(0.5, steps=1),
    shoal.Unrolled(),
]


@pytest.mark.thorough("architecture0")
@pytest.mark.parametrize("gradient", INEXACT, ids=repr)
@pytest.mark.parametrize("architecture", [shoal.ImplicitNetwork(0.1), shoal.DEQ.ling2023(0.001, 2)])
def test_networks_without_their_exact_gradient_are_refused(
    architecture: shoal.DEQ | shoal.ImplicitNetwork, gradient: Gradient
) -> None:
    """The theorems are about descent along the gradient of equilibria, and no other direction."""
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    options: dict[str, Any] = {"in_features": 2, "width": 64, "dtype": torch.float64}
    options["readout_scale"] = 0.0
    net = shoal.build(architecture, gradient=gradient, **options)
    words = rf"the exact gradient .*={type(gradient).__name__}\(.*: build it with .*=Implicit\(\)"
    with pytest.raises(ValueError, match=words):
        shoal.certify(net, x, y)
    assert shoal.certify(shoal.build(architecture, **options), x, y).holds


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(50)
    with pytest.raises(TypeError, match="net must be"):
        shoal.certify(shoal.activations.ReLU(), x, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="y must have shape"):
        shoal.certify(net, x, y[:1])
    with pytest.raises(ValueError, match=r"y must have shape .* got \(\)"):
        shoal.certify(net, x, 0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="x must have entries up to 1e\\+152"):
        shoal.certify(net, 1e160 * x, y)
    broken = ling2023(50)
    with torch.no_grad():
        broken.readout[0, 0] = math.nan
    with pytest.raises(ValueError, match=r"net\.readout must be finite"):
        shoal.certify(broken, x, y)
    with pytest.raises(ValueError, match="y must be finite"):
        shoal.certify(net, x, y * math.nan)
    with pytest.raises(ValueError, match="x must have shape"):
        shoal.certify(net, x[:, :3], y)
    with pytest.raises(ValueError, match="step_size must be > 0"):
        shoal.certify(net, x, y, step_size=0.0)
    with pytest.raises(TypeError, match="must be float32 or float64"):
        shoal.certify(net, np.ones((2, 10), dtype=int), y)  # type: ignore[arg-type]
    gated = shoal.FullyConnected((shoal.activations.Tanh(),), norm_gated=True)
    other = shoal.build(gated, in_features=10, width=50, dtype=torch.float64)
    with pytest.raises(TypeError, match="no theorem"):
        shoal.certify(other, x, y)
