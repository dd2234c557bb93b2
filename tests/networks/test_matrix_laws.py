"""Recurrent matrices that are orthogonal or symmetric, and what kernels make of them."""

import dataclasses
import math

import numpy as np
import pytest
import torch

import shoal
from networks.small import inputs, network
from oracles.standard_errors import assert_near_mean
from shoal import DEQ, Activation, ConvDEQ, FullyConnected, ImplicitNetwork
from shoal.activations import Affine, ReLU, Tanh


def deviation(deq, limit, width, law, x, seeds=6):
    """The mean square distance of kernels of finite width from those of ``limit``, relatively."""
    exact, squares = shoal.kernel(limit, x), torch.zeros(2).double()
    for seed in range(seeds):
        net = network(deq, features=x.shape[1], width=width, seed=seed, weights=law)
        found = shoal.empirical_kernel(net, x)
        for i in range(2):
            squares[i] += (found[i] - exact[i]).square().mean() / exact[i].square().mean()
    return (squares / seeds).sqrt()


@pytest.mark.parametrize("architecture", [DEQ(Tanh(), 0.2, 0.8), ImplicitNetwork(0.3)], ids=str)
def test_the_matrices(architecture):
    width = 60
    a = network(architecture, width=width, weights="orthogonal").recurrent.detach()
    torch.testing.assert_close(a @ a.T, width * torch.eye(width).double())
    a = network(architecture, width=width, weights="symmetric").recurrent.detach()
    assert torch.equal(a, a.T)
    edge = torch.linalg.eigvalsh(a).abs().max() / math.sqrt(width)
    assert edge == pytest.approx(2, abs=4 * width ** (-2 / 3))  # by Tracy and Widom's law
    off = a[torch.triu_indices(width, width, 1).unbind()]
    assert off.square().mean() == pytest.approx(1, abs=5 * math.sqrt(2 / len(off)))
    other = network(architecture, width=width, weights="symmetric").input
    assert not torch.equal(other[:4], other[:4].T)


def test_orthogonal_matrices_are_uniform():
    """QR alone prefers signs: the trace of uniform ones has mean 0 and variance 1."""
    traces = torch.stack(
        [
            network(width=8, weights="orthogonal", seed=seed).recurrent.detach().trace()
            for seed in range(400)
        ]
    )
    traces /= math.sqrt(8)
    assert_near_mean(0, traces)
    assert_near_mean(1, traces.square())


def test_orthogonal_equilibria_contract_wherever_the_kernel_exists():
    """Of norm one, where independent entries have two: certified up to the edge."""
    deq = DEQ(Tanh(), 0.9, 0.8)
    assert network(deq, width=100, weights="orthogonal").well_posedness().contraction
    assert not network(deq, width=100, weights="gaussian").well_posedness().contraction


@pytest.mark.thorough("Tanh")
@pytest.mark.parametrize("phi", [Tanh(), ReLU()], ids=str)
def test_the_kernel_of_orthogonal_weights_is_that_of_independent_ones(phi):
    deq, x = DEQ(phi, 0.6, 0.8), inputs(5, 20)
    narrow, wide = (deviation(deq, deq, m, "orthogonal", x) for m in (32, 512))
    assert (wide < 4 * 512**-0.5).all()
    assert (narrow / wide > 2).all()


@pytest.mark.thorough
def test_the_kernel_of_symmetric_rectifiers_is_that_of_steeper_ones():
    """Units see themselves through the others; for inputs of any norm."""
    variance = 0.25
    x = inputs(5, 20) * torch.tensor([0.3, 0.6, 1, 2, 3]).double()[:, None]
    steeper = Affine(ReLU(), (1 - math.sqrt(1 - 2 * variance)) / variance)
    deq, limit = DEQ(ReLU(), variance, 0.8), DEQ(steeper, variance, 0.8)
    narrow, wide = (deviation(deq, limit, m, "symmetric", x) for m in (64, 1024))
    assert (wide < 0.1).all()
    assert (narrow / wide > 2).all()
    assert (deviation(deq, deq, 1024, "symmetric", x) > 2 * wide).all()


@dataclasses.dataclass(frozen=True, eq=False)
class TanhWithReaction(Activation):
    """The solution z of z = tanh(v + s z)."""

    strength: float

    def function(self, v):
        z = torch.tanh(v)
        for _ in range(12):
            t = torch.tanh(v + self.strength * z)
            z = z - (z - t) / (1 - self.strength * (1 - t * t))
        return z


@pytest.mark.thorough
def test_the_kernel_of_symmetric_weights_on_a_sphere():
    deq, x = DEQ(Tanh(), 0.2, 0.8), inputs(4, 20)
    nodes, weights = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()
    response, square = 1.0, 0.0
    for _ in range(100):
        psi, tau = TanhWithReaction(0.2 * response), math.sqrt(0.2 * square + 0.8)
        z = psi.function(tau * nodes)
        response = (weights * nodes * z).sum().item() / tau  # E[psi'], by parts
        square = (weights * z * z).sum().item()
    limit = DEQ(psi, 0.2, 0.8)
    narrow, wide = (deviation(deq, limit, m, "symmetric", x) for m in (64, 1024))
    assert (wide < 0.1).all()
    assert (narrow / wide > 2).all()
    ck = [
        shoal.empirical_kernel(
            network(deq, features=20, width=1024, seed=seed, weights="symmetric"), x
        ).ck.diagonal()
        for seed in range(6)
    ]
    mean = torch.stack(ck).mean()
    assert (mean - square).abs() < 0.015
    assert (mean - shoal.kernel(deq, x).ck.diagonal().mean()) > 0.025


def test_symmetric_linear_networks():
    """By the moments of the semicircle law: E[(1 - s t)^-2] = (1 / sqrt(1 - 4 s^2) - 1) / 2 s^2."""
    variance, x = 0.1, inputs(3, 20)
    exact = (1 / math.sqrt(1 - 4 * variance) - 1) / (2 * variance)
    found = [
        shoal.empirical_kernel(
            network(DEQ("identity", variance, 1.0), features=20, width=800, seed=s, weights=law), x
        ).ck.diagonal()
        for law in ("symmetric",)
        for s in range(6)
    ]
    assert torch.stack(found).mean() == pytest.approx(exact, rel=0.04)
    assert exact > 1.25 / (1 - variance)


@pytest.mark.parametrize("law", ["orthogonal", "symmetric"])
@pytest.mark.parametrize(
    "architecture", [FullyConnected((Tanh(),)), ConvDEQ(ReLU(), 1.0, 0.8)], ids=["layers", "images"]
)
def test_only_for_recurrent_matrices(architecture, law):
    options = {"pixels": (4, 4)} if isinstance(architecture, ConvDEQ) else {}
    with pytest.raises(ValueError, match=f"weights='{law}' requires an implicit network"):
        network(architecture, weights=law, **options)
