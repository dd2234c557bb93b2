r"""Gaussian mixtures in high dimension, in the convention of Ling 2024, definition 2.7."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.asymptotics.covariances import (
    FORMS,
    Covariance,
    Numbers,
    as_covariance,
    numbers,
    sample_covariance,
)
from shoal.asymptotics.estimation import (
    FEWEST,
    MixtureStatistics,
    estimated_statistics,
    known_statistics,
)
from shoal.asymptotics.labels import Class, Labels, class_indices, classes_of
from shoal.core.checks import (
    flag,
    float_dtype,
    float_tensor,
    integer,
    items,
    one_of,
    real,
    room,
    seeded,
)
from shoal.core.settings import in_standard_settings

_BLOCK = 2**22  # numbers that are drawn at a time
_SHIFT = 8  # of Ling 2024's means and, over the root of the dimension, of its covariances


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture:
    r"""Classes of Gaussian samples $x$ with $\sqrt p\,x \sim N(\mu_a, C_a)$ in $p$ dimensions.

    Args:
        means: The $\mu_a$, of shape (classes, p), or a sequence of vectors.
        covariances: The $C_a$. A list or tuple holds one for each class: a number for a multiple of
            the identity, a vector for a diagonal, a matrix, or a ``Covariance``. Any other value,
            such as a tensor or array, is shared by all classes.
        proportions: Positive shares of the classes, of sum 1, or whole numbers of samples; equal by
            default.
        classes: Distinct labels of the classes; 0, 1, ... by default.
        estimates: Statistics to use instead of those computed from the parameters, as in
            :meth:`fit`.

    Attributes:
        means: The $\mu_a$, in float64 on the CPU.
        covariances: The $C_a$, a tuple of ``Covariance``.
        proportions: Shares of the classes, of sum 1.
        classes: The labels of the classes.
        estimates: The estimates, or ``None``.

    Example:
        >>> mixture = GaussianMixture([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [1.0, [1.0, 2.0, 3.0]])
        >>> mixture
        GaussianMixture(classes=(0, 1), dimension=3)
        >>> mixture.trace_products
        tensor([[1.0000, 2.0000],
                [2.0000, 4.6667]], dtype=torch.float64)
    """

    means: Tensor
    covariances: tuple[Covariance, ...]
    proportions: Tensor
    classes: tuple[Class, ...]
    estimates: MixtureStatistics | None = field(default=None)

    @in_standard_settings
    def __init__(
        self,
        means: Numbers | Sequence[Numbers],
        covariances: object,
        proportions: Numbers | None = None,
        *,
        classes: Sequence[Class] | None = None,
        estimates: MixtureStatistics | None = None,
    ) -> None:
        centers = _means(means)
        count, dimension = centers.shape
        fields = {
            "means": centers,
            "covariances": _covariances(covariances, count, dimension),
            "proportions": _proportions(proportions, count),
            "classes": _classes(classes, count),
            "estimates": estimates,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"GaussianMixture(classes={self.classes}, dimension={self.dimension})"

    @classmethod
    @in_standard_settings
    def ling2024(cls, dimension: int, classes: int = 2) -> "GaussianMixture":
        r"""The mixture of all experiments of Ling 2024 (figures 1, 2 and 4 to 7).

        $\mu_a$ is 8 at the entry $8(a - 1) + 1$ and zero elsewhere, and
        $C_a = (1 + 8(a - 1)/\sqrt p)\,I$, for $a = 1, 2$ or more.

        Args:
            dimension: The dimension $p$, at least 9 for two classes.
            classes: The number of classes.

        Example:
            >>> round(GaussianMixture.ling2024(1000).input_norm**2, 6)  # 1 + 4/√p
            1.126491
        """
        integer("classes", classes, at_least=1)
        integer("dimension", dimension, at_least=_SHIFT * (classes - 1) + 1)
        room("dimension", classes, dimension)
        means = torch.zeros(classes, dimension, dtype=torch.float64)
        means[torch.arange(classes), _SHIFT * torch.arange(classes)] = _SHIFT
        return cls(means, [1 + _SHIFT * a / math.sqrt(dimension) for a in range(classes)])

    @classmethod
    @in_standard_settings
    def fit(
        cls,
        x: Numbers,
        labels: Labels,
        *,
        covariance: Literal["scalar", "diagonal", "full"],
    ) -> "GaussianMixture":
        r"""The mixture of labeled samples.

        Means and covariances are computed from the samples: the mean variance (``"scalar"``), the
        variances (``"diagonal"``), or the whole matrix (``"full"``). They are not shrunk, and
        traces of their products are biased in high dimension. Therefore ``input_norm``,
        ``trace_products`` and ``statistics`` are unbiased estimates from the samples instead, which
        do not depend on ``covariance``.

        Args:
            x: Samples in rows, a tensor or an array, scaled such that $\sqrt p\,x \sim N(\mu_a,
                C_a)$; at least four of each class.
            labels: A class for each of them: integers or strings.
            covariance: The form of the covariances.

        Raises:
            TypeError: If samples are not floating-point numbers, or labels not integers or strings.
            ValueError: If shapes, sizes of classes or options are wrong.

        Example:
            >>> x, labels = GaussianMixture.ling2024(100).sample(400, seed=0)
            >>> GaussianMixture.fit(x, labels, covariance="scalar").trace_products
            tensor([[1.0487, 1.8426],
                    [1.8426, 3.2566]], dtype=torch.float64)
        """
        one_of("covariance", covariance, FORMS)
        rows = float_tensor("x", numbers("x", x) if isinstance(x, np.ndarray) else x).detach()
        if rows.dim() != 2:
            raise ValueError(f"x must have shape (samples, dimension), got {tuple(rows.shape)}")
        names = classes_of(labels)
        indices = class_indices(labels, names, samples=len(rows)).to(rows.device)
        counts = torch.bincount(indices).double()
        for name, count in zip(names, counts.tolist(), strict=True):
            if count < FEWEST:
                raise ValueError(
                    f"labels must give each class at least {FEWEST} samples, "
                    f"got {count:.0f} of class {name!r}"
                )
        parts = [rows[indices == a].double().cpu() for a in range(len(names))]
        centers = [part.mean(0) for part in parts]
        parts = [part - center for part, center in zip(parts, centers, strict=True)]
        size = rows.shape[1]
        return cls(
            math.sqrt(size) * torch.stack(centers),
            [sample_covariance(part, size, covariance) for part in parts],
            (counts / counts.sum()).cpu(),
            classes=names,
            estimates=estimated_statistics(centers, parts),
        )

    @property
    def dimension(self) -> int:
        """The dimension $p$."""
        return self.means.shape[1]

    @cached_property
    def statistics(self) -> MixtureStatistics:
        """The statistics that the theory needs: ``estimates``, or computed from the parameters."""
        if self.estimates is not None:
            return self.estimates
        return known_statistics(self.means, self.covariances)

    @property
    def input_norm(self) -> float:
        r"""$\tau_0 = \sqrt{\operatorname{tr} C^\circ / p}$, $C^\circ$ the mean covariance."""
        return math.sqrt(float(self.proportions @ self.statistics.traces))

    @property
    def trace_products(self) -> Tensor:
        r"""$T_{ab} = \operatorname{tr}(C_a C_b) / p$."""
        return self.statistics.trace_products

    @in_standard_settings
    def sample(
        self,
        n: int,
        seed: int,
        *,
        dtype: torch.dtype = torch.float64,
        counts: Literal["exact", "random"] = "exact",
        shuffle: bool = False,
    ) -> tuple[Tensor, Tensor]:
        r"""Draw samples and the indices of their classes, on the CPU.

        Args:
            n: The number of samples.
            seed: Seed; the same one gives the same samples, in every dtype up to rounding.
            dtype: The dtype of the samples; float32 halves the memory.
            counts: ``"exact"`` gives each class its share of ``n``, rounded by largest remainders,
                so that the theory's $n_a/n$ are the proportions; ``"random"`` draws the class of
                each sample.
            shuffle: By default the samples are sorted by class, as the papers plot them.

        Returns:
            ``x`` of shape (n, p), and integers of shape (n,), the places of classes in ``classes``.

        Example:
            >>> x, labels = GaussianMixture.ling2024(100).sample(5, seed=0)
            >>> x.shape, labels
            (torch.Size([5, 100]), tensor([0, 0, 0, 1, 1]))
        """
        integer("n", n, at_least=1)
        one_of("counts", counts, ("exact", "random"))
        flag("shuffle", shuffle)
        float_dtype("dtype", dtype)
        room("n", n, self.dimension)
        generator = seeded("seed", seed)
        if counts == "exact":
            sizes = _shares(n, self.proportions)
        else:
            drawn = torch.multinomial(self.proportions, n, replacement=True, generator=generator)
            sizes = torch.bincount(drawn, minlength=len(self.classes))
        labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
        if shuffle:
            labels = labels[torch.randperm(n, generator=generator)]
        x = torch.empty(n, self.dimension, dtype=dtype)
        for a in range(len(sizes)):
            for rows in torch.nonzero(labels == a)[:, 0].split(max(1, _BLOCK // self.dimension)):
                drawn = self.covariances[a].draw(len(rows), generator)
                x[rows] = (drawn.add_(self.means[a]) / math.sqrt(self.dimension)).to(dtype)
        return x, labels


def _shares(n: int, proportions: Tensor) -> Tensor:
    """Integers of sum n nearest to n times the proportions; of equal remainders the first wins."""
    exact = n * proportions
    # a share that is an integer but for rounding is that integer
    whole = torch.where((exact - exact.round()).abs() < 1e-9 * n, exact.round(), exact.floor())
    remainders = (exact - whole).round(decimals=9)
    first = remainders.sort(descending=True, stable=True).indices
    sizes = whole.long()
    sizes[first[: n - int(sizes.sum())]] += 1
    return sizes


def _means(means: object) -> Tensor:
    if isinstance(means, Sequence) and any(isinstance(row, Tensor) for row in means):
        rows = [numbers("means", row).double() for row in means]
        if len({row.shape for row in rows}) > 1:
            shapes = ", ".join(str(tuple(row.shape)) for row in rows)
            raise ValueError(f"means must be of one length, got the shapes {shapes}")
        means = torch.stack(rows)
    tensor = numbers("means", means).double()
    if tensor.dim() != 2:
        raise ValueError(f"means must have shape (classes, dimension), got {tuple(tensor.shape)}")
    return tensor


def _covariances(covariances: object, count: int, dimension: int) -> tuple[Covariance, ...]:
    if not isinstance(covariances, list | tuple):
        return (as_covariance("covariances", covariances, dimension),) * count
    if len(covariances) != count:
        raise ValueError(
            f"covariances must be one for each of the {count} classes, or one that is not a list "
            f"for all, got {len(covariances)}"
        )
    return tuple(as_covariance("covariances", value, dimension) for value in covariances)


def _proportions(proportions: object, count: int) -> Tensor:
    if proportions is None:
        return torch.full((count,), 1 / count, dtype=torch.float64)
    weights = numbers("proportions", proportions).double()
    if weights.shape != (count,):
        raise ValueError(
            f"proportions must be one number for each of the {count} classes, "
            f"got shape {tuple(weights.shape)}"
        )
    real("proportions", float(weights.min()), above=0.0)
    total = float(weights.sum())
    if abs(total - 1) > 1e-6 and bool((weights != weights.round()).any()):
        raise ValueError(f"proportions must sum to 1 or be whole numbers, got the sum {total:g}")
    return weights / total


def _classes(classes: Sequence[Class] | None, count: int) -> tuple[Class, ...]:
    names = (
        tuple(range(count))
        if classes is None
        else items("classes", classes, "a sequence of labels")
    )
    for name in names:
        if isinstance(name, bool) or not isinstance(name, Integral | str):
            raise TypeError(f"classes must be integers or strings, got {name!r}")
    names = tuple(name if isinstance(name, str) else int(name) for name in names)
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"classes must be {count} different labels, got {names}")
    return names
