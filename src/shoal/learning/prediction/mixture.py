r"""Learning curves of Gaussian mixtures, from the high-dimensional equivalent alone.

The equivalent of a centered network's kernel is
$\alpha_1 x^\top x' + \alpha_2 \chi\chi' + \alpha_3 T_{ab}/p$ plus $\gamma^2 - \tau_0^2\alpha_1$ on
the diagonal, where $T_{ab}/p$ is the inner product of the second moments $E[xx^\top]$ of two
classes. So its regression is ridge regression, with ridge $\lambda + \gamma^2 - \tau_0^2\alpha_1$,
on $\sqrt{\alpha_1}\,x$, on $\sqrt{\alpha_2}\,\chi$ and on $\sqrt{\alpha_3}\,xx^\top$ along these
moments: linear and quadratic forms of $x$, Gaussian in high dimension, whose means and covariances
are known.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from shoal.asymptotics import GaussianMixture, KernelCoefficients, coefficients
from shoal.asymptotics.statistics import mixture_pair_products
from shoal.core.checks import one_of, real
from shoal.kernels import KernelFunction
from shoal.learning.prediction.gaussian_features import GaussianFeatures, regressed
from shoal.learning.prediction.result import LearningCurve

_ROUNDING = 1e-9  # of coefficients, in units of the kernel


def mixture_curve(
    function: KernelFunction,
    mixture: GaussianMixture,
    sizes: list[int],
    *,
    ridge: float,
    which: Literal["ck", "ntk"],
) -> LearningCurve:
    """Errors of regression on indicators of the classes of a mixture."""
    real("ridge", ridge, at_least=0.0)
    one_of("which", which, ("ck", "ntk"))
    if len(mixture.classes) < 2:
        raise ValueError(f"x must have at least two classes, got {mixture!r}")
    squared, products = mixture_pair_products(mixture)
    found = coefficients(function, input_norm=math.sqrt(squared))
    if not found.center:
        raise ValueError(
            "the equivalent of a mixture is that of a centered network without biases: "
            f"bias_variance must be 0, got {function.architecture!r}"
        )
    kernel = found.ck if which == "ck" else found.ntk
    own = kernel.gamma2 - squared * kernel.alpha1  # what the diagonal has besides the features
    own = own if own > _ROUNDING * kernel.gamma2 else 0.0
    if not ridge + own > 0:
        raise ValueError("ridge must be > 0 for a kernel that is linear in its inputs, got 0")
    features = _features(mixture, kernel, squared, products)
    targets = torch.eye(len(mixture.classes), dtype=torch.float64)
    rows = []
    for size in sizes:
        fit = regressed(features, targets, size * mixture.proportions, ridge + own)
        share = ridge / (ridge + own)
        errors = (fit.test, fit.bias, share**2 * fit.train, fit.rate)
        rows.append([float(mixture.proportions @ values) for values in errors])
    test, bias, train, rate = torch.tensor(rows, dtype=torch.float64).unbind(1)
    nothing = torch.zeros_like(test)
    count = torch.tensor(sizes)
    return LearningCurve(count, ridge, test, bias, test - bias, train, rate, nothing, math.inf)


def _features(
    mixture: GaussianMixture, kernel: KernelCoefficients, squared: float, products: Tensor
) -> GaussianFeatures:
    """Means and covariances of the features of each class, the quadratic ones as forms of $x$."""
    p = mixture.dimension
    linear, norm, quadratic = (
        math.sqrt(_positive(kernel, name)) for name in ("alpha1", "alpha2", "alpha3")
    )
    centers = mixture.means / math.sqrt(p)
    spreads = [covariance.dense() / p for covariance in mixture.covariances]
    moments = torch.stack([s + torch.outer(m, m) for s, m in zip(spreads, centers, strict=True)])
    values, vectors = torch.linalg.eigh(products / p)  # inner products of the moments
    kept = values > 1e-10 * values[-1]
    basis = torch.einsum("ak,aij->kij", vectors[:, kept] / values[kept].sqrt(), moments)
    eye = torch.eye(p, dtype=torch.float64)
    forms = torch.cat([norm * eye[None], quadratic * basis])
    levels = torch.einsum("kij,aij->ak", forms, moments)
    levels[:, 0] -= norm * squared
    covariances = []
    for spread, center in zip(spreads, centers, strict=True):
        images = forms @ spread
        moved = forms @ center  # each form at the mean
        inner = 2 * torch.einsum("kij,lji->kl", images, images) + 4 * moved @ spread @ moved.T
        cross = 2 * linear * spread @ moved.T
        blocks = [[linear**2 * spread, cross], [cross.T, inner]]
        covariances.append(torch.cat([torch.cat(row, 1) for row in blocks]))
    return GaussianFeatures(torch.cat([linear * centers, levels], 1), covariances)


def _positive(kernel: KernelCoefficients, name: str) -> float:
    """A coefficient, which belongs to a positive definite kernel; rounding may make it negative."""
    value: float = getattr(kernel, name)
    if value < -_ROUNDING * abs(kernel.gamma2):
        raise ValueError(f"the coefficient {name} must not be negative, got {value:.3g}")
    return max(value, 0.0)
