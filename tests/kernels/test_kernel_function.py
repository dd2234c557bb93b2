"""Kernels of pairs against closed forms, plain iteration, deep networks and wide random ones."""

import math

import pytest
import torch
from reference import BUILT_IN
from torch.autograd import gradcheck, gradgradcheck

import shoal
from shoal import DEQ, ConvergenceError, ConvResNet, FullyConnected, kernel_function
from shoal.activations import ELU, Hermite, ReLU, Softplus, Tanh
from shoal.gaussian import dual, dual_derivative, moments

PAIRS = torch.tensor(
    [
        [1.0, 1.0, 1.0],
        [1.0, 1.0, -0.999],
        [1.0, 1.0, 0.999],
        [0.01, 100.0, 0.5],
        [4.0, 0.25, -0.3],
        [100.0, 100.0, 60.0],
        [0.0, 2.0, 0.0],
    ],
    dtype=torch.float64,
)


def iterated(deq, a, b, c, depth):
    """The kernels of the weight-untied network of this depth, layer by layer."""
    phi, recurrent, injected = deq.activation, deq.recurrent_variance, deq.input_variance
    u, v, w = injected * a, injected * b, injected * c
    for _ in range(depth):
        bound = u.sqrt() * v.sqrt()
        inside = torch.minimum(torch.maximum(w, -bound), bound)
        u, v, w = (
            recurrent * dual(phi, *triple) + injected * x
            for triple, x in (((u, u, u), a), ((v, v, v), b), ((u, v, inside), c))
        )
    bound = u.sqrt() * v.sqrt()
    w = torch.minimum(torch.maximum(w, -bound), bound)
    return u, v, torch.where((a == b) & (c == a), u, w)  # an input and itself: no rounding


@pytest.mark.thorough("ELU", "Swish", "Sigmoid", "Softplus")
@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "HermiteSeries"])
def test_the_fixed_point_of_plain_iteration(name):
    deq = DEQ(BUILT_IN[name], 0.3, 0.8)
    a, b, c = PAIRS.T
    u, v, w = iterated(deq, a, b, c, depth=36)  # (0.3 L²)³⁶ < 1e-15
    ck, slope = dual(deq.activation, u, v, w), dual_derivative(deq.activation, u, v, w)
    through = slope / (1 - 0.3 * slope)
    found = kernel_function(deq)(a, b, c)
    scale = 1 + (u * v).sqrt()
    assert ((found.ck - ck).abs() <= 1e-13 * scale).all()
    assert (
        (found.ntk - (ck + 0.3 * ck * through + 0.8 * c * through)).abs() <= 1e-11 * scale
    ).all()


def test_equation_14_of_000():
    """K = Q(cos θ)/(1-σ_w²), cos θ = σ_w² Q(cos θ) + (1-σ_w²) x·x'/d, by bisection here."""
    d, weight = 10, 0.1

    def q(x):
        return (math.sqrt(1 - x * x) + (math.pi - math.acos(x)) * x) / math.pi

    function = kernel_function(DEQ.ling2023(weight, d))
    for correlation in (-0.95, -0.2, 0.0, 0.4, 0.99):
        low, high = -1.0, 1.0
        for _ in range(200):
            middle = (low + high) / 2
            rising = weight * q(middle) + (1 - weight) * correlation > middle
            low, high = (middle, high) if rising else (low, middle)
        expected = q(low) / (1 - weight)
        assert function(10.0, 10.0, 10 * correlation).ck.item() == pytest.approx(
            expected, rel=1e-14
        )


def test_the_standard_parametrization_counts_in_its_own_scale():
    deq = DEQ.ling2023(0.1, 10)
    a, b, c = (torch.tensor([v], dtype=torch.float64) for v in (10.0, 10.0, 3.0))
    u, v, w = iterated(deq, a, b, c, depth=200)
    ck, slope = dual(ReLU(), u, v, w), dual_derivative(ReLU(), u, v, w)
    through = slope / (1 - deq.recurrent_variance * slope)
    full = kernel_function(deq, width=500)(a, b, c).ntk
    assert full.item() == pytest.approx((500 * (ck + ck * through) + c * through).item(), rel=1e-13)
    limit = kernel_function(deq)(a, b, c).ntk
    assert limit.item() == pytest.approx((ck + ck * through).item(), rel=1e-13)
    only = kernel_function(deq, width=500, trainable={"input"})(a, b, c).ntk
    assert only.item() == pytest.approx((c * through).item(), rel=1e-13)


def arc_cosine(a, b, c):
    angle = math.acos(c / math.sqrt(a * b))
    value = math.sqrt(a * b) * (math.sin(angle) + (math.pi - angle) * math.cos(angle))
    return value / (2 * math.pi), (math.pi - angle) / (2 * math.pi)


def test_a_deep_relu_network_by_hand():
    """Ling 2024, Proposition 3.7, in plain floats."""
    a, b, c = 1.3, 0.7, 0.4
    ntk = c
    u, v, w = a, b, c
    for _ in range(3):
        value, slope = arc_cosine(u, v, w)
        u, v, w, ntk = u / 2, v / 2, value, value + slope * ntk
    found = kernel_function(FullyConnected([ReLU()] * 3))(a, b, c)
    assert found.ck.item() == pytest.approx(w, rel=1e-14)
    assert found.ntk.item() == pytest.approx(ntk, rel=1e-14)


def test_a_normalized_network_keeps_unit_norms():
    """Du 2018, equation (4): with √c_σ in each layer, K_ii = 1 at every depth."""
    net = FullyConnected.du2018(Softplus(), depth=4)
    assert kernel_function(net)(1.0, 1.0, 1.0).ck.item() == pytest.approx(1.0, rel=1e-14)
    c_sigma = 1 / float(moments(Softplus(), 1.0).square)
    w = torch.tensor(0.3, dtype=torch.float64)
    for _ in range(3):
        w = c_sigma * dual(Softplus(), 1.0, 1.0, w)
    last = c_sigma * w * dual_derivative(Softplus(), 1.0, 1.0, w)
    found = kernel_function(net, trainable={"layer4"})(1.0, 1.0, 0.3)
    assert found.ntk.item() == pytest.approx(float(last), rel=1e-13)


@pytest.mark.thorough("ELU", "Tanh")
@pytest.mark.parametrize("phi", [ReLU(), Tanh(), ELU(0.5)], ids=repr)
def test_derivatives_are_implicit(phi):
    point = tuple(
        torch.tensor(values, dtype=torch.float64, requires_grad=True)
        for values in ([1.0, 2.0], [0.5, 3.0], [0.3, 1.0])
    )
    function = kernel_function(DEQ(phi, 0.2, 0.8))
    assert gradcheck(lambda *t: tuple(function(*t)), point)
    first = tuple(t.detach()[:1].requires_grad_() for t in point)
    assert gradgradcheck(lambda *t: tuple(function(*t)), first)


def test_kernels_that_do_not_exist_say_so():
    for recurrent in (2.0, 3.0, 50.0):
        with pytest.raises(
            ConvergenceError, match=r"variance was not reached .* recurrent_variance"
        ):
            kernel_function(DEQ(ReLU(), recurrent, 0.8))(1.0, 1.0, 0.3)


def test_a_kernel_beyond_the_guarantee_still_converges():
    """ReLU has a kernel for σ_a² < 2: Λ = σ_b² a / (1 - σ_a²/2)."""
    deq = DEQ(ReLU(), 1.5, 0.8)
    assert not deq.kernel_guaranteed
    assert kernel_function(deq)(1.0, 1.0, 1.0).ck.item() == pytest.approx(0.8 / 0.25 / 2, rel=1e-13)


def test_bad_arguments():
    with pytest.raises(TypeError, match="architecture must be an Architecture, got 'deq'"):
        kernel_function("deq")
    with pytest.raises(TypeError, match="kernels of a ConvResNet are no functions"):
        kernel_function(ConvResNet(Softplus(), 3))
    with pytest.raises(ValueError, match="trainable must be chosen from 'readout'"):
        kernel_function(DEQ(Tanh(), 0.2, 0.8), trainable={"layer1"})
    with pytest.raises(ValueError, match="width has no meaning"):
        kernel_function(DEQ(Tanh(), 0.2, 0.8), width=100)
    with pytest.raises(ValueError, match=r"c must satisfy"):
        kernel_function(DEQ(Tanh(), 0.2, 0.8))(1.0, 1.0, 2.0)
    with pytest.raises(ValueError, match="a must be >= 0"):
        kernel_function(FullyConnected([Hermite((1.0, 2.0))]))(-1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        ((0, 1), "three integers"),
        ((0, 0, -1), "orders must be >= 0"),
        ((0, 0, 4), "at most 3 for implicit architectures"),
    ],
)
def test_derivatives_that_cannot_be_had(orders, message):
    with pytest.raises(ValueError, match=message):
        kernel_function(DEQ(ReLU(), 0.2, 0.8)).derivative(1.0, 1.0, 0.1, orders=orders)


def test_a_kernel_function_stands_for_its_architecture() -> None:
    deq = shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8)
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    function = shoal.kernel_function(deq, trainable={"recurrent"})
    assert shoal.kernel_function(function) is function
    wanted = shoal.kernel(deq, x, trainable={"recurrent"})
    assert torch.equal(shoal.kernel(function, x).ntk, wanted.ntk)
    assert torch.equal(shoal.kernel_operator(function, x).ntk.to_dense(), wanted.ntk)
    assert shoal.coefficients(function, input_norm=1.0) == shoal.coefficients(
        deq, input_norm=1.0, trainable={"recurrent"}
    )
    first, second = (
        shoal.kernel_regression(a, x, x[:, 0], ridge=0.1, **options).coefficients
        for a, options in ((function, {}), (deq, {"trainable": {"recurrent"}}))
    )
    assert torch.equal(first, second)
    with pytest.raises(ValueError, match="width must be left out with a kernel function"):
        shoal.kernel(function, x, width=7)


def test_operators_refuse_variances_that_require_gradients() -> None:
    variance = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    function = shoal.kernel_function(
        shoal.DEQ(shoal.activations.Tanh(), 0.2, 0.8), variances={"recurrent_variance": variance}
    )
    x = torch.eye(3, dtype=torch.float64)
    for ask in (shoal.kernel_operator, lambda f, x: shoal.kernel_regression(f, x, x, ridge=0.1)):
        with pytest.raises(ValueError, match="recurrent_variance must not require gradients"):
            ask(function, x)
