"""Pictures of diagnoses."""

from collections.abc import Callable

from shoal.core.figures import COLORS, GRAY, Axes, Figure, empty_figure
from shoal.diagnosis.result import Diagnosis

_BAD = COLORS[1]
_LEAST = 1e-16


def plot_diagnosis(found: Diagnosis) -> Figure:
    """All panels in one figure."""
    figure = empty_figure(10.0, 7.2)
    for axes, (title, draw) in zip(figure.subplots(2, 2).flat, PANELS.values(), strict=True):
        draw(found, axes)
        axes.set_title(title, loc="left", fontsize=11)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
    return figure


def _moves(found: Diagnosis, axes: Axes) -> None:
    """How far the state moves in each step, from each start: the samples' median and largest."""
    for place, one in enumerate(found.iterations):
        moves = one.moves.cpu().clamp(min=_LEAST)  # no line where there is no number
        steps, color = range(1, len(moves) + 1), COLORS[place % len(COLORS)]
        axes.plot(steps, moves.amax(1), color=color, label=f"from {one.start}")
        axes.plot(steps, moves.nanmedian(1).values, ":", color=color)
    axes.set_yscale("log")
    _whole_numbers(axes)
    if not any(bool(one.moves.isfinite().any()) for one in found.iterations):
        _nothing(axes, "no move is a finite number")
    axes.set(xlabel="application of the cell", ylabel="relative move; dotted: median")
    axes.legend(frameon=False, fontsize=8)


def _outputs(found: Diagnosis, axes: Axes) -> None:
    """How far the output is from what it will be."""
    if found.depth is None:
        _nothing(axes, "no sample settles within the tolerance")
        return
    steps = range(len(found.depth.errors))
    middle, largest = zip(*found.depth.errors, strict=True)
    axes.plot(steps, [max(e, _LEAST) for e in largest], color=COLORS[0], label="worst sample")
    axes.plot(steps, [max(e, _LEAST) for e in middle], ":", color=COLORS[0], label="median")
    axes.axhline(found.depth.tolerance, color=GRAY, linewidth=0.8, label="tolerance")
    depth = found.depth.quantile(1.0)
    axes.axvline(depth, color=GRAY, linewidth=0.8, linestyle="--", label=f"depth {depth}")
    axes.set_yscale("log")
    _whole_numbers(axes)
    axes.set(xlabel="application of the cell", ylabel="relative error of the output")
    axes.legend(frameon=False, fontsize=8)


def _eigenvalues(found: Diagnosis, axes: Axes) -> None:
    """The eigenvalues in the complex plane, with the unit circle."""
    if found.spectrum is None:
        _nothing(axes, "no equilibrium was found")
        return
    from matplotlib.patches import Circle

    values = [value for row in found.spectrum.eigenvalues for value in row]
    axes.add_patch(Circle((0, 0), 1, fill=False, color=GRAY, linewidth=0.8))
    axes.scatter([v.real for v in values], [v.imag for v in values], s=6, color=COLORS[0])
    axes.plot([1], [0], "x", color=_BAD, label="1: no gradient")
    axes.legend(frameon=False, fontsize=8, loc="upper right", handletextpad=0.2)
    reach = 1.25 * max(1.0, *(abs(value) for value in values))
    axes.set(
        xlim=(-reach, reach), ylim=(-reach, reach), xlabel="Re λ", ylabel="Im λ", aspect="equal"
    )


def _costs(found: Diagnosis, axes: Axes) -> None:
    """Evaluations of each solver; those that do not solve all samples are hatched."""
    for place, cost in enumerate(found.solvers):
        whole = cost.converged == found.samples
        color = COLORS[0] if whole else "#B8CDE0"
        axes.barh(place, cost.evaluations, color=color, height=0.6)
        words = "" if whole else f"  {cost.converged} of {found.samples}"
        axes.annotate(words, (cost.evaluations, place), va="center", fontsize=8)
    axes.margins(x=0.18)  # for the words
    _whole_numbers(axes)
    axes.set_yticks(range(len(found.solvers)), [cost.name for cost in found.solvers])
    axes.invert_yaxis()
    axes.set(xlabel="evaluations (pale: not all samples solved)")


def _whole_numbers(axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _nothing(axes: Axes, words: str) -> None:
    axes.set(xticks=[], yticks=[])
    axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes)


PANELS: dict[str, tuple[str, Callable[[Diagnosis, Axes], None]]] = {
    "iteration": ("The plain iteration", _moves),
    "depth": ("The output", _outputs),
    "jacobian": ("Eigenvalues of the Jacobian", _eigenvalues),
    "solvers": ("Solvers", _costs),
}
