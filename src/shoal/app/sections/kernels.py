"""Sections on kernels: those of infinite width, and their equivalents in high dimension."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

import shoal
from shoal.app.figures import COLORS, Axes, legend_below
from shoal.app.sections.base import Findings, Section, Subject, of_each, of_kernels
from shoal.diagnosis.words import Row

_LOW_RANK = 2.0  # of kernels that say nearly the same of all samples
_LOST = 1e-4  # rounding times the condition: fewer than four digits are left
_ROUNDING = 1e-15
_FAR = 0.2  # of a kernel: its equivalent is another one
_NUMBERS = [
    "tau",
    "shift",
    "gamma2",
    "alpha1",
    "alpha2",
    "alpha3",
    "alpha4",
    "kappa2",
    "beta1",
    "beta2",
    "beta3",
]  # coefficients


@dataclass(frozen=True)
class Spectrum:
    """A kernel matrix in a few numbers.

    Attributes:
        trace: The sum of the eigenvalues.
        largest: The largest eigenvalue.
        smallest: The smallest.
        condition: Their ratio; ``None`` if the smallest is not above rounding errors.
        effective_rank: The exponential of the entropy of the eigenvalues over their sum.
    """

    trace: float
    largest: float
    smallest: float
    condition: float | None
    effective_rank: float


def spectrum(matrix: Tensor) -> tuple[Spectrum, Tensor]:
    """Describe a positive semidefinite matrix; also its eigenvalues, the largest first.

    Example:
        >>> import torch
        >>> found, _ = spectrum(torch.diag(torch.tensor([1.0, 1.0, 2.0])))
        >>> found.trace, found.condition, round(found.effective_rank, 4)
        (4.0, 2.0, 2.8284)
    """
    values = torch.linalg.eigvalsh(matrix).flip(0)
    rounding = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    values = values.double().cpu()
    shares = values.clamp_min(0) / values.clamp_min(0).sum()
    entropy = -torch.special.xlogy(shares, shares).sum()
    largest, smallest = float(values[0]), float(values[-1])
    condition = largest / smallest if smallest > rounding else None
    trace = float(matrix.diagonal().double().sum())
    return Spectrum(trace, largest, smallest, condition, float(entropy.exp())), values


def _find_kernels(subject: Subject) -> Findings:
    kernels = shoal.kernel(subject.architecture, subject.x)
    (ck, ck_values), (ntk, ntk_values) = (spectrum(matrix) for matrix in kernels)
    most = f"exp(spectral entropy), at most {len(ck_values)}"
    rows = (
        Row("trace", of_kernels(ck.trace, ntk.trace), "sum of the eigenvalues"),
        Row("largest eigenvalue", of_kernels(ck.largest, ntk.largest)),
        Row("smallest eigenvalue", of_kernels(ck.smallest, ntk.smallest)),
        Row("condition", of_kernels(ck.condition, ntk.condition, none="∞ to rounding"),
            "largest over smallest"),
        Row("effective rank", of_kernels(ck.effective_rank, ntk.effective_rank), most),
    )  # fmt: skip
    spectra = {"CK": ck_values, "NTK": ntk_values}
    return Findings(
        rows,
        {"ck": asdict(ck), "ntk": asdict(ntk)},
        partial(_draw, spectra=spectra, styles=((COLORS[0], "-"), (COLORS[1], "-"))),
        warnings=tuple(_warnings({"CK": ck, "NTK": ntk}, kernels.ck)),
    )


def _warnings(found: dict[str, Spectrum], like: Tensor) -> Iterator[str]:
    """Warnings of kernels nearly of rank one, or too ill-conditioned for their dtype."""
    ranks = {name: one.effective_rank for name, one in found.items()}
    if low := {name: f"{rank:.3g}" for name, rank in ranks.items() if rank < _LOW_RANK}:
        yield (
            f"The effective rank is {of_each(low)}, of at most {len(like)}: nearly all of the "
            "kernel is one direction, and tells samples hardly apart."
        )
    dtype, rounding = str(like.dtype).removeprefix("torch."), torch.finfo(like.dtype).eps
    singular = [name for name, one in found.items() if one.condition is None]
    if singular:
        yield (
            f"Singular to rounding in {dtype}: {', '.join(singular)}. Nothing can be solved with "
            "it without a ridge."
        )
    conditions = {name: one.condition for name, one in found.items() if one.condition is not None}
    if high := {name: f"{c:.1e}" for name, c in conditions.items() if c * rounding > _LOST}:
        yield (
            f"The condition is {of_each(high)}: solutions in {dtype} have fewer than four correct "
            "digits; a ridge helps."
        )


def _draw(axes: Axes, spectra: Mapping[str, Tensor], styles: Sequence[tuple[str, str]]) -> None:
    """Draw eigenvalues in their order, the largest first."""
    for (label, values), (color, line) in zip(spectra.items(), styles, strict=True):
        positive = values[values > 0].cpu().sort(descending=True).values
        ranks = range(1, len(positive) + 1)
        axes.plot(ranks, positive, line, color=color, label=label, linewidth=1.6)
    axes.set(xscale="log", yscale="log", xlabel="rank", ylabel="eigenvalue")
    legend_below(axes)


def _find_equivalents(subject: Subject) -> Findings:
    equivalent = shoal.equivalent(subject.architecture, subject.x)
    c = equivalent.coefficients
    exact = shoal.kernel(c.architecture, subject.x)
    errors = [
        _size(k - e.to_dense()) / _size(k)
        for k, e in zip(exact, (equivalent.ck, equivalent.ntk), strict=True)
    ]
    spread = equivalent.statistics.norm_spread
    told = tuple(_contradicted(errors))
    away = of_kernels(errors[0], errors[1], ".2g")
    rows = (
        Row("shift of the activation", f"{c.shift:.4g}", "centers it; all below is centered"),
        Row("on inner products", _both(c.alpha1, c.beta1), "α1, β1"),
        Row("on norms", _both(c.alpha2, c.beta2), "α2, β2"),
        Row("on squared inner products", _both(c.alpha3, c.beta3), "α3, β3"),
        Row("spread of squared norms", f"{spread:.2g}", "relative; the theory wants it small"),
        Row("error of the equivalents", away, "in spectral norm, relative to the kernel",
            contradicted=bool(told)),
    )  # fmt: skip
    numbers = {name: getattr(c, name) for name in _NUMBERS}
    numbers |= {"norm_spread": spread, "ck_error": errors[0], "ntk_error": errors[1]}
    spectra = {
        "NTK, centered": torch.linalg.eigvalsh(exact.ntk),
        "its equivalent": equivalent.ntk.eigvalsh(),
    }
    styles = ((COLORS[1], "-"), (COLORS[2], "--"))
    return Findings(rows, numbers, partial(_draw, spectra=spectra, styles=styles), warnings=told)


def _contradicted(errors: Sequence[float]) -> Iterator[str]:
    """A warning if an equivalent is not the kernel of these data."""
    found = dict(zip(("CK", "NTK"), errors, strict=True))
    if far := {name: f"{error:.0%}" for name, error in found.items() if not error <= _FAR}:
        yield (
            f"The equivalent is {of_each(far)} away from the kernel: these data are not in the "
            "high-dimensional regime, and the coefficients do not describe their kernel. Use the "
            "kernel itself; inputs of one norm are nearer to the theory."
        )


def _both(ck: float, ntk: float) -> str:
    """Two coefficients; what is zero but for rounding is zero."""
    ck, ntk = (value if abs(value) > _ROUNDING else 0.0 for value in (ck, ntk))
    return of_kernels(ck, ntk)


def _size(matrix: Tensor) -> float:
    """The spectral norm of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(matrix.double()).abs().max())


KERNELS = Section("kernels", "Kernels at infinite width", _find_kernels)
EQUIVALENTS = Section("equivalents", "High-dimensional equivalents", _find_equivalents)
