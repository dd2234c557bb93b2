"""What equivalents take from the samples: norms, and squared inner products between classes."""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.asymptotics.labels import Class, Labels, class_indices, classes_of
from shoal.asymptotics.mixture import GaussianMixture

_BLOCK = 2**24  # entries of a Gram matrix at a time
_FAR = 0.25  # of the mean squared norm: where expansions around one norm stop to be useful
_SEPARATE = 0.05


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    r"""Norms and classes of samples.

    Attributes:
        classes: The labels that occur.
        indices: The place of each sample's label in ``classes``.
        counts: How many samples each class has.
        squared_norms: $\|x_i\|^2$, in float64.
        mean_square: Their mean, which is $\tau_0^2$ unless something else is asked.
        norm_spread: Their standard deviation, relative to the mean.
        mean_share: The squared norm of the samples' mean, relative to the mean squared norm.
    """

    classes: tuple[Class, ...]
    indices: Tensor
    counts: Tensor
    squared_norms: Tensor
    mean_square: float
    norm_spread: float
    mean_share: float

    @property
    def membership(self) -> Tensor:
        """$J$, of shape (samples, classes): one at each sample's class."""
        return torch.nn.functional.one_hot(self.indices, len(self.classes)).double()


def sample_statistics(
    x: Tensor, labels: Labels | None, classes: tuple[Class, ...] | None
) -> SampleStatistics:
    """Measure samples of shape (n, p); ``classes`` are those of a mixture, where there is one."""
    if labels is None:
        if classes is not None and len(classes) > 1:
            raise ValueError(f"labels are needed for a mixture of {len(classes)} classes, got None")
        names = (0,) if classes is None else classes
        indices = torch.zeros(len(x), dtype=torch.int64)
    else:
        names = classes_of(labels) if classes is None else classes
        indices = class_indices(labels, names, samples=len(x))
    squared = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64).square()
    mean = float(squared.mean())
    if not mean > 0:
        raise ValueError("x must not be zero")
    center = x.mean(0, dtype=torch.float64).square().sum() - mean / len(x)
    return SampleStatistics(
        classes=names,
        indices=indices.to(x.device),
        counts=torch.bincount(indices, minlength=len(names)),
        squared_norms=squared,
        mean_square=mean,
        norm_spread=float(squared.std(correction=0)) / mean,
        mean_share=max(0.0, float(center) / mean),
    )


def pair_products(x: Tensor, statistics: SampleStatistics) -> Tensor:
    r"""$p$ times the mean of $(x_i^\top x_j)^2$ over the pairs $i \ne j$ of two classes.

    For a Gaussian mixture its expectation is $T_{ab} = \operatorname{tr}(C_a C_b)/p$ and what the
    means add, which vanishes in high dimension. It takes $O(np \min(n, p))$ operations.
    """
    for name, count in zip(statistics.classes, statistics.counts.tolist(), strict=True):
        if count < 2:
            raise ValueError(
                f"labels must give each class at least 2 samples, got {count} of class {name!r}: "
                "join classes, or give a mixture"
            )
    n, features = x.shape
    if len(statistics.classes) * features <= n:
        sums = _sums_by_features(x, statistics)
    else:
        sums = _sums_by_samples(x, statistics)
    own = torch.zeros(len(sums), dtype=torch.float64, device=x.device)
    own.index_add_(0, statistics.indices, statistics.squared_norms.square())
    counts = statistics.counts.to(x.device, torch.float64)
    pairs = torch.outer(counts, counts) - counts.diag()
    return (features * (sums - own.diag()) / pairs).cpu()


def _sums_by_features(x: Tensor, statistics: SampleStatistics) -> Tensor:
    """Inner products of the classes' second moments."""
    moments = []
    for a in range(len(statistics.classes)):
        rows = x[statistics.indices == a].double()
        moments.append((rows.T @ rows).flatten())
    stacked = torch.stack(moments)
    sums = stacked @ stacked.T
    return (sums + sums.T) / 2


def _sums_by_samples(x: Tensor, statistics: SampleStatistics) -> Tensor:
    """Sums over the Gram matrix, some rows at a time."""
    membership = statistics.membership
    sums = membership.new_zeros(membership.shape[1], membership.shape[1])
    for rows in torch.arange(len(x), device=x.device).split(max(1, _BLOCK // len(x))):
        squares = (x[rows] @ x.T).square_()
        sums += membership[rows].T @ (squares.double() @ membership)
    return (sums + sums.T) / 2


def mixture_pair_products(mixture: GaussianMixture) -> tuple[float, Tensor]:
    r"""The expectations of $\|x_i\|^2$ and of :func:`pair_products`."""
    statistics, means = mixture.statistics, mixture.means
    inner = statistics.mean_products.value
    crossed = torch.stack(
        [((c.apply(means.T)) * means.T).sum(0) for c in mixture.covariances]
    ).double()
    crossed = (crossed + crossed.T) / mixture.dimension
    products = statistics.trace_products.value + crossed + mixture.dimension * inner.square()
    norms = statistics.traces.value + inner.diagonal()
    return float(mixture.proportions @ norms), (products + products.T) / 2


def warn_of_misfits(statistics: SampleStatistics, expected: float | None) -> None:
    """Say where samples are not what the theory is about, or have not the ``expected`` norms."""
    found = statistics.mean_square
    if expected is not None and abs(found - expected**2) > _SEPARATE * expected**2:
        _warn(
            f"the norms of x are expected to be about {expected:.4g}, but their root mean square "
            f"is {math.sqrt(found):.4g}"
        )
    if statistics.norm_spread > _FAR:
        _warn(
            f"the squared norms of x vary by {statistics.norm_spread:.0%} around their mean, and "
            "the equivalents assume that they hardly vary: scale the inputs to one norm, or expect "
            "large errors (Equivalent.error measures them)"
        )
    if statistics.mean_share > _FAR:
        _warn(
            f"the mean of x has {statistics.mean_share:.0%} of the inputs' squared norm, and the "
            "equivalents assume nearly orthogonal inputs: subtract the mean, or expect large "
            "errors (Equivalent.error measures them)"
        )


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)
