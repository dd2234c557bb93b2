"""The limiting spectra of an architecture's kernels on a Gaussian mixture."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from shoal.architectures import Architecture
from shoal.asymptotics.coefficients import KernelCoefficients, coefficients
from shoal.asymptotics.covariances import Covariance, DiagonalCovariance
from shoal.asymptotics.equation import Array
from shoal.asymptotics.equivalent import mixture_pair_products
from shoal.asymptotics.law import Law
from shoal.asymptotics.mixture import GaussianMixture
from shoal.asymptotics.spikes import LowRank, Spike, Transition, isolated, transitions
from shoal.core.checks import host_array, integer, real_array, shown, unmasked
from shoal.core.settings import in_standard_settings

Points = TypeVar("Points", Tensor, ArrayLike)

_FAR = 0.25  # relative spread of norms above which the expansion around one norm is poor
_BIASED = 0.25  # relative difference of tr C²; sampling errors are a few percent


class Atom(NamedTuple):
    """An eigenvalue that a positive share of all eigenvalues equals."""

    value: float
    mass: float


@dataclass(frozen=True, eq=False, repr=False)
class Spectrum:
    """The limit of a kernel matrix's eigenvalues: bulks, atoms, and isolated ones.

    Functions of points take and return NumPy arrays or tensors. The isolated eigenvalues,
    finitely many among n, carry no mass.

    Attributes:
        slope: Factor of the eigenvalues of XᵀX, outside of the low-rank part.
        shift: Constant that is added to them.
        spikes: The isolated eigenvalues, in increasing order.
        transitions: Directions that may detach an eigenvalue at the two outer edges, with their
            strengths, strongest first at each edge.
    """

    slope: float
    shift: float
    spikes: tuple[Spike, ...]
    transitions: tuple[Transition, ...]
    _law: Law = field(repr=False)

    @cached_property
    def edges(self) -> Array:
        """The intervals of the continuous part, of shape (bulks, 2), the lowest first."""
        return self.slope * self._law.support + self.shift

    @cached_property
    def masses(self) -> Array:
        """The share of eigenvalues in each of the intervals."""
        return np.diff(self._law.cumulated.reshape(-1, 2))[:, 0]

    @cached_property
    def atoms(self) -> tuple[Atom, ...]:
        """The atoms: at most one, from the zero eigenvalues of XᵀX."""
        return (Atom(self.shift, self._law.atom),) if self._law.atom > 0 else ()

    @property
    def mass(self) -> float:
        """The total mass: one."""
        return float(self.masses.sum() + self._law.atom)

    def density(self, grid: Points) -> Points:
        """The density of the continuous part, atoms left out."""
        return _pointwise("grid", grid, lambda x: self._law.density(self._inner(x)) / self.slope)

    def cdf(self, grid: Points) -> Points:
        """The share of eigenvalues up to each point."""
        return _pointwise("grid", grid, lambda x: self._law.cdf(self._inner(x)))

    def quantile(self, levels: Points) -> Points:
        """The least points with so large a share of eigenvalues up to them."""

        def evaluate(levels: Array) -> Array:
            if levels.min(initial=1.0) < 0 or levels.max(initial=0.0) > 1:
                raise ValueError(
                    "levels must lie between 0 and 1, "
                    f"got some from {levels.min():g} to {levels.max():g}"
                )
            return self.slope * self._law.quantile(levels) + self.shift

        return _pointwise("levels", levels, evaluate)

    def stieltjes(self, z: complex | ArrayLike) -> NDArray[np.complex128]:
        """The limit of the mean of 1/(λ − z) over the eigenvalues λ, off the real axis."""
        values = host_array("z", z) if isinstance(z, Tensor) else z
        try:
            points = np.asarray(values, complex)
        except (TypeError, ValueError, OverflowError):
            raise TypeError(f"z must be complex numbers, got {shown(z)}") from None
        if not np.isfinite(points).all() or (points.imag == 0).any():
            raise ValueError("z must be finite and off the real axis")
        inner = (points.reshape(-1) - self.shift) / self.slope
        return np.asarray(self._law.stieltjes(inner) / self.slope, complex).reshape(points.shape)

    def _inner(self, x: Array) -> Array:
        """Eigenvalues of XᵀX; those at an edge or at the atom are exactly there."""
        inner = (x - self.shift) / self.slope
        inner[x == self.shift] = 0.0
        for edge, value in zip(self.edges.flat, self._law.support.flat, strict=True):
            inner[x == edge] = value
        return inner

    def __repr__(self) -> str:
        bulks = [
            f"[{low:.6g}, {high:.6g}] with mass {mass:.6g}"
            for (low, high), mass in zip(self.edges, self.masses, strict=True)
        ]
        if len(bulks) > 6:
            bulks = [*bulks[:3], f"{len(bulks) - 6} more", *bulks[-3:]]
        hidden = [f"{t.strength:.3g}" for t in self.transitions if not t.detached]
        lines = ["Spectrum"]
        lines += [f"  bulk    {bulk}" for bulk in bulks]
        lines += [f"  atom    {atom.value:.6g} with mass {atom.mass:.6g}" for atom in self.atoms]
        lines += [f"  spike   {spike.value:.6g}" for spike in self.spikes]
        if hidden:
            lines.append(f"  hidden  strengths {', '.join(hidden)} of the 1 that detaches a spike")
        return "\n".join(lines)


class Spectra(NamedTuple):
    """The limiting spectra of the conjugate kernel and of the neural tangent kernel."""

    ck: Spectrum
    ntk: Spectrum


@in_standard_settings
def spectrum(
    architecture: Architecture,
    mixture: GaussianMixture,
    *,
    n: int,
    trainable: Iterable[str] | None = None,
    center: bool = True,
    width: int | None = None,
    input_norm: float | None = None,
) -> Spectra:
    r"""Return the limiting spectra of the kernel matrices of ``n`` samples of a mixture.

    The limits belong to the high-dimensional equivalents: $\alpha_1 X^\top X$ plus a multiple of
    the identity, whose eigenvalues form bulks, and a part of low rank, which may detach others. As
    in :func:`~shoal.equivalent`, the expansion is at $\tau_0^2 = \mathbb E\|x\|^2$, means
    included. A mixture to which the theory does not apply triggers a warning.

    Args:
        architecture: An architecture with a kernel; it is centered first.
        mixture: The distribution of the samples, in p dimensions.
        n: Number of samples, divided among the classes by their proportions.
        trainable: Names out of ``architecture.parameter_groups``, for the NTK; all by default.
        center: Whether to center the architecture first.
        width: See :func:`~shoal.coefficients`.
        input_norm: Value of $\tau_0$ to use instead.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of its range.
        AccuracyError: If the edges of the limit are not found.
        ConvergenceError: If the equation of the limit was not solved somewhere.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        >>> mixture = shoal.GaussianMixture([[2.0] + 399 * [0.0]], 1.0)
        >>> shoal.spectrum(deq, mixture, n=800).ck
        Spectrum
          bulk    [0.0840895, 2.02415] with mass 0.5
          atom    0.0252473 with mass 0.5
          spike   3.88352
    """
    if not isinstance(mixture, GaussianMixture):
        raise TypeError(f"mixture must be a GaussianMixture, got {type(mixture).__name__}")
    count = integer("n", n, at_least=1)
    if not mixture.input_norm > 0:
        raise ValueError("mixture must not have covariances that are all zero")
    _warn_of_misfits(mixture)
    c = coefficients(
        architecture,
        input_norm=math.sqrt(mixture_pair_products(mixture)[0])
        if input_norm is None
        else input_norm,
        trainable=trainable,
        center=center,
        width=width,
    )
    counts = count * mixture.proportions.numpy()
    law = Law([_array(covariance) for covariance in mixture.covariances], counts)
    square = c.input_norm**2
    return Spectra(*(_kernel_spectrum(k, square, mixture, law, counts) for k in (c.ck, c.ntk)))


def _warn_of_misfits(mixture: GaussianMixture) -> None:
    """Warn of a mixture that the theory does not cover, or whose covariances are biased."""
    statistics = mixture.statistics
    shares, inner = mixture.proportions, statistics.mean_products
    norms = statistics.traces + inner.diagonal()
    mean = float(shares @ norms)
    spread = math.sqrt(max(0.0, float(shares @ (norms - mean).square()))) / mean
    if spread > _FAR:
        _warn(
            f"the mean squared norms of the classes of mixture vary by {spread:.0%}, and the "
            "equivalents assume that they hardly vary"
        )
    share = float(shares @ inner @ shares) / mean
    if share > _FAR:
        _warn(
            f"the mean of mixture has {share:.0%} of the mean squared norm, and the equivalents "
            "assume nearly orthogonal inputs: subtract the mean"
        )
    if mixture.estimates is not None:
        _warn_of_bias(mixture)


def _warn_of_bias(mixture: GaussianMixture) -> None:
    """Compare the fitted covariances with unbiased estimates of the true ones."""
    estimated = mixture.trace_products.diagonal()
    for name, covariance, value in zip(
        mixture.classes, mixture.covariances, estimated.tolist(), strict=True
    ):
        biased = covariance.inner(covariance) / mixture.dimension
        if abs(biased - value) > _BIASED * max(biased, value):
            _warn(
                f"the fitted covariance C of class {name!r} has tr C²/p = {biased:.3g}, but the "
                f"data have {value:.3g}: with few samples for the dimension its eigenvalues are "
                "too far apart, and in too simple a form not far enough; the spectrum belongs to "
                "the fitted covariance"
            )
            return


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)


def _kernel_spectrum(
    k: KernelCoefficients, square: float, mixture: GaussianMixture, law: Law, counts: Array
) -> Spectrum:
    """The spectrum of a kernel, given the law of XᵀX."""
    shift = k.gamma2 - k.offset - square * k.alpha1
    means = mixture.means.numpy().T
    images = np.stack(
        [c.apply(m).numpy() for c, m in zip(mixture.covariances, mixture.means, strict=True)], 1
    )
    statistics = mixture.statistics
    variances = 2 * statistics.trace_products.diagonal() + statistics.norm_excess
    spread = np.maximum(variances.numpy(), 0.0)
    mixed = 4 / mixture.dimension * (means * images).sum(0)  # of the means' part of χ
    form, loadings, noise = _form(k, square, mixture, spread + mixed)
    scale = k.alpha1
    # an even activation: the kernel does not see XᵀX
    if scale * mixture.input_norm**2 < 1e-14 * k.gamma2:
        scale, shift = 1.0, k.gamma2 - k.offset
        law = Law([np.zeros(mixture.dimension)] * len(counts), counts)
        means, images, spread = np.zeros_like(means), np.zeros_like(images), spread + mixed
    part = LowRank(means, images, form / scale, spread, loadings, noise)
    spikes = isolated(law, part)

    def outer(z: float) -> float:
        return scale * z + shift

    isolated_values = tuple(Spike(outer(spike.value), spike.alignment) for spike in spikes)
    moved = tuple(
        Transition(outer(t.edge), t.strength, None if t.value is None else outer(t.value))
        for t in transitions(law, part, spikes)
    )
    return Spectrum(scale, shift, isolated_values, moved, law)


def _form(
    k: KernelCoefficients, square: float, mixture: GaussianMixture, spread: Array
) -> tuple[Array, Array, Array]:
    """The low-rank part without XᵀX on [J/√p, F], and how F is made (see `LowRank`).

    F has the deviations χ − E χ and, where the kernel bends in the norms, √p(χ² − E χ²).
    """
    size, classes = mixture.dimension, len(mixture.proportions)
    statistics, (_, products) = mixture.statistics, mixture_pair_products(mixture)
    squares = statistics.traces + statistics.mean_products.diagonal()
    # √p times the mean of χ = ‖x‖² − τ_0² in each class, and p times that of χ²
    norms = np.sqrt(size) * (squares.numpy() - square)
    bent = norms**2 + spread
    form = np.zeros((classes + 2, classes + 2))
    form[:classes, :classes] = (
        k.offset * size
        + k.slope * np.sqrt(size) * (norms[:, None] + norms)
        + k.bend / 2 * (bent[:, None] + bent)
        + k.alpha2 * np.outer(norms, norms)
        + k.alpha3 * products.numpy()
    )
    form[:classes, -2] = form[-2, :classes] = k.slope * np.sqrt(size) + k.alpha2 * norms
    form[:classes, -1] = form[-1, :classes] = k.bend / 2
    form[-2, -2] = k.alpha2
    # χ² − E χ² is 2 E χ times the deviation, plus the square of the deviation less its mean
    loadings = np.stack([np.ones(classes), 2 * norms], 1)
    noise = np.stack([np.zeros(classes), 2 * spread**2 / size], 1)
    if k.bend == 0:
        return form[:-1, :-1], loadings[:, :1], noise[:, :1]
    return form, loadings, noise


def _array(covariance: Covariance) -> Array:
    """The diagonal of a covariance that is diagonal, else the matrix."""
    if isinstance(covariance, DiagonalCovariance):
        return np.array(covariance.variances().numpy(), float)
    return np.array(covariance.dense().numpy(), float)


def _pointwise(name: str, points: Points, function: Callable[[Array], Array]) -> Points:
    """Apply a function of arrays to a tensor or to what NumPy takes for an array."""
    unmasked(name, points)
    array = real_array(name, points)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity among its entries")
    result = function(array.reshape(-1)).reshape(array.shape)
    if isinstance(points, Tensor):
        kind = points.dtype if points.dtype.is_floating_point else torch.float64
        return torch.from_numpy(result).to(points.device, kind)
    return result
