"""Diagonals of kernel matrices, and what overflows in either."""

import math

import pytest
import torch

from shoal import (
    DEQ,
    AccuracyError,
    ConvergenceError,
    FullyConnected,
    kernel,
    kernel_function,
    kernel_operator,
)
from shoal.activations import GELU, Erf, Identity, ReLU, Sine, Tanh

ARCHITECTURES = [DEQ(ReLU(), 0.2, 0.8), DEQ(Identity(), 0.2, 0.8), FullyConnected([GELU()])]


def nearly_parallel():
    """Pairs at known angles, of different norms."""
    angle = torch.tensor([0.0, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.1, 1.0]).double()
    angle = torch.cat([angle, math.pi - angle])
    norms = 0.5 + torch.arange(len(angle)).double() / 10
    zero = torch.zeros_like(angle)
    x1 = torch.stack([norms, zero, zero], 1)
    sine = torch.where(angle > 3, (math.pi - angle).sin(), angle.sin())  # π has a rounding
    return x1, torch.stack([angle.cos(), sine, zero], 1) * 1.3, angle, norms * 1.3


def test_partners_that_are_nearly_parallel():
    x1, x2, angle, product = nearly_parallel()
    found = kernel(FullyConnected([ReLU()]), x1, x2, diag=True)
    share = (math.pi - angle) / (2 * math.pi)  # of the half-planes that overlap
    ck = product * (angle.sin() / (2 * math.pi) + share * angle.cos())
    for left, right in zip(found, (ck, ck + product * share * angle.cos()), strict=True):
        assert ((left - right).abs() <= 1e-12 * product).all()


@pytest.mark.thorough("Tanh()-False")
@pytest.mark.parametrize("one_norm", [True, False])
@pytest.mark.parametrize("phi", [ReLU(), Tanh()], ids=repr)
def test_partners_are_as_exact_as_the_matrix(phi, one_norm):
    x1, x2, *_ = nearly_parallel()
    if one_norm:
        x1, x2 = (x / x.norm(dim=1, keepdim=True) for x in (x1, x2))
    x1[3], x2[5] = 0.0, 0.0
    deq = DEQ(phi, 0.2, 0.8)
    found, matrix = kernel(deq, x1, x2, diag=True), kernel(deq, x1, x2)
    for left, right in zip(found, matrix, strict=True):
        assert (left - right.diagonal()).abs().max() <= 1e-11 * right.abs().max()


def test_partners_of_batches_and_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    x1 = torch.randn(2, 1, 4, 6, generator=generator, dtype=torch.float64)
    x2 = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    deq = DEQ(ReLU(), 0.2, 0.8)
    matrix = kernel(deq, x1, x2).ntk.diagonal(dim1=-2, dim2=-1)
    found = kernel(deq, x1, x2, diag=True).ntk
    assert found.shape == (2, 3, 4)
    assert (found - matrix).abs().max() <= 1e-12 * matrix.abs().max()
    single = kernel(deq, x1.float(), x2.float(), diag=True).ntk
    assert single.dtype == torch.float32
    assert (single - matrix).abs().max() <= 1e-6 * matrix.abs().max()


def test_gradients_do_not_change_the_values():
    x1, x2, *_ = nearly_parallel()
    deq = DEQ(ReLU(), 0.2, 0.8)
    plain = kernel(deq, x1, x2, diag=True).ntk
    found = kernel(deq, x1.clone().requires_grad_(), x2, diag=True).ntk
    assert found.requires_grad
    assert (found - plain).abs().max() <= 1e-13 * plain.max()


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)
@pytest.mark.parametrize(
    ("dtype", "large"), [(torch.float64, 1e200), (torch.float32, 1e30)], ids=str
)
def test_what_overflows(architecture, dtype, large):
    x = torch.eye(3, dtype=dtype)
    huge, more = large * x, math.sqrt(large) * x
    for call in (
        lambda: kernel(architecture, huge),
        lambda: kernel(architecture, huge, more),
        lambda: kernel(architecture, more, huge),
        lambda: kernel(architecture, huge, diag=True),
        lambda: kernel(architecture, more, huge, diag=True),
        lambda: kernel_operator(architecture, more, huge),
    ):
        with pytest.raises(AccuracyError, match=r"overflows torch\.float|scale the inputs down"):
            call()


def test_what_does_not_overflow():
    """A large input times a small one is none too large, on either side."""
    x, deq = torch.eye(3), DEQ(ReLU(), 0.2, 0.8)
    expected = 1e30 * kernel(deq, x.double()).ntk
    for found in (kernel(deq, 1e30 * x, x).ntk, kernel(deq, x, 1e30 * x).ntk):
        assert (found.double() - expected).abs().max() <= 1e-6 * expected.max()
    found = kernel(deq, x, 1e30 * x, diag=True).ntk
    assert (found.double() - expected.diagonal()).abs().max() <= 1e-6 * expected.max()


def test_norms_beyond_all_numbers():
    x = 1e200 * torch.eye(2, dtype=torch.float64)
    for options in ({}, {"diag": True}):
        with pytest.raises(AccuracyError, match=r"overflows torch\.float64"):
            kernel(DEQ(Tanh(), 0.2, 0.8), x, **options)


@pytest.mark.parametrize("phi", [Tanh(), Erf(), Sine()], ids=str)
def test_opposite_inputs_stay_opposite(phi):
    """Odd features of x and -x are opposite, and a ReLU behind them sees no common part."""
    x = torch.randn(6, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = kernel(FullyConnected((phi, ReLU())), x, -x, diag=True)
    own = kernel(FullyConnected((phi, ReLU())), x, diag=True)
    assert (found.ntk.abs() <= 1e-15 * own.ntk).all()


def of_norms(norms):
    """Inputs of random directions and some norms, in float64."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(norms), 5, dtype=torch.float64, generator=generator)
    return x / x.norm(dim=1, keepdim=True) * norms[:, None]


def rounding_of_ntk(deq, square):
    r"""The largest relative difference that rounding makes between two solutions for one norm.

    Each variance solves $\Lambda = \sigma_a^2 g(\Lambda) + \sigma_b^2 a$ up to a residual of
    $10^{-15} \Lambda$, as after a change of $a$ by $10^{-15} \Lambda/\sigma_b^2$, and the
    NTK responds to a relative change of $a$ with $|d \log \Theta / d \log a|$ times as much.
    """
    square = square.detach().clone().requires_grad_()
    ck, ntk = kernel_function(deq).diagonal(square)
    condition = torch.autograd.grad(ntk.log().sum(), square)[0].abs() * square
    injected = deq.input_variance * square
    variance = deq.recurrent_variance * ck + injected
    return (2 * 1e-15 * condition * variance / injected).detach()


@pytest.mark.thorough("False")
@pytest.mark.parametrize("gradients", [False, True])
def test_many_norms_next_to_those_that_have_no_kernel(gradients):
    """The kernel exists from a norm of 0.1406 on, in the octave that begins at 0.125."""
    arch = DEQ(Tanh(), recurrent_variance=1.5, input_variance=0.8)
    with pytest.raises(ConvergenceError):
        kernel_function(arch).diagonal(torch.tensor([0.13**2], dtype=torch.float64))
    x = of_norms(torch.linspace(0.149, 0.163, 300).double()).requires_grad_(gradients)
    found, point = kernel(arch, x).ntk.diagonal(), x.detach().clone().requires_grad_()
    square = (point**2).sum(1)
    own = kernel_function(arch).diagonal(square).ntk
    assert ((found - own).abs() <= rounding_of_ntk(arch, square) * own).all()
    if gradients:
        found.sum().backward()
        own.sum().backward()
        # next to the end of the range slopes are large, and rounding moves them
        torch.testing.assert_close(x.grad, point.grad, rtol=1e-9, atol=1e-9)
