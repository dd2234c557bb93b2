"""The lemmas behind the theorems, tried on networks that move within the radii."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from certificates.networks import DOUBLE, EXPLICIT, data, explicit, implicit, inputs
from shoal.certificates import plain
from shoal.certificates.argument import Growth
from shoal.certificates.certify import measure
from shoal.certificates.explicit import LayerBounds

IN, SAMPLES, WIDTH, ROUND_UP = 5, 4, 60, 1 + 1e-9


def deq(activation: shoal.Activation, parametrization: str = "standard") -> shoal.DEQ:
    return shoal.DEQ(activation, 0.05, 0.5, parametrization=parametrization)  # type: ignore[arg-type]


LOOPS = {
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


def network(name: str, outputs: int = 1, seed: int = 0, **options: Any) -> Any:
    options |= {"in_features": IN, "width": WIDTH, "out_features": outputs, "seed": seed}
    return shoal.build(LOOPS[name], **options, **DOUBLE)


def scales(net: Any) -> dict[str, float]:
    """The factors between parameters and weights, written down again."""
    if isinstance(net.architecture, shoal.DEQ):
        return dict(net.scales)
    recurrent = net.architecture.gamma / math.sqrt(WIDTH)
    return {"readout": 1.0, "skip": 1.0, "recurrent": recurrent, "input": 1.0}


def features(net: Any, x: Tensor) -> Tensor:
    """The features that readouts see, one column for each sample, in the scale of the weights."""
    with torch.no_grad():
        if isinstance(net.architecture, shoal.DEQ):
            return (net.features(x) / net.feature_scale).T
        return torch.cat([net.features(x), net.inject(x)], 1).T


def move_loop(net: Any, sizes: dict[str, float], generator: torch.Generator, x: Tensor) -> None:
    """Move the weights by given distances: at random, or towards where it hurts."""
    with torch.no_grad():
        for name, p in net.groups.items():
            direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if name == "recurrent" and torch.rand(1, generator=generator) < 0.5:
                z = net.features(x)[0]  # moves the preactivations of a sample most
                direction = torch.randn(WIDTH, 1, generator=generator).double() @ z[None]
            p += direction / direction.norm() * sizes[name] / scales(net)[name]


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", LOOPS)
def test_every_bound_of_an_equilibrium_holds_within_the_radii(name: str, outputs: int) -> None:
    x, _ = data(SAMPLES, IN, norm=1.0 if name == "implicit" else 2.0, label=1.0)
    generator = torch.Generator().manual_seed(7)
    crossed = checked = 0
    for trial in range(9):
        net = network(name, outputs, seed=trial)
        y = torch.randn(SAMPLES, outputs, generator=generator, dtype=torch.float64)
        bounds = measure(net, x, y)
        start = {g: p.detach().clone() for g, p in net.groups.items()}
        reach = 10.0 ** (-(trial % 4)) * 0.03 * math.sqrt(WIDTH if name == "implicit" else 1)
        shrink = {"recurrent": 1.0 if name != "implicit" else 0.1}
        move_loop(net, {g: reach * shrink.get(g, 1.0) for g in start}, generator, x)
        kernel = shoal.empirical_kernel(net, x).ntk.detach()
        size = 10.0 ** (-(trial % 3)) * 0.5 / float(torch.linalg.eigvalsh(kernel)[-1])
        pattern = _pattern(net, x)
        step = plain.step(net, x, y, size, start=start)
        crossed += int((pattern != _pattern(net, x)).sum())
        gone = {g: float((p.detach() - start[g]).norm()) for g, p in net.groups.items()}
        radii = {
            g: Fraction(1.001 * max(gone[g] * scales(net)[g], reach * shrink.get(g, 1.0)))
            for g in start
        }
        growth = bounds.within(radii, Fraction(size))
        if not growth.blocked:
            checked += 1
            _check(growth, net, x, step, size)
    assert checked >= 5
    assert crossed or not net.layer.activation.kinks


def _check(growth: Growth, net: Any, x: Tensor, step: plain.DescentStep, size: float) -> None:
    error, values = float(step.error.norm()), torch.linalg.eigvalsh(step.ntk)
    assert float(growth.floor) <= float(values[0]) * ROUND_UP
    assert float(values[-1]) <= float(growth.largest) * ROUND_UP
    kept = float(torch.linalg.svdvals(features(net, x))[-1])
    assert float(growth.start - growth.drift) <= kept * ROUND_UP
    assert net.well_posedness().gain_lower <= float(growth.gain or 0) * ROUND_UP
    for group, gradient in step.gradients.items():
        assert gradient * scales(net)[group] <= float(growth.travel[group]) * error * ROUND_UP
    assert growth.curvature is not None
    second = size**2 * float(growth.curvature) * error**2
    first = size * float(growth.crossing) * error
    assert float(step.remainder.norm()) <= (first + second) * ROUND_UP + 1e-12
    others = math.hypot(*(v for g, v in step.gradients.items() if g not in ("readout", "skip")))
    turned = size * math.sqrt(growth.turn_square) * error * others
    assert float(step.error @ step.remainder) <= (turned + second * error) * ROUND_UP + 1e-12


def _pattern(net: Any, x: Tensor) -> Tensor:
    """On which side of each kink the units of the recurrent layer are."""
    with torch.no_grad():
        z = net.features(x) / net.feature_scale
        inner = net.layer.preactivation(z, net.inject(x), net.recurrent)
        kinks = [k.location for k in net.layer.activation.kinks] or [0.0]
        return (inner[..., None] > torch.tensor(kinks, dtype=torch.float64)).sum(-1)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_the_bounds_of_an_equilibrium_are_tight(name: str) -> None:
    """With small radii, the norms in the bounds are those of the network within a few percent."""
    x, _ = data(SAMPLES, IN, norm=2.0, label=1.0)
    net = network(name)
    bounds = measure(net, x, torch.zeros(SAMPLES, 1).double())
    growth = bounds.within(dict.fromkeys(bounds.groups, Fraction(1, 10**6)), Fraction(1, 10**9))
    true = torch.linalg.svdvals(features(net, x)).square()
    assert 0.99 * float(true[-1]) <= float(growth.floor) <= float(true[-1])
    kernel = torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk.detach())
    assert float(kernel[-1]) <= float(growth.largest) <= 2.5 * float(kernel[-1])


def test_an_activation_of_unknown_curvature_has_no_descent() -> None:
    class Mine(shoal.activations.Activation):
        def function(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(x)

    x, y = data(2, IN, norm=2.0, label=0.1)
    net = shoal.build(deq(Mine()), in_features=IN, width=50, dtype=torch.float64)
    certificate = shoal.certify(net, x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "remainder"
    assert "activation" in certificate.first_failure.remedy


def test_the_bound_of_crossing_units_is_reached() -> None:
    """One sample, units just above the kink, and a step that takes all but one of them across."""
    x = torch.ones(1, IN, dtype=torch.float64)
    y, size = torch.full((1, 1), -2.0, dtype=torch.float64), 1e-4
    net = network("relu", trainable={"readout", "input"})
    with torch.no_grad():
        net.recurrent.zero_()
        net.input.copy_(torch.full((WIDTH, IN), 1e-9 / IN))
        net.input[0] = 10.0 / IN  # keeps the rank, and is not read
        net.readout.abs_()[:, 0] = 0.0
    bounds = measure(net, x, y)
    step = plain.step(net, x, y, size)
    assert int((net.features(x) > 0).sum()) == 1
    error, left = float(step.error), float(step.remainder)
    radii = {g: Fraction(1.001 * size * norm) for g, norm in step.gradients.items()}
    growth = bounds.within({"recurrent": Fraction(0), **radii}, Fraction(size))
    assert growth.curvature is not None
    first = size * float(growth.crossing) * error
    assert 0.9 * first <= left <= first + size**2 * float(growth.curvature) * error**2
    turned = size * math.sqrt(growth.turn_square) * error * step.gradients["input"]
    assert 0.9 * turned <= left * error


def test_the_bound_of_the_curvature_is_nearly_reached() -> None:
    """One unit, where nothing is lost to the triangle inequality."""
    x, y = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), -2.0, dtype=torch.float64)
    single = shoal.DEQ(shoal.activations.Tanh(), 0.0, 1.0)
    net = shoal.build(single, in_features=1, width=1, trainable={"input"}, **DOUBLE)
    with torch.no_grad():
        net.input.fill_(0.5)
        net.readout.fill_(1.0)
    bounds, size = measure(net, x, y), 0.02
    step = plain.step(net, x, y, size)
    radii = dict.fromkeys(("recurrent", "readout"), Fraction(0))
    radii["input"] = Fraction(1.0001 * size * step.gradients["input"])
    growth = bounds.within(radii, Fraction(size))
    assert growth.curvature is not None
    bound = size**2 * float(growth.curvature) * float(step.error) ** 2
    assert 0.4 * bound <= float(step.remainder.norm()) <= bound


def layer_inputs(net: Any, x: Tensor) -> dict[str, Tensor]:
    """What each group of weights sees, of shape (samples, pixels, ...)."""
    return {name: one.input.detach() for name, one in net.trace(x).maps.items()}


def move(net: Any, x: Tensor, reach: float, generator: torch.Generator) -> None:
    """Move each group by a distance: at random, or where it changes outputs or gradients most."""
    steepest = plain.jacobians(net, x)
    for name, p in plain.trained(net).items():
        kind = int(torch.randint(3, (1,), generator=generator))
        direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if kind == 1:
            mix = torch.randn(len(steepest[name]), generator=generator, dtype=torch.float64)
            direction = (mix @ steepest[name]).reshape(p.shape)
        elif kind == 2:  # of rank one along the input of a sample: moves its preactivations most
            row = steepest[name][0].reshape(p.shape).flatten(1)
            _, _, right = torch.linalg.svd(row, full_matrices=False)
            signs = torch.randn(len(row), generator=generator, dtype=torch.float64)
            direction = (signs[:, None] * right[:1]).reshape(p.shape)
        with torch.no_grad():
            p += reach * direction / direction.norm()


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", EXPLICIT)
def test_every_bound_of_an_explicit_network_holds_within_the_radii(name: str, outputs: int) -> None:
    generator, x = torch.Generator().manual_seed(3), inputs(name)
    for trial in range(6):
        net = explicit(name, outputs, seed=trial)
        y = torch.randn(len(x), outputs, generator=generator, dtype=torch.float64)
        bounds: Any = measure(net, x, y)
        start, first = plain.jacobians(net, x), layer_inputs(net, x)
        reach = 10.0 ** -(trial % 4)
        move(net, x, reach, generator)
        radii = dict.fromkeys(bounds.groups, 1.001 * reach)
        ball = LayerBounds(bounds, radii)
        moved, seen = plain.jacobians(net, x), layer_inputs(net, x)
        for group, matrix in moved.items():
            change = float(torch.linalg.matrix_norm(matrix - start[group], 2))
            assert change <= ball.drifts[group] * ROUND_UP
            size = float(torch.linalg.matrix_norm(matrix, 2))
            assert size <= ball.travel[group] * ROUND_UP
        for one, (below, _) in zip(bounds.layers, ball.moves[:-1], strict=True):
            change_of = (seen[one.layer.name] - first[one.layer.name]).flatten(1).norm(dim=1)
            assert bool((change_of <= one.layer.reach * below * ROUND_UP + 1e-13).all())
        whole = torch.linalg.svdvals(torch.cat(list(start.values()), 1))
        assert 0.999999 * float(whole[-1]) <= float(bounds.start) <= float(whole[-1]) * ROUND_UP
        growth = bounds.within({g: Fraction(r) for g, r in radii.items()}, Fraction(0))
        values = torch.linalg.svdvals(torch.cat(list(moved.values()), 1)) ** 2
        if not growth.blocked:
            assert float(growth.floor) <= float(values[-1]) * ROUND_UP
            assert float(values[0]) <= float(growth.largest) * ROUND_UP


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", EXPLICIT)
def test_a_step_of_an_explicit_network_is_linear_but_for_the_remainder(
    name: str, outputs: int
) -> None:
    generator, x = torch.Generator().manual_seed(5), inputs(name)
    tightest = math.inf
    for trial in range(6):
        distance = 0.1 if trial > 2 else 0.0
        net = explicit(name, outputs, seed=trial)
        noise = torch.randn(len(x), outputs, generator=generator, dtype=torch.float64)
        y = net(x).detach() + 100.0 ** -(trial % 3) * noise
        bounds: Any = measure(net, x, y)
        origin = {g: p.detach().clone() for g, p in net.groups.items()}
        move(net, x, distance, generator)
        kernel = shoal.empirical_kernel(net, x).ntk.detach()
        size = 0.5 / float(torch.linalg.eigvalsh(kernel)[-1])
        step = plain.step(net, x, y, size)
        reach = {g: float((p.detach() - origin[g]).norm()) for g, p in net.groups.items()}
        ball = LayerBounds(bounds, {g: 1.001 * max(r, distance) for g, r in reach.items()})
        left, bound = float(step.remainder.norm()), 2 * size**2 * ball.curvature * step.loss
        assert left <= bound * ROUND_UP
        tightest = min(tightest, bound / left)
    assert tightest < 1e4  # no bound is true for being infinite


@pytest.mark.parametrize("name", EXPLICIT)
def test_the_bounds_of_an_explicit_network_are_tight(name: str) -> None:
    """Gradients come near their bounds if weights go where they move most.

    Bounds of patches are loose: as if all pixels were in all patches, with the same weights.
    """
    x, net = inputs(name), explicit(name)
    bounds: Any = measure(net, x, torch.zeros(len(x), 1).double())
    reach, largest = 1e-4, 0.0
    ball = LayerBounds(bounds, dict.fromkeys(bounds.groups, reach))
    start = plain.jacobians(net, x)
    generator = torch.Generator().manual_seed(1)
    origin = {g: p.detach().clone() for g, p in net.groups.items()}
    for _ in range(12):
        with torch.no_grad():
            for g, p in net.groups.items():
                p.copy_(origin[g])
        move(net, x, reach, generator)
        changes = [m - start[g] for g, m in plain.jacobians(net, x).items()]
        largest = max(largest, float(torch.linalg.matrix_norm(torch.cat(changes, 1), 2)))
    assert largest <= ball.drift <= (300 if x.dim() > 2 else 30) * largest


@pytest.mark.parametrize("name", EXPLICIT)
def test_rounding_is_within_its_bounds(name: str) -> None:
    """The computed features, against those in extended precision."""
    x, net = inputs(name), explicit(name, width=12)
    bounds: Any = measure(net, x, torch.zeros(len(x), 1).double())
    nowhere = LayerBounds(bounds, {}).pooled
    error = np.linalg.norm(
        (bounds.features.numpy() - _extended_features(net, x)).astype(np.float64), axis=1
    )
    assert (error <= nowhere.numpy()).all()
    assert float(nowhere.max()) < 1e-8


def _extended_features(net: Any, x: Tensor) -> Any:
    """What the readout sees, by NumPy in extended precision."""
    assert np.finfo(np.longdouble).eps < 1e-18
    architecture, width = net.architecture, net.spec.width
    seen = layer_inputs(net, x)["layer1"].numpy().astype(np.longdouble)
    below = None
    for layer, phi in enumerate(architecture.activations, 1):
        weight = net.get_parameter(f"layer{layer}").detach().flatten(1).numpy()
        value = _extended(phi, seen @ weight.astype(np.longdouble).T)
        if below is not None and hasattr(architecture, "residual_scale"):
            factor = architecture.residual_scale / (architecture.depth * math.sqrt(width))
            below = below + np.longdouble(factor) * value
        else:
            unscaled = getattr(architecture, "normalized", True) is False
            constant = 1.0 if unscaled else float(1 / shoal.gaussian.moments(phi, 1.0).square)
            below = np.longdouble(math.sqrt(constant / width)) * value
        seen = below
        if hasattr(architecture, "patch_size"):  # patches only copy numbers: two halves do
            high = below.astype(np.float64)
            low = (below - high).astype(np.float64)
            seen = sum(
                net.patches(
                    torch.from_numpy(part).transpose(1, 2).reshape(len(x), width, *x.shape[2:])
                )
                .numpy()
                .astype(np.longdouble)
                for part in (high, low)
            )
    assert below is not None
    return below.sum(1)


def _extended(phi: shoal.Activation, x: Any) -> Any:
    if isinstance(phi, shoal.activations.Affine):
        return np.longdouble(phi.scale) * _extended(phi.activation, x) + np.longdouble(phi.shift)
    if isinstance(phi, shoal.activations.Tanh):
        return np.tanh(x)
    if isinstance(phi, shoal.activations.ELU):
        return np.where(x > 0, x, np.longdouble(phi.alpha) * np.expm1(x))
    if isinstance(phi, shoal.activations.Swish):
        return x / (1 + np.exp(-x))
    if isinstance(phi, shoal.activations.Sigmoid):
        return 1 / (1 + np.exp(-x))
    return np.logaddexp(x, np.longdouble(0))


@pytest.mark.parametrize("net", [explicit("tanh"), implicit(20)], ids=["explicit", "implicit"])
def test_brute_force_agrees_with_autograd(net: Any) -> None:
    """The oracle itself: its NTK is that of PyTorch, its gradient that of the loss."""
    x = inputs("tanh") if net.spec.in_features == 5 else data(3, 10, norm=1.0, label=1.0)[0]
    y = torch.ones(len(x), 1, dtype=torch.float64)
    kernel = shoal.empirical_kernel(net, x).ntk.detach()
    loss = (net(x) - y).square().sum() / 2
    parameters = plain.trained(net)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    step = plain.step(net, x, y, 1e-6)
    torch.testing.assert_close(step.ntk, kernel)
    assert step.loss == pytest.approx(float(loss.detach()))
    for group, gradient in zip(parameters, gradients, strict=True):
        assert step.gradients[group] == pytest.approx(float(gradient.norm()))
