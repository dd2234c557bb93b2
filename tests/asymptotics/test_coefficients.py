"""Coefficients against mpmath, finite differences, deep networks, and between the two methods."""

from itertools import chain, combinations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import BUILT_IN

from shoal import (
    DEQ,
    ConvergenceError,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    coefficients,
    kernel_function,
)
from shoal.activations import (
    ELU,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    Hermite,
    Identity,
    LeakyReLU,
    ReLU,
    Sine,
    Tanh,
)

KERNEL = {"gamma2", "alpha1", "alpha2", "alpha3", "ck_offset", "ck_slope", "ck_bend"}
NTK = {"kappa2", "beta1", "beta2", "beta3", "ntk_offset", "ntk_slope", "ntk_bend"}
NUMBERS = sorted({"tau", "shift", "alpha4"} | KERNEL | NTK)
POWERS = {"1": 2, "2": 4, "3": 4, "slope": 2, "bend": 4, "offset": 0}


def subsets(groups):
    """Of groups that are trained; each is thorough, but for all groups."""
    some = chain.from_iterable(combinations(groups, k) for k in range(1, len(groups)))
    return [*(pytest.param(chosen, marks=pytest.mark.thorough) for chosen in some), groups]


def size(c, name):
    """The natural size of a coefficient: the diagonal over powers of the norm."""
    if name in ("tau", "shift", "alpha4", "gamma2", "kappa2"):
        return 0.0
    power = POWERS[name.rsplit("_", 1)[-1] if "_" in name else name[-1]]
    return (c.gamma2 if name in KERNEL else c.kappa2) / c.input_norm**power


def assert_agree(found, expected, tolerance=1e-11):
    for name in NUMBERS:
        x, y = getattr(found, name), getattr(expected, name)
        assert abs(x - y) <= tolerance * max(abs(y), 1e-3 * size(expected, name)), name


def by_both(architecture, **options):
    found = coefficients(architecture, **options)
    assert_agree(found, coefficients(architecture, **options, method="closed"))
    return found


@pytest.mark.thorough("-False", "ELU", "HardTanh", "Sigmoid", "Swish", "Softplus")
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", BUILT_IN)
def test_derivatives_are_closed_forms(name, center):
    by_both(DEQ(BUILT_IN[name], 0.25, 0.7), input_norm=1.1, center=center)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", ["ReLU", "HardTanh", "GELU", "Sine", "HermiteSeries"])
def test_derivatives_are_closed_forms_in_two_layers(name, center):
    by_both(FullyConnected([BUILT_IN[name], Erf()]), input_norm=0.9, center=center)


@pytest.mark.parametrize("center", [True, pytest.param(False, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("trainable", subsets(("readout", "recurrent", "input")))
def test_all_trained_groups_of_a_deq(trainable, center):
    for phi in (ReLU(), Cosine()):
        by_both(DEQ(phi, 0.4, 0.9), input_norm=1.3, trainable=trainable, center=center)
        standard = DEQ(phi, 0.4, 0.9, parametrization="standard")
        if trainable != ("input",):  # of which nothing is left in the limit
            by_both(standard, input_norm=1.3, trainable=trainable, center=center)
        by_both(standard, input_norm=1.3, trainable=trainable, center=center, width=17)


@pytest.mark.parametrize("trainable", subsets(("readout", "layer1", "layer2", "layer3")))
def test_all_trained_groups_of_a_fully_connected_network(trainable):
    activations = [LeakyReLU(0.2), Erf(), Cosine()]
    by_both(FullyConnected(activations), input_norm=0.8, trainable=trainable, center=False)
    by_both(FullyConnected(activations, normalized=True), input_norm=0.8, trainable=trainable)


def test_the_network_of_du_2018():
    found = by_both(FullyConnected.du2018(ELU(0.5), depth=2), input_norm=1.0)
    assert found.trainable == {"layer1", "layer2"}


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(
    st.floats(0.0, 0.95),
    st.floats(0.05, 3.0),
    st.floats(0.05, 20.0),
    st.sampled_from([ReLU(), LeakyReLU(-0.4), Erf(), Sine(), Identity(), Hermite((0.3, 0.2))]),
    st.booleans(),
)
def test_all_variances_and_norms(recurrent, injection, input_norm, phi, center):
    gain = min(1.0, 1 / phi.lipschitz**2)
    by_both(DEQ(phi, recurrent * gain, injection), input_norm=input_norm, center=center)


# mpmath's own moments: φ piece by piece, and c_k = E[φ(τξ) h_k(ξ)] for distributional derivatives
PIECES = {
    "ReLU": (ReLU(), lambda x: max(x, mpmath.mpf(0)), [0]),
    "HardTanh": (HardTanh(0.7), lambda x: min(max(x, -0.7), 0.7), [-0.7, 0.7]),
    "ELU": (ELU(), lambda x: x if x > 0 else mpmath.expm1(x), [0]),
    "Softplus": (BUILT_IN["Softplus"], lambda x: mpmath.log1p(mpmath.exp(x)), []),
}  # fmt: skip


def expectation(function, tau, kinks):
    cuts = {mpmath.mpf(k) / tau for k in kinks}
    edges = sorted({mpmath.mpf(k) for k in range(-12, 13, 4)} | cuts)
    return mpmath.quad(lambda x: function(x) * mpmath.npdf(x), edges)


def mean_and_variance(phi, tau, kinks):
    mean = expectation(lambda x: phi(tau * x), tau, kinks)
    return mean, expectation(lambda x: (phi(tau * x) - mean) ** 2, tau, kinks)


def oracle(phi, kinks, sa, sb, input_norm):
    """Section "Coefficients" of docs/equivalents.md: readout and recurrent weights trained."""
    variance = mpmath.findroot(
        lambda v: sa * mean_and_variance(phi, mpmath.sqrt(v), kinks)[1] + sb * input_norm**2 - v,
        (sb, 1.2 * sb),
        tol=1e-30,
    )
    tau = mpmath.sqrt(variance)
    mean, square = mean_and_variance(phi, tau, kinks)
    shifted = lambda x: phi(tau * x) - mean  # noqa: E731
    m1 = expectation(lambda x: shifted(x) * x, tau, kinks) / tau
    m2 = expectation(lambda x: shifted(x) * (x * x - 1), tau, kinks) / tau**2
    q = expectation(lambda x: shifted(x) ** 2 * (x * x - 1), tau, kinks) / tau**2
    slope = lambda x: mpmath.diff(phi, tau * x, h=mpmath.mpf("1e-9"))  # noqa: E731
    slopes = expectation(lambda x: slope(x) ** 2, tau, kinks)
    s = 1 - sa * m1**2
    a1, a4 = sb * m1**2 / s, sb / (1 - sa * q / 2)
    a2, inner = m2**2 * a4**2 / (4 * s), sa * a1 + sb
    a3 = m2**2 * inner**2 / (2 * s)
    b1 = a1 / s
    printed = {  # Ling 2024 as printed: E[(φ²)'] for (φ²)'', κ, and the last term of β₃
        "alpha4": sb / (1 - sa * expectation(lambda x: shifted(x) ** 2 * x, tau, kinks) / tau / 2),
        "kappa2": variance / (1 - sa * m1**2),
        "beta3": (a3 + b1 * (sa * m2**2 + sb) * a1) / s,
    }
    right = {
        "tau": tau, "shift": -mean, "gamma2": square,
        "alpha1": a1, "alpha2": a2, "alpha3": a3, "alpha4": a4,
        "kappa2": square / (1 - sa * slopes), "beta1": b1, "beta2": a2 / s,
        "beta3": (a3 + b1 * sa * m2**2 * inner) / s,
    }  # fmt: skip
    return right, printed


@pytest.mark.thorough("ELU", "HardTanh")
@pytest.mark.parametrize("name", PIECES)
def test_against_mpmath_and_not_as_printed(name):
    phi, function, kinks = PIECES[name]
    with mpmath.workdps(20):
        right, printed = oracle(function, kinks, mpmath.mpf("0.3"), mpmath.mpf("0.6"), 1)
    found = coefficients(DEQ(phi, 0.3, 0.6), input_norm=1.0, trainable={"readout", "recurrent"})
    for key, value in right.items():
        tolerance = 1e-9 if key == "kappa2" else 1e-12  # which takes differences here
        assert getattr(found, key) == pytest.approx(float(value), rel=tolerance, abs=1e-15), key
    for key, value in printed.items():
        assert abs(getattr(found, key) / float(value) - 1) > 0.02, key


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("phi", [ReLU(), HardTanh(), Cosine()])
def test_finite_differences_of_the_kernel_function(phi, center):
    c = coefficients(DEQ(phi, 0.3, 0.8), input_norm=1.2, center=center)
    f, p, h = kernel_function(c.architecture), 1.2**2, 1e-3

    def k(i, j, l):  # noqa: E741
        return torch.stack(list(f(p + h * i, p + h * j, h * l)))

    middle = k(0, 0, 0)
    slope, bend = (k(1, 0, 0) - k(-1, 0, 0)) / (2 * h), k(1, 0, 0) - 2 * middle + k(-1, 0, 0)
    inner, square = (k(0, 0, 1) - k(0, 0, -1)) / (2 * h), k(0, 0, 1) - 2 * middle + k(0, 0, -1)
    mixed = (k(1, 1, 0) - k(1, -1, 0) - k(-1, 1, 0) + k(-1, -1, 0)) / (4 * h * h)  # fmt: skip
    expected = torch.stack([middle, slope, bend / h**2, inner, mixed, square / h**2 / 2])
    found = torch.tensor([
        [c.ck_offset, c.ck_slope, c.ck_bend, c.alpha1, c.alpha2, c.alpha3],
        [c.ntk_offset, c.ntk_slope, c.ntk_bend, c.beta1, c.beta2, c.beta3],
    ], dtype=torch.float64).T  # fmt: skip
    assert (found - expected).abs().max() < 1e-6
    assert (c.gamma2, c.kappa2) == pytest.approx([float(t) for t in f(p, p, p)], rel=1e-12)


def test_a_deq_is_infinitely_deep():
    """x_{l+1} = φ(σ_a A x_l + σ_b B x): the recursion of one layer, with an input in every one."""
    sa, sb, phi = 0.4, 0.9, BUILT_IN["Swish"]
    found = coefficients(DEQ(phi, sa, sb), input_norm=1.0, trainable={"readout", "recurrent"})
    f = kernel_function(FullyConnected([found.architecture.activation]))
    variance = found.tau**2
    first, bend = (
        float(f.derivative(variance, variance, 0.0, orders=(0, 0, n)).ck) for n in (1, 2)
    )
    step = torch.tensor(variance, dtype=torch.float64, requires_grad=True)
    half_q = float(torch.autograd.grad(f.own(step).ck, step)[0])
    a1 = a2 = a3 = a4 = 0.0
    for _ in range(60):  # α's of Λ are σ_a² α + σ_b² (for α₁ and α₄), and τ_* stays
        l1, l4 = sa * a1 + sb, sa * a4 + sb
        a1, a2 = first * l1, first * sa * a2 + bend * l4**2 / 4
        a3, a4 = first * sa * a3 + bend * l1**2 / 2, half_q * l4
    assert (a1, a2, a3, sa * a4 + sb) == pytest.approx(
        (found.alpha1, found.alpha2, found.alpha3, found.alpha4), rel=1e-12
    )


def test_a_deq_without_recurrence_is_a_layer():
    deq = coefficients(DEQ(ReLU(), 0.0, 1.0), input_norm=1.4, trainable={"readout", "input"})
    layer = coefficients(FullyConnected([ReLU()]), input_norm=1.4)
    for name in NUMBERS:
        if name != "alpha4":  # of the hidden units' arguments, and of their values
            assert getattr(deq, name) == pytest.approx(getattr(layer, name), rel=1e-13), name


def test_the_printed_recursion_of_theorem_3_8_is_not_it():
    """α̃₄ and α̃₁ enter squared, and α̃₄ has a ½."""
    c = coefficients(FullyConnected([LeakyReLU(0.2), LeakyReLU(0.2)]), input_norm=1.0)
    m1, square = 0.6, (1 + 0.04) / 2 - 0.64 / (2 * torch.pi)
    m2 = [0.8 / (2 * torch.pi) ** 0.5 / tau for tau in (1.0, square**0.5)]
    half_q = (1 + 0.04) / 2 - (0.8 / (2 * torch.pi) ** 0.5) * m2[0]
    assert c.alpha1 == pytest.approx(m1**4, rel=1e-13)
    assert c.alpha3 == pytest.approx(m1**2 * m2[0] ** 2 / 2 + m2[1] ** 2 * m1**4 / 2, rel=1e-13)
    assert c.alpha2 == pytest.approx(m1**2 * m2[0] ** 2 / 4 + m2[1] ** 2 * half_q**2 / 4, rel=1e-13)
    assert abs(c.alpha3 / (m1**2 * m2[0] ** 2 / 2 + m2[1] ** 2 * m1**2 / 2) - 1) > 0.05


def test_fully_trained():
    """Θ = G + Λ E/(1 - σ_a² E), so β₁ = α₁ + ℓ m₁²/s."""
    c = coefficients(DEQ(Tanh(), 0.3, 0.8), input_norm=1.0)
    ell = 0.3 * c.alpha1 + 0.8
    first = c.alpha1 / ell  # m₁²
    assert c.beta1 == pytest.approx(c.alpha1 + ell * first / (1 - 0.3 * first), rel=1e-12)


def test_it_prints_and_names_what_is_trained():
    c = coefficients(DEQ(ReLU(), 0.2, 0.8), input_norm=1.0, trainable={"readout"})
    assert "trained: readout" in str(c)
    assert "offset" not in str(c)
    assert "offset" in str(coefficients(DEQ(ReLU(), 0.2, 0.8), input_norm=1.0, center=False))
    assert c.center
    assert isinstance(c.architecture.activation, Affine)


@pytest.mark.parametrize("input_norm", [0.0, -1.0, float("nan"), float("inf")])
def test_norms_must_be_positive(input_norm):
    with pytest.raises(ValueError, match="input_norm must be"):
        coefficients(DEQ(ReLU(), 0.2, 0.8), input_norm=input_norm)


def test_bad_arguments():
    deq = DEQ(ReLU(), 0.2, 0.8)
    with pytest.raises(TypeError, match="input_norm must be a real number"):
        coefficients(deq, input_norm="1")
    with pytest.raises(ValueError, match="method must be one of"):
        coefficients(deq, input_norm=1.0, method="printed")
    with pytest.raises(TypeError, match="center must be True or False"):
        coefficients(deq, input_norm=1.0, center=1)
    with pytest.raises(TypeError, match="must be an Architecture"):
        coefficients(ReLU(), input_norm=1.0)
    with pytest.raises(TypeError, match="kernels of a ConvResNet are no functions"):
        coefficients(ConvResNet(ReLU(), depth=2), input_norm=1.0)
    with pytest.raises(TypeError, match=r"cannot be centered.*center=False"):
        coefficients(ImplicitNetwork(gamma=0.3), input_norm=1.0)
    with pytest.raises(ValueError, match="trainable must be chosen"):
        coefficients(deq, input_norm=1.0, trainable={"layer1"})
    with pytest.raises(ValueError, match="width has no meaning"):
        coefficients(deq, input_norm=1.0, width=5)
    with pytest.raises(ValueError, match="input_variance must be > 0"):
        coefficients(DEQ(ReLU(), 0.2, 0.0), input_norm=1.0, center=False)


@pytest.mark.thorough("derivatives")
@pytest.mark.parametrize("method", ["derivatives", "closed"])
def test_no_ntk_no_coefficients(method):
    """σ_a² E[φ'²] = 2.1/2 for ReLU, although the centered variance converges."""
    with pytest.raises(ConvergenceError, match="must be below 1"):
        coefficients(DEQ(ReLU(), 2.1, 0.8), input_norm=1.0, method=method)
