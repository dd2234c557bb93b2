"""Figures of the study of depth: every network on every task, and one thing varied at a time."""

from collections.abc import Sequence
from typing import Any

from experiments.depth.training import CENTER, Compared
from experiments.drawing import COLORS, GRAY, Axes, Figure

NETWORKS = {
    "deq": "DEQ, gain at most 0.9",
    "free": "DEQ, unbounded",
    "unrolled10": "unrolled 10",
    "unrolled3": "unrolled 3",
    "plain3": "plain, 3 layers",
    "plain2": "plain, 2 layers",
    "longer": "plain, 2 layers, trained longer",
    "plain1": "plain, 1 layer",
    "ntk-design": "NTK design",
    "moments-design": "NTK design by moments",
    "flattened": "plain, sees all places",
}
TASKS = {
    "fashion": "Fashion-MNIST",
    "cifar": "CIFAR-10, a part",
    "mnist": "MNIST",
    "fashion-conv": "Fashion-MNIST, convolutional",
    "cifar-conv": "CIFAR-10, a part, convolutional",
    "digits": "digits",
    "digits-conv": "digits, convolutional",
    "diabetes": "diabetes",
    "cancer": "breast cancer",
    "sequence": "sequence",
    "graph": "graph",
}
_AXES = {
    "gain": "gain",
    "scale": "width, relative",
    "readout": "scale of the readout: rich to lazy",
    "activation": "activation",
    "optimizer": "optimizer",
}
_LINES = {"deq": COLORS[1], "free": COLORS[4], "unrolled10": COLORS[3], "unrolled3": COLORS[5]}
_LINES |= {"plain3": COLORS[2], "plain2": COLORS[0], "plain1": GRAY, "flattened": "#222222"}


def draw_study(found: Sequence[Compared]) -> Figure:
    """Centers above; below what changes with distance, and with one thing at a time."""
    center = [one for one in found if not one.axis]
    tasks = list(dict.fromkeys(one.task for one in center))
    far = [task for task in tasks if any(o.places.shape[1] > 1 for o in center if o.task == task)]
    axes = [axis for axis in _AXES if any(one.axis == axis for one in found)]
    varied = next((one.task for one in found if one.axis), None)
    lower = [*(("far", task) for task in far), *(("axis", axis) for axis in axes)]
    columns = max(len(tasks), 3 if lower else 0)
    order = [name for name in NETWORKS if any(one.network == name for one in center)]
    rows = 1 + -(-len(lower) // columns)
    figure = Figure(figsize=(3.3 * columns + 1.2, 3.3 * rows))
    panels: Any = figure.subplots(rows, columns, squeeze=False)
    for place, (axis, task) in enumerate(zip(panels[0], tasks, strict=False)):
        _draw_center(axis, task, [o for o in center if o.task == task], order, names=place == 0)
    for axis in (*panels[0][len(tasks) :], *panels[1:].flat[len(lower) :]):
        axis.set_axis_off()
    for axis, (kind, name) in zip(panels[1:].flat, lower, strict=False):
        if kind == "far":
            _draw_distances(axis, name, [o for o in center if o.task == name])
        else:
            assert varied is not None
            _draw_axis(axis, name, varied, [o for o in found if o.task == varied])
    return figure


def _draw_center(
    axes: Axes, task: str, found: Sequence[Compared], order: Sequence[str], *, names: bool
) -> None:
    """Accuracies of all networks with their intervals, below each other."""
    for one in found:
        place = -order.index(one.network)
        low, high = (100 * abs(end - one.accuracy.mean) for end in one.accuracy[1:])
        color = _LINES["deq"] if one.network in ("deq", "free") else _LINES["plain2"]
        mean = 100 * one.accuracy.mean
        axes.errorbar([mean], [place], xerr=[[low], [high]], fmt="o", color=color, markersize=4)
    deq = next(one for one in found if one.network == "deq")
    axes.axvline(100 * deq.accuracy.mean, color=_LINES["deq"], linewidth=0.8, linestyle=":")
    axes.set_yticks([-place for place in range(len(order))])
    axes.set_yticklabels([NETWORKS[name] for name in order] if names else [""] * len(order))
    axes.set_ylim(-len(order) + 0.5, 0.5)
    axes.set_xlabel("test accuracy (%)")
    axes.set_title(TASKS[task], fontsize=10)


def _draw_distances(axes: Axes, task: str, found: Sequence[Compared]) -> None:
    """Accuracy against the distance of a place from the one that tells the answer."""
    length = found[0].places.shape[1]
    for one in found:
        if one.network in _LINES:
            style = "--" if one.network == "flattened" else "-"  # it may lie on another one
            axes.plot(range(length), 100 * one.places.mean(0), style, color=_LINES[one.network],
                      label=NETWORKS[one.network])  # fmt: skip
    axes.set_xlim(-0.5, 1.6 * length)  # room for the legend
    axes.set_xticks(range(0, length, 5))
    axes.set_xlabel("distance from where the answer is told")
    axes.set_ylabel("test accuracy (%)")
    axes.set_title(f"{TASKS[task]}: how far it reaches", fontsize=10)
    axes.legend(fontsize=7, loc="center right")


def _draw_axis(axes: Axes, axis: str, task: str, found: Sequence[Compared]) -> None:
    """Accuracies of a task against one thing that is varied, the center among it."""
    some = [one for one in found if one.axis == axis]
    values: list[Any] = sorted({one.value for one in some} | {CENTER[axis]}, key=_rank)
    networks = [name for name in dict.fromkeys(one.network for one in some) if name in _LINES]
    for index, network in enumerate(networks):
        places = [place + 0.05 * (index - (len(networks) - 1) / 2) for place in range(len(values))]
        mine = {one.value: one for one in found if one.network == network and one.axis == axis}
        mine[CENTER[axis]] = next(o for o in found if o.network == network and not o.axis)
        means = [100 * mine[value].accuracy.mean for value in values]
        errors = [100 * (mine[v].accuracy.high - mine[v].accuracy.mean) for v in values]
        # the legend keeps clear of caps, of bars alone it would not
        axes.errorbar(places, means, errors, fmt="o-", markersize=3, linewidth=1.2, capsize=2,
                      color=_LINES[network], label=NETWORKS[network].split(",")[0]
                      if network == "deq" else NETWORKS[network])  # fmt: skip
    axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlabel(_AXES[axis])
    axes.set_ylabel("test accuracy (%)")
    axes.margins(y=0.2)  # for the legend
    axes.set_title(TASKS[task], fontsize=10)
    axes.legend(fontsize=7)


def _rank(value: float | str) -> tuple[bool, float, str]:
    """Numbers by size; of names the center first."""
    if isinstance(value, str):
        return value not in CENTER.values(), 0.0, value
    return False, value, ""
