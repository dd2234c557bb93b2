"""The fixed-point problems of SciPy's and optimistix's test suites.

SciPy: ``scipy.optimize.fixed_point`` in ``test_minpack.py``. optimistix: ``tests/helpers.py``.
"""

import math

import torch
from torch.utils import _pytree as pytree

__all__ = ["OPTIMISTIX", "SCIPY"]


def row(*numbers):
    return torch.tensor([numbers], dtype=torch.float64)


def growth(n):
    """The equation for which SciPy's iteration once failed to converge with acceleration."""
    m, ratio = 1.3, 6.0 / 2.0
    first = (m - 1) / m * (ratio / m) ** (1 / (m - 1))
    return torch.log(ratio / n) / torch.log(first * n / (n - 1)) + 1


SCIPY = {  # function, start, solution
    "double": (lambda x: 2 * x, row(1.0), row(0.0)),
    "square": (lambda x: x**2, row(1.05), row(1.0)),
    "root": (lambda x: x.sqrt(), row(1.05), row(1.0)),
    "doubles": (lambda x: 2 * x, row(0.3, 0.15), row(0.0, 0.0)),
    "squares": (
        lambda x: row(0.75, 1.0, 1.25) * x**2,
        row(1.1, 1.15, 0.9),
        1 / row(0.75, 1.0, 1.25),
    ),
    "roots": (
        lambda x: row(0.75, 1.0, 1.25) * x.sqrt(),
        row(0.8, 1.1, 1.1),
        row(0.75, 1.0, 1.25) ** 2,
    ),
    "Lambert": (lambda x: torch.exp(-2 * x) / 2, row(1.0), row(0.56714329040978387 / 2)),
    "growth": (growth, row(1.001), row(1.3)),
}


def tree():
    a, b = torch.full((3, 2, 4), 0.5, dtype=torch.float64), torch.full((4,), 0.5).double()
    return ({"a": a}, b)


def of_vector(function):
    """A function of a vector as one of a tree of 28 numbers."""

    def call(state):
        leaves, spec = pytree.tree_flatten(state)
        flat = function(torch.cat([leaf.flatten() for leaf in leaves]))
        parts = flat.split([leaf.numel() for leaf in leaves])
        shaped = [part.view_as(leaf) for part, leaf in zip(parts, leaves, strict=True)]
        return pytree.tree_unflatten(shaped, spec)

    return call


def random(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(19))


def robertson(y):
    return torch.stack(
        [
            -0.04 * y[0] + 1e4 * y[1] * y[2],
            0.04 * y[0] - 3e7 * y[1] ** 2 - 1e4 * y[1] * y[2],
            3e7 * y[1] ** 2,
        ]
    )


MATRIX, STEP, SHORT = random(28, 28), 1 / 16, 1e-8
FIRST, SECOND, BIAS = random(8, 28) / math.sqrt(28), random(28, 8) / math.sqrt(8), random(28)
KINETICS = (torch.ones(2, dtype=torch.float64), {"b": torch.ones(1, dtype=torch.float64)})
LINE = torch.linspace(-1, 1, 100, dtype=torch.float64) ** 2

OPTIMISTIX = {
    "cosine": (of_vector(torch.cos), tree()),
    "exponential": (of_vector(lambda y: torch.exp(-y)), tree()),
    "network": (
        of_vector(
            lambda y: 0.1 * (SECOND @ torch.nn.functional.softplus(FIRST @ y + BIAS[:8]) + BIAS)
        ),
        tree(),
    ),
    # one step of the trapezoidal rule; the Laplacian of the original is the identity
    "heat": (
        lambda y: LINE + 0.5 * ((1 - y) * y + (1 - LINE) * LINE),
        torch.ones(100, dtype=torch.float64),
    ),
    "midpoint y": (of_vector(lambda y: STEP * MATRIX @ (y / 2)), tree()),
    "midpoint f": (of_vector(lambda y: MATRIX @ (STEP * y)), tree()),
    "midpoint k": (of_vector(lambda y: STEP * (MATRIX @ y)), tree()),
    "kinetics y": (of_vector(lambda y: SHORT * robertson(y / 2)), KINETICS),
    "kinetics f": (of_vector(lambda y: robertson(SHORT * y)), KINETICS),
    "kinetics k": (of_vector(lambda y: SHORT * robertson(y)), KINETICS),
}
