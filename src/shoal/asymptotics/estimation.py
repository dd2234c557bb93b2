r"""A mixture's statistics: from its parameters, or from labeled samples without bias.

The plug-in $\operatorname{tr} S_a^2$ is too large by about $(\operatorname{tr} C_a)^2 / n_a$, which
in high dimension is as large as $\operatorname{tr} C_a^2$ itself; so are squared norms of means.
The estimates here are U-statistics (Himeno and Yamada 2014), unbiased for every law of the samples
with fourth moments, with $n_a$ below or above $p$.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.asymptotics.covariances import Covariance

FEWEST = 4
"""The samples of a class that estimates of fourth moments need."""


@dataclass(frozen=True, eq=False)
class MixtureStatistics:
    r"""The numbers by which a mixture enters the theory of Ling 2024, section 3.1.

    In its convention, $\sqrt p\,x \sim N(\mu_a, C_a)$.

    Attributes:
        traces: $\operatorname{tr} C_a / p$.
        trace_products: $T_{ab} = \operatorname{tr}(C_a C_b) / p$.
        mean_products: $\mu_a^\top \mu_b / p$.
        norm_excess: By how much $p \operatorname{Var} \|x - E x\|^2$ exceeds $2 T_{aa}$, its value
            for a Gaussian. Data whose norms fluctuate more than the mixture's have a positive one.
    """

    traces: Tensor
    trace_products: Tensor
    mean_products: Tensor
    norm_excess: Tensor


def known_statistics(means: Tensor, covariances: Sequence[Covariance]) -> MixtureStatistics:
    """The statistics of known parameters."""
    size = means.shape[1]
    products = [[a.inner(b) / size for b in covariances] for a in covariances]
    traces = torch.tensor([c.trace() / size for c in covariances], dtype=torch.float64)
    return MixtureStatistics(
        traces,
        torch.tensor(products, dtype=torch.float64),
        means @ means.T / size,
        torch.zeros_like(traces),
    )


def estimated_statistics(centers: Sequence[Tensor], parts: Sequence[Tensor]) -> MixtureStatistics:
    """Unbiased estimates from samples.

    Args:
        centers: The mean of the samples of each class.
        parts: The samples of each class in rows of float64, less their mean.
    """
    count, size = len(parts), parts[0].shape[1]
    products, inner = torch.empty(2, count, count, dtype=torch.float64)
    traces, excess = torch.empty(2, count, dtype=torch.float64)
    for a, rows in enumerate(parts):
        n, squares = len(rows), rows.square().sum(1)
        traces[a] = squares.sum() / (n - 1)
        fourth = n * squares.square().sum() / (n - 1)
        square = _scatter_product(rows, rows) / (n - 1) ** 2  # tr S², biased
        factor = (n - 1) / (n * (n - 2) * (n - 3))
        unbiased = factor * ((n - 1) * (n - 2) * square + traces[a] ** 2 - fourth)
        of_trace = factor * (2 * square + (n**2 - 3 * n + 1) * traces[a] ** 2 - fourth)
        excess[a] = n * (traces[a] ** 2 - 2 / (n - 1) * unbiased - of_trace)
        for b, earlier_rows in enumerate(parts[:a]):
            shared = _scatter_product(rows, earlier_rows) / ((n - 1) * (len(earlier_rows) - 1))
            products[a, b] = products[b, a] = shared
            inner[a, b] = inner[b, a] = centers[a] @ centers[b]
        products[a, a] = unbiased
        inner[a, a] = centers[a] @ centers[a] - traces[a] / n
    return MixtureStatistics(traces, size * products, inner, size * excess)


def _scatter_product(a: Tensor, b: Tensor) -> Tensor:
    r"""$\operatorname{tr} A^\top A\,B^\top B$, by samples or by features, whichever are fewer."""
    if len(a) * len(b) <= a.shape[1] ** 2:
        return (a @ b.T).square().sum()
    return ((a.T @ a) * (b.T @ b)).sum()
