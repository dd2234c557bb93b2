"""Data as their covariance and the Hermite moments of their target."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import float_tensor, integer, one_of, real
from shoal.core.settings import in_standard_settings
from shoal.gaussian.polynomials import normalized_hermite
from shoal.kernels import KernelFunction, kernel_function
from shoal.kernels.arguments import as_tensor, checked_samples
from shoal.learning.prediction.hermite_spectrum import HermiteSpectrum, Index, hermite_spectrum
from shoal.learning.prediction.targets import checked_targets

_MODES = 2000
_FLAT = 1e-12  # a variance that is smaller, relative to the largest, is none


class Moments(NamedTuple):
    """The target in terms of eigenfunctions.

    Attributes:
        squares: Of the coefficients of the first ones, a mean over outputs. shape: (known,)
        rest: The mean square of what is left.
    """

    squares: Tensor
    rest: float


@dataclass(frozen=True, eq=False)
class HermiteLaw:
    r"""Centered inputs of known covariance with a target, for :func:`shoal.learning_curve`.

    Inputs are taken to be nearly Gaussian. Kernels of ours depend on norms and inner products
    alone; so their eigenvalues follow from the principal variances, and their eigenfunctions are
    products of Hermite polynomials of the principal components (Karkada et al. 2025). No kernel
    matrix is made.

    Args:
        variances: The eigenvalues of the covariance, in any order. shape: (p,)
        target: Its coefficients: that of ``(0, 0, 2)`` belongs to $h_2(z_0)\,h_1(z_2)$, with
            normalized Hermite polynomials of the components, by descending variance and each
            divided by its standard deviation.
        noise: The variance of what is added to the target.
        modes: How many eigenvalues are counted one by one.
        samples: Inputs and targets that it was fitted to, by which it is checked.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If an argument is out of range.

    Example:
        >>> import shoal
        >>> law = shoal.learning.HermiteLaw([1 / i for i in range(1, 51)], {(0,): 1.0, (0, 1): 0.5})
        >>> spectrum = law.spectrum(shoal.DEQ("relu", 0.2, 0.8))
        >>> spectrum.indices[:4], [round(float(v), 3) for v in spectrum.values[:4]]
        (((), (0,), (1,), (2,)), [0.786, 0.451, 0.225, 0.15])
    """

    variances: Tensor
    target: Mapping[Index, float] = field(default_factory=dict)
    noise: float = 0.0
    modes: int = _MODES
    samples: tuple[Tensor, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given = torch.as_tensor(self.variances, dtype=torch.float64)
        found = float_tensor("variances", given).flatten()
        if not bool((found > 0).all()):
            raise ValueError(f"variances must be > 0, got {float(found.min()):.3g}")
        object.__setattr__(self, "variances", found.sort(descending=True).values)
        real("noise", self.noise, at_least=0.0)
        integer("modes", self.modes, at_least=1)
        plain = {_checked_index(k, len(found)): real("target", v) for k, v in self.target.items()}
        if len(plain) < len(self.target):
            raise ValueError(f"target must have each product once, in any order, got {self.target}")
        object.__setattr__(self, "target", plain)

    @classmethod
    @in_standard_settings
    def fit(cls, x: Any, y: Any, *, modes: int = _MODES) -> "HermiteLaw":
        """The law of samples, whose target is estimated as far as they tell.

        Args:
            x: Centered inputs of shape (n, p).
            y: Targets of shape (n,) or (n, q), or classes.
            modes: How many eigenvalues are counted one by one.
        """
        inputs = checked_samples("x", as_tensor(x, "x"), batches=False).detach().double()
        targets, _ = checked_targets(y)
        if len(targets) != len(inputs) or targets.dim() > 2:
            raise ValueError(
                f"y must have shape (n,) or (n, outputs) with n = {len(inputs)}, "
                f"got {tuple(targets.shape)}"
            )
        float_tensor("y", targets)
        columns = targets.detach().reshape(len(targets), -1).to(inputs)
        values = torch.linalg.eigvalsh(inputs.T @ inputs / len(inputs))
        kept = values[values > _FLAT * values[-1]]
        if not len(kept):
            raise ValueError("x must not be zero everywhere, got zeros alone")
        return cls(kept, modes=modes, samples=(inputs, columns))

    def spectrum(
        self, architecture: Architecture | KernelFunction, *, which: Literal["ck", "ntk"] = "ntk"
    ) -> HermiteSpectrum:
        """The kernel's eigenvalues and eigenfunctions, largest first."""
        one_of("which", which, ("ck", "ntk"))
        function = kernel_function(architecture)
        return hermite_spectrum(function, self.variances, int(which == "ntk"), self.modes)

    def moments(self, indices: Sequence[Index]) -> Moments:
        """What the target has of eigenfunctions, the first of them at least."""
        if self.samples is not None:
            return self._estimated(indices, *self.samples)
        known = [self.target.get(index, 0.0) ** 2 for index in indices]
        squares = torch.tensor(known, dtype=torch.float64)
        total = sum(value**2 for value in self.target.values())
        return Moments(squares, max(0.0, total - float(squares.sum())) + self.noise)

    def _estimated(self, indices: Sequence[Index], x: Tensor, y: Tensor) -> Moments:
        """Coefficients of as many as a quarter of the samples, made orthogonal one by one.

        Polynomials of real data are not quite orthogonal. Each square has the variance of its
        estimate subtracted, with samples that differ in noise.
        """
        count, known = len(x), min(len(indices), max(1, len(x) // 4))
        _, vectors = torch.linalg.eigh(x.T @ x / count)
        components = x @ vectors.flip(1)[:, : len(self.variances)] / self.variances.to(x).sqrt()
        basis, _ = torch.linalg.qr(_products(components, indices[:known]))
        coefficients = basis.T @ y
        free = (1 - basis.square().sum(1, keepdim=True)).clamp_min(_FLAT)
        spread = (y - basis @ coefficients).square() / free  # of each sample, in its place
        squares = (coefficients.square() - basis.square().T @ spread).mean(1).cpu() / count
        return Moments(squares, float(y.square().mean()) - float(squares.sum()))


def _products(components: Tensor, indices: Sequence[Index]) -> Tensor:
    """Products of normalized Hermite polynomials, a column each."""
    degrees = [Counter(index) for index in indices]
    highest: Counter[int] = reduce(or_, degrees, Counter())  # of each component
    polynomials = {
        component: list(islice(normalized_hermite(z, torch.ones_like(z)), degree + 1))
        for component, degree in highest.items()
        for z in (components[:, component],)
    }
    columns = []
    for product in degrees:
        column = torch.ones_like(components[:, 0])
        for component, degree in product.items():
            column = column * polynomials[component][degree]
        columns.append(column)
    return torch.stack(columns, 1)


def _checked_index(index: object, count: int) -> Index:
    if not isinstance(index, tuple):
        raise TypeError(f"target must have tuples of components as keys, got {index!r}")
    found = tuple(sorted(integer("target's components", i, at_least=0) for i in index))
    if found and found[-1] >= count:
        raise ValueError(f"target must have components below {count}, got {index!r}")
    return found
