r"""Ridge regression on features that are Gaussian in each class, for many of them.

For classes with second moments $S_c = \Sigma_c + m_c m_c^\top$ and $n_c$ samples, the resolvent
$(\sum_i g_i g_i^\top + \lambda I)^{-1}$ is, in its linear forms, near
$$\bar Q = \Bigl(\sum_c \frac{n_c}{1 + \delta_c} S_c + \lambda I\Bigr)^{-1}, \qquad
\delta_c = \operatorname{tr} S_c \bar Q.$$
The mean weights are $\bar w = \bar Q \sum_c \frac{n_c}{1 + \delta_c} m_c y_c^\top$. With
$V_{ce} = \operatorname{tr} S_c \bar Q S_e \bar Q$ and $D$ the diagonal of $n_c/(1+\delta_c)^2$,
the errors $R_c$ of the mean weights and those $E_c$ of a regression are related by
$E = R + V D E$: differentiate $\bar Q$ along a matrix that is added to $\lambda I$.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # whose parts are imported where they are first used
import torch
from torch import Tensor

from shoal.core.exceptions import ConvergenceError

_STEPS = 200
_TOLERANCE = 1e-12


@dataclass(frozen=True, eq=False)
class GaussianFeatures:
    """A law of features for each class.

    Attributes:
        means: shape: (classes, dimension)
        covariances: One for each class. shapes: (dimension, dimension)
    """

    means: Tensor
    covariances: list[Tensor]

    def moments(self) -> list[Tensor]:
        """Second moments, about zero."""
        return [c + torch.outer(m, m) for c, m in zip(self.covariances, self.means, strict=True)]


@dataclass(frozen=True, eq=False)
class FeatureRegression:
    """Errors of a regression, for each class; mean squares over outputs.

    Attributes:
        test: On new samples. shape: (classes,), like all that follows
        bias: Of the mean weights on new samples.
        train: On the training samples.
        rate: The share of new samples whose largest output is not that of the target.
    """

    test: Tensor
    bias: Tensor
    train: Tensor
    rate: Tensor


def regressed(
    features: GaussianFeatures, targets: Tensor, counts: Tensor, ridge: float
) -> FeatureRegression:
    """Regress a target for each class on features.

    Args:
        features: Their laws.
        targets: One for each class. shape: (classes, outputs)
        counts: How many samples each class has. shape: (classes,)
        ridge: Positive.

    Raises:
        ConvergenceError: If the equation for the resolvent is not solved.
    """
    moments, means = features.moments(), features.means
    delta, near, pairs = _resolvent(moments, counts, ridge)
    weight = counts / (1 + delta)
    drawn = counts / (1 + delta).square()
    weights = near @ (means.T @ (weight[:, None] * targets))  # the mean ones
    missed = targets - means @ weights
    spread = [weights.T @ c @ weights for c in features.covariances]
    bias = torch.einsum("ci,cj->cij", missed, missed) + torch.stack(spread)
    system = torch.eye(len(counts), dtype=torch.float64) - pairs * drawn
    test = torch.linalg.solve(system, bias.flatten(1)).view_as(bias)
    squares = _mean_diagonal(test)
    wrong = []
    for c, covariance in enumerate(features.covariances):
        image = near @ covariance @ near
        along = torch.stack([(s * image).sum() for s in moments])
        gain = drawn * torch.linalg.solve(system, along)
        noise = spread[c] + torch.einsum("e,eij->ij", gain, bias)
        wrong.append(_wrong(means[c] @ weights, noise, int(targets[c].argmax())))
    return FeatureRegression(
        squares,
        _mean_diagonal(bias),
        squares / (1 + delta).square(),
        torch.tensor(wrong, dtype=torch.float64),
    )


def _resolvent(
    moments: list[Tensor], counts: Tensor, ridge: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""$\delta$, $\bar Q$ and $V$, by Newton's method from above, where the map is concave."""
    eye = torch.eye(len(moments[0]), dtype=torch.float64)
    delta = torch.stack([s.trace() for s in moments]) / ridge
    for _ in range(_STEPS):
        weight = counts / (1 + delta)
        total = ridge * eye + sum(w * s for w, s in zip(weight, moments, strict=True))
        near = torch.cholesky_inverse(torch.linalg.cholesky(total))
        images = [s @ near for s in moments]
        pairs = torch.stack([torch.stack([(a * b.T).sum() for b in images]) for a in images])
        residual = torch.stack([image.trace() for image in images]) - delta
        if bool((residual.abs() <= _TOLERANCE * delta).all()):
            return delta, near, pairs
        slopes = pairs * (counts / (1 + delta).square())
        step = torch.linalg.solve(torch.eye(len(counts), dtype=torch.float64) - slopes, residual)
        newton = delta + step
        delta = torch.where((newton > 0).all(), newton, delta + residual)
    raise ConvergenceError(
        f"the equation of the resolvent was not solved in {_STEPS} steps: take a larger ridge"
    )


def _mean_diagonal(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=1, dim2=2).mean(1)


def _wrong(mean: Tensor, covariance: Tensor, right: int) -> float:
    """The probability that a Gaussian vector is not largest at a place."""
    others = [j for j in range(len(mean)) if j != right]
    contrast = -torch.eye(len(mean), dtype=torch.float64)[others]
    contrast[:, right] = 1.0
    center, law = contrast @ mean, contrast @ covariance @ contrast.T
    if len(others) == 1:
        return float(scipy.special.ndtr(-float(center[0] / law[0, 0].sqrt())))
    normal = scipy.stats.multivariate_normal
    above = normal(np.zeros(len(others)), law.numpy(), allow_singular=True, seed=0)
    return 1 - float(above.cdf(center.numpy()))
