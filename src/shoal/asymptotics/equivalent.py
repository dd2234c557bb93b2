r"""High-dimensional equivalents of kernel matrices (Ling 2024, section 3, corrected)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

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
from shoal.asymptotics.equivalent_operator import (
    Basis,
    CrossOperator,
    CrossOperators,
    EquivalentOperator,
)
from shoal.asymptotics.labels import Labels, class_indices
from shoal.asymptotics.mixture import GaussianMixture
from shoal.asymptotics.statistics import (
    SampleStatistics,
    mixture_pair_products,
    pair_products,
    sample_statistics,
    warn_of_misfits,
)
from shoal.core.checks import integer, one_of, seeded
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, kernel, kernel_function
from shoal.kernels.arguments import as_tensor, checked_samples

Form = Literal["norms", "paper"]


class Errors(NamedTuple):
    """Spectral norms of equivalents' errors, relative to those of the kernels.

    Attributes:
        ck: Of the conjugate kernel.
        ntk: Of the neural tangent kernel.
    """

    ck: float
    ntk: float


@dataclass(frozen=True, eq=False)
class Equivalent:
    r"""Both kernel matrices of samples, approximated by matrices of simple form.

    Attributes:
        ck: Stands for the conjugate kernel.
        ntk: Stands for the neural tangent kernel of the trained groups.
        coefficients: Of the architecture, which is centered unless that was not wanted;
            ``coefficients.architecture`` is the one whose kernels these are.
        products: $T_{ab}$, by which squared inner products enter.
        statistics: Of the samples: norms and classes.
        form: As asked.
    """

    ck: EquivalentOperator
    ntk: EquivalentOperator
    coefficients: Coefficients
    products: Tensor
    statistics: SampleStatistics = field(repr=False)
    form: Form

    @in_standard_settings
    def cross(self, x: Any, labels: Labels | None = None) -> CrossOperators:
        """The equivalents between new inputs (rows) and the samples (columns), for predictions.

        Args:
            x: New inputs of shape (m, p).
            labels: Their classes, if they are known; by default each class in its proportion.
        """
        if self.form == "paper":
            raise ValueError("cross needs form='norms': the paper's form is of samples with labels")
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
            count: How many samples, at random; at most all.
            seed: Of their choice.
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
    form: Form = "norms",
) -> Equivalent:
    r"""The high-dimensional equivalents of an architecture's kernel matrices.

    For rows $x_i$ of one Gaussian mixture in high dimension $p$, comparable to $n$, the kernel
    matrix differs in spectral norm by $O(\sqrt{\log n/n})$ from
    $$\kappa_0 11^\top + \kappa_a(\chi 1^\top + 1\chi^\top) + \tfrac12\kappa_{aa}(\chi^2 1^\top +
    1{\chi^2}^\top) + \alpha_1 XX^\top + \alpha_2\chi\chi^\top + \tfrac{\alpha_3}{p} JTJ^\top
    + (\gamma^2 - \kappa_0 - \tau_0^2\alpha_1) I,$$
    $\chi_i = \|x_i\|^2 - \tau_0^2$, $J$ the classes. If the architecture is centered, the first
    three terms vanish. Samples that do not look like this get a warning.

    Args:
        architecture: The network, or its kernel function.
        x: Samples of shape (n, p), a tensor or a NumPy array, scaled such that norms are of order
            one: $\sqrt p\,x_i \sim N(\mu_a, C_a)$.
        labels: The classes of the samples; one class by default.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: As for :func:`~shoal.kernels.kernel_function`.
        center: Whether to center the architecture first, as Ling 2024 does.
        mixture: Where the samples come from. By default $\tau_0^2$ is the mean of $\|x_i\|^2$ and
            $T_{ab}/p$ the mean of $(x_i^\top x_j)^2$, as measured; with a mixture, both are what
            it expects.
        input_norm: Another $\tau_0$.
        form: ``"norms"`` as above, or ``"paper"``, the form of Ling 2024, in which $\tau_0$, $T$,
            traces and means come from the mixture, or are estimated by
            :func:`shoal.asymptotics.estimate`, and norms are taken around the means of the
            classes. It needs ``center``, and is less accurate.

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
    found, norm = unchecked_equivalent(
        function, x, labels, center=center, mixture=mixture, input_norm=input_norm, form=form
    )
    warn_of_misfits(found.statistics, norm)
    return found


def unchecked_equivalent(
    function: KernelFunction,
    x: Any,
    labels: Labels | None = None,
    *,
    center: bool = True,
    mixture: GaussianMixture | None = None,
    input_norm: float | None = None,
    form: Form = "norms",
) -> tuple[Equivalent, float | None]:
    """The equivalent without warnings of misfits, and the norm that samples should have."""
    one_of("form", form, ("norms", "paper"))
    if form == "paper" and center is not True:
        raise ValueError(f"form='paper' needs center=True, got center={center!r}")
    samples = checked_samples("x", as_tensor(x, "x"), batches=False).detach()
    statistics = _measured(samples, labels, mixture)
    expected = None if mixture is None else mixture_pair_products(mixture)
    if form == "paper":
        mixture = mixture or GaussianMixture.fit(samples, statistics.indices, covariance="scalar")
        square, products = (
            float(mixture.statistics.input_norm_squared.value),
            mixture.trace_products,
        )
    elif expected is not None:
        square, products = expected
    else:
        square, products = statistics.mean_square, pair_products(samples, statistics)
    norm = math.sqrt(expected[0]) if expected is not None else input_norm
    input_norm = math.sqrt(square) if input_norm is None else norm_of_inputs(input_norm)
    c = coefficients(function, input_norm=input_norm, center=center)
    if mixture is not None and form == "paper":
        columns, cores = _paper_form(samples, statistics, mixture, c)
    else:
        columns = _columns(statistics.membership, statistics.squared_norms, c)
        cores = tuple(_core(k, products / samples.shape[1], c.center) for k in (c.ck, c.ntk))
    basis, arrays = Basis(samples, columns.to(samples)), isinstance(x, np.ndarray)
    ck, ntk = (
        EquivalentOperator(
            basis,
            scale=k.alpha1,
            core=core.to(samples.device),
            shift=k.gamma2 - k.offset - input_norm**2 * k.alpha1,
            arrays=arrays,
        )
        for k, core in zip((c.ck, c.ntk), cores, strict=True)
    )
    return Equivalent(ck, ntk, c, products, statistics, form), norm


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


def _paper_form(
    x: Tensor, statistics: SampleStatistics, mixture: GaussianMixture, c: Coefficients
) -> tuple[Tensor, tuple[Tensor, ...]]:
    r"""$V = [J/\sqrt p, \psi]$, with $\psi_i = \|x_i - E x_i\|^2 - E\|x_i - E x_i\|^2$."""
    member, p = statistics.membership, x.shape[1]
    means = mixture.means.to(x.device) / math.sqrt(p)
    inner = x @ means.T.to(x)
    around = statistics.squared_norms - (member * (2 * inner.double() - means.square().sum(1))).sum(
        1
    )
    psi = around - member @ mixture.statistics.traces.value.to(x.device)
    t = mixture.trace_deviations[:, None]
    cores = []
    for k in (c.ck, c.ntk):
        upper = torch.cat((k.alpha2 * t @ t.T + k.alpha3 * mixture.trace_products, k.alpha2 * t), 1)
        lower = torch.cat((k.alpha2 * t.T, torch.tensor([[k.alpha2]], dtype=torch.float64)), 1)
        core = torch.cat((upper, lower))
        cores.append((core + core.T) / 2)  # exactly symmetric, whatever was rounded
    return torch.cat((member / math.sqrt(p), psi[:, None]), dim=1), tuple(cores)
