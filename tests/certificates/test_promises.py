"""Certificates against actual runs: what is promised is kept."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

import shoal
from certificates.networks import data, descend, keep_promises, ling2023, sphere


@pytest.mark.parametrize(
    ("width", "readout_scale", "label"), [(300, 0.0, 0.1), (500, 0.0, 1.0), (500, 0.2, 0.2)]
)
def test_a_proved_certificate_of_a_deq_is_kept(
    width: int, readout_scale: float, label: float
) -> None:
    x, y = sphere(2, label)
    net = ling2023(width, readout_scale=readout_scale)
    certificate = shoal.certify(net, x, y)
    assert certificate.holds
    assert certificate.status == "proved"
    assert certificate.first_failure is None
    assert all(condition.margin >= 1 for condition in certificate.conditions)
    keep_promises(net, x, y, certificate.gradient_descent, steps=21)


def test_a_proved_certificate_of_an_implicit_network_is_kept() -> None:
    x, y = data(2, 10, norm=1.0, label=0.1)
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=300,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=21)


@pytest.mark.thorough
def test_a_smooth_network_of_ordinary_size_is_certified() -> None:
    x, y = sphere(2, 1.0)
    deq = shoal.DEQ(shoal.activations.Tanh(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=1000, seed=0, dtype=torch.float64)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=5)


@pytest.mark.thorough("Affine", "GELU", "Swish", "Softplus", "ELU")
@pytest.mark.parametrize(
    ("activation", "status"),
    [
        (shoal.activations.Sigmoid(), "proved"),
        (shoal.activations.Softplus(), "proved"),
        (shoal.activations.Swish(), "proved"),
        (shoal.activations.ELU(), "proved"),
        (shoal.activations.Affine(shoal.activations.Tanh(), 1.3, -0.1), "proved"),
        (
            shoal.activations.GELU(),
            "holds at the measured values",
        ),  # what its rounding is, nobody says
    ],
    ids=lambda value: type(value).__name__,
)
def test_smooth_networks_are_certified_as_far_as_their_values_are_known(
    activation: shoal.Activation, status: str
) -> None:
    x, y = sphere(2, 0.01)
    net = shoal.build(
        shoal.DEQ(activation, 0.002, 0.2, parametrization="standard"),
        in_features=10,
        width=200,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    assert certificate.status == status
    keep_promises(net, x, y, certificate.gradient_descent, steps=3)


def test_several_outputs_and_the_parametrization_of_ling_2024() -> None:
    x, _ = sphere(3, 1.0)
    y = 0.05 * torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    deq = shoal.DEQ(shoal.activations.ReLU(), 0.002, 0.2)
    net = shoal.build(
        deq, in_features=10, width=800, out_features=2, readout_scale=0.0, dtype=torch.float64
    )
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    found = certificate.gradient_descent
    first = descend(net, x, y, found.step_size or 0)
    assert descend(net, x, y, found.step_size or 0) <= (found.rate or 0) * first


def test_a_trained_readout_alone_is_least_squares() -> None:
    x, y = sphere(4, 1.0)
    net = ling2023(200, weight_variance=0.05, trainable={"readout"})
    found = shoal.certify(net, x, y).gradient_descent
    assert found.status == "proved"
    with torch.no_grad():
        values = torch.linalg.svdvals(net.features(x)).square()
    assert found.step_size == pytest.approx(0.9 / float(values[0]), rel=1e-3)
    assert found.rate == pytest.approx((1 - 0.9 * float(values[-1] / values[0])) ** 2, rel=1e-2)
    first = [descend(net, x, y, found.step_size or 0) for _ in range(5)]
    assert all(b <= (found.rate or 0) * a for a, b in pairwise(first))


@pytest.mark.thorough("activation0")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "activation",
    [
        shoal.activations.Affine(shoal.activations.Tanh(), 1.3, -0.1),
        shoal.activations.Affine(shoal.activations.ReLU(), 1e-3, 1.0),
    ],
)
def test_rounding_of_later_steps_is_told(activation: shoal.Activation, dtype: torch.dtype) -> None:
    """One sample, and a rate without slack: soon the bound is below what a dtype resolves."""
    x, y = (t.to(dtype) for t in data(1, 10, norm=1.0, label=1.5e6))
    deq = shoal.DEQ(activation, 0.01, 0.2)
    options: dict[str, Any] = {"width": 8, "trainable": {"readout"}, "dtype": dtype}
    net = shoal.build(deq, in_features=10, **options)
    certificate = shoal.certify(net, x, y)
    found = certificate.gradient_descent
    assert found.status == "proved"
    assert found.rate == pytest.approx(0.01)
    left = found.promises.resolution or 0
    losses = [descend(net, x, y, found.step_size or 0) for _ in range(30)]
    bounds = [losses[0] * (found.rate or 0) ** k for k in range(30)]
    assert bounds[-1] < left
    for loss, bound in zip(losses, bounds, strict=True):
        assert math.sqrt(loss) <= math.sqrt(bound) + math.sqrt(left)
    assert 0 < left < 1e-7 * losses[0]
    assert f"Rounding may leave a loss of {left:.1g}." in certificate.explanation
    fresh = shoal.build(deq, in_features=10, **options)
    run = shoal.train(fresh, x, y, steps=30, certificate=certificate, monitor=1)
    assert run.violations == {}


def test_rates_that_rounding_hides_are_told() -> None:
    """Samples that are almost the same: the rate is so near one that single precision is no use."""
    x, y = (t.float() for t in data(2, 10, norm=1.0, label=1.0))
    deq = shoal.DEQ(shoal.activations.Affine(shoal.activations.ReLU(), 1e-3, 1.0), 0.01, 0.2)
    net = shoal.build(deq, in_features=10, width=64, trainable={"readout"}, dtype=torch.float32)
    certificate = shoal.certify(net, x, y)
    assert certificate.holds
    assert "Rounding, in the dtype of the network, may hide that." in certificate.explanation


@pytest.mark.thorough
def test_flow_and_descent_are_told_apart() -> None:
    x, y = sphere(2, 1.0)
    net = ling2023(1000)
    certificate = shoal.certify(net, x, y)
    assert certificate.gradient_flow.status == "proved"
    assert not certificate.holds
    assert "Gradient flow is (proved" in certificate.explanation
    rate = certificate.gradient_flow.rate or 0
    run = shoal.train(net, x, y, steps=400, step_size=0.005 / rate, monitor=False)
    for step, value in enumerate(run.losses.tolist()):  # short steps, nearly a flow
        assert value <= math.exp(-0.005 * step) * run.losses[0] * (1 + 1e-6)


@pytest.mark.parametrize("groups", [{"skip"}, {"readout"}, {"readout", "input"}, {"recurrent"}])
def test_what_is_trained_counts(groups: set[str]) -> None:
    x, y = data(2, 10, norm=1.0, label=0.01)
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=200,
        readout_scale=0.0,
        trainable=groups,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, x, y)
    if groups == {"recurrent"}:
        assert certificate.first_failure is not None
        assert certificate.first_failure.name == "readout"
    else:
        assert certificate.status == "proved"
        first = descend(net, x, y, certificate.step_size or 0)
        assert descend(net, x, y, certificate.step_size or 0) <= (certificate.rate or 0) * first


def test_labels_that_are_already_fitted_need_nothing() -> None:
    x, _ = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(100, readout_scale=0.0), x, torch.zeros(2).double())
    assert certificate.status == "proved"
