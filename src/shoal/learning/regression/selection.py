"""Choosing among networks by how well their kernels predict, or by their likelihood."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.architectures import Architecture
from shoal.core.checks import items
from shoal.kernels import KernelFunction
from shoal.learning.regression.ridge_path import Criterion, RidgePath, checked_criterion, ridge_path


@dataclass(frozen=True, eq=False)
class Selection:
    """The best of several networks, each with its best ridge.

    Attributes:
        architecture: The best, as it was given.
        ridge: Its best ridge.
        criterion: By which it was chosen.
        scores: The value of the criterion for each network, at its best ridge: mean squared
            errors, the smaller the better, or log likelihoods, the larger the better.
        architectures: The networks, in the order in which they came.
        paths: What each would be with every ridge.
    """

    architecture: Architecture | KernelFunction
    ridge: float
    criterion: Criterion
    scores: tuple[float, ...]
    architectures: tuple[Architecture | KernelFunction, ...] = field(repr=False)
    paths: tuple[RidgePath, ...] = field(repr=False)


def select(
    architectures: Iterable[Architecture | KernelFunction],
    x: Any,
    y: Any,
    *,
    criterion: Criterion = "loo",
    ridges: Iterable[float] | None = None,
    which: Literal["ck", "ntk"] = "ntk",
    memory: int | str | None = None,
) -> Selection:
    r"""Choose a network, and its ridge, by kernel regression: one eigendecomposition for each.

    Variances of weights are chosen so, or depths, or activations. A network whose kernel is a
    multiple of another's is as good: each comes with its best ridge, and the likelihood with its
    best output scale too. So $\sigma_a^2$ is judged by the shape of the kernel, not by its size.

    Args:
        architectures: The networks, or their kernel functions.
        x: Inputs of shape (n, p), a tensor or a NumPy array.
        y: Targets of shape (n,) or (n, q).
        criterion: ``"loo"``, ``"gcv"`` or ``"likelihood"``.
        ridges: As for :func:`shoal.learning.ridge_path`.
        which: The kernel.
        memory: Most bytes to use; see :func:`shoal.kernel_regression`.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(60, 3, generator=torch.manual_seed(0)))
        >>> depths = [shoal.FullyConnected(("relu",) * depth) for depth in (1, 2, 3)]
        >>> found = shoal.learning.select(depths, x, torch.sin(3 * x[:, 0]) * x[:, 1])
        >>> len(found.architecture.activations), round(found.scores[0] / found.scores[1], 2)
        (1, 0.24)
    """
    checked_criterion("criterion", criterion)
    tried = items("architectures", architectures, "a collection of architectures")
    if not tried:
        raise ValueError("architectures must have at least one, got none")
    values = None if ridges is None else items("ridges", ridges)  # an iterator serves them all
    paths = tuple(
        ridge_path(network, x, y, ridges=values, which=which, memory=memory) for network in tried
    )
    scores = tuple(path.score(criterion) for path in paths)
    best = scores.index(max(scores) if criterion == "likelihood" else min(scores))
    return Selection(tried[best], paths[best].best(criterion), criterion, scores, tried, paths)
