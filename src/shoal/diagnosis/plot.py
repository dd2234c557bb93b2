"""Pictures of diagnoses."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from shoal.diagnosis.result import Diagnosis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PANELS", "plot_diagnosis"]

_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_GRAY, _BAD = "#6b6b6b", "#D55E00"
_LEAST = 1e-16


def plot_diagnosis(found: Diagnosis) -> "Figure":
    """All panels in one figure."""
    if find_spec("matplotlib") is None:
        raise ImportError("plot needs matplotlib, which is not here: pip install 'shoal[plots]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 7.2), layout="constrained")
    for axes, (title, draw) in zip(figure.subplots(2, 2).flat, PANELS.values(), strict=True):
        draw(axes, found)
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _moves(axes: "Axes", found: Diagnosis) -> None:
    """How far the state moves in each step, from each start: the samples' median and largest."""
    for one, color in zip(found.iterations, _COLORS, strict=False):
        moves = one.moves.cpu().nan_to_num(posinf=1e30).clamp(min=_LEAST)
        steps = range(1, len(moves) + 1)
        axes.plot(steps, moves.amax(1), color=color, label=f"from {one.start}")
        axes.plot(steps, moves.median(1).values, ":", color=color)
    axes.set_yscale("log")
    axes.set(xlabel="application of the cell", ylabel="relative move")
    axes.legend(frameon=False, fontsize=8)


def _outputs(axes: "Axes", found: Diagnosis) -> None:
    """How far the output is from what it will be."""
    if found.depth is None:
        _nothing(axes, "no sample settles")
        return
    steps = range(len(found.depth.errors))
    middle, largest = zip(*found.depth.errors, strict=True)
    axes.plot(steps, [max(e, _LEAST) for e in largest], color=_COLORS[0], label="worst sample")
    axes.plot(steps, [max(e, _LEAST) for e in middle], ":", color=_COLORS[0], label="median")
    axes.axhline(found.depth.tolerance, color=_GRAY, linewidth=0.8)
    axes.axvline(found.depth.quantile(1.0), color=_GRAY, linewidth=0.8)
    axes.set_yscale("log")
    axes.set(xlabel="application of the cell", ylabel="relative error of the output")
    axes.legend(frameon=False, fontsize=8)


def _eigenvalues(axes: "Axes", found: Diagnosis) -> None:
    """The eigenvalues in the complex plane, with the unit circle."""
    if found.spectrum is None:
        _nothing(axes, "no equilibrium was found")
        return
    from matplotlib.patches import Circle

    values = [value for row in found.spectrum.eigenvalues for value in row]
    axes.add_patch(Circle((0, 0), 1, fill=False, color=_GRAY, linewidth=0.8))
    axes.scatter([v.real for v in values], [v.imag for v in values], s=6, color=_COLORS[0])
    axes.plot([1], [0], "x", color=_BAD)
    reach = 1.1 * max(1.0, *(abs(value) for value in values))
    axes.set(
        xlim=(-reach, reach), ylim=(-reach, reach), xlabel="Re λ", ylabel="Im λ", aspect="equal"
    )


def _costs(axes: "Axes", found: Diagnosis) -> None:
    """Evaluations of each solver; those that do not solve all samples are hatched."""
    for place, cost in enumerate(found.solvers):
        whole = cost.converged == found.samples
        color = _COLORS[0] if whole else "#B8CDE0"
        axes.barh(place, cost.evaluations, color=color, height=0.6)
        words = "" if whole else f"  {cost.converged} of {found.samples}"
        axes.annotate(words, (cost.evaluations, place), va="center", fontsize=8)
    axes.set_yticks(range(len(found.solvers)), [cost.name for cost in found.solvers])
    axes.invert_yaxis()
    axes.set(xlabel="evaluations (pale: not all samples solved)")


def _nothing(axes: "Axes", words: str) -> None:
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)


PANELS: "dict[str, tuple[str, Callable[[Axes, Diagnosis], None]]]" = {
    "iteration": ("The plain iteration", _moves),
    "depth": ("The output", _outputs),
    "jacobian": ("Eigenvalues of the Jacobian", _eigenvalues),
    "solvers": ("Solvers", _costs),
}
