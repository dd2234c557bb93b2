"""Families of networks: energies against quadrature, solutions against brute force."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import shoal
from shoal.designs import hard_tanh, leaky_relu
from shoal.designs.energies import (
    Energies,
    Numbers,
    Proposal,
    kernel_slant,
    network_numbers,
    target_numbers,
)

K = math.pi - 2


def expectation(function: Callable[[torch.Tensor], torch.Tensor], cuts: list[float]) -> float:
    """E[f(ξ)] by Gauss and Legendre on many panels, cut at kinks."""
    edges = np.unique(np.concatenate([np.linspace(-12, 12, 97), cuts]))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    x = torch.from_numpy(((edges[1:] + edges[:-1])[:, None] / 2 + half * nodes).ravel())
    w = torch.from_numpy((half * weights).ravel())
    density = torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
    return float((w * density * function(x)).sum())


def measured(sigma: shoal.Activation, tau: float) -> Energies:
    """The energies of a layer by quadrature, the growth by a difference quotient."""
    cuts = [place / tau for place in sigma.kink_locations or ()]
    hermite = [
        lambda x: x,
        lambda x: (x**2 - 1) / math.sqrt(2),
        lambda x: (x**3 - 3 * x) / math.sqrt(6),
    ]
    s = [expectation(lambda x, h=h: sigma(tau * x) * h(x), cuts) for h in hermite]
    slopes = expectation(lambda x: (tau * sigma.derivative(tau * x)) ** 2, cuts)

    def total(scale: float) -> float:
        there = [place / scale for place in sigma.kink_locations or ()]
        return expectation(lambda x: sigma(scale * x) ** 2, there)

    step = 1e-4  # of the logarithm of tau²
    growth = (total(tau * math.exp(step / 2)) - total(tau * math.exp(-step / 2))) / (2 * step)
    return Energies(s[0] ** 2, s[1] ** 2, total(tau), slopes, growth, s[0] * s[2])


def target(phi: shoal.Activation, recurrent: float, which: str) -> Numbers:
    deq = shoal.DEQ(phi, recurrent_variance=recurrent, input_variance=0.8)
    return target_numbers(shoal.coefficients(deq, input_norm=1.0, method="closed"), which)


PROPOSALS = {
    "hard tanh": lambda: hard_tanh.solutions(Numbers(1.2, 1.0, 0.0, 0.0), 1.3, "ck")[0],
    "steep hard tanh": lambda: hard_tanh.solutions(Numbers(9.0, 1.0, 0.0, 0.0), 1.3, "ntk")[0],
    "leaky rectifiers": lambda: leaky_relu.solutions(
        target(shoal.activations.ReLU(), 0.2, "ck"), 1.3, "ck"
    )[0],
}


@pytest.mark.parametrize("make", PROPOSALS.values(), ids=PROPOSALS)
def test_energies_are_those_of_the_activations(make: Callable[[], Proposal]) -> None:
    proposal, tau = make(), 1.3
    for sigma, layer in zip(proposal.activations, proposal.layers, strict=True):
        found = measured(sigma, tau)
        for name in ("linear", "square", "total", "slopes", "third"):
            assert getattr(layer, name) == pytest.approx(
                getattr(found, name), rel=1e-11, abs=1e-12
            ), name
        assert layer.growth == pytest.approx(found.growth, rel=1e-6, abs=1e-7)
        assert expectation(lambda x, s=sigma, t=tau: s(t * x), []) == pytest.approx(0, abs=1e-6)
        tau = math.sqrt(layer.total)


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_network_numbers_are_derivatives_of_kernels(which: str) -> None:
    for make in PROPOSALS.values():
        proposal = make()
        c = shoal.coefficients(shoal.FullyConnected(proposal.activations), input_norm=1.3)
        expected, got = target_numbers(c, which), proposal.numbers(which)
        assert got.matched == pytest.approx(expected.matched, rel=1e-11, abs=1e-12)
        assert got.slant == pytest.approx(kernel_slant(c, which), rel=1e-9, abs=1e-11)


@pytest.mark.parametrize(("which", "end"), [("ck", math.pi / 2), ("ntk", math.inf)])
def test_interval_of_hard_tanh(which: str, end: float) -> None:
    ratios = [hard_tanh.ratio(h, which) for h in np.geomspace(1e-6, 8, 400)]
    assert all(a > b for a, b in itertools.pairwise(ratios))  # strictly falling
    assert ratios[-1] == pytest.approx(1, abs=1e-12)
    assert ratios[0] == pytest.approx(end, rel=1e-5) if end < 10 else ratios[0] > 1e5
    most = hard_tanh.ratio(1e-3, which)
    for value in (1 + 1e-9, 1.3, most * (1 - 1e-9)):
        (found,) = hard_tanh.solutions(Numbers(value, 1.0, 0.0, 0.0), 1.0, which)
        assert found.numbers(which).own == pytest.approx(value, rel=1e-13)
    assert "below pi/2" in hard_tanh.violation(Numbers(math.pi / 2, 1.0, 0.0, 0.0), "ck")
    assert "linear" in hard_tanh.violation(Numbers(1.0, 1.0, 0.0, 0.0), which)
    steeper = Numbers(most * (1 + 1e-6), 1.0, 0.0, 0.0)
    assert "bends at 0.001 standard deviations" in hard_tanh.violation(steeper, which)
    assert not hard_tanh.solutions(steeper, 1.0, which)


@pytest.mark.thorough("0.0-", "0.4-")
@pytest.mark.parametrize("recurrent", [0.01, 0.1, 0.2, 0.4, 0.6, 0.8, 0.84, 0.87, 0.95])
@pytest.mark.parametrize("slope", [0.0, 0.4, -0.5])
def test_all_leaky_rectifiers_are_found(recurrent: float, slope: float) -> None:
    wanted = target(shoal.activations.LeakyReLU(slope), recurrent, "ck")

    def layer(w: float) -> Energies:
        return Energies(1.0, w, 1 + K * w, 1 + math.pi * w, 1 + K * w)

    def mismatch(first: float) -> float:
        """Of A_2, for the second layer that has A_1 and A_3; by the recursion, not the cubic."""
        size = wanted.linear / network_numbers([layer(first), layer(0.0)], "ck").linear
        parts = [
            network_numbers([layer(first), layer(w).times(size)], "ck").square for w in (0.0, 1.0)
        ]
        second = (wanted.square - parts[0]) / (parts[1] - parts[0])
        if second < 0:
            return math.nan
        return network_numbers([layer(first), layer(second).times(size)], "ck").norms - wanted.norms

    places = np.linspace(0, wanted.square / wanted.linear * (1 - 1e-12), 20001)
    values = np.array([mismatch(w) for w in places[::10]])
    signs = np.sign(values)
    crossings = places[::10][:-1][(signs[:-1] * signs[1:]) < 0]
    found = sorted(first for first, _ in leaky_relu.weights(wanted, "ck"))
    assert len(found) == len(crossings)
    for root, crossing in zip(found, crossings, strict=True):
        assert abs(root - crossing) <= 2 * (places[10] - places[0])
        assert abs(mismatch(root)) < 1e-13
    assert len(found) in (0, 2)


def test_identity_of_rectifiers() -> None:
    for slope in (0.0, 0.3, -0.2):
        wanted = target(shoal.activations.LeakyReLU(slope), 0.5, "ck")
        assert wanted.own - wanted.linear == pytest.approx(K * wanted.norms, rel=1e-13)


@pytest.mark.thorough
def test_gauge_freedom_of_both_kernels() -> None:
    d = shoal.design(shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8), input_norm=1.0, which="ck")
    first, second = d.architecture.activations
    factor = 3.7
    scaled = shoal.FullyConnected(
        [
            shoal.activations.Affine(first.activation, first.scale * factor, first.shift * factor),
            shoal.activations.Affine(second.activation, second.scale / factor, second.shift),
        ]
    )
    x, _ = shoal.GaussianMixture.ling2024(20).sample(10, seed=0)
    one, other = (shoal.kernel(a, x) for a in (d.architecture, scaled))
    torch.testing.assert_close(one.ck, other.ck, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(one.ntk, other.ntk, rtol=1e-12, atol=1e-13)


def test_slopes_of_rectifier_designs() -> None:
    """Ordinary ones are preferred, and others are named."""
    for recurrent in (0.2, 0.6, 0.85):
        found = leaky_relu.solutions(target(shoal.activations.ReLU(), recurrent, "ck"), 1.0, "ck")
        for proposal in found:
            slopes = [sigma.activation.slope for sigma in proposal.activations]  # type: ignore[attr-defined]
            assert ("negative" in proposal.note) == (min(slopes) < -1e-12)
