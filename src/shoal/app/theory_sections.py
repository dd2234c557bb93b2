"""Sections on infinite width: well-posedness, kernels, equivalents, spectrum and designs."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.app.sections import (
    FAR,
    Findings,
    ReportSection,
    SectionNotApplicable,
    Subject,
    by_kernel,
    by_name,
    legend_below,
)
from shoal.core.figures import COLORS, Axes
from shoal.core.words import Row

_WIDTH = 1024  # of the network whose gain is measured


def _find_well_posedness(subject: Subject) -> Findings:
    deq = subject.deq
    gain, features = deq.recurrent_gain, subject.x.shape[1]
    options: dict[str, Any] = {"dtype": torch.float64, "device": subject.x.device}
    network = shoal.build(deq, in_features=features, width=_WIDTH, seed=0, **options)
    measured = network.well_posedness()
    exists, wide = (
        "yes" if holds else "no guarantee"
        for holds in (deq.kernel_guaranteed, deq.contraction_guaranteed)
    )
    unique = "unique" if measured.contraction else "not certified"
    rows = (
        Row("recurrent gain σ_a²L²", f"{gain:.4g}", "L: Lipschitz constant of the activation"),
        Row("kernel exists", exists, "guaranteed if σ_a²L² < 1"),
        Row("wide networks contract", wide, "guaranteed if σ_a²L² < 1/4"),
        Row(f"gain at width {_WIDTH}", f"{measured.gain_upper:.4g}",
            "certified upper bound of σ_a L‖A‖/√m; seed 0"),
        Row(f"equilibrium at width {_WIDTH}", unique, "unique if that gain is below 1"),
    )  # fmt: skip
    numbers = {
        "recurrent_gain": gain,
        "kernel_guaranteed": deq.kernel_guaranteed,
        "contraction_guaranteed": deq.contraction_guaranteed,
        "width": _WIDTH,
        "gain_lower": measured.gain_lower,
        "gain_upper": measured.gain_upper,
        "contraction": measured.contraction,
    }
    return Findings(rows, numbers)


_LOW_RANK = 2.0  # effective rank of kernels that hardly tell samples apart
_LOST = 1e-4  # rounding times the condition number at which four digits are left


def eigenvalue_numbers(matrix: Tensor) -> tuple[dict[str, Any], Tensor]:
    """Describe a positive semidefinite matrix; also its eigenvalues, the largest first.

    Example:
        >>> import torch
        >>> numbers, _ = eigenvalue_numbers(torch.diag(torch.tensor([1.0, 1.0, 2.0])))
        >>> numbers["trace"], numbers["condition"], round(numbers["effective_rank"], 4)
        (4.0, 2.0, 2.8284)
    """
    values = torch.linalg.eigvalsh(matrix).flip(0)
    rounding = len(values) * torch.finfo(values.dtype).eps * float(values[0])
    values = values.double().cpu()
    shares = values.clamp_min(0) / values.clamp_min(0).sum()
    entropy = -torch.special.xlogy(shares, shares).sum()
    largest, smallest = float(values[0]), float(values[-1])
    numbers = {
        "trace": float(matrix.diagonal().double().sum()),
        "largest": largest,
        "smallest": smallest,
        "condition": largest / smallest if smallest > rounding else None,
        "effective_rank": float(entropy.exp()),
    }
    return numbers, values


def _find_kernels(subject: Subject) -> Findings:
    kernels = shoal.kernel(subject.deq, subject.x)
    (ck, ck_values), (ntk, ntk_values) = map(eigenvalue_numbers, kernels)
    words = {
        "trace": ("trace", "sum of the eigenvalues"),
        "largest": ("largest eigenvalue", ""),
        "smallest": ("smallest eigenvalue", ""),
        "condition": ("condition", "largest over smallest"),
        "effective_rank": ("effective rank", f"exp(spectral entropy), at most {len(ck_values)}"),
    }
    rows = [
        Row(quantity, by_kernel(ck[name], ntk[name], none="∞ to rounding"), meaning)
        for name, (quantity, meaning) in words.items()
    ]
    numbers, values = {"ck": ck, "ntk": ntk}, {"CK": ck_values, "NTK": ntk_values}
    notes = tuple(_remarks({"CK": ck, "NTK": ntk}, kernels.ck))
    return Findings(tuple(rows), numbers, partial(_draw_ranks, spectra=values), notes=notes)


def _remarks(kernels: dict[str, dict[str, Any]], like: Tensor) -> Iterator[str]:
    """Remarks on kernels nearly of rank one, or too ill-conditioned for their dtype."""
    ranks = {name: numbers["effective_rank"] for name, numbers in kernels.items()}
    if low := {name: f"{rank:.3g}" for name, rank in ranks.items() if rank < _LOW_RANK}:
        yield (
            f"The effective rank is {by_name(low)}, of at most {len(like)}: the kernel is nearly "
            "one direction, and hardly distinguishes samples."
        )
    dtype, rounding = str(like.dtype).removeprefix("torch."), torch.finfo(like.dtype).eps
    conditions = {name: numbers["condition"] for name, numbers in kernels.items()}
    if singular := [name for name, condition in conditions.items() if condition is None]:
        yield (
            f"Singular to rounding in {dtype}: {', '.join(singular)}. Linear systems with it need "
            "a ridge."
        )
    if high := {name: f"{c:.1e}" for name, c in conditions.items() if c and c * rounding > _LOST}:
        yield (
            f"The condition is {by_name(high)}: solutions in {dtype} have fewer than four correct "
            "digits; a ridge helps."
        )


def _draw_ranks(axes: Axes, spectra: Mapping[str, Tensor]) -> None:
    """Draw eigenvalues in their order, the largest first."""
    for place, (label, values) in enumerate(spectra.items()):
        positive = values[values > 0].cpu().sort(descending=True).values
        line = "--" if "equivalent" in label else "-"
        axes.plot(range(1, len(positive) + 1), positive, line, color=COLORS[place], label=label)
    axes.set(xscale="log", yscale="log", xlabel="rank", ylabel="eigenvalue")
    legend_below(axes)


_FAR_KERNEL = 0.2  # share of a kernel by which its equivalent is off


def _find_equivalents(subject: Subject) -> Findings:
    equivalent = shoal.equivalent(subject.deq, subject.x)
    c = equivalent.coefficients
    exact = shoal.kernel(c.architecture, subject.x)
    errors = [
        _size(k - e.to_dense()) / _size(k)
        for k, e in zip(exact, (equivalent.ck, equivalent.ntk), strict=True)
    ]
    spread = equivalent.statistics.norm_spread
    away = f"{errors[0]:.0%} (CK) and {errors[1]:.0%} (NTK)"
    check = (
        f"On this data the equivalents must be within {_FAR_KERNEL:.0%} of the exact kernels; they "
        f"are {away} away."
    )
    rows = (
        Row("shift of the activation", f"{c.shift:.4g}", "centers it; all below is centered"),
        Row("on inner products", _coefficients(c.alpha1, c.beta1), "α1, β1"),
        Row("on norms", _coefficients(c.alpha2, c.beta2), "α2, β2"),
        Row("on squared inner products", _coefficients(c.alpha3, c.beta3), "α3, β3"),
        Row("spread of squared norms", f"{spread:.2g}", "relative; small in the theory"),
        Row("error of the equivalents", by_kernel(errors[0], errors[1], ".2g"),
            "in spectral norm, relative to the kernel"),
    )  # fmt: skip
    names = "tau shift gamma2 alpha1 alpha2 alpha3 alpha4 kappa2 beta1 beta2 beta3"
    numbers = {name: getattr(c, name) for name in names.split()}
    numbers |= {"norm_spread": spread, "ck_error": errors[0], "ntk_error": errors[1]}
    spectra = {
        "NTK, centered": torch.linalg.eigvalsh(exact.ntk),
        "its equivalent": equivalent.ntk.eigvalsh(),
    }
    panel = partial(_draw_ranks, spectra=spectra)
    holds = max(errors) <= _FAR_KERNEL
    return Findings(rows, numbers, panel, check=check, holds=holds)


def _coefficients(ck: float, ntk: float) -> str:
    """Two coefficients, without rounding errors of zero."""
    ck, ntk = (value if abs(value) > 1e-15 else 0.0 for value in (ck, ntk))
    return by_kernel(ck, ntk)


def _size(matrix: Tensor) -> float:
    """The spectral norm of a symmetric matrix."""
    return float(torch.linalg.eigvalsh(matrix.double()).abs().max())


def _find_spectrum(subject: Subject) -> Findings:
    x, count = subject.x.double(), len(subject.x)
    if count < 5:
        raise SectionNotApplicable("needs 5 samples or more")
    if x.shape[1] > 4096:
        raise SectionNotApplicable("needs 4096 features or fewer")
    labels = torch.zeros(count, dtype=torch.long)  # one class
    mixture = shoal.GaussianMixture.fit(x.cpu(), labels, covariance="full")
    limits = shoal.spectrum(subject.deq, mixture, n=count, input_norm=1.0)
    exact = shoal.kernel(shoal.centered(subject.deq, input_norm=1.0), x)
    values = [torch.linalg.eigvalsh(matrix).cpu().numpy() for matrix in exact]
    ck, ntk = (_spectrum_numbers(limit, v) for limit, v in zip(limits, values, strict=True))
    check, holds = _checked({"CK": ck, "NTK": ntk})

    def row(name: str, quantity: str, meaning: str, form: str = ".4g") -> Row:
        return Row(quantity, by_kernel(ck[name], ntk[name], form), meaning)

    rows = (
        row("bulks", "bulks", "intervals of the predicted law", "d"),
        row("atom", "atom", "where X has no rank"),
        row("atom_mass", "its share", "of all eigenvalues"),
        row("spikes", "isolated eigenvalues", "detached by the low-rank part", "d"),
        row("upper_end", "upper end", "predicted"),
        row("largest", "largest eigenvalue", "of the exact kernel, centered"),
        row("distance", "error of the prediction", "mean over eigenvalues, over their mean", ".2g"),
        row("as_predicted", "as predicted", "within a factor of 2", ".0%"),
    )
    note = (
        f"The prediction is for {count} samples of one Gaussian with the covariance of the data. "
        "The covariance is estimated from the same samples, which widens the prediction unless "
        "features are much fewer."
    )
    panel = partial(_draw_spectrum, limit=limits.ntk, values=values[1])
    return Findings(rows, {"ck": ck, "ntk": ntk}, panel, notes=(note,), check=check, holds=holds)


def _checked(kernels: dict[str, dict[str, Any]]) -> tuple[str, bool]:
    """A sentence that compares predictions with measurements, and whether they agree."""
    near = {k: f"{numbers['as_predicted']:.0%}" for k, numbers in kernels.items()}
    ends = {k: f"{numbers['largest'] / numbers['upper_end']:.2g}" for k, numbers in kernels.items()}
    holds = all(
        numbers["as_predicted"] >= 0.5
        and abs(numbers["upper_end"] - numbers["largest"]) <= FAR * numbers["largest"]
        and numbers["distance"] <= FAR
        for numbers in kernels.values()
    )
    return (
        f"Half of the eigenvalues must be within a factor of 2 of their prediction, which holds "
        f"for {by_name(near)}, and the largest and the mean within {FAR:.0%}; the largest "
        f"is {by_name(ends)} of its prediction.",
        holds,
    )


def _spectrum_numbers(limit: Any, values: Any) -> dict[str, Any]:
    """A limit beside the eigenvalues that it predicts."""
    predicted = limit.quantile((np.arange(len(values)) + 0.5) / len(values))
    rounding = len(values) * np.finfo(np.float64).eps * abs(values[-1])
    near = (values > predicted / 2) & (values < 2 * predicted)
    atom = limit.atoms[0] if limit.atoms else None
    return {
        "bulks": len(limit.edges),
        "atom": atom.value if atom else None,
        "atom_mass": atom.mass if atom else 0.0,
        "spikes": len(limit.spikes),
        "upper_end": float(max([*limit.edges.flat, *(spike.value for spike in limit.spikes)])),
        "largest": float(values[-1]),
        "distance": float(np.abs(values - predicted).mean() / values.mean()),
        "as_predicted": float((near | (np.abs(values - predicted) <= rounding)).mean()),
    }


def _draw_spectrum(axes: Axes, limit: Any, values: Any) -> None:
    """Histogram of the NTK's eigenvalues, and the predicted one."""
    positive = values[values > 0]
    low, high = limit.quantile(np.array([0.0, 1.0]))
    ends = 0.9 * min(float(low), positive[0]), 1.1 * max(float(high), positive[-1])
    bins: Any = np.geomspace(max(ends[0], 1e-8 * ends[1]), ends[1], 48)
    counts, _ = np.histogram(positive, bins)
    axes.stairs(counts, bins, fill=True, color=COLORS[5], label="exact NTK, centered")
    expected = np.diff(limit.cdf(bins)) * len(values)
    axes.stairs(expected, bins, color=COLORS[1], linewidth=1.4, label="predicted")
    if limit.spikes:
        places = [spike.value for spike in limit.spikes]
        axes.plot(places, np.ones(len(places)), "v", color=COLORS[1], markersize=4,
                  label="predicted isolated")  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="eigenvalue", ylabel="number of eigenvalues")
    legend_below(axes)


WELL_POSEDNESS = ReportSection(
    "well_posedness", "Well-posedness", _find_well_posedness, theory=True
)
KERNELS = ReportSection("kernels", "Kernels at infinite width", _find_kernels, theory=True)
EQUIVALENTS = ReportSection(
    "equivalents", "High-dimensional equivalents", _find_equivalents, theory=True
)
SPECTRUM = ReportSection("spectrum", "Limiting spectrum", _find_spectrum, theory=True)
