"""The lemmas behind the sharper theorem, tried on networks that move within the radii."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from certificates.networks import data, loss
from shoal.certificates.equilibrium_networks import EquilibriumGeometry, measure_equilibrium
from shoal.certificates.growth import Geometry, Growth

IN, SAMPLES, WIDTH = 5, 4, 60


def deq(activation: shoal.Activation, parametrization: str = "standard") -> shoal.DEQ:
    return shoal.DEQ(activation, 0.05, 0.5, parametrization=parametrization)  # type: ignore[arg-type]


ARCHITECTURES = {
    "relu": deq(shoal.activations.ReLU()),
    "relu, ntk": deq(shoal.activations.ReLU(), "ntk"),
    "leaky": deq(shoal.activations.LeakyReLU(0.2)),
    "hard tanh": deq(shoal.activations.HardTanh()),
    "tanh": deq(shoal.activations.Tanh()),
    "erf, ntk": deq(shoal.activations.Erf(), "ntk"),
    "gelu": deq(shoal.activations.GELU()),
    "elu": deq(shoal.activations.ELU(0.5)),
    "implicit": shoal.ImplicitNetwork(0.2),
}


def network(name: str, outputs: int = 1, seed: int = 0) -> Any:
    return shoal.build(
        ARCHITECTURES[name],
        in_features=IN,
        width=WIDTH,
        out_features=outputs,
        seed=seed,
        dtype=torch.float64,
    )


def scales(net: Any) -> dict[str, float]:
    """By what parameters are multiplied to make weights, written down again."""
    if isinstance(net.architecture, shoal.DEQ):
        return dict(net.scales)
    recurrent = net.architecture.gamma / math.sqrt(WIDTH)
    return {"readout": 1.0, "skip": 1.0, "recurrent": recurrent, "input": 1.0}


def geometry(net: Any, x: Tensor, y: Tensor) -> Geometry:
    scale = None if isinstance(net.architecture, shoal.DEQ) else 1 / math.sqrt(WIDTH)
    labels = y.reshape(len(x), -1)
    return EquilibriumGeometry(
        measure_equilibrium(net, x, labels, scales(net), rectified_scale=scale)
    )


def features(net: Any, x: Tensor) -> Tensor:
    """The features that readouts see, one column for each sample, in the scale of the weights."""
    with torch.no_grad():
        if isinstance(net.architecture, shoal.DEQ):
            return (net.features(x) / net.feature_scale).T
        return torch.cat([net.features(x), net.inject(x)], 1).T


def move(net: Any, sizes: dict[str, float], generator: torch.Generator, x: Tensor) -> None:
    """Move the weights by given distances: at random, or towards where it hurts."""
    with torch.no_grad():
        for name, p in net.groups.items():
            direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if name == "recurrent" and torch.rand(1, generator=generator) < 0.5:
                z = net.features(x)[0]  # moves the preactivations of a sample most
                direction = torch.randn(WIDTH, 1, generator=generator).double() @ z[None]
            p += direction / direction.norm() * sizes[name] / scales(net)[name]


def step(
    net: Any, x: Tensor, y: Tensor, size: float
) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """The errors before and after a step, the NTK and the gradients before it."""
    rows = []
    prediction = net(x).reshape(-1)
    parameters = list(net.groups.values())
    for value in prediction:
        gradients = torch.autograd.grad(value, parameters, retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in gradients]))
    jacobian = torch.stack(rows)
    kernel = jacobian @ jacobian.T
    before = (prediction - y.reshape(-1)).detach()
    gradients = torch.autograd.grad(loss(net, x, y), parameters)
    named = dict(zip(net.groups, gradients, strict=True))
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p -= size * g
        after = net(x).reshape(-1) - y.reshape(-1)
    return before, after, kernel, named


def distances(net: Any, start: dict[str, Tensor]) -> dict[str, float]:
    return {
        g: float((p.detach() - start[g]).norm()) * scales(net)[g] for g, p in net.groups.items()
    }


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_bound_holds_within_the_radii(name: str, outputs: int) -> None:
    x, _ = data(SAMPLES, IN, norm=1.0 if name == "implicit" else 2.0, label=1.0)
    generator = torch.Generator().manual_seed(7)
    crossed = checked = 0
    for trial in range(9):
        net = network(name, outputs, seed=trial)
        y = torch.randn(SAMPLES, outputs, generator=generator, dtype=torch.float64)
        bounds = geometry(net, x, y)
        start = {g: p.detach().clone() for g, p in net.groups.items()}
        reach = 10.0 ** (-(trial % 4)) * 0.03 * math.sqrt(WIDTH if name == "implicit" else 1)
        shrink = {"recurrent": 1.0 if name != "implicit" else 0.1}
        move(net, {g: reach * shrink.get(g, 1.0) for g in start}, generator, x)
        size = 10.0 ** (-(trial % 3)) * 0.5 / float(_largest(net, x))
        pattern = _pattern(net, x)
        before, after, kernel, gradients = step(net, x, y, size)
        crossed += int((pattern != _pattern(net, x)).sum())
        gone = distances(net, start)
        radii = {g: Fraction(1.001 * max(gone[g], reach * shrink.get(g, 1.0))) for g in start}
        growth = bounds.within(radii, Fraction(size))
        if not isinstance(growth, Growth):
            continue
        checked += 1
        _check(growth, net, x, before, after, kernel, gradients, size)
    assert checked >= 5
    assert crossed or not net.layer.activation.kinks


def _check(
    growth: Growth,
    net: Any,
    x: Tensor,
    before: Tensor,
    after: Tensor,
    kernel: Tensor,
    gradients: dict[str, Tensor],
    size: float,
) -> None:
    error, round_up = float(before.norm()), 1 + 1e-9
    values = torch.linalg.eigvalsh(kernel)
    assert float(growth.floor) <= float(values[0]) * round_up
    assert float(values[-1]) <= float(growth.largest) * round_up
    assert math.isclose(float(growth.root) ** 2, float(growth.floor))
    kept = float(torch.linalg.svdvals(features(net, x))[-1])
    assert float(growth.start - growth.drift) <= kept * round_up
    assert net.well_posedness().gain_lower <= float(growth.gain) * round_up
    for group, gradient in gradients.items():
        moved = float(gradient.norm()) * scales(net)[group]
        assert moved <= float(growth.travel[group]) * error * round_up
    assert growth.curvature is not None
    rest = after - before + size * kernel @ before
    second = size**2 * float(growth.curvature) * error**2
    assert float(rest.norm()) <= (size * float(growth.crossing) * error + second) * round_up + 1e-12
    others = [g.square().sum() for name, g in gradients.items() if name not in ("readout", "skip")]
    turned = size * math.sqrt(growth.turn_square) * error * math.sqrt(float(sum(others)))
    assert float(before @ rest) <= (turned + second * error) * round_up + 1e-12


def _largest(net: Any, x: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk.detach())[-1]


def _pattern(net: Any, x: Tensor) -> Tensor:
    """On which side of each kink the units of the recurrent layer are."""
    with torch.no_grad():
        z = net.features(x) / net.feature_scale
        inner = net.layer.preactivation(z, net.inject(x), net.recurrent)
        kinks = [k.location for k in net.layer.activation.kinks] or [0.0]
        return (inner[..., None] > torch.tensor(kinks, dtype=torch.float64)).sum(-1)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_the_bounds_are_not_idle(name: str) -> None:
    """With small radii, the norms in the bounds are those of the network within a few percent."""
    x, _ = data(SAMPLES, IN, norm=2.0, label=1.0)
    net = network(name)
    bounds = geometry(net, x, torch.zeros(SAMPLES, 1).double())
    growth = bounds.within(dict.fromkeys(bounds.groups, Fraction(1, 10**6)), Fraction(1, 10**9))
    assert isinstance(growth, Growth)
    true = torch.linalg.eigvalsh(features(net, x).T @ features(net, x))
    assert 0.99 * float(true[0]) <= float(growth.floor) <= float(true[0])
    kernel = torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk.detach())
    assert float(kernel[-1]) <= float(growth.largest) <= 2.5 * float(kernel[-1])


def test_an_activation_of_unknown_curvature_has_no_descent() -> None:
    class Mine(shoal.activations.Tanh):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

    x, y = data(2, IN, norm=2.0, label=0.1)
    net = shoal.build(deq(Mine()), in_features=IN, width=50, dtype=torch.float64)
    certificate = shoal.certify(net, x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "remainder"
    assert "activation" in certificate.first_failure.remedy
    assert certificate.gradient_flow.holds or certificate.gradient_flow.first_failure is not None


def test_the_bound_of_crossing_units_is_reached() -> None:
    """One sample, units just above the kink, and a step that takes all but one of them across."""
    x = torch.ones(1, IN, dtype=torch.float64)
    y = torch.full((1, 1), -2.0, dtype=torch.float64)
    net = shoal.build(
        deq(shoal.activations.ReLU()),
        in_features=IN,
        width=WIDTH,
        trainable={"readout", "input"},
        dtype=torch.float64,
    )
    with torch.no_grad():
        net.recurrent.zero_()
        net.input.copy_(torch.full((WIDTH, IN), 1e-9 / IN))
        net.input[0] = 10.0 / IN  # keeps the rank, and is not read
        net.readout.abs_()[:, 0] = 0.0
    bounds, size = geometry(net, x, y), 1e-4
    value = net(x)
    trained = [net.readout, net.input]
    slopes = torch.autograd.grad(value.sum(), trained, retain_graph=True)
    gradients = torch.autograd.grad((value - y).square().sum() / 2, trained)
    with torch.no_grad():
        for p, g in zip(trained, gradients, strict=True):
            p -= size * g
        assert int((net.features(x) > 0).sum()) == 1
        kernel = sum(float(slope.square().sum()) for slope in slopes)
        error = float((value - y).detach())
        rest = float(net(x)) - float(value.detach()) + size * kernel * error
    readout, inputs = (Fraction(1.001 * size * float(g.norm())) for g in gradients)
    growth = bounds.within(
        {"recurrent": Fraction(0), "readout": readout, "input": inputs}, Fraction(size)
    )
    assert isinstance(growth, Growth)
    first = size * float(growth.crossing) * error
    assert growth.curvature is not None
    assert 0.9 * first <= rest <= first + size**2 * float(growth.curvature) * error**2
    turned = size * math.sqrt(growth.turn_square) * error * float(gradients[1].norm())
    assert 0.9 * turned <= rest * error


def test_the_bound_of_the_curvature_is_nearly_reached() -> None:
    """One unit, where nothing is lost to the triangle inequality."""
    x = torch.ones(1, 1, dtype=torch.float64)
    net = shoal.build(
        shoal.DEQ(shoal.activations.Tanh(), 0.0, 1.0),
        in_features=1,
        width=1,
        trainable={"input"},
        dtype=torch.float64,
    )
    with torch.no_grad():
        net.input.fill_(0.5)
        net.readout.fill_(1.0)
    y = torch.full((1, 1), -2.0, dtype=torch.float64)
    bounds = geometry(net, x, y)
    size = 0.02
    value = net(x)
    (gradient,) = torch.autograd.grad((value - y).square().sum() / 2, [net.input])
    (slope,) = torch.autograd.grad(net(x).sum(), [net.input])
    with torch.no_grad():
        net.input -= size * gradient
        rest = float((net(x) - value + size * slope.square() * (value - y)).abs())
    moved = size * float(gradient.abs()) * 1.0001
    growth = bounds.within(
        {"recurrent": Fraction(0), "readout": Fraction(0), "input": Fraction(moved)}, Fraction(size)
    )
    assert isinstance(growth, Growth)
    assert growth.curvature is not None
    bound = size**2 * float(growth.curvature) * float((value - y).detach()) ** 2
    assert 0.4 * bound <= rest <= bound
