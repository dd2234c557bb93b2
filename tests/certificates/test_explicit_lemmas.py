"""The lemmas about explicit networks, tried on networks that move within the radii."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import shoal
from certificates.explicit_networks import ARCHITECTURES, inputs, jacobians, move, network
from shoal.certificates.explicit import measure_explicit
from shoal.certificates.growth import Growth
from shoal.certificates.layers import ExplicitGeometry, LayerBounds

ROUND_UP = 1 + 1e-9


def layer_inputs(net: Any, x: Tensor) -> dict[str, Tensor]:
    """What each group of weights sees, of shape (samples, pixels, ...)."""
    return {name: one.input.detach() for name, one in net.trace(x).maps.items()}


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_bound_holds_within_the_radii(name: str, outputs: int) -> None:
    generator, x = torch.Generator().manual_seed(3), inputs(name)
    for trial in range(6):
        net = network(name, outputs, seed=trial)
        y = torch.randn(len(x), outputs, generator=generator, dtype=torch.float64)
        geometry = ExplicitGeometry(measure_explicit(net, x, y))
        start, first = jacobians(net, x), layer_inputs(net, x)
        reach = 10.0 ** -(trial % 4)
        move(net, x, reach, generator)
        radii = dict.fromkeys(geometry.groups, 1.001 * reach)
        ball = LayerBounds(geometry.measured, radii, geometry.norms)
        moved, seen = jacobians(net, x), layer_inputs(net, x)
        for group, matrix in moved.items():
            change = float(torch.linalg.matrix_norm(matrix - start[group], 2))
            assert change <= ball.drifts[group] * ROUND_UP
            size = float(torch.linalg.matrix_norm(matrix, 2))
            assert size <= ball.travel[group] * ROUND_UP
        for layer, (below, _) in zip(geometry.measured.layers, ball.moves[:-1], strict=True):
            change_of = (seen[layer.name] - first[layer.name]).flatten(1).norm(dim=1)
            assert bool((change_of <= layer.reach * below * ROUND_UP + 1e-13).all())
        _check_rank(geometry, radii, start, moved)


def _check_rank(
    geometry: ExplicitGeometry,
    radii: dict[str, float],
    start: dict[str, Tensor],
    moved: dict[str, Tensor],
) -> None:
    whole = torch.linalg.svdvals(torch.cat(list(start.values()), 1))
    assert 0.999999 * float(whole[-1]) <= float(geometry.start) <= float(whole[-1]) * ROUND_UP
    growth = geometry.within({g: Fraction(r) for g, r in radii.items()}, Fraction(0))
    values = torch.linalg.svdvals(torch.cat(list(moved.values()), 1)) ** 2
    if isinstance(growth, Growth):
        assert float(growth.floor) <= float(values[-1]) * ROUND_UP
        assert float(values[0]) <= float(growth.largest) * ROUND_UP


@pytest.mark.thorough("-2]")
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_step_is_linear_but_for_the_remainder(name: str, outputs: int) -> None:
    generator, x = torch.Generator().manual_seed(5), inputs(name)
    tightest = math.inf
    for trial in range(6):
        distance = 0.1 if trial > 2 else 0.0
        net = network(name, outputs, seed=trial)
        noise = torch.randn(len(x), outputs, generator=generator, dtype=torch.float64)
        y = net(x).detach() + 100.0 ** -(trial % 3) * noise
        geometry = ExplicitGeometry(measure_explicit(net, x, y))
        origin = {g: p.detach().clone() for g, p in net.groups.items()}
        move(net, x, distance, generator)
        whole = torch.cat(list(jacobians(net, x).values()), 1)
        kernel, error = whole @ whole.T, (net(x).detach() - y).reshape(-1)
        step = 0.5 / float(torch.linalg.eigvalsh(kernel)[-1])
        gradients = (whole.T @ error).split([p.numel() for p in net.groups.values()])
        with torch.no_grad():
            for p, g in zip(net.groups.values(), gradients, strict=True):
                p -= step * g.reshape(p.shape)
            after = (net(x) - y).reshape(-1)
        reach = {g: float((p.detach() - origin[g]).norm()) for g, p in net.groups.items()}
        radii = {g: 1.001 * max(r, distance) for g, r in reach.items()}
        ball = LayerBounds(geometry.measured, radii, geometry.norms)
        rest = float((after - error + step * kernel @ error).norm())
        bound = step**2 * ball.curvature * float(error.norm()) ** 2
        assert rest <= bound * ROUND_UP
        tightest = min(tightest, bound / rest)
    assert tightest < 1e4  # no bound is true for being infinite


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_bounds_are_not_idle(name: str) -> None:
    """Gradients come near their bounds if weights go where they move most.

    Bounds of patches are loose: as if all pixels were in all patches, with the same weights.
    """
    x, net = inputs(name), network(name)
    geometry = ExplicitGeometry(measure_explicit(net, x, torch.zeros(len(x), 1).double()))
    reach = 1e-4
    ball = LayerBounds(geometry.measured, dict.fromkeys(geometry.groups, reach), geometry.norms)
    start = jacobians(net, x)
    generator = torch.Generator().manual_seed(1)
    origin = {g: p.detach().clone() for g, p in net.groups.items()}
    largest = 0.0
    for _ in range(12):
        with torch.no_grad():
            for g, p in net.groups.items():
                p.copy_(origin[g])
        move(net, x, reach, generator)
        changes = [m - start[g] for g, m in jacobians(net, x).items()]
        largest = max(largest, float(torch.linalg.matrix_norm(torch.cat(changes, 1), 2)))
    assert largest <= ball.drift <= (300 if x.dim() > 2 else 30) * largest


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_rounding_is_within_its_bounds(name: str) -> None:
    """The same networks on weights of which float64 keeps few digits, against exact ones."""
    x, net = inputs(name), network(name, width=12)
    measured = measure_explicit(net, x, torch.zeros(len(x), 1).double())
    nowhere = LayerBounds(measured, {}, {})
    exact = _extended_features(net, x)
    error = np.linalg.norm((measured.features.numpy() - exact).astype(np.float64), axis=1)
    assert (error <= nowhere.pooled.numpy()).all()
    assert float(nowhere.pooled.max()) < 1e-8


def _extended_features(net: Any, x: Tensor) -> Any:
    """What the readout sees, by NumPy in extended precision."""
    assert np.finfo(np.longdouble).eps < 1e-18
    values = layer_inputs(net, x)
    architecture, width = net.architecture, net.spec.width
    seen = values["layer1"].numpy().astype(np.longdouble)
    below = None
    activations = getattr(architecture, "activations", None)
    for layer in range(1, architecture.depth + 1):
        phi = activations[layer - 1] if activations else architecture.activation
        weight = net.get_parameter(f"layer{layer}").detach().flatten(1).numpy()
        inner = seen @ weight.astype(np.longdouble).T
        value = _extended(phi, inner)
        if below is not None and hasattr(architecture, "residual_scale"):
            factor = architecture.residual_scale / (architecture.depth * math.sqrt(width))
            below = below + np.longdouble(factor) * value
        else:
            plain = getattr(architecture, "normalized", True) is False
            constant = 1.0 if plain else float(1 / shoal.gaussian.moments(phi, 1.0).square)
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
