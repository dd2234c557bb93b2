"""The section on training: the DEQ, its designs and a naive network, predicted and measured."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor

from shoal import Architecture
from shoal.convergence import LinearTraining
from shoal.lab.descent import full_batch, make
from shoal.lab.rivals import TITLES, rival, wide_kernels
from shoal.pages.figures import COLORS, GRAY, Axes, legend_below
from shoal.pages.findings import Findings, Row
from shoal.report.section import Section, Subject, of_each, on_sphere

_NETWORKS = ("deq", "ntk-design", "ck-design", "naive")
_SAMPLES, _WIDTH = 128, 512  # of the trained networks
_FAR = 0.25  # of the predicted loss: training was not as predicted
_STEPS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)


def _find(subject: Subject) -> Findings:
    deq = subject.deq
    x, targets = on_sphere(subject.data, _SAMPLES)
    flows = {
        name: LinearTraining(
            wide_kernels(name, deq, x), targets.values, initial="zero", reduction="mean"
        )
        for name in _NETWORKS
    }
    step_size = 0.5 * min(flow.max_step_size for flow in flows.values())
    predicted = {
        name: flow.run(steps=list(_STEPS), step_size=step_size).loss.cpu()
        for name, flow in flows.items()
    }
    measured = {
        name: _measured(rival(name, deq), x, targets.values, step_size) for name in _NETWORKS
    }
    told = dict(_contradicted(predicted, measured))
    head = Row(
        "training loss",
        f"after {_STEPS[-1]} steps",
        f"{len(x)} samples of norm one, {targets.words}; width {_WIDTH}, step size {step_size:.3g}",
    )
    rows = [
        _row(name, predicted, measured)._replace(contradicted=name in told) for name in _NETWORKS
    ]
    numbers: dict[str, Any] = {
        "samples": len(x), "width": _WIDTH, "step_size": step_size, "steps": list(_STEPS),
        "predicted": {name: losses.tolist() for name, losses in predicted.items()},
        "measured": {name: losses.tolist() for name, losses in measured.items()},
    }  # fmt: skip
    return Findings(
        (head, *rows),
        numbers,
        partial(_panel, predicted=predicted, measured=measured),
        warnings=tuple(told.values()),
        fine=()
        if told
        else (
            f"Networks of width {_WIDTH} train as predicted, to {_FAR:.0%} of the loss or less.",
        ),
        remedy="Take wider networks: predictions are for infinite width.",
    )


def _contradicted(
    predicted: dict[str, Tensor], measured: dict[str, Tensor]
) -> Iterator[tuple[str, str]]:
    """Which networks were not trained as predicted, and what was measured."""
    for name in _NETWORKS:
        own, other = float(measured[name][-1]), float(predicted[name][-1])
        if not abs(own - other) <= _FAR * other:
            yield (
                name,
                f"{TITLES[name]}: a loss of {own:.3g} after {_STEPS[-1]} steps at width {_WIDTH}, "
                f"where {other:.3g} was predicted for infinite width.",
            )


def _measured(architecture: Architecture, x: Tensor, y: Tensor, step_size: float) -> Tensor:
    """The losses of a finite network, its initial function subtracted."""
    x, y = x.float(), y.float()
    network = make(architecture, x, width=_WIDTH, out_features=y.shape[1], seed=0, warm_start=True)
    done = full_batch(network, x, y, step_size=step_size, steps=_STEPS, from_zero=True)
    return ((done.outputs.double() - y).square().sum((1, 2)) / (2 * len(y))).cpu()


def _row(name: str, predicted: dict[str, Tensor], measured: dict[str, Tensor]) -> Row:
    own, deq = float(predicted[name][-1]), float(predicted["deq"][-1])
    words = "" if name == "deq" else f"predicted {100 * (own / deq - 1):+.1f}% from the DEQ's"
    losses = {"predicted": f"{own:.4g}", "measured": f"{float(measured[name][-1]):.4g}"}
    return Row(TITLES[name], of_each(losses), words)


def _panel(axes: Axes, predicted: dict[str, Tensor], measured: dict[str, Tensor]) -> None:
    """Losses against steps: lines are predicted, dots are measured."""
    styles = ((4.0, "-", 0.35), (1.4, "-", 1.0), (1.4, "--", 1.0), (1.4, ":", 1.0))
    for name, color, (width, line, alpha) in zip(_NETWORKS, COLORS, styles, strict=False):
        axes.plot(_STEPS, predicted[name], line, color=color, linewidth=width, alpha=alpha,
                  label=TITLES[name])  # fmt: skip
        axes.plot(_STEPS, measured[name], ".", color=color, markersize=5)
    axes.plot([], [], ".", color=GRAY, label=f"measured, width {_WIDTH}")
    axes.set(yscale="log", xlabel="step of gradient descent", ylabel="training loss")
    legend_below(axes)


TRAINING = Section("training", "Training", _find)
