"""Regression against kernels, solutions and determinants in fifty digits."""

import mpmath
import numpy as np
import pytest
import torch
from mpmath import mp

import shoal

RECURRENT, INJECTION = 0.2, 0.8
DEQ = shoal.DEQ(shoal.activations.ReLU(), RECURRENT, INJECTION)
PRECONDITIONERS = (None, shoal.learning.Nystrom(4))


def relu_deq(first, second, *, same):
    """CK and NTK of two inputs: the arccosine kernel (Cho & Saul 2009) at its fixed point."""
    a, b, c = (mp.fdot(p, q) for p, q in ((first, first), (second, second), (first, second)))
    left, right = (INJECTION * t / (1 - mp.mpf(RECURRENT) / 2) for t in (a, b))
    size, covariance = mp.sqrt(left * right), INJECTION * c
    for _ in range(80):
        angle = mp.mpf(0) if same else mp.acos(covariance / size)
        ck = size * (mp.sin(angle) + (mp.pi - angle) * mp.cos(angle)) / (2 * mp.pi)
        covariance = RECURRENT * ck + INJECTION * c
    slope = (mp.pi - angle) / (2 * mp.pi)
    return ck, ck + covariance * slope / (1 - RECURRENT * slope)


def matrix(first, second, which):
    return mpmath.matrix([[relu_deq(p, q, same=p is q)[which] for q in second] for p in first])


@pytest.mark.thorough("0.01-")
@pytest.mark.parametrize("which", ["ck", "ntk"])
@pytest.mark.parametrize("ridge", [1e-2, 1e-5])
def test_fits_in_fifty_digits(which, ridge):
    """Nearly equal, nearly opposite and parallel inputs: the condition is up to 1e6."""
    random = np.random.default_rng(0)
    x, new, y = random.normal(size=(10, 3)), random.normal(size=(3, 3)), random.normal(size=10)
    x[1], x[2] = x[0] * (1 + 1e-6), x[0] + 1e-5 * random.normal(size=3)
    x[3], new[0] = 1e-4 - x[4], 1.3 * x[0]
    with mp.workdps(50):
        known, asked = ([[mp.mpf(float(t)) for t in row] for row in rows] for rows in (x, new))
        row = ("ck", "ntk").index(which)
        shifted = matrix(known, known, row) + ridge * mpmath.eye(10)
        cross = matrix(asked, known, row)
        targets = mpmath.matrix([float(t) for t in y])
        alpha = mpmath.lu_solve(shifted, targets)
        mean = [float(t) for t in cross * alpha]
        variance = [
            float(relu_deq(p, p, same=True)[row] - (line * mpmath.lu_solve(shifted, line.T))[0])
            for p, line in ((p, cross[i, :]) for i, p in enumerate(asked))
        ]
        quadratic = (targets.T * alpha)[0]
        logdet = mp.log(mpmath.det(shifted))
        likelihood = float(-(quadratic + logdet + 10 * mp.log(2 * mp.pi)) / 2)
        alpha = np.array([float(t) for t in alpha])
    iterative = [shoal.learning.ConjugateGradients(p, tolerance=1e-11) for p in PRECONDITIONERS]
    for method in [shoal.learning.Cholesky(tolerance=1e-11), *iterative]:
        options = {"ridge": ridge, "which": which, "center": False, "method": method}
        fit = shoal.kernel_regression(DEQ, x, y, **options)
        scale = np.abs(alpha).max()
        np.testing.assert_allclose(fit.coefficients, alpha, rtol=0, atol=1e-8 * scale)
        np.testing.assert_allclose(fit.predict(new), mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(fit.variance(new), variance, rtol=0, atol=1e-10)
        if fit.report.method == "cholesky":
            assert fit.log_marginal_likelihood == pytest.approx(likelihood, rel=1e-8)


@pytest.mark.parametrize(
    "preconditioner",
    [*PRECONDITIONERS, shoal.learning.Nystrom()],
    ids=str,
)
def test_without_a_ridge(preconditioner):
    """A linear network, whose kernel is a multiple of the Gram matrix: nothing is left of it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 60, generator=generator, dtype=torch.float64)
    through = 1 / (1 - RECURRENT)
    gram = INJECTION * through * (1 + through) * x @ x.T
    fit = shoal.kernel_regression(
        shoal.DEQ(shoal.activations.Identity(), RECURRENT, INJECTION),
        x,
        x[:, 0] ** 2,
        ridge=0.0,
        center=False,
        method=shoal.learning.ConjugateGradients(preconditioner, tolerance=1e-9),
    )
    expected = torch.linalg.solve(gram, x[:, 0] ** 2)
    torch.testing.assert_close(fit.coefficients, expected, rtol=0, atol=1e-7)


def plain_steps(system, near, b, tolerance):
    """How many steps conjugate gradients take, as in the textbook."""
    residual = b
    direction = step = torch.linalg.solve(near, b)
    count = 0
    while residual.norm() > tolerance * b.norm():
        image = system @ direction
        energy = residual @ step
        residual = residual - energy / (direction @ image) * image
        step = torch.linalg.solve(near, residual)
        direction = step + (residual @ step) / energy * direction
        count += 1
    return count


def test_steps_are_those_of_dense_matrices():
    """The preconditioner is the positive definite matrix that it is said to be."""
    x, labels = shoal.GaussianMixture.ling2024(200).sample(300, seed=0, shuffle=True)
    kernel, ridge, eye = shoal.kernel(DEQ, x).ntk, 1e-3, torch.eye(300, dtype=torch.float64)
    chosen = torch.randperm(300, generator=torch.Generator().manual_seed(0))[:80]
    near = kernel[:, chosen] @ torch.linalg.solve(kernel[chosen][:, chosen], kernel[chosen])
    near, y = near + ((kernel - near).diagonal().mean() + ridge) * eye, labels.double()
    assert float(torch.linalg.eigvalsh(near)[0]) > 0
    expected = plain_steps(kernel + ridge * eye, near, y, 1e-6)
    method = shoal.learning.ConjugateGradients(shoal.learning.Nystrom(80))
    fit = shoal.kernel_regression(DEQ, x, y, ridge=ridge, center=False, method=method)
    assert abs(int(fit.report.iterations.max()) - expected) <= 1
