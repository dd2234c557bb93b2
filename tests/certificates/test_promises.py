"""Certificates against actual runs: what is promised is kept."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from certificates.networks import DOUBLE, data, implicit, inputs, keep_promises, ling2023, sphere
from shoal.certificates import plain

UNIT, _ = data(2, 10, norm=1.0, label=0.1)
LABELS = torch.tensor([0.1, -0.1], dtype=torch.float64)
A = shoal.activations


@pytest.mark.parametrize(
    ("width", "readout_scale", "label"), [(300, 0.0, 0.1), (500, 0.0, 1.0), (500, 0.2, 0.2)]
)
def test_a_proved_certificate_of_a_deq_is_kept(
    width: int, readout_scale: float, label: float
) -> None:
    x, y = sphere(2, label)
    net = ling2023(width, readout_scale=readout_scale)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    assert certificate.first_failure is None
    assert all(condition.margin >= 1 for condition in certificate.conditions)
    keep_promises(net, x, y, certificate.gradient_descent, steps=15)


def test_a_proved_certificate_of_an_implicit_network_is_kept() -> None:
    x, y = data(2, 10, norm=1.0, label=0.1)
    net = implicit(300)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=15)


@pytest.mark.thorough
def test_a_smooth_network_of_ordinary_size_is_certified() -> None:
    x, y = sphere(2, 1.0)
    deq = shoal.DEQ(A.Tanh(), 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=1000, seed=0, **DOUBLE)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=5)


@pytest.mark.thorough("Affine", "GELU", "Swish", "Softplus", "ELU")
@pytest.mark.parametrize(
    ("activation", "status"),
    [
        (A.Sigmoid(), "proved"),
        (A.Softplus(), "proved"),
        (A.Swish(), "proved"),
        (A.ELU(), "proved"),
        (A.Affine(A.Tanh(), 1.3, -0.1), "proved"),
        (A.GELU(), "holds at the measured values"),  # the rounding of erf is not specified
    ],
    ids=lambda value: type(value).__name__,
)
def test_smooth_networks_are_certified_as_far_as_their_values_are_known(
    activation: shoal.Activation, status: str
) -> None:
    x, y = sphere(2, 0.01)
    deq = shoal.DEQ(activation, 0.002, 0.2, parametrization="standard")
    net = shoal.build(deq, in_features=10, width=200, readout_scale=0.0, **DOUBLE)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == status
    keep_promises(net, x, y, certificate.gradient_descent, steps=3)


def test_several_outputs_and_the_parametrization_of_ling_2024() -> None:
    x, _ = sphere(3, 1.0)
    y = 0.05 * torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    options: Any = {"width": 800, "out_features": 2, "readout_scale": 0.0} | DOUBLE
    net = shoal.build(shoal.DEQ(A.ReLU(), 0.002, 0.2), in_features=10, **options)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    keep_promises(net, x, y, certificate.gradient_descent, steps=2)


def test_a_trained_readout_alone_is_least_squares() -> None:
    x, y = sphere(4, 1.0)
    net = ling2023(200, weight_variance=0.05, trainable={"readout"})
    found = shoal.certify(net, x, y).gradient_descent
    assert found.status == "proved"
    with torch.no_grad():
        values = torch.linalg.svdvals(net.features(x)).square()
    assert found.step_size == pytest.approx(0.9 / float(values[0]), rel=1e-3)
    assert found.rate == pytest.approx((1 - 0.9 * float(values[-1] / values[0])) ** 2, rel=1e-2)
    losses = [step.loss for step in plain.descend(net, x, y, found.step_size or 0, 5)]
    assert all(b <= (found.rate or 0) * a for a, b in pairwise(losses))


@pytest.mark.thorough("activation0")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "activation", [A.Affine(A.Tanh(), 1.3, -0.1), A.Affine(A.ReLU(), 1e-3, 1.0)]
)
def test_the_rounding_of_a_run_is_stated(activation: shoal.Activation, dtype: torch.dtype) -> None:
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
    run = shoal.train(net, x, y, steps=30, certificate=certificate, monitor=1)
    assert run.violations == {}
    bounds = [float(run.losses[0]) * (found.rate or 0) ** k for k in range(31)]
    assert bounds[-1] < left < 1e-7 * bounds[0]
    for loss, bound in zip(run.losses.tolist(), bounds, strict=True):
        assert math.sqrt(loss) <= math.sqrt(bound) + math.sqrt(left)
    assert f"Rounding may leave a loss of {left:.1g}." in certificate.explanation


def test_a_rate_that_rounding_hides_is_explained() -> None:
    """Samples that are almost the same: the rate is so near one that single precision is no use."""
    x, y = (t.float() for t in data(2, 10, norm=1.0, label=1.0))
    deq = shoal.DEQ(A.Affine(A.ReLU(), 1e-3, 1.0), 0.01, 0.2)
    net = shoal.build(deq, in_features=10, width=64, trainable={"readout"}, dtype=torch.float32)
    certificate = shoal.certify(net, x, y)
    assert certificate.holds
    assert "Rounding, in the dtype of the network, may hide that." in certificate.explanation


@pytest.mark.thorough
def test_gradient_flow_may_be_certified_where_descent_is_not() -> None:
    x, y = sphere(2, 1.0)
    net = ling2023(1000)
    certificate = shoal.certify(net, x, y)
    assert certificate.gradient_flow.status == "proved"
    assert not certificate.holds
    assert "Gradient flow is (proved" in certificate.explanation
    rate, size = certificate.gradient_flow.rate or 0, 1e-5
    run = plain.descend(net, x, y, size, 20)  # Euler's steps are so small that they are the flow
    assert size * float(torch.linalg.eigvalsh(run[0].ntk)[-1]) < 0.1
    for k, step in enumerate(run):
        assert step.loss <= math.exp(-rate * size * k) * run[0].loss * (1 + 1e-6)


@pytest.mark.parametrize("groups", [{"skip"}, {"readout"}, {"readout", "input"}, {"recurrent"}])
def test_trained_groups_count(groups: set[str]) -> None:
    x, y = data(2, 10, norm=1.0, label=0.01)
    net = implicit(200, trainable=groups)
    certificate = shoal.certify(net, x, y)
    if groups == {"recurrent"}:
        assert certificate.first_failure is not None
        assert certificate.first_failure.name == "readout"
    else:
        assert certificate.status == "proved"
        keep_promises(net, x, y, certificate.gradient_descent, steps=2)


def test_labels_that_are_already_fitted_need_nothing() -> None:
    x, _ = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(100, readout_scale=0.0), x, torch.zeros(2).double())
    assert certificate.status == "proved"


def near(net: Any, x: Tensor) -> Tensor:
    """Labels near the initial outputs."""
    return net(x).detach()[:, 0] + LABELS


def trio(index: int, width: int = 512) -> tuple[Any, Tensor]:
    """One of the three architectures of Du 2018, with inputs."""
    options: Any = {"width": width, "seed": 1} | DOUBLE
    if index == 2:
        convolutional = shoal.ConvResNet(A.Tanh(), 2, residual_scale=0.2)
        x = inputs("convolutional", samples=2, seed=4)
        return shoal.build(convolutional, in_features=2, pixel_axes=1, **options), x
    separation = shoal.kernels.pair_eigenvalue(UNIT)
    architecture: shoal.Architecture = (
        shoal.ResNet(A.Softplus(), 3, residual_scale=0.5 * separation**1.5)
        if index
        else shoal.FullyConnected.du2018(A.Tanh(), 2)
    )
    return shoal.build(architecture, in_features=10, **options), UNIT


@pytest.mark.thorough("1", "2")
@pytest.mark.parametrize("index", range(3))
def test_a_proved_certificate_of_an_explicit_network_is_kept(index: int) -> None:
    net, x = trio(index)
    y = near(net, x)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    again, _ = trio(index)
    keep_promises(again, x, y, certificate.gradient_descent, steps=3)
    run = shoal.train(net, x, y, steps=60, certificate=certificate, monitor=5)
    assert run.step_size == certificate.step_size
    assert all(run.kept.values())
    assert {f"distance.layer{h}" for h in (1, 2)} | {"loss"} <= set(run.kept)
    assert float(run.losses[-1]) < (certificate.rate or 0) ** 50 * float(run.losses[0]) + 1e-20


@pytest.mark.thorough("1", "2")
@pytest.mark.parametrize("index", range(3))
def test_a_step_that_is_too_large_is_refused_and_diverges(index: int) -> None:
    net, x = trio(index)
    y = near(net, x)
    step = shoal.certify(net, x, y).step_size or 0
    refusal = shoal.certify(net, x, y, step_size=300 * step)
    assert refusal.first_failure is not None
    assert refusal.first_failure.name == "step size"
    first, second = plain.descend(net, x, y, 300 * step, 2)
    assert second.loss > first.loss


def test_an_ordinary_network_with_ordinary_labels() -> None:
    """One hidden layer of Du 2018 at initialization, labels of one: nothing is made small."""
    layer = shoal.FullyConnected.du2018(A.Tanh(), 1)
    net = shoal.build(layer, in_features=10, width=2048, seed=0, **DOUBLE)
    assert shoal.certify(net, UNIT, 10 * LABELS).status == "proved"
    assert float((net(UNIT).detach()[:, 0] - 10 * LABELS).norm()) > 1


@pytest.mark.parametrize("trainable", [{"layer1"}, {"layer2"}, {"layer1", "layer2"}])
def test_any_layers_can_be_trained(trainable: set[str]) -> None:
    architecture = shoal.FullyConnected.du2018(A.Tanh(), 2)
    net = shoal.build(
        architecture, in_features=10, width=512, trainable=trainable, seed=1, **DOUBLE
    )
    certificate = shoal.certify(net, UNIT, near(net, UNIT))
    assert certificate.status == "proved"
    least = float(torch.linalg.eigvalsh(shoal.empirical_kernel(net, UNIT).ntk.detach())[0])
    assert certificate.measurements["least eigenvalue of the NTK"] == pytest.approx(least)


def test_a_trained_readout_with_several_outputs() -> None:
    options: Any = {"width": 600, "out_features": 2, "readout_scale": 0.0} | DOUBLE
    net = shoal.build(shoal.FullyConnected((A.Tanh(),)), in_features=10, **options)
    y = 0.3 * torch.eye(2, dtype=torch.float64)
    certificate = shoal.certify(net, UNIT, y)
    assert certificate.status == "proved"
    keep_promises(net, UNIT, y, certificate.gradient_descent, steps=20)


def test_an_activation_without_proved_values_holds_as_measured() -> None:
    layer = shoal.FullyConnected.du2018(A.Erf(), 1)
    net = shoal.build(layer, in_features=10, width=512, **DOUBLE)
    assert shoal.certify(net, UNIT, near(net, UNIT)).status == "holds at the measured values"
