"""Records of a training run, and their figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shoal.core.exceptions import ConvergenceError
from shoal.core.figures import COLORS, GRAY, Axes, Figure, empty_figure

if TYPE_CHECKING:
    from torch import Tensor

TrainingStatus = Literal["finished", "stopped", "diverged"]

_PANELS = {
    "gain": "gain of the recurrent layer",
    "least_eigenvalue": "least eigenvalue of the Gram matrix",
    "drift": "drift of the Gram matrix",
    "pl_ratio": "‖∇Φ‖² / λ₀Φ",
}


@dataclass(frozen=True, eq=False)
class Records:
    r"""All that was recorded of a training, in columns.

    Attributes:
        loss_steps: The steps at which the loss was evaluated.
        losses: The loss $\Phi$ of all samples there; of shape (0,) like ``loss_steps`` if there is
            none.
        loss_bound: Its bound there, $(1 - \eta\lambda_0/2)^k\Phi(0)$; ``None`` if $\lambda_0$ is
            not known, or if another method than gradient descent moves the weights.
        initial_eigenvalue: $\lambda_0$: given by the user, or the least eigenvalue of the Gram
            matrix at the start.
        gram_group: The group of weights of the Gram matrix; for other modules their parameters.
        monitor_steps: The steps at which everything was measured.
        monitors: The numbers measured there. ``"gain"``, the gain $sL\|W\|$ of the recurrent layer
            ($\|W\|$ in Ling 2023, $\tilde\gamma\|A\|$ in Gao 2022), and ``"gain_upper"``, a
            certified bound of it; ``"least_eigenvalue"`` of the Gram matrix $G$; ``"pl_ratio"``,
            $\|\nabla\Phi\|^2/(2\lambda\Phi)$ for $\lambda = \lambda_0/2$; ``"drift"``,
            $\|G - G(0)\|$. Numbers that cannot be measured are absent.
        bounds: Their bounds: 1 for the gain, at least $\lambda_0/2$ for the eigenvalue, at least 1
            for the ratio, $\lambda_0/4$ for the drift.
        distances: The distance of each group of weights, or parameter, from its start, in the
            Frobenius norm.
        kept: For each promise that was judged, whether it was kept at all steps.
        violations: For each broken promise, the first step at which it was broken.
    """

    loss_steps: "Tensor"
    losses: "Tensor"
    loss_bound: "Tensor | None"
    initial_eigenvalue: float | None
    gram_group: str | None
    monitor_steps: "Tensor"
    monitors: Mapping[str, "Tensor"]
    bounds: Mapping[str, "Tensor"]
    distances: Mapping[str, "Tensor"]
    kept: Mapping[str, bool]
    violations: Mapping[str, int]

    def _extent(self) -> str:
        return f"{len(self.losses)} losses"

    def __repr__(self) -> str:
        """One line, without the values."""
        broken = ", ".join(f"{n} at step {k}" for n, k in self.violations.items())
        losses = self.losses.tolist()
        course = f"loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else "no loss was found"
        end = f"; broken: {broken}" if broken else ""
        return f"{type(self).__name__}({self._extent()}, {course}{end})"

    def plot(self) -> Figure:
        """Draw the loss with its bound, and a panel for each measured number.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        names = ["loss", *(name for name in _PANELS if name in self.monitors)]
        names += ["distances"] if self.distances else []
        columns = min(len(names), 3)
        rows = -(-len(names) // columns)
        figure = empty_figure(4.2 * columns, 3.2 * rows)
        panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, name in zip(panels, names, strict=False):
            _draw(axes, self, name)
        for axes in panels[len(names) :]:
            axes.set_axis_off()
        return figure


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Records):
    r"""A training by ``train``.

    Losses are recorded at each step. With mini-batches, and for modules that are random in
    training, they are recorded where everything is measured, or else at the start and at the end.

    Attributes:
        method: ``"descent"``, or the class of the optimizer.
        step_size: $\eta$; ``None`` for an optimizer that is not gradient descent.
        steps: The number of steps made.
        batch_losses: The loss of each step's batch, of shape (steps,); ``None`` if each step uses
            all samples.
        status: ``"finished"``; ``"stopped"``, at a violation; or ``"diverged"``: the loss or an
            equilibrium does not exist any more.
        message: A sentence about the status.
        seconds: The time that the steps of this call took.
    """

    method: str
    step_size: float | None
    steps: int
    batch_losses: "Tensor | None"
    status: TrainingStatus
    message: str
    seconds: float

    def _extent(self) -> str:
        return f"{self.status} after {self.steps} steps"


class TrainingError(ConvergenceError):
    """A training run diverged or broke a promise, with ``on_violation="raise"``.

    Attributes:
        run: The run so far, or the records of a ``Watch``.
    """

    def __init__(self, message: str = "", *, run: Any = None) -> None:
        super().__init__(message)
        self.run: Any = run


def _draw(axes: Axes, run: Records, name: str) -> None:
    """Draw a quantity against steps, with its bound where it is promised."""
    from matplotlib.ticker import MaxNLocator

    blue, alarming, *plain = COLORS
    colors, steps, bounds, broken = (blue, *plain), run.monitor_steps, run.bounds, {name}
    title, apart = _PANELS.get(name, name), 100.0  # the ratio from which the scale is log
    if name == "loss":
        steps, apart = run.loss_steps, 1.0
        title = f"loss, {run.status}" if isinstance(run, TrainingRun) else "loss"
        bounds = {} if run.loss_bound is None else {"loss": run.loss_bound}
        lines = {"loss": ("loss", run.losses)}
        if (batches := getattr(run, "batch_losses", None)) is not None:
            axes.plot(
                range(len(batches)),
                batches,
                color=blue,
                alpha=0.3,
                linewidth=0.8,
                label="of batches",
            )
    elif name == "distances":
        lines = {f"distance.{group}": (group, d) for group, d in run.distances.items()}
        broken = set(lines)
        title = f"distance from the start{', bound dashed' if broken & set(bounds) else ''}"
    else:
        lines = {name: ("measured", run.monitors[name])}
        bounds = bounds if name in run.kept else {}
    marker = "." if len(steps) <= 20 or name != "loss" else ""
    for (key, (label, values)), color in zip(lines.items(), cycle(colors), strict=False):
        axes.plot(steps, values, color=color, label=label, marker=marker)
        if key in bounds and len(steps) and bounds[key][-1] > 0:
            kind = (color, None) if name == "distances" else (GRAY, "bound")
            axes.plot(steps, bounds[key], "--", color=kind[0], label=kind[1])
    shown = [float(v) for line in axes.get_lines() for v in np.asarray(line.get_ydata())]
    positive = [v for v in shown if 0 < v < float("inf")]
    if positive and max(positive) >= apart * min(positive):
        axes.set_yscale("log", nonpositive="mask")
    if first := [step for promise, step in run.violations.items() if promise in broken]:
        axes.axvline(min(first), color=alarming, label="broken")
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.legend(framealpha=0.7, edgecolor="none")
