r"""High-dimensional equivalents of kernel matrices (Ling 2024, section 3, corrected)."""

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.asymptotics.centering import norm_of_inputs
from shoal.asymptotics.coefficients import (
    Coefficients,
    KernelCoefficients,
    coefficients,
)
from shoal.asymptotics.labels import Class, Labels, class_indices, classes_of
from shoal.asymptotics.mixture import GaussianMixture
from shoal.asymptotics.operator import (
    Basis,
    CrossOperator,
    CrossOperators,
    EquivalentOperator,
)
from shoal.core.checks import integer, seeded
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, kernel, kernel_function
from shoal.kernels.arguments import as_tensor, checked_samples

_BLOCK = 2**24  # entries of a Gram matrix at a time
_FAR = 0.25  # of the mean squared norm: expansions around one norm end here
_SEPARATE = 0.05  # relative difference of norms


@dataclass(frozen=True, eq=False)
class SampleStatistics:
    r"""Norms and classes of samples.

    Attributes:
        classes: The labels that occur.
        indices: The place of each sample's label in ``classes``.
        counts: Number of samples of each class.
        squared_norms: $\|x_i\|^2$, in float64.
        mean_square: Their mean: $\tau_0^2$ by default.
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


class Errors(NamedTuple):
    """Spectral norms of equivalents' errors, relative to the kernels' norms.

    Attributes:
        ck: Error for the conjugate kernel.
        ntk: Error for the neural tangent kernel.
    """

    ck: float
    ntk: float


@dataclass(frozen=True, eq=False)
class Equivalent:
    r"""Both kernel matrices of samples, approximated by matrices of simple form.

    Attributes:
        ck: Equivalent of the conjugate kernel.
        ntk: Equivalent of the neural tangent kernel of the trained groups.
        coefficients: The coefficients of the architecture, which is centered by default;
            ``coefficients.architecture`` is the centered one.
        products: $T_{ab}$, the matrix of squared inner products.
        statistics: Norms and classes of the samples.
    """

    ck: EquivalentOperator
    ntk: EquivalentOperator
    coefficients: Coefficients
    products: Tensor
    statistics: SampleStatistics = field(repr=False)

    @in_standard_settings
    def cross(self, x: Any, labels: Labels | None = None) -> CrossOperators:
        """The equivalents between new inputs (rows) and the samples (columns), for predictions.

        Args:
            x: New inputs of shape (m, p).
            labels: Their classes, if they are known; by default each class in its proportion.
        """
        old = self.ck.basis
        new = checked_samples("x", as_tensor(x, "x"))
        if new.dim() != 2 or new.shape[1] != old.inputs.shape[1] or new.dtype != old.inputs.dtype:
            raise ValueError(
                f"x must have shape (inputs, {old.inputs.shape[1]}) and dtype {old.inputs.dtype}, "
                f"got {tuple(new.shape)} and {new.dtype}"
            )
        share = self.statistics.counts / self.statistics.counts.sum()
        member = share.to(new.device, torch.float64).expand(len(new), -1)
        if labels is not None:
            places = class_indices(labels, self.statistics.classes, samples=len(new))
            member = torch.eye(len(share), dtype=torch.float64, device=new.device)[places]
        squared = torch.linalg.vector_norm(new, dim=1, dtype=torch.float64).square()
        left = Basis(new.detach(), _columns(member, squared, self.coefficients).to(new))
        return CrossOperators(
            *(
                CrossOperator(
                    left, old, scale=k.scale, core=k.core, arrays=isinstance(x, np.ndarray)
                )
                for k in (self.ck, self.ntk)
            )
        )

    @in_standard_settings
    def error(self, count: int = 500, *, seed: int = 0) -> Errors:
        """Compare with the exact kernels of some of the samples.

        Args:
            count: Number of samples, drawn at random; at most all.
            seed: Seed of the draw.
        """
        integer("count", count, at_least=1)
        basis, c = self.ck.basis, self.coefficients
        generator = seeded("seed", seed)
        order = torch.randperm(basis.samples, generator=generator)
        rows = order[:count].to(basis.inputs.device)
        x, columns = basis.inputs[rows], basis.columns[rows]
        exact = kernel(c.function, x)
        errors = []
        for operator, matrix in zip((self.ck, self.ntk), exact, strict=True):
            part = EquivalentOperator(
                Basis(x, columns), scale=operator.scale, core=operator.core, shift=operator.shift
            )
            difference = torch.linalg.eigvalsh((part.to_dense() - matrix).double())
            size = torch.linalg.eigvalsh(matrix.double())
            errors.append(float(difference.abs().max() / size.abs().max()))
        return Errors(*errors)


@in_standard_settings
def equivalent(
    architecture: Architecture | KernelFunction,
    x: Any,
    labels: Labels | None = None,
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    center: bool = True,
    mixture: GaussianMixture | None = None,
    input_norm: float | None = None,
) -> Equivalent:
    r"""Return the high-dimensional equivalents of an architecture's kernel matrices.

    For rows $x_i$ of one Gaussian mixture in high dimension $p$, comparable to $n$, the kernel
    matrix differs in spectral norm by $O(\sqrt{\log n/n})$ from
    $$\kappa_0 11^\top + \kappa_a(\chi 1^\top + 1\chi^\top) + \tfrac12\kappa_{aa}(\chi^2 1^\top +
    1{\chi^2}^\top) + \alpha_1 XX^\top + \alpha_2\chi\chi^\top + \tfrac{\alpha_3}{p} JTJ^\top
    + (\gamma^2 - \kappa_0 - \tau_0^2\alpha_1) I,$$
    with $\chi_i = \|x_i\|^2 - \tau_0^2$ and the indicators $J$ of the classes. If the architecture
    is centered, the first three terms vanish. Samples that do not fit this model trigger a warning.

    Args:
        architecture: The network, or its kernel function.
        x: Samples of shape (n, p), a tensor or a NumPy array, scaled such that norms are of order
            one: $\sqrt p\,x_i \sim N(\mu_a, C_a)$.
        labels: Classes of the samples; one class by default.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        center: Whether to center the architecture first, as Ling 2024 does.
        mixture: Distribution of the samples. By default $\tau_0^2$ is the mean of $\|x_i\|^2$ and
            $T_{ab}/p$ the mean of $(x_i^\top x_j)^2$ over the samples; with a mixture, both are
            expectations.
        input_norm: Value of $\tau_0$ to use instead.

    Raises:
        TypeError: If no kernel or centering is known for the architecture.
        ValueError: If an argument does not fit.

    Example:
        >>> import shoal
        >>> x, labels = shoal.GaussianMixture.ling2024(400).sample(500, seed=0)
        >>> eq = shoal.equivalent(shoal.DEQ("relu", 0.2, 0.8), x, labels)
        >>> eq.ck
        EquivalentOperator(shape=(500, 500), dtype=torch.float64)
        >>> max(eq.error(200)) < 0.03
        True
    """
    function = kernel_function(architecture, trainable=trainable, width=width)
    samples = checked_samples("x", as_tensor(x, "x"), batches=False).detach()
    statistics = _measured(samples, labels, mixture)
    norm = input_norm
    if mixture is None:
        square, products = statistics.mean_square, pair_products(samples, statistics)
    else:
        square, products = mixture_pair_products(mixture)
        norm = math.sqrt(square)
    tau = math.sqrt(square) if input_norm is None else norm_of_inputs(input_norm)
    c = coefficients(function, input_norm=tau, center=center)
    columns = _columns(statistics.membership, statistics.squared_norms, c)
    basis, arrays = Basis(samples, columns.to(samples)), isinstance(x, np.ndarray)
    ck, ntk = (
        EquivalentOperator(
            basis,
            scale=k.alpha1,
            core=_core(k, products / samples.shape[1], c.center).to(samples.device),
            shift=k.gamma2 - k.offset - tau**2 * k.alpha1,
            arrays=arrays,
        )
        for k in (c.ck, c.ntk)
    )
    _warn_of_misfits(statistics, norm)
    return Equivalent(ck, ntk, c, products, statistics)


def _measured(
    x: Tensor, labels: Labels | None, mixture: GaussianMixture | None
) -> SampleStatistics:
    if mixture is None:
        return sample_statistics(x, labels, None)
    if not isinstance(mixture, GaussianMixture):
        raise TypeError(f"mixture must be a GaussianMixture, got {type(mixture).__name__}")
    if mixture.dimension != x.shape[1]:
        raise ValueError(
            f"mixture must have the dimension of x, {x.shape[1]}, got {mixture.dimension}"
        )
    return sample_statistics(x, labels, mixture.classes)


def _columns(member: Tensor, squared_norms: Tensor, c: Coefficients) -> Tensor:
    r"""$[J, \chi]$, and $\chi^2$ where the kernels are not centered."""
    chi = (squared_norms - c.input_norm**2)[:, None]
    return torch.cat((member, chi) if c.center else (member, chi, chi.square()), dim=1)


def _core(k: KernelCoefficients, products: Tensor, center: bool) -> Tensor:
    """The symmetric matrix between these columns; the classes' columns sum to one."""
    classes = len(products)
    core = torch.zeros(classes + 2, classes + 2, dtype=torch.float64)
    core[:classes, :classes] = k.alpha3 * products + k.offset
    core[:classes, classes] = core[classes, :classes] = k.slope
    core[:classes, classes + 1] = core[classes + 1, :classes] = k.bend / 2
    core[classes, classes] = k.alpha2
    return core[: classes + 1, : classes + 1] if center else core


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
    diagonal = torch.zeros(len(sums), dtype=torch.float64, device=x.device)
    diagonal.index_add_(0, statistics.indices, statistics.squared_norms.square())
    counts = statistics.counts.to(x.device, torch.float64)
    pairs = torch.outer(counts, counts) - counts.diag()
    return (features * (sums - diagonal.diag()) / pairs).cpu()


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
    statistics, means, size = mixture.statistics, mixture.means, mixture.dimension
    inner = statistics.mean_products
    crossed = torch.stack([(c.apply(means.T) * means.T).sum(0) for c in mixture.covariances])
    crossed = (crossed + crossed.T) / size
    products = statistics.trace_products + crossed + size * inner.square()
    norms = statistics.traces + inner.diagonal()
    return float(mixture.proportions @ norms), (products + products.T) / 2


def _warn_of_misfits(statistics: SampleStatistics, expected: float | None) -> None:
    """Warn of samples that the theory does not cover, or without the ``expected`` norms."""
    square = statistics.mean_square
    if expected is not None and abs(square - expected**2) > _SEPARATE * expected**2:
        _warn(
            f"the norms of x are expected to be about {expected:.4g}, but their root mean square "
            f"is {math.sqrt(square):.4g}"
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
