"""Coefficients against closed forms, finite differences and deep networks."""

from itertools import chain, combinations

import pytest
import torch
from reference import BUILT_IN

from shoal import (
    DEQ,
    ConvergenceError,
    ConvResNet,
    FullyConnected,
    ImplicitNetwork,
    ResNet,
    coefficients,
    kernel_function,
)
from shoal.activations import (
    ELU,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    LeakyReLU,
    ReLU,
    Softplus,
    Tanh,
)
from shoal.asymptotics.plain import deq_coefficients, layer_coefficients

NAMES = ("gamma2", "alpha1", "alpha2", "alpha3")


def assert_agree(found, expected, norm, tolerance=1e-12):
    """Each coefficient, relative to itself, or to a thousandth of its natural size if it is less.

    The natural size is that of the diagonal over powers of the norm.
    """
    for name, power in zip(NAMES, (0, 2, 4, 4), strict=True):
        x, y = getattr(found, name), getattr(expected, name)
        assert abs(x - y) <= tolerance * max(abs(y), 1e-3 * expected.gamma2 / norm**power), name


@pytest.mark.thorough("ELU", "HardTanh", "Sigmoid", "Swish", "Softplus")
@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize(
    ("recurrent", "injected", "norm"), [(0.237, 0.713, 1.093), (0.83, 0.11, 3.7)]
)
def test_a_deq_has_its_closed_forms(name, recurrent, injected, norm):
    phi = BUILT_IN[name]
    recurrent = recurrent * min(1.0, 1 / phi.lipschitz**2)
    c = coefficients(DEQ(phi, recurrent, injected), input_norm=norm)
    ck, ntk, tau, alpha4 = deq_coefficients(phi, recurrent, injected, norm, frozen_input=False)
    assert_agree(c.ck, ck, norm)
    assert_agree(c.ntk, ntk, norm)
    assert (c.tau, c.alpha4) == pytest.approx((tau, alpha4), rel=1e-12)
    some = coefficients(
        DEQ(phi, recurrent, injected), input_norm=norm, trainable={"readout", "recurrent"}
    )
    frozen = deq_coefficients(phi, recurrent, injected, norm, frozen_input=True)[1]
    assert_agree(some.ntk, frozen, norm)


@pytest.mark.parametrize("name", ["ReLU", "HardTanh", "GELU", "Sine", "HermiteSeries"])
def test_layers_have_their_closed_forms(name):
    for others in ([], [Erf()], [Erf(), BUILT_IN[name]]):
        activations = [BUILT_IN[name], *others]
        c = coefficients(FullyConnected(activations), input_norm=0.871)
        ck, ntk = layer_coefficients(activations, 0.871)
        assert_agree(c.ck, ck, 0.871)
        assert_agree(c.ntk, ntk, 0.871)


def subsets(groups):
    """Of groups that are trained; each is thorough, but for all groups."""
    some = chain.from_iterable(combinations(groups, k) for k in range(1, len(groups)))
    return [*(pytest.param(chosen, marks=pytest.mark.thorough) for chosen in some), groups]


def assert_differences(architecture, norm, **options):
    """All coefficients by differences of the kernel function."""
    c = coefficients(architecture, input_norm=norm, **options)
    options.pop("center", None)
    f, p, h = kernel_function(c.architecture, **options), norm**2, 1e-3 * norm**2

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
    powers = torch.tensor([0, 2, 4, 2, 4, 4], dtype=torch.float64)[:, None]
    assert ((found - expected) * norm**powers).abs().max() < 3e-6 * max(c.gamma2, c.kappa2)
    assert (c.gamma2, c.kappa2) == pytest.approx([float(t) for t in f(p, p, p)], rel=1e-12)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("trainable", subsets(("readout", "recurrent", "input")))
def test_all_trained_groups_of_a_deq(trainable, center):
    for phi in (ReLU(), Cosine()):
        for deq in (DEQ(phi, 0.4, 0.9), DEQ(phi, 0.4, 0.9, parametrization="standard")):
            width = {"width": 17} if deq.width_matters else {}
            assert_differences(deq, 1.3, trainable=trainable, center=center, **width)


@pytest.mark.parametrize(
    "architecture",
    [
        FullyConnected([LeakyReLU(0.2), Erf(), Cosine()], normalized=True),
        FullyConnected.du2018(ELU(0.5), depth=2),
        ResNet(Softplus(), 3, residual_scale=1.5),
        DEQ((Tanh(), ReLU()), 0.3, 0.8, hidden_variances=(0.7,)),
        DEQ(HardTanh(), 0.3, 0.8, bias_variance=0.3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_other_architectures_by_differences(architecture):
    for center in (True, False):
        assert_differences(architecture, 1.1, center=center)


def test_an_implicit_network_by_differences():
    assert_differences(ImplicitNetwork(0.4), 1.2, center=False)


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
    half_q = float(torch.autograd.grad(f.diagonal(step).ck, step)[0])
    a1 = a2 = a3 = a4 = 0.0
    for _ in range(60):  # α's of Λ are σ_a² α + σ_b² (for α₁ and α₄), and τ_* stays
        l1, l4 = sa * a1 + sb, sa * a4 + sb
        a1, a2 = first * l1, first * sa * a2 + bend * l4**2 / 4
        a3, a4 = first * sa * a3 + bend * l1**2 / 2, half_q * l4
    assert (a1, a2, a3, sa * a4 + sb) == pytest.approx(
        (found.alpha1, found.alpha2, found.alpha3, found.alpha4), rel=1e-12
    )


def test_it_prints_and_names_what_is_trained():
    c = coefficients(DEQ(ReLU(), 0.2, 0.8), input_norm=1.0, trainable={"readout"})
    assert "trained: readout" in str(c)
    assert "offset" not in str(c)
    assert "offset" in str(coefficients(DEQ(ReLU(), 0.2, 0.8), input_norm=1.0, center=False))
    assert c.center
    assert isinstance(c.architecture.activation, Affine)


@pytest.mark.parametrize(
    ("architecture", "options", "error", "message"),
    [
        (DEQ(ReLU(), 0.2, 0.8), {"input_norm": 0.0}, ValueError, "input_norm must be > 0"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_norm": float("nan")}, ValueError, "input_norm must be"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_norm": 1e9}, ValueError, "input_norm must be"),
        (DEQ(ReLU(), 0.2, 0.8), {"input_norm": "1"}, TypeError, "input_norm must be a real number"),
        (DEQ(ReLU(), 0.2, 0.8), {"center": 1}, TypeError, "center must be True or False"),
        (DEQ(ReLU(), 0.2, 0.8), {"trainable": {"layer1"}}, ValueError, "trainable must be chosen"),
        (DEQ(ReLU(), 0.2, 0.8), {"width": 5}, ValueError, "width has no meaning"),
        (DEQ(ReLU(), 0.2, 0.0), {"center": False}, ValueError, "input_variance must be > 0"),
        (ReLU(), {}, TypeError, "must be an Architecture"),
        (ConvResNet(ReLU(), depth=2), {}, TypeError, "kernels of a ConvResNet are no functions"),
        (ImplicitNetwork(gamma=0.3), {}, TypeError, r"cannot be centered.*center=False"),
        # σ_a² E[φ'²] = 2.1/2, although the centered variance converges
        (DEQ(ReLU(), 2.1, 0.8), {}, ConvergenceError, "must be below 1"),
    ],
)
def test_bad_arguments(architecture, options, error, message):
    with pytest.raises(error, match=message):
        coefficients(architecture, **{"input_norm": 1.0, **options})
