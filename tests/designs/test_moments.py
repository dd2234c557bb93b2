"""Designs by moments: all solutions, verified coefficients, exact kernel matrices, refusals."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import shoal
from shoal.activations import Affine, Erf, Hermite, Identity, LeakyReLU, ReLU, Sine, Softplus, Tanh
from shoal.designs import plain
from shoal.designs.moments import target_numbers

MIXTURE_TAU = math.sqrt(1 + 4 / math.sqrt(1000) + 64 / 1000)  # mean squared norm of the mixture


def deq(phi: shoal.Activation, recurrent: float = 0.2, injected: float = 0.8) -> shoal.DEQ:
    return shoal.DEQ(phi, recurrent_variance=recurrent, input_variance=injected)


def by(family: str | None) -> shoal.designs.MomentMatching:
    return shoal.designs.MomentMatching(family=family)


def mixture(samples: int, dimension: int) -> torch.Tensor:
    return shoal.GaussianMixture.ling2024(dimension).sample(samples, seed=0)[0]


# Solutions


@pytest.mark.parametrize(
    ("phi", "recurrent", "injected", "input_norm", "which", "family", "depth"),
    [
        (Erf(), 0.6, 0.2, 2.0, "ck", "hard_tanh", 1),
        (Erf(), 0.6, 0.2, 2.0, "ntk", "hard_tanh", 1),
        (Tanh(), 0.2, 0.8, 1.0, "ck", "hard_tanh", 1),
        (ReLU(), 0.2, 0.8, 1.0, "ck", "leaky_relu", 2),
        (LeakyReLU(0.3), 0.4, 1.1, 0.6, "ck", "leaky_relu", 2),
        (Identity(), 0.2, 0.8, 1.0, "ntk", "leaky_relu", 1),
    ],
    ids=repr,
)
def test_coefficients_are_met_to_rounding(
    phi: shoal.Activation,
    recurrent: float,
    injected: float,
    input_norm: float,
    which: str,
    family: str,
    depth: int,
) -> None:
    network = deq(phi, recurrent, injected)
    d = shoal.design(network, input_norm=input_norm, which=which)
    assert d.feasible
    assert d.residual < 1e-12
    assert (d.family, len(d.architecture.activations)) == (family, depth)
    assert ("is enough" if depth == 1 else "is not enough") in d.explanation
    names = ("gamma2", "alpha1", "alpha2", "alpha3")
    names = names if which == "ck" else ("kappa2", "beta1", "beta2", "beta3")
    assert tuple(d.target) == tuple(d.obtained) == names
    wanted, got = (shoal.coefficients(a, input_norm=input_norm) for a in (network, d.architecture))
    for k, name in enumerate(names):
        a, b = getattr(wanted, name), getattr(got, name)
        size = getattr(wanted, names[0]) / input_norm ** (0, 2, 4, 4)[k]
        assert abs(a - b) <= 1e-12 * (abs(a) if abs(a) > 1e-10 * size else size), name


@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_a_layer_of_rectifiers_comes_back_as_it_is(which: str) -> None:
    d = shoal.design(shoal.FullyConnected([ReLU()]), input_norm=1.7, which=which)
    (sigma,) = d.architecture.activations
    x = torch.linspace(-3, 3, 50, dtype=torch.float64)
    expected = torch.relu(x) - 1.7 / math.sqrt(2 * math.pi)
    torch.testing.assert_close(sigma(x), expected, rtol=0, atol=1e-13)


# The same once more, in fifty digits


def rectifier_roots(recurrent: float) -> int:
    r"""How many pairs of leaky rectifiers have the CK coefficients of a ReLU DEQ, τ_0 = σ_b = 1.

    With E[σ_1²] = τ_0², k = 1 − 2/π, P = p², Q = q² the equations are P_1 k + Q_1 = 1,
    P_2 k + Q_2 = γ², Q_1 Q_2 = α_1 and P_1 Q_2 + P_2 Q_1² = πα_3: a cubic in Q_1.
    """
    k = 1 - 2 / math.pi
    energy = (1 + k) / 4
    v, s = 1 / (1 - recurrent * energy), 1 - recurrent / 4
    gamma2, alpha1 = energy * v, 0.25 / s
    alpha3 = (recurrent * alpha1 + 1) ** 2 / (4 * math.pi * v * s)
    bent = math.pi * k * alpha3
    roots = np.roots([gamma2, -alpha1, -(alpha1 + bent), alpha1])
    real = roots[np.abs(roots.imag) < 1e-9].real
    return int(((real >= alpha1 / gamma2) & (real <= 1)).sum())


@pytest.mark.parametrize("recurrent", [0.01, 0.5, 0.8527, 0.8529, 0.95])
def test_where_leaky_rectifiers_end(recurrent: float) -> None:
    d = shoal.design(deq(ReLU(), recurrent, 1.0), input_norm=1.0, which="ck")
    expected = rectifier_roots(recurrent)
    assert expected == (2 if recurrent < 0.85278 else 0)
    assert d.feasible == (expected > 0)
    assert len(d.alternatives) == max(expected - 1, 0)


# Exact kernel matrices


@pytest.mark.thorough
def test_rectifier_gap_on_the_mixture() -> None:
    d = shoal.design(deq(ReLU()), input_norm=MIXTURE_TAU, which="ck")
    x = mixture(800, 1000)
    gap = d.gap(x)
    assert gap.relative < 1e-4
    assert gap.absolute < 1e-3  # Ling 2024 prints 0.32
    (other,) = d.alternatives
    assert gap.relative < other.gap(x).relative < 1e-4
    exact, designed = shoal.kernel(d.original, x).ck, shoal.kernel(d.architecture, x).ck
    assert gap.absolute == pytest.approx(float(torch.linalg.norm(exact - designed, 2)), rel=1e-6)
    assert gap.relative == pytest.approx(gap.absolute / float(torch.linalg.norm(exact, 2)))


@pytest.mark.parametrize(
    ("phi", "which", "bound", "factor"),
    [(ReLU(), "ck", 1e-4, 0.55), (Tanh(), "ck", 1e-3, 0.7), (Tanh(), "ntk", 4e-3, 0.75)],
    ids=repr,
)
def test_gap_decays_with_the_dimension(
    phi: shoal.Activation, which: str, bound: float, factor: float
) -> None:
    """Differences of squared norms vanish like the root of the dimension, kernels with them."""
    gaps = []
    for dimension in (240, 960):
        input_norm = math.sqrt(1 + 4 / math.sqrt(dimension) + 64 / dimension)
        d = shoal.design(deq(phi), input_norm=input_norm, which=which)
        x = mixture(dimension // 2, dimension)
        gaps.append(d.gap(x).relative)
    assert gaps[1] < factor * gaps[0]
    assert d.gap(input_norm * x / x.norm(dim=1, keepdim=True)).relative < bound / 4


def test_kernels_by_brute_force() -> None:
    """Near orthogonal inputs both kernels are nearly one another's, by sums over a grid."""
    d = shoal.design(deq(Tanh()), input_norm=1.0)
    (sigma,) = d.architecture.activations
    phi = Tanh()
    for cosine in (-0.1, 0.05):
        wanted = plain.deq_kernels(phi, phi.derivative, 0.2, 0.8, cosine)
        found = plain.layered_kernels([(sigma, sigma.derivative)], 1.0, cosine)
        assert found[1] == pytest.approx(wanted[1], rel=5e-3)
        for architecture, pair in ((d.original, wanted), (d.architecture, found)):
            exact = shoal.kernel_function(architecture)(1.0, 1.0, cosine)
            assert pair == pytest.approx([float(k) for k in exact], rel=5e-3)  # jumps on a grid


@pytest.mark.thorough
@pytest.mark.parametrize("which", ["ck", "ntk"])
def test_a_residual_network_by_moments(which: str) -> None:
    """The nearest design misses as much as it says, and what vanishes with the dimension."""
    net = shoal.ResNet(Softplus(), 2)
    d = shoal.design(net, input_norm=1.0, which=which)
    assert isinstance(d.original, shoal.ResNet)
    errors = []
    for p in (150, 600):
        generator = torch.Generator().manual_seed(p)
        x = torch.randn(p // 2, p, dtype=torch.float64, generator=generator) / math.sqrt(p)
        errors.append(d.gap(x).relative)
    bound = d.errors["predicted"]
    assert errors[1] < bound + 0.03
    assert errors[1] - bound < 0.7 * (errors[0] - bound) + 1e-3


# Infeasible targets


@pytest.mark.thorough
def test_sine_beyond_the_sign_function() -> None:
    sine = deq(Sine(), 0.2, 3.0)
    d = shoal.design(sine, input_norm=1.0, which="ck", method=by("hard_tanh"))
    assert not d.feasible
    assert d.residual > 0.1
    assert "for the CK by a factor of at most pi/2" in d.explanation
    assert f"{d.errors['predicted']:.1e} of the kernel matrix" in d.explanation
    wanted = target_numbers(shoal.coefficients(sine, input_norm=1.0), "ck")
    found = target_numbers(shoal.coefficients(d.architecture, input_norm=1.0), "ck")
    least = np.linalg.norm(wanted.differences(found))
    rng = np.random.default_rng(0)
    for scale, bound in zip(rng.uniform(0.1, 20, 20), rng.uniform(0.05, 3, 20), strict=True):
        phi = Affine(shoal.activations.HardTanh(bound), scale=scale)
        other = shoal.coefficients(shoal.FullyConnected([phi]), input_norm=1.0)
        assert np.linalg.norm(wanted.differences(target_numbers(other, "ck"))) > least - 1e-9


@pytest.mark.parametrize(
    ("phi", "recurrent", "which", "family", "words"),
    [
        (ReLU(), 0.2, "ck", "hard_tanh", "alpha2 and alpha3 vanish"),
        (ReLU(), 0.9, "ck", "leaky_relu", "have no choice of gamma2"),
        (ReLU(), 0.2, "ntk", "leaky_relu", "have no choice of kappa2"),
        (Softplus(), 0.2, "ntk", None, "method='sphere' has the kernel"),
    ],
)
def test_refusals_name_the_reason_and_the_nearest(
    phi: shoal.Activation, recurrent: float, which: str, family: str | None, words: str
) -> None:
    d = shoal.design(deq(phi, recurrent), input_norm=1.0, which=which, method=by(family))
    assert not d.feasible
    assert words in d.explanation
    assert 1e-4 < d.errors["predicted"] < 0.2
    if d.family == "leaky_relu":
        for sigma in d.architecture.activations:
            assert -1e-12 <= sigma.activation.slope <= 1 + 1e-12
    x = torch.randn(200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x = x / x.norm(dim=1, keepdim=True)
    assert d.gap(x).relative < 1.2 * d.errors["predicted"] + 1e-3


# Values and options


@pytest.mark.thorough("sphere")
@pytest.mark.parametrize("method", ["moments", "sphere"])
def test_what_is_trained_chooses_the_kernel(method: str) -> None:
    erf = deq(Erf())  # whose kernels cost little
    choices = {None: "ntk", ("readout",): "ck", ("readout", "recurrent"): "ntk"}
    for trainable, which in choices.items():
        d = shoal.design(erf, method=method, trainable=trainable)
        assert d.which == which
        assert f"Matched is the {which.upper()}" in d.explanation
    d = shoal.design(erf, method=method, which="ck", trainable={"readout", "input"})
    assert d.which == "ck"
    assert 'with readout, input trained, the NTK decides: which="ntk"' in d.explanation
    assert "But" not in shoal.design(erf, method=method, which="ck").explanation
    d = shoal.design(erf, method=method, which="ntk", trainable={"readout"})
    assert 'which="ck"' in d.explanation
    network = shoal.build(erf, in_features=5, width=50, trainable={"readout"})
    d = shoal.design(network, method=method)
    assert (d.original.parameter_groups, d.which) == (erf.parameter_groups, "ck")
    assert d.trainable == {"readout"}


def test_groups_that_are_trained_change_the_target() -> None:
    some = shoal.design(deq(Tanh()), which="ntk", trainable={"readout"})
    c = shoal.coefficients(deq(Tanh()), input_norm=1.0)
    assert some.feasible
    assert some.residual < 1e-12
    assert some.target["kappa2"] == pytest.approx(c.gamma2, rel=1e-13)
    assert some.target["beta1"] == pytest.approx(c.alpha1, rel=1e-13)


def test_design_prints_well() -> None:
    d = shoal.design(deq(Tanh()), input_norm=1.0, which="ck")
    assert repr(d).startswith("Design(FullyConnected(")
    assert "family='hard_tanh'" in repr(d)
    assert [line.split()[0] for line in str(d).splitlines()[-4:]] == list(d.target)
    assert d.original == deq(Tanh())
    assert hash(d) == hash(d)
    # coefficients that vanish are zero
    assert [d.target["alpha2"], d.target["alpha3"]] == [0.0, 0.0]
    assert [d.obtained["alpha2"], d.obtained["alpha3"]] == [0.0, 0.0]


def test_design_is_drawn() -> None:
    pytest.importorskip("matplotlib")
    figure = shoal.design(deq(ReLU()), input_norm=1.0, which="ck").plot()
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels == ["DEQ", "designed, layer 1", "designed, layer 2"]


def test_arrays_are_taken() -> None:
    d = shoal.design(deq(ReLU()), input_norm=1.0, which="ck")
    x = mixture(20, 30)
    assert d.gap(x.numpy()) == d.gap(x)
    for array, tensor in zip(d.kernels(x.numpy()), d.kernels(x), strict=True):
        assert isinstance(array, np.ndarray)
        np.testing.assert_array_equal(array, tensor.numpy())
    assert d.gap(x.requires_grad_()) == d.gap(x.detach())  # and no warning


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: shoal.design(deq(Tanh()), which="nkt"), "which must be one of"),
        (lambda: shoal.design(deq(Tanh()), method="magic"), "method must be one of"),
        (lambda: shoal.design(deq(Tanh()), method=7), "or the name of one, got 7"),
        (lambda: shoal.design(deq(Tanh()), input_norm=0.0), "input_norm must be > 0"),
        (lambda: shoal.design(deq(Tanh()), trainable={"readuot"}), "trainable"),
        (lambda: shoal.design("tanh"), "architecture must be"),  # type: ignore[arg-type]
        (lambda: shoal.design(shoal.ImplicitNetwork(0.1)), "cannot be centered"),
        (lambda: shoal.design(shoal.ImplicitNetwork(0.1), method="sphere"), "no power series"),
        (lambda: shoal.design(shoal.DEQ("tanh", 0.2, 0.8, bias_variance=0.1)), "without biases"),
        (lambda: shoal.design(shoal.DEQ(Hermite((0.0,)), 0.2, 0.8)), "the kernel is zero|constant"),
        (lambda: shoal.design(deq(ReLU(), 2.1), method="sphere"), "may not exist"),
        (lambda: by("relu"), "family must be one of 'hard_tanh', 'leaky_relu', got"),
        (lambda: shoal.designs.SphereMatching(norm_gated=1), "norm_gated must be True or False"),
        (lambda: shoal.designs.SphereMatching(tolerance=0.0), "tolerance must be > 0, got 0"),
        (lambda: shoal.design(deq(Tanh())).gap([1.0, 2.0]), "x must be a floating-point tensor"),
        (lambda: shoal.design(deq(Tanh())).gap(torch.ones(2, 3, 4)), r"x must have shape \(samp"),
    ],
)
def test_bad_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises((ValueError, TypeError, shoal.ConvergenceError), match=message):
        make()
