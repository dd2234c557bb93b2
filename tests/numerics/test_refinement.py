"""Conjugate gradients with products that err, and true residuals outside."""

import torch

from shoal.numerics import DiagonalOperator, conjugate_gradients


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def system(size=60, ridge=1e-3):
    """An ill-conditioned matrix, its ridge included."""
    basis = torch.linalg.qr(normal(size, size))[0]
    return (basis * (torch.logspace(1, -6, size).double() + ridge)) @ basis.T


def solved(matrix, error, b, *, max_steps=2000):
    looks = []

    def exact(v):
        looks.append(b - matrix @ v)
        return matrix @ v

    found = conjugate_gradients(
        lambda v: (matrix + error) @ v,
        b,
        preconditioner=DiagonalOperator(matrix.diagonal()),
        rtol=1e-9,
        max_steps=max_steps,
        exact=exact,
    )
    return found, torch.stack([look.norm(dim=0) for look in looks]) / b.norm(dim=0)


def test_sweeps_converge_as_fast_as_the_bound_says():
    ridge, b = 1e-3, normal(60, 2, seed=1)
    matrix, error = system(ridge=ridge), normal(60, 60, seed=2)
    error = error + error.T
    for share in (0.3, 0.01):  # of the ridge, while the condition number is 1e4
        scaled = error * (share * ridge / torch.linalg.matrix_norm(error, 2))
        found, looks = solved(matrix, scaled, b)
        assert found.converged
        assert float(looks[-1].max()) <= 1e-9
        gains = (looks[1:] / looks[:-1]).max(1).values
        bound = 5.1e-4 + (1 + 5.1e-4) * share / (1 - share)
        assert float(gains[:-1].max() if len(gains) > 1 else 0.0) <= bound
        assert len(looks) <= 12 if share == 0.3 else len(looks) <= 6


def test_errors_above_the_ridge_are_told():
    matrix, b = system(ridge=1e-3), normal(60, 1, seed=1)
    error = 10.0 * torch.eye(60).double() * -1e-3 * torch.linspace(-1, 1, 60).double()
    found, looks = solved(matrix, error, b, max_steps=300)
    assert not found.converged
    assert float(looks[-1].max()) > 1e-9  # and nobody is told otherwise


def test_errors_above_the_ridge_do_no_harm_where_the_matrix_is_large():
    """What counts is the error relative to the matrix, not to the ridge."""
    matrix, b = system(ridge=1e-3), normal(60, 2, seed=1)
    values, vectors = torch.linalg.eigh(matrix)
    error = 0.2 * values[-1] * vectors[:, -1:] @ vectors[:, -1:].T  # two thousand ridges
    found, looks = solved(matrix, error, b)
    assert found.converged
    gains = (looks[1:] / looks[:-1]).max(1).values
    assert float(gains[:-1].max()) <= 5.1e-4 + (1 + 5.1e-4) * 0.2 / (1 - 0.2)
