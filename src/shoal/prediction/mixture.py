r"""Learning curves of Gaussian mixtures, from the high-dimensional equivalent alone.

The equivalent of a centered network's kernel is
$\alpha_1 x^\top x' + \alpha_2 \chi\chi' + \alpha_3 T_{ab}/p$ plus $\gamma^2 - \tau_0^2\alpha_1$ on
the diagonal. So its regression is ridge regression on the features
$g = (\sqrt{\alpha_1}\,x, \sqrt{\alpha_2}\,\chi, \sqrt{\alpha_3/p}\,\text{row } a \text{ of }
T^{1/2})$, with the ridge $\lambda + \gamma^2 - \tau_0^2\alpha_1$: a mixture of Gaussian features,
whose means and covariances are known.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from shoal.core.checks import one_of, real
from shoal.equivalents import KernelCoefficients, coefficients
from shoal.equivalents.statistics import mixture_pair_products
from shoal.kernels import KernelFunction
from shoal.mixtures import GaussianMixture
from shoal.prediction.gaussian_features import GaussianFeatures, regressed
from shoal.prediction.result import LearningCurve

__all__ = ["mixture_curve"]


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
    found = coefficients(function, tau0=math.sqrt(squared))
    if not found.center:
        raise ValueError(
            "the equivalent of a mixture is that of a centered network without biases: "
            f"bias_variance must be 0, got {function.architecture!r}"
        )
    kernel = found.ck if which == "ck" else found.ntk
    own = kernel.gamma2 - squared * kernel.alpha1  # what the diagonal has besides the features
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
    """Means and covariances of the features of each class."""
    p, count = mixture.dimension, len(mixture.classes)
    scales = [math.sqrt(_positive(kernel, name)) for name in ("alpha1", "alpha2", "alpha3")]
    values, vectors = torch.linalg.eigh(products / p)
    levels = scales[2] * vectors * values.clamp_min(0.0).sqrt()
    means, covariances = [], []
    for a, (mean, covariance) in enumerate(zip(mixture.means, mixture.covariances, strict=True)):
        spread = covariance.apply(mean[:, None])[:, 0]
        inner = float(mean @ spread)
        norm = (float(mean @ mean) + covariance.trace()) / p - squared
        block = torch.zeros(p + 1 + count, p + 1 + count, dtype=torch.float64)
        block[:p, :p] = scales[0] ** 2 / p * covariance.dense()
        block[:p, p] = block[p, :p] = 2 * scales[0] * scales[1] / p**1.5 * spread
        block[p, p] = scales[1] ** 2 * (2 * covariance.inner(covariance) + 4 * inner) / p**2
        covariances.append(block)
        linear = scales[0] / math.sqrt(p) * mean
        means.append(torch.cat([linear, linear.new_tensor([scales[1] * norm]), levels[a]]))
    return GaussianFeatures(torch.stack(means), covariances)


def _positive(kernel: KernelCoefficients, name: str) -> float:
    """A coefficient, which belongs to a positive definite kernel; rounding may make it negative."""
    value: float = getattr(kernel, name)
    if value < -1e-9 * abs(kernel.gamma2):
        raise ValueError(f"the coefficient {name} must not be negative, got {value:.3g}")
    return max(value, 0.0)
