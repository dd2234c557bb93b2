"""Piecewise polynomials against NumPy, finite differences and autograd's own checks."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from shoal import FullyConnected, build, gaussian, load, save
from shoal.activations import PiecewisePolynomial
from shoal.activations.piecewise_polynomial import GradedCells, table

HAT = PiecewisePolynomial((-1.0, 0.0, 2.0), ((0.5, 0.5), (0.5, -0.5)))  # a roof, then on downwards
CUBIC = PiecewisePolynomial((-2.0, 1.0), ((0.3, -1.0, 0.25, 2.0),), corners=(-2.0, 1.0))


def exact(x):
    """The cubic, and its tangents beyond the knots, by NumPy."""
    p = np.polynomial.Polynomial((0.3, -1.0, 0.25, 2.0))

    def inside(x):
        return p((x + 0.5) / 1.5)

    slope = p.deriv()(np.array([-1.0, 1.0])) / 1.5
    left, right = inside(-2.0) + slope[0] * (x + 2), inside(1.0) + slope[1] * (x - 1)
    return np.where(x < -2, left, np.where(x > 1, right, inside(x)))


def test_values_and_tangents():
    x = torch.linspace(-4, 4, 1001, dtype=torch.float64)
    torch.testing.assert_close(CUBIC(x), torch.from_numpy(exact(x.numpy())), rtol=1e-14, atol=1e-14)
    assert HAT(torch.tensor([-2.0, -1.0, 0.0, 1.0, 4.0])).tolist() == [-1.0, 0.0, 1.0, 0.5, -1.0]


def test_single_precision_and_shapes():
    x = torch.linspace(-4, 4, 60).view(3, 4, 5)
    value = CUBIC(x)
    assert value.dtype == torch.float32
    assert value.shape == x.shape
    torch.testing.assert_close(value.double(), CUBIC(x.double()), rtol=1e-5, atol=1e-5)


def test_derivatives():
    x = torch.tensor([-3.0, -1.5, 0.2, 0.9, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(CUBIC, x)
    assert gradgradcheck(CUBIC, x)
    h = 1e-4
    with torch.no_grad():
        quotient = (CUBIC(x + h) - 2 * CUBIC(x) + CUBIC(x - h)) / h**2
        torch.testing.assert_close(CUBIC.derivative(x, 2), quotient, rtol=1e-6, atol=1e-6)
        assert CUBIC.derivative(x, 3).tolist() == [0.0, *[12 / 1.5**3] * 3, 0.0]
        assert not CUBIC.derivative(x, 4).any()


def test_gradients_under_vmap():
    x = torch.linspace(-3, 3, 7, dtype=torch.float64)
    slopes = torch.func.vmap(torch.func.grad(lambda t: CUBIC.function(t)))(x)
    torch.testing.assert_close(slopes, CUBIC.derivative(x))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # by forward mode
def test_all_modes_of_differentiation():
    x = torch.linspace(-3, 3, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    assert gradcheck(CUBIC, x, check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(CUBIC, x, check_fwd_over_rev=True, check_rev_over_rev=True)
    second = torch.diag(CUBIC.derivative(x.detach()[0], 2))
    hessians = (
        torch.func.hessian(lambda t: CUBIC.function(t).sum())(x.detach()[0]),
        torch.func.jacrev(torch.func.jacrev(lambda t: CUBIC.function(t).sum()))(x.detach()[0]),
    )
    for hessian in hessians:
        torch.testing.assert_close(hessian, second)
    weights = torch.ones(5, 4, dtype=torch.float64)
    rows = torch.func.vmap(torch.func.vjp(CUBIC.function, x.detach()[0])[1])(weights)[0]
    torch.testing.assert_close(rows, CUBIC.derivative(x.detach()[0]).expand(5, 4))


# functions with room for cubics: a smooth one, and one with a rounded corner at zero
def rounded(x):
    return np.sqrt(x**2 + 1e-6) + 0.3 * x


def tabulated(function, knots, degree=12):
    """A function as a table, by interpolation at Chebyshev's points."""
    pieces = []
    for low, high in itertools.pairwise(knots):
        series = np.polynomial.chebyshev.chebinterpolate(
            lambda s, a=low, b=high: function((a + b) / 2 + (b - a) / 2 * s), degree
        )
        pieces.append(tuple(np.polynomial.chebyshev.cheb2poly(series).tolist()))
    return PiecewisePolynomial(knots, tuple(pieces), corners=(knots[0], knots[-1]))


SMOOTH = tabulated(np.sin, tuple(np.linspace(-4, 4, 17).tolist()))
HALVES = tuple((6 * 0.6 ** np.arange(20, -1, -1)).tolist())
BENT = tabulated(rounded, (*(-x for x in reversed(HALVES)), 0.0, *HALVES))


def test_kinks_are_kept_in_single_precision():
    # corners inside, and knots that are not symmetric: no cubics
    assert not isinstance(table(HAT, 0, torch.float32, torch.device("cpu")).cells, GradedCells)
    x = torch.tensor([-1e-6, 0.0, 1e-6])
    assert HAT.derivative(x).tolist() == [1.0, -0.5, -0.5]


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
def test_in_compiled_functions():
    compiled = torch.compile(lambda t: 2 * SMOOTH(t), backend="aot_eager")
    x = torch.linspace(-5, 5, 11, requires_grad=True)
    torch.testing.assert_close(compiled(x), 2 * SMOOTH(x))
    (slope,) = torch.autograd.grad(compiled(x).sum(), x)
    torch.testing.assert_close(slope, 2 * SMOOTH.derivative(x.detach()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("phi", [SMOOTH, BENT, HAT])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_on_a_gpu(phi, dtype):
    x = (4 * torch.randn(50, 403, generator=torch.Generator().manual_seed(0))).to(dtype)
    found = []
    for device in ("cpu", "cuda"):
        y = x.to(device).requires_grad_()
        value = phi(y)
        (slope,) = torch.autograd.grad(value.sin().sum(), y, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sin().sum(), y)
        found.append([t.detach().cpu().float() for t in (value, slope, bend)])
    rough = 4 * 2**-8 if dtype == torch.bfloat16 else 1e-5  # four roundings to eight bits
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=rough, atol=rough * float(left.abs().max()))


def test_the_hat_is_piecewise_linear():
    assert [k.location for k in HAT.kinks] == [0.0]
    assert HAT.lipschitz == pytest.approx(1.0)
    m = gaussian.moments(HAT, 1.0)
    # 1 + x for x < 0, 1 - x/2 for x > 0
    assert float(m.mean) == pytest.approx(1 - 1.5 / np.sqrt(2 * np.pi), abs=1e-14)
    assert float(m.first) == pytest.approx(0.25, abs=1e-14)


@pytest.mark.thorough("1e-06", "1000")
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e3])
def test_moments_do_not_depend_on_the_scale(scale):
    knots, pieces = np.array(SMOOTH.knots), SMOOTH.pieces
    stretched = PiecewisePolynomial(tuple(scale * knots), pieces, corners=(scale * knots[0],))
    m = gaussian.moments(stretched, scale)
    t, w = np.polynomial.legendre.leggauss(2000)
    x = torch.from_numpy(12 * t)
    density = 12 * w * np.exp(-72 * t**2) / np.sqrt(2 * np.pi)
    for found, row in ((m.mean, SMOOTH(x)), (m.square, SMOOTH(x) ** 2)):
        assert float(found) == pytest.approx(float(row.numpy() @ density), rel=1e-8)


def test_it_is_a_value(tmp_path):
    assert PiecewisePolynomial(HAT.knots, HAT.pieces) == HAT
    assert hash(copy.deepcopy(HAT)) == hash(pickle.loads(pickle.dumps(HAT)))
    assert len(repr(HAT)) < 120
    net = build(FullyConnected((CUBIC,)), in_features=2, width=8)
    save(net, tmp_path / "net")
    assert load(tmp_path / "net").architecture == net.architecture


@pytest.mark.parametrize(
    ("knots", "pieces", "error", "text"),
    [
        ((0.0,), (), ValueError, "knots"),
        ((1.0, 0.0), ((1.0,),), ValueError, "knots"),
        ((0.0, 1.0), ((1.0,), (2.0,)), ValueError, "one fewer"),
        ((0.0, 1.0, 2.0), ((1.0,), (2.0, 3.0)), ValueError, "equally many"),
        ((0.0, float("nan")), ((1.0,),), ValueError, "knots"),
        ((0.0, 1.0), 3.0, TypeError, "pieces"),
        ("ab", ((1.0,),), TypeError, "knots"),
    ],
)
def test_bad_arguments(knots, pieces, error, text):
    with pytest.raises(error, match=text):
        PiecewisePolynomial(knots, pieces)
