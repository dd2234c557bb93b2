"""Designs on the sphere against the kernels they are made for, and wide finite networks."""

import pickle
from dataclasses import fields

import mpmath
import numpy as np
import pytest
import torch

import shoal
from shoal import (
    DEQ,
    AccuracyError,
    FullyConnected,
    build,
    empirical_kernel,
    kernel,
    kernel_function,
)
from shoal.activations import GELU, HardTanh, ReLU, Softplus, Swish, Tanh
from shoal.designs import SphereMatching, plain
from shoal.designs.profile import END, EPSILON, Profile, quadrature, tabulated
from shoal.gaussian import plain as gaussian_plain


def design(deq, which, **options):
    own = {f.name for f in fields(SphereMatching)}
    method = SphereMatching(**{name: options.pop(name) for name in own & options.keys()})
    return shoal.design(deq, method=method, which=which, **{"input_norm": 1.0, **options})


def differences(deq, d, norm, cosines, **options):
    """Between the two matched kernels, relative to the diagonal."""
    cosines = torch.tensor(cosines, dtype=torch.float64)
    target, found = (
        getattr(kernel_function(a, **o)(norm**2, norm**2, norm**2 * cosines), d.which)
        for a, o in ((deq, options), (d.architecture, {}))
    )
    own = getattr(kernel_function(deq, **options)(norm**2, norm**2, norm**2), d.which)
    return (target - found).abs() / own


@pytest.mark.thorough("phi0", "phi1")
@pytest.mark.parametrize(("phi", "which"), [(Tanh(), "ntk"), (Softplus(), "ck"), (GELU(), "ntk")])
def test_smooth_activations(phi, which):
    deq = DEQ(phi, 0.2, 0.8)
    d = design(deq, which)
    assert d.feasible
    assert d.residual < 1e-10
    # at cosines that the design did not look at, the ends included
    errors = differences(deq, d, 1.0, [-1.0, -0.97, -0.61, 0.13, 0.77, 0.96, 1.0])
    assert float(errors.max()) < 1e-9


@pytest.mark.thorough("GELU")
@pytest.mark.parametrize(("phi", "bound"), [(Tanh(), 1e-10), (GELU(), 1e-9)], ids=repr)
def test_kernels_by_brute_force(phi, bound):
    d = design(DEQ(phi, 0.2, 0.8), "ntk", input_norm=1.0)
    (sigma,) = d.architecture.activations
    for cosine in (-0.7, 0.3, 0.9):
        wanted = plain.deq_kernels(phi, phi.derivative, 0.2, 0.8, cosine)[1]
        found = plain.layered_kernels([(sigma, sigma.derivative)], 1.0, cosine)[1]
        assert abs(found - wanted) < bound


@pytest.mark.thorough
def test_a_residual_network_has_its_layer_too():
    net = shoal.ResNet(Softplus(), 3, residual_scale=1.5)
    for which in ("ck", "ntk"):
        d = design(net, which, input_norm=1.2)
        assert d.residual < 1e-6
        assert float(differences(net, d, 1.2, [-0.9, 0.1, 0.9]).max()) < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_relu(which):
    deq = DEQ(ReLU(), 0.24, 0.8)
    d = design(deq, which)
    errors = differences(deq, d, 1.0, [-1.0, -0.61, 0.93, 0.995, 1.0])
    assert float(errors[:3].max()) < 1e-7
    assert float(errors.max()) < 1e-5
    assert d.errors["cosine 1"] < 1e-6
    assert set(d.target) == set(d.obtained)
    assert "carried by |x| and x log|x|" in d.explanation


@pytest.mark.thorough
@pytest.mark.parametrize("input_norm", [1e-3, 0.3])
def test_relu_at_small_norms(input_norm):
    deq = DEQ(ReLU(), 0.2, 0.8)
    d = design(deq, "ck", input_norm=input_norm)
    assert d.residual < 1e-9
    assert float(differences(deq, d, input_norm, [-0.9, 0.3, 0.95]).max()) < 1e-9


def test_groups_that_are_trained():
    deq = DEQ(Swish(), 0.3, 0.7)
    trainable = {"readout", "recurrent"}
    d = design(deq, "ntk", trainable=trainable)
    assert float(differences(deq, d, 1.0, [-0.5, 0.5], trainable=trainable).max()) < 1e-7
    assert "trained in readout, recurrent" in d.explanation


@pytest.mark.thorough
def test_deep_networks_have_shallow_ones_too():
    deep = FullyConnected((Tanh(), GELU(), Softplus()))
    d = design(deep, "ntk")
    assert float(differences(deep, d, 1.0, [-0.9, 0.2, 0.9]).max()) < 1e-7


@pytest.mark.thorough
def test_a_wide_finite_network():
    deq = DEQ(Tanh(), 0.2, 0.8)
    x = torch.randn(6, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = 1.3 * x / torch.linalg.vector_norm(x, dim=1, keepdim=True)
    exact = kernel(deq, x).ntk
    d = design(deq, "ntk", input_norm=1.3)
    error = []
    for width in (2**10, 2**16):
        net = build(d.architecture, in_features=20, width=width, dtype=torch.float64)
        difference = empirical_kernel(net, x).ntk - exact
        error.append(float(torch.linalg.norm(difference) / torch.linalg.norm(exact)))
    assert error[1] < 0.02  # and falls like the root of the width
    assert error[1] < error[0] / 3


@pytest.mark.thorough
def test_a_norm_gate_serves_all_norms():
    deq = DEQ(ReLU(), 0.3, 0.8)
    d = design(deq, "ntk", norm_gated=True, input_norm=7.0)
    f, g = kernel_function(deq), kernel_function(d.architecture)
    a = torch.tensor([1.0, 0.01, 9.0, 4.0, 0.0], dtype=torch.float64)
    b = torch.tensor([1.0, 5.0, 2.0, 4.0, 2.0], dtype=torch.float64)
    c = torch.tensor([0.3, -0.2, 3.5, 4.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(g(a, b, c).ntk, f(a, b, c).ntk, rtol=2e-6, atol=1e-12)


def test_the_table_is_the_series():
    """Against mpmath's Hermite polynomials, with the carriers, in 40 digits."""
    a = 0.3 * (-1.0) ** np.arange(60) * np.arange(1, 61.0) ** -3
    sigma = tabulated(Profile(a, (0.4, -0.2)), scale=2.0)
    for u in (-10.7, -3.3, -1e-3, 1e-5, 0.02, 1.9, 8.8):
        with mpmath.workdps(40):
            x = mpmath.mpf(u) / 2
            w = mpmath.mpc(x, mpmath.mpf(EPSILON))
            exact = x * (0.4 * (1 - 2 / mpmath.pi * mpmath.arg(w)) - 0.2 * mpmath.log(abs(w)))
            for k, s in enumerate(a):
                he = mpmath.hermite(k, x / mpmath.sqrt(2)) / mpmath.mpf(2) ** (mpmath.mpf(k) / 2)
                exact += mpmath.mpf(s) * he / mpmath.sqrt(mpmath.factorial(k))
        found = float(sigma(torch.tensor(u, dtype=torch.float64)))
        assert found == pytest.approx(float(exact), rel=1e-12, abs=1e-14)
    edge = torch.tensor([2 * END - 1e-7, 2 * END + 1e-7], dtype=torch.float64)
    assert float(sigma.derivative(edge).diff().abs()) < 1e-6


def test_carriers_have_the_coefficients_of_their_limits():
    rule = quadrature(100)
    even, odd = (rule.rows @ (rule.weights * rule.carriers[p, 0]) for p in (0, 1))
    for k in (2, 10, 40):  # of |x|: √(2/π) (-1)^{k/2-1} (k-3)!! / √k!
        exact = np.sqrt(2 / np.pi) * (-1) ** (k // 2 - 1)
        exact *= float(mpmath.fac2(k - 3) / mpmath.sqrt(mpmath.factorial(k)))
        assert even[k] == pytest.approx(exact, rel=1e-3, abs=1e-3)
    for k in (3, 11, 41):  # of x log|x|: (-1)^{(k-3)/2} (k-3)!! / √k!
        exact = (-1) ** ((k - 3) // 2) * float(
            mpmath.fac2(k - 3) / mpmath.sqrt(mpmath.factorial(k))
        )
        assert odd[k] == pytest.approx(exact, rel=1e-3)


def test_networks_train_and_are_saved(tmp_path):
    d = design(DEQ(Softplus(), 0.2, 0.8), "ck")
    net = build(d.architecture, in_features=3, width=32, dtype=torch.float32)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    net(x).square().sum().backward()
    assert all(bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in net.parameters())
    shoal.save(net, tmp_path / "net")
    again = shoal.load(tmp_path / "net")
    assert torch.equal(again(x), net(x))
    assert pickle.loads(pickle.dumps(d)) == d


def test_a_norm_gate_is_for_homogeneous_kernels():
    with pytest.raises(ValueError, match="norm_gated"):
        design(DEQ(Tanh(), 0.2, 0.8), "ck", norm_gated=True)


def test_an_accuracy_that_is_not_reached_is_an_error():
    with pytest.raises(AccuracyError, match="tolerance"):
        design(DEQ(HardTanh(), 0.24, 0.8), "ntk")


@pytest.mark.parametrize("activation", [ReLU(), Tanh()], ids=repr)
def test_pairs_of_other_norms(activation):
    """Against a dense grid, and slopes against differences of values (Price's theorem)."""
    d = design(DEQ(activation, 0.2, 0.8), "ntk")
    (phi,) = d.architecture.activations
    a, b, c = (torch.tensor(v, dtype=torch.float64) for v in ([1, 0.6], [1.3, 2], [0.3, -0.9]))
    value, step = shoal.gaussian.dual(phi, a, b, c), 1e-4
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    expected = [float(gaussian_plain.dual(phi, *triple)) for triple in triples]
    # the grid is off by a few 1e-5 at kinks
    torch.testing.assert_close(value, a.new_tensor(expected), rtol=1e-4, atol=1e-8)
    ends = (shoal.gaussian.dual(phi, a, b, c + move) for move in (step, -step))
    slope = shoal.gaussian.dual_derivative(phi, a, b, c)
    torch.testing.assert_close(slope, (next(ends) - next(ends)) / (2 * step), rtol=1e-6, atol=1e-8)
