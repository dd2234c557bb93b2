"""A diagnosis in words and in plain values."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from shoal.core.figures import Axes, Figure
from shoal.core.words import counted, memory_words
from shoal.diagnosis.iteration import EffectiveDepth
from shoal.diagnosis.jacobian import JacobianSpectrum
from shoal.diagnosis.plot import PANELS
from shoal.diagnosis.remedies import ROUGH
from shoal.diagnosis.result import Diagnosis

_UNIQUE = {True: "yes, proved", False: "no", None: "one was found; nothing proves that it is alone"}
_CONTRACTION = {
    "certified": "the loop contracts, by a certified bound: one equilibrium",
    "refuted": "the loop does not bring all states closer: no contraction in the Euclidean norm",
    "unknown": "no states were found that it moves apart, which proves nothing",
}
_ONE, _ROUGH = 1e-6, 1e-3  # how near to one says nothing; a residual that says little
_VAGUE = 0.05  # of an equilibrium's size, from which on its error is a warning


class Row(NamedTuple):
    """A line of a table: a quantity, its value, and what it means.

    Attributes:
        quantity: What it is.
        value: As text.
        meaning: What it says.
        holds: For an entry of a checklist, whether it holds.
        contradicted: Whether it was predicted, and the data are otherwise.
    """

    quantity: str
    value: str
    meaning: str = ""
    holds: bool | None = None
    contradicted: bool = False


class Part(NamedTuple):
    """A part of what is shown of a result.

    Attributes:
        name: Of its place on a page.
        title: For people.
        rows: The table.
        panel: Draws its panel of the figure, if it has one.
        figure: A whole figure, where a panel is not enough.
        notes: Sentences that are too long for the table.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    panel: Callable[[Axes], None] | None = None
    figure: Figure | None = None
    notes: tuple[str, ...] = ()


def sections_of(found: Diagnosis) -> list[Part]:
    """What is shown of a diagnosis, one part below the other."""
    parts = {
        "remedies": ("What to do", _remedies(found)),
        "iteration": ("Does the plain iteration settle?", _iteration(found)),
        "depth": ("Effective depth", _depth(found)),
        "equilibria": ("Equilibria", _equilibria(found)),
        "jacobian": ("The Jacobian at the equilibrium", _jacobian(found)),
        "solvers": ("Solvers", _solvers(found)),
        "gradients": ("Gradients", _gradients(found)),
        "kernel": ("Distance from the kernel regime", _kernel(found)),
        "notes": ("Notes", (Row("note", "", text) for text in found.notes)),
    }
    panels = {name: partial(draw, found) for name, (_, draw) in PANELS.items()}
    shown = [
        Part(name, title, tuple(rows), panels.get(name)) for name, (title, rows) in parts.items()
    ]
    return [part for part in shown if part.rows]


def _remedies(found: Diagnosis) -> Iterator[Row]:
    for place, (what, why) in enumerate(found.remedies, 1):
        yield Row(f"{place}.", f"{what[:1].upper()}{what[1:]}", why)
    if not found.remedies:
        well = set(found.behaviors) == {"settles"} and found.solved == found.samples
        known = "it settles at one equilibrium, as far as was looked"
        yield Row("", f"Nothing: {known if well else 'no measurement speaks for anything'}")


def _iteration(found: Diagnosis) -> Iterator[Row]:
    for one in found.iterations:
        words = ", ".join(f"{name}: {count}" for name, count in one.counts.items())
        periods = sorted(set(one.periods) - {0})
        cycle = f"; period {', '.join(map(str, periods))}" if periods else ""
        steps = [s for s in one.steps if s >= 0]
        after = f"settled after {_range(min(steps), max(steps))}" if steps else ""
        yield Row(f"from {one.start}", words + cycle, after, set(one.counts) == {"settles"})


def _range(least: int, most: int) -> str:
    return counted(most, "step") if least == most else f"{least} to {counted(most, 'step')}"


def _depth(found: Diagnosis) -> Iterator[Row]:
    depth = found.depth
    if depth is None:
        yield Row("none", "no sample settles within the tolerance of a limit")
        return
    within = f"until the output stays within {depth.tolerance:.2g} of what it will be"
    if len(depth.depths) < found.samples:
        yield Row("samples", f"{len(depth.depths)} of {found.samples}", "that settle so near")
    for share, words in ((0.5, "half"), (0.9, "90%"), (1.0, "all")):
        yield Row(f"{words} of the samples", counted(depth.quantile(share), "application"), within)
    if depth.decisions is not None:
        most = max(depth.decisions)
        yield Row("the largest output", counted(most, "application"), "until it stays the same one")


def _equilibria(found: Diagnosis) -> Iterator[Row]:
    several = found.equilibria
    yield Row(
        "found",
        f"of {found.solved} of {counted(found.samples, 'sample')}",
        f"from {counted(several.starts, 'start')}",
        found.solved == found.samples,
    )
    if found.solved:
        most = max(several.counts)
        yield Row(
            "different ones", f"up to {most}", f"unique: {_UNIQUE[several.unique]}", several.unique
        )
        off = max(error for error in several.errors if not math.isnan(error))
        vague = ": they are hardly determined, or none" if off > _VAGUE else ""
        yield Row("off by", f"{off:.1e}", f"of their size, by Newton's estimate{vague}")
    yield Row("expansion", f"{several.expansion:.4g}", _CONTRACTION[several.contraction])


def _jacobian(found: Diagnosis) -> Iterator[Row]:
    spectrum = found.spectrum
    if spectrum is None:
        return
    how = "formed" if spectrum.exact else "by products: norms from below"
    yield Row(
        "‖J‖", f"{spectrum.norm:.4g}", f"largest of {counted(len(spectrum.norms), 'sample')}; {how}"
    )
    yield Row("spectral radius", f"{spectrum.radius:.4g}", *_stability(spectrum))
    if not spectrum.exact:
        yield Row("its residual", f"{max(spectrum.residuals):.1e}", "of Arnoldi, relative")
    among = "" if spectrum.exact else "of the eigenvalues found; "
    nearest = f"{min(spectrum.nearest_one):.4g}"
    yield Row("least |1 - λ|", nearest, f"{among}at 0 there is no gradient")


def _stability(spectrum: JacobianSpectrum) -> tuple[str, bool | None]:
    """What spectral radii say about the plain iteration, and whether that is good."""
    above = sum(radius > 1 + _ONE for radius in spectrum.radii)
    if above:
        return f"above 1 in {above} of {len(spectrum.radii)}: the plain iteration leaves it", False
    if spectrum.radius >= 1 - _ONE:
        return "at 1 it does not tell whether the plain iteration stays near", None
    if max(spectrum.residuals) > _ROUGH:
        return "below 1, as far as Arnoldi tells", None
    return "below 1: the plain iteration settles near it", True


def _solvers(found: Diagnosis) -> Iterator[Row]:
    for cost in found.solvers:
        ends = ", ".join(
            f"{count} {status.name.lower().replace('_', ' ')}"
            for status, count in cost.failures.items()
        )
        value = (
            f"{counted(cost.evaluations, 'evaluation')}, {1e3 * cost.seconds:.3g} ms, "
            f"{memory_words(cost.peak)} at its peak"
        )
        solved = f"{cost.converged} of {found.samples} solved" + (f" ({ends})" if ends else "")
        yield Row(cost.name, value, solved, cost.converged == found.samples)


def _gradients(found: Diagnosis) -> Iterator[Row]:
    if found.gradients and found.gradients[0].samples < found.samples:
        count = f"{found.gradients[0].samples} of {found.samples}"
        yield Row("samples", count, "whose equilibrium and exact gradient were found")
    for cost in found.gradients:
        value = (
            f"{counted(cost.backward_evaluations, 'product')}, {1e3 * cost.seconds:.3g} ms, "
            + (f"keeps {memory_words(cost.memory)}, {memory_words(cost.peak)} at its peak")
        )
        off = f"error {cost.relative:.2g}, cosine {cost.cosine:.3f}"
        close = True if cost.relative <= ROUGH else None
        yield Row(
            cost.name,
            value,
            off + (": WRONG DIRECTION" if cost.wrong else ""),
            False if cost.wrong else close,
        )


def _kernel(found: Diagnosis) -> Iterator[Row]:
    change = found.kernel_change
    if change is None:
        return
    yield Row("change of the NTK", f"{change.relative:.3g}", "relative, since the reference")
    yield Row("alignment", f"{change.alignment:.4f}", "1: the kernel it began with, up to a factor")
    yield Row("centered alignment", f"{change.centered_alignment:.4f}", "CKA")
    yield Row("weights moved", f"{change.weights:.3g}", "relative to their initial norm")


def document_of(found: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain values."""
    change = found.kernel_change
    return {
        "model": found.model,
        "samples": found.samples,
        "state_size": found.size,
        "behavior": found.behavior,
        "iterations": [
            {name: getattr(one, name) for name in ("start", "behaviors", "periods", "steps")}
            for one in found.iterations
        ],
        "effective_depth": _depth_values(found.depth),
        "equilibria": {
            name: getattr(found.equilibria, name)
            for name in ("counts", "starts", "contraction", "expansion", "errors", "unique")
        },
        "jacobian": _jacobian_values(found.spectrum),
        "solvers": [
            {
                **cost._asdict(),
                "solver": repr(cost.solver),
                "failures": {s.name: count for s, count in cost.failures.items()},
            }
            for cost in found.solvers
        ],
        "gradients": [
            {**cost._asdict(), "gradient": cost.name, "wrong_direction": cost.wrong}
            for cost in found.gradients
        ],
        "kernel_change": None if change is None else change._asdict(),
        "memory": {"parameters": found.parameter_bytes, "state": found.state_bytes},
        "remedies": [remedy._asdict() for remedy in found.remedies],
        "notes": found.notes,
    }


def _depth_values(depth: EffectiveDepth | None) -> dict[str, Any] | None:
    if depth is None:
        return None
    return {**depth._asdict(), "quantiles": {s: depth.quantile(s) for s in (0.5, 0.9, 1.0)}}


def _jacobian_values(spectrum: JacobianSpectrum | None) -> dict[str, Any] | None:
    if spectrum is None:
        return None
    names = ("samples", "norms", "radii", "nearest_one", "residuals", "exact")
    eigenvalues = [[[v.real, v.imag] for v in row] for row in spectrum.eigenvalues]
    return {**{name: getattr(spectrum, name) for name in names}, "eigenvalues": eigenvalues}
