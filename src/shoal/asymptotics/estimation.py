r"""Estimates of a mixture's statistics from labeled samples, without bias and with errors.

The plug-in $\operatorname{tr} S_a^2$ is too large by about $(\operatorname{tr} C_a)^2 / n_a$, which
in high dimension is as large as $\operatorname{tr} C_a^2$ itself; so are squared norms of means.
What is estimated here is unbiased for every law of the samples, with $n_a$ below or above $p$.

Standard errors are those of the jackknife over samples, with the sizes of the classes fixed. All
estimates of products are U-statistics, of which the jackknife counts the part of second order
twice, and in high dimension that part is not small. It is estimated by itself and taken off once.
"""

import torch
from torch import Tensor

from shoal.asymptotics.arguments import Numbers, samples
from shoal.asymptotics.labels import Class, Labels, class_indices, classes_of
from shoal.asymptotics.mixture_statistics import Estimate, MixtureStatistics
from shoal.asymptotics.sums import (
    ClassSums,
    FourthMoments,
    class_sums,
    quadratic_sums,
    spread_rows,
)
from shoal.core.settings import in_standard_settings

_FEWEST = 5  # samples of a class: four for the fourth moments, one more for their error
_LARGEST = 1e30
_PAIRED = 512  # samples of a class whose pairs give the variance of second order


@in_standard_settings
def estimate(x: Numbers, labels: Labels) -> MixtureStatistics:
    r"""Estimate what the theory needs of a mixture, without bias and with standard errors.

    It takes $O(n^2 p)$ or, if there are many more samples than dimensions, $O(K n p^2)$ operations
    in float64, on the device of the samples, and one copy of them.

    Args:
        x: Samples in rows, a tensor or an array, scaled such that $\sqrt p\,x \sim N(\mu_a, C_a)$.
        labels: A class for each of them: integers or strings.

    Raises:
        TypeError: If samples are not floating-point numbers, or labels not integers or strings.
        ValueError: If shapes do not fit, samples are not finite, or a class has fewer than five.

    Example:
        >>> import shoal
        >>> x, labels = shoal.GaussianMixture.ling2024(100).sample(400, seed=0)
        >>> estimate(x, labels).trace_products
        Estimate([[1.049 ± 0.02, 1.843 ± 0.03], [1.843 ± 0.03, 3.257 ± 0.07]])
    """
    return estimate_from(*sums_of_classes(x, labels))


def estimate_from(classes: tuple[Class, ...], sums: list[ClassSums]) -> MixtureStatistics:
    """The estimate from the sums of the classes."""
    counts = torch.tensor([c.count for c in sums], dtype=torch.float64)
    dimension, proportions = len(sums[0].mean), counts / counts.sum()
    forms = quadratic_sums(sums)
    moments = [FourthMoments.whole(c, forms[a][a]) for a, c in enumerate(sums)]
    left_out = [FourthMoments.without(c, forms[a][a]) for a, c in enumerate(sums)]
    products, product_variances = _trace_products(sums, forms, moments, left_out)
    traces = _stack([c.trace() for c in sums])
    trace_variances = _stack([_jackknife(c.traces_without()) for c in sums])
    mean_trace = proportions @ traces
    weights = torch.eye(len(sums), dtype=torch.float64) - proportions
    return MixtureStatistics(
        classes=classes,
        dimension=dimension,
        proportions=proportions,
        traces=_result(traces, trace_variances),
        input_norm_squared=_result(mean_trace, proportions**2 @ trace_variances),
        trace_deviations=_result(
            dimension**0.5 * (traces - mean_trace), dimension * (weights**2 @ trace_variances)
        ),
        trace_products=_result(dimension * products, dimension**2 * product_variances),
        mean_products=_mean_products(sums, products),
        mean_distances=_mean_distances(sums, products),
        norm_excess=_result(
            dimension * _stack([m.excess for m in moments]),
            dimension**2 * _stack([_jackknife(m.excess) for m in left_out]),
        ),
    )


def sums_of_classes(x: Numbers, labels: Labels) -> tuple[tuple[Class, ...], list[ClassSums]]:
    """The classes and the sums over the samples of each."""
    rows = samples(x)
    largest = max(map(abs, torch.stack(torch.aminmax(rows)).tolist()))
    if largest > _LARGEST:
        raise ValueError(
            f"x must be at most {_LARGEST:g}, for its eighth powers to be numbers, got {largest:g}"
        )
    classes = classes_of(labels)
    indices = class_indices(labels, classes, samples=len(rows)).to(rows.device)
    for name, count in zip(classes, torch.bincount(indices).tolist(), strict=True):
        if count < _FEWEST:
            raise ValueError(
                f"labels must give each class at least {_FEWEST} samples, "
                f"got {count} of class {name!r}"
            )
    # indexing by a mask copies, so that one copy in float64 is all the memory it takes
    return classes, [class_sums(rows[indices == a].double()) for a in range(len(classes))]


def _trace_products(
    sums: list[ClassSums],
    forms: list[list[Tensor]],
    moments: list[FourthMoments],
    left_out: list[FourthMoments],
) -> tuple[Tensor, Tensor]:
    """tr(C_a C_b) and the variances of its estimates."""
    values, variances = _empty(sums), _empty(sums)
    for a, first in enumerate(sums):
        n = first.count
        second_order = 2 * _own_interaction(first)
        values[a, a] = moments[a].trace_square
        variances[a, a] = _corrected(
            _jackknife(left_out[a].trace_square),
            second_order / ((n - 1) * (n - 2)),
            second_order / (n * (n - 1)),
        )
        for b, other in enumerate(sums[:a]):
            m = other.count
            values[a, b] = values[b, a] = forms[a][b].sum() / ((n - 1) * (m - 1))
            either = _jackknife(_traces_without(forms[a][b], m))
            either = either + _jackknife(_traces_without(forms[b][a], n))
            shared = _cross_interaction(first, other) / (n * m)
            variances[a, b] = variances[b, a] = _corrected(either, shared, shared)
    return values, variances


def _traces_without(forms: Tensor, other_count: int) -> Tensor:
    """tr(S_a S_b) without each of the samples of a, given their quadratic forms of b."""
    n = len(forms)
    return (forms.sum() - n / (n - 1) * forms) / ((n - 2) * (other_count - 1))


def _mean_products(sums: list[ClassSums], products: Tensor) -> Estimate:
    values, variances = _empty(sums), _empty(sums)
    for a, first in enumerate(sums):
        n = first.count
        second_order = 2 * products[a, a].clamp_min(0.0)
        values[a, a] = first.square_mean()
        variances[a, a] = _corrected(
            _jackknife(first.square_means_without()),
            second_order / ((n - 1) * (n - 2)),
            second_order / (n * (n - 1)),
        )
        for b, other in enumerate(sums[:a]):
            values[a, b] = values[b, a] = first.mean @ other.mean
            either = _of_means(first.products_with(other.mean))
            either = either + _of_means(other.products_with(first.mean))
            shared = products[a, b] / (n * other.count)
            variances[a, b] = variances[b, a] = _corrected(either, shared, shared)
    return _result(values, variances)


def _mean_distances(sums: list[ClassSums], products: Tensor) -> Estimate:
    values, variances = _empty(sums), _empty(sums)
    for a, first in enumerate(sums):
        for b, other in enumerate(sums[:a]):
            value = first.square_mean() + other.square_mean() - 2 * first.mean @ other.mean
            n, m = first.count, other.count
            own = 2 * products[a, a].clamp_min(0.0), 2 * products[b, b].clamp_min(0.0)
            shared = 4 * products[a, b] / (n * m)
            either = _jackknife(_distances_without(first, other.mean))
            either = either + _jackknife(_distances_without(other, first.mean))
            counted = own[0] / ((n - 1) * (n - 2)) + own[1] / ((m - 1) * (m - 2)) + shared
            least = own[0] / (n * (n - 1)) + own[1] / (m * (m - 1)) + shared
            values[a, b] = values[b, a] = value
            variances[a, b] = variances[b, a] = _corrected(either, counted, least)
    return _result(values, variances)


def _distances_without(sums: ClassSums, center: Tensor) -> Tensor:
    """What of the distance to ``center`` changes, without each of the samples."""
    return sums.square_means_without() + 2 / (sums.count - 1) * sums.products_with(center)


def _own_interaction(sums: ClassSums) -> Tensor:
    """The variance of (z_i·z_j)² beyond what depends on i or on j alone."""
    rows = spread_rows(sums, _PAIRED)
    n = len(rows)
    squares = (rows @ rows.T).square_()
    squares.fill_diagonal_(0.0)
    row_means = squares.sum(1) / (n - 1)
    mean = row_means.mean()
    effects = (n - 1) / (n - 2) * (row_means - mean)
    rest = (squares - mean - effects[:, None] - effects).fill_diagonal_(0.0)
    return (rest.square().sum() / (n * (n - 3))).cpu()


def _cross_interaction(first: ClassSums, other: ClassSums) -> Tensor:
    """The interaction of z_i and z_j of two classes."""
    rows, columns = spread_rows(first, _PAIRED), spread_rows(other, _PAIRED)
    squares = (rows @ columns.T).square_()
    rest = squares - squares.mean(0) - squares.mean(1, keepdim=True) + squares.mean()
    return rest.square().sum().cpu() / ((len(rows) - 1) * (len(columns) - 1))


def _jackknife(left_out: Tensor) -> Tensor:
    """The jackknife's variance, from the estimates without each of the samples."""
    n = len(left_out)
    return ((n - 1) / n * (left_out - left_out.mean()).square().sum()).cpu()


def _of_means(terms: Tensor) -> Tensor:
    """The variance of a mean of terms."""
    return (terms.var() / len(terms)).cpu()


def _corrected(jackknife: Tensor, counted: Tensor, least: Tensor) -> Tensor:
    """Take off what was counted twice; the part of second order alone is the least there is."""
    return torch.maximum(jackknife - counted, least)


def _empty(sums: list[ClassSums]) -> Tensor:
    return torch.zeros(len(sums), len(sums), dtype=torch.float64)


def _stack(scalars: list[Tensor]) -> Tensor:
    return torch.stack(scalars).cpu()


def _result(value: Tensor, variance: Tensor) -> Estimate:
    return Estimate(value, variance.sqrt())
