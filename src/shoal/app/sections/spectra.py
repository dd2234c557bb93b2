"""The section on the limiting spectrum: a Gaussian with the covariance of the data."""

from functools import partial
from typing import Any

import numpy as np
import torch

import shoal
from shoal.app.figures import COLORS, Axes, legend_below
from shoal.app.sections.base import (
    Findings,
    NothingToSayError,
    Section,
    Subject,
    of_each,
    of_kernels,
)
from shoal.diagnosis.words import Row

_LEAST = 5  # samples, for an estimate of the covariance
_MOST = 4096  # features, whose covariance is diagonalized
_BINS = 48
_MOST_OF_THEM = 0.5  # of the eigenvalues, which have to be near their prediction
_FAR = 0.25  # of the largest or the mean eigenvalue: it was not predicted
_INPUT_NORM = 1.0  # the inputs of an analysis have a mean squared norm of one


def _find(subject: Subject) -> Findings:
    x, count = subject.x.double(), len(subject.x)
    if count < _LEAST:
        raise NothingToSayError(f"needs {_LEAST} samples or more")
    if x.shape[1] > _MOST:
        raise NothingToSayError(f"needs {_MOST} features or fewer")
    labels = torch.zeros(count, dtype=torch.long)  # one class
    mixture = shoal.GaussianMixture.fit(x.cpu(), labels, covariance="full")
    limits = shoal.spectrum(subject.architecture, mixture, n=count, input_norm=_INPUT_NORM)
    exact = shoal.kernel(shoal.centered(subject.architecture, input_norm=_INPUT_NORM), x)
    values = [torch.linalg.eigvalsh(matrix).cpu().numpy() for matrix in exact]
    found = [_numbers(limit, v) for limit, v in zip(limits, values, strict=True)]
    wrong = _contradicted(dict(zip(("CK", "NTK"), found, strict=True)))
    shares = _both(found, "as_predicted", ".0%")
    rows = (
        Row("bulks", _both(found, "bulks", "d"), "intervals of the predicted law"),
        Row("atom", _both(found, "atom"), "where X has no rank"),
        Row("its share", _both(found, "atom_mass"), "of all eigenvalues"),
        Row("isolated eigenvalues", _both(found, "spikes", "d"), "detached by the low-rank part"),
        Row("upper end", _both(found, "upper_end"), "predicted", contradicted="end" in wrong),
        Row("largest eigenvalue", _both(found, "largest"), "of the exact kernel, centered"),
        Row(
            "distance from it",
            _both(found, "distance", ".2g"),
            "mean distance of predicted eigenvalues, over the mean eigenvalue",
            contradicted="distance" in wrong,
        ),
        Row("as predicted", shares, "within a factor of 2", contradicted="share" in wrong),
    )
    numbers = dict(zip(("ck", "ntk"), found, strict=True))
    note = (
        f"The prediction is for {count} samples of one Gaussian with the covariance of the data; "
        "what the data have beyond their covariance it does not know. The covariance is that of "
        "the samples themselves, which widens the prediction where features are not much fewer."
    )
    return Findings(
        rows,
        numbers,
        partial(_panel, limit=limits.ntk, values=values[1]),
        notes=(note,),
        warnings=tuple(wrong.values()),
    )


def _contradicted(found: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What is predicted of the kernels and is not so: in a word, and in a sentence."""
    wrong: dict[str, str] = {}
    shares = {k: f["as_predicted"] for k, f in found.items()}
    share = {k: f"{s:.0%}" for k, s in shares.items() if not s >= _MOST_OF_THEM}
    if share:
        last = found[list(share)[-1]]
        low, high = last["middle"]
        atom = (
            f"{last['atom_mass']:.0%} of them at {last['atom']:.2g}, and " if last["atom"] else ""
        )
        wrong["share"] = (
            f"Of the eigenvalues {of_each(share)} are within a factor of 2 of their prediction: of "
            f"the {list(share)[-1]} it has {atom}the middle 80% are from {low:.2g} to {high:.2g}."
        )
    ends = {
        k: f"{f['largest']:.3g} where {f['upper_end']:.3g} is predicted"
        for k, f in found.items()
        if not abs(f["upper_end"] - f["largest"]) <= _FAR * f["largest"]
    }
    if ends:
        wrong["end"] = f"The largest eigenvalue is {of_each(ends)}."
    distances = {k: f"{f['distance']:.0%}" for k, f in found.items() if not f["distance"] <= _FAR}
    if distances:
        off = f"off their prediction by {of_each(distances)} of their mean"
        wrong["distance"] = f"The eigenvalues are {off}."
    return wrong


def _numbers(limit: Any, values: Any) -> dict[str, Any]:
    """A limit beside the eigenvalues that it predicts."""
    levels = (np.arange(len(values)) + 0.5) / len(values)
    predicted = limit.quantile(levels)
    rounding = len(values) * np.finfo(np.float64).eps * abs(values[-1])  # of what is zero
    near = (np.abs(values - predicted) <= rounding) | (
        (values > predicted / 2) & (values < 2 * predicted)
    )
    atom = limit.atoms[0] if limit.atoms else None
    ends = [*limit.edges.flat, *(spike.value for spike in limit.spikes)]
    return {
        "bulks": len(limit.edges),
        "atom": atom.value if atom else None,
        "atom_mass": atom.mass if atom else 0.0,
        "spikes": len(limit.spikes),
        "upper_end": float(max(ends)),
        "largest": float(values[-1]),
        "distance": float(np.abs(values - predicted).mean() / values.mean()),
        "as_predicted": float(near.mean()),
        "middle": np.quantile(values, (0.1, 0.9)).tolist(),
    }


def _both(found: list[dict[str, Any]], name: str, form: str = ".4g") -> str:
    return of_kernels(found[0][name], found[1][name], form)


def _panel(axes: Axes, limit: Any, values: Any) -> None:
    """How many eigenvalues of the NTK lie in each interval, and how many were predicted to."""
    positive = values[values > 0]
    low, high = limit.quantile(np.array([0.0, 1.0]))
    ends = [0.9 * min(float(low), float(positive[0])), 1.1 * max(float(high), float(positive[-1]))]
    bins: Any = np.geomspace(max(ends[0], 1e-8 * ends[1]), ends[1], _BINS)
    counts, _ = np.histogram(positive, bins)
    expected = np.diff(limit.cdf(bins)) * len(values)
    axes.stairs(counts, bins, fill=True, color=COLORS[5], label="exact NTK, centered")
    axes.stairs(expected, bins, color=COLORS[1], linewidth=1.4, label="predicted")
    for place, spike in enumerate(limit.spikes):
        label = "predicted isolated" if place == 0 else None
        axes.plot(spike.value, 1, "v", color=COLORS[1], markersize=4, label=label)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.set(xlabel="eigenvalue", ylabel="how many")
    legend_below(axes)


SPECTRUM = Section("spectrum", "Limiting spectrum", _find)
