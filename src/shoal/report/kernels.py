"""The section on the kernels of the infinitely wide network: size, spectrum, effective rank."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

import shoal
from shoal.pages.figures import COLORS, Axes, legend_below
from shoal.pages.findings import Findings, Row
from shoal.report.section import Section, Subject, of_each, of_kernels

_STYLES = ((COLORS[0], "-"), (COLORS[1], "-"))
_LOW_RANK = 2.0  # of kernels that say nearly the same of all samples
_LOST = 1e-4  # rounding times the condition: fewer than four digits are left


@dataclass(frozen=True)
class Spectrum:
    """A kernel matrix in a few numbers.

    Attributes:
        trace: The sum of the eigenvalues.
        largest: The largest eigenvalue.
        smallest: The smallest.
        condition: Their ratio; ``None`` if the smallest is not above rounding errors.
        effective_rank: The exponential of the entropy of the eigenvalues over their sum; not a
            number if all are zero.
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


def _find(subject: Subject) -> Findings:
    kernels = shoal.kernel(subject.architecture, subject.x)
    (ck, ck_values), (ntk, ntk_values) = (spectrum(matrix) for matrix in kernels)
    spectra = {"CK": ck_values, "NTK": ntk_values}
    told = tuple(_warnings({"CK": ck, "NTK": ntk}, kernels.ck))
    conditions = _both(ck.condition, ntk.condition)
    rows = (
        Row("trace", _both(ck.trace, ntk.trace), "sum of the eigenvalues"),
        Row("largest eigenvalue", _both(ck.largest, ntk.largest)),
        Row("smallest eigenvalue", _both(ck.smallest, ntk.smallest)),
        Row("condition", conditions, "largest over smallest"),
        Row(
            "effective rank",
            _both(ck.effective_rank, ntk.effective_rank),
            f"exp(spectral entropy), at most {len(ck_values)}",
        ),
    )
    return Findings(
        rows,
        {"ck": asdict(ck), "ntk": asdict(ntk)},
        partial(draw_eigenvalues, spectra=spectra, styles=_STYLES),
        warnings=told,
        fine=() if told else (f"Systems can be solved: conditions {conditions}.",),
        remedy="Take a ridge; standardize columns that are on different scales.",
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


def _both(ck: float | None, ntk: float | None) -> str:
    return of_kernels(ck, ntk, none="∞ to rounding")


def draw_eigenvalues(
    axes: Axes, spectra: Mapping[str, Tensor], styles: Iterable[tuple[str, str]]
) -> None:
    """Draw eigenvalues in their order, the largest first.

    Args:
        axes: Where.
        spectra: The eigenvalues of matrices, by what these are.
        styles: A color and a kind of line for each.
    """
    for (label, values), (color, line) in zip(spectra.items(), styles, strict=False):
        positive = values[values > 0].cpu().sort(descending=True).values
        ranks = range(1, len(positive) + 1)
        axes.plot(ranks, positive, line, color=color, label=label, linewidth=1.6)
    axes.set(xscale="log", yscale="log", xlabel="rank", ylabel="eigenvalue")
    legend_below(axes)


KERNELS = Section("kernels", "Kernels at infinite width", _find)
