"""Records of a training run, and pictures of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shoal.core.exceptions import ConvergenceError
from shoal.core.figures import Axes, Figure, empty_figure

if TYPE_CHECKING:
    from torch import Tensor

TrainingStatus = Literal["finished", "stopped", "diverged"]

_COLORS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_BROKEN, _GRAY, _LIGHT = "#D55E00", "#444444", "#B8CDE0"
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
        losses: The loss $\Phi$ of all samples there; of shape (0,) like ``loss_steps`` if none was
            found.
        loss_bound: Its bound there, $(1 - \eta\lambda_0/2)^k\Phi(0)$; ``None`` if $\lambda_0$ is
            not known, or if another method than gradient descent moves the weights.
        initial_eigenvalue: $\lambda_0$: given by the user, or the least eigenvalue of the Gram
            matrix at the start.
        gram_group: The group whose share of the NTK the Gram matrix is; for other modules their
            parameters.
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

    @property
    def title(self) -> str:
        """The title of the picture."""
        return "loss"

    def _course(self) -> str:
        """How the loss fell, and which promises were broken."""
        broken = ", ".join(f"{n} at step {k}" for n, k in self.violations.items())
        losses = self.losses.tolist()
        course = f"loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else "no loss was found"
        return f"{course}{f'; broken: {broken}' if broken else ''}"

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"Records({len(self.losses)} losses, {self._course()})"

    def plot(self) -> Figure:
        """Draw the loss with its bound, and a panel for each measured number.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        names = [name for name in _PANELS if name in self.monitors]
        count = 1 + len(names) + bool(self.distances)
        columns = min(count, 3)
        rows = -(-count // columns)
        figure = empty_figure(4.2 * columns, 3.2 * rows)
        from matplotlib.ticker import MaxNLocator

        panels: list[Axes] = list(figure.subplots(rows, columns, squeeze=False).flat)
        _draw_loss(panels[0], self)
        for axes, name in zip(panels[1:], names, strict=False):
            _draw_monitor(axes, self, name)
        if self.distances:
            _draw_distances(panels[1 + len(names)], self)
        for axes in panels[count:]:
            axes.set_axis_off()
        for axes in panels[:count]:
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(color="#e4e4e4", linewidth=0.6)
            axes.legend(framealpha=0.7, edgecolor="none")
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
        batch_losses: The loss that each step was made for, of shape (steps,), if that is not the
            loss of all samples; else ``None``.
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

    @property
    def title(self) -> str:
        """The title of the picture."""
        return f"loss, {self.status}"

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"TrainingRun({self.status} after {self.steps} steps, {self._course()})"


class TrainingError(ConvergenceError):
    """A training broke a promise, or diverged, with ``on_violation="raise"``.

    Attributes:
        run: The run so far, or the records of a ``Watch``.
    """

    def __init__(self, message: str = "", *, run: Any = None) -> None:
        super().__init__(message)
        self.run: Any = run


def _draw_loss(axes: Axes, run: Records) -> None:
    steps, batches = run.loss_steps, getattr(run, "batch_losses", None)
    if batches is not None:
        axes.plot(range(len(batches)), batches, color=_LIGHT, linewidth=0.8, label="of batches")
    marker = "" if len(steps) > 20 else "."
    axes.plot(steps, run.losses, color=_COLORS[0], label="loss", marker=marker)
    if run.loss_bound is not None and len(steps) and run.loss_bound[-1] > 0:
        axes.plot(steps, run.loss_bound, "--", color=_GRAY, label="bound")
    _finish(axes, run, "loss", run.title, ratio=1.0)


def _draw_monitor(axes: Axes, run: Records, name: str) -> None:
    """A measured number, with its bound if that is promised."""
    axes.plot(run.monitor_steps, run.monitors[name], ".-", color=_COLORS[0], label="measured")
    if name in run.kept:
        axes.plot(run.monitor_steps, run.bounds[name], "--", color=_GRAY, label="bound")
    _finish(axes, run, name, _PANELS[name])


def _draw_distances(axes: Axes, run: Records) -> None:
    """The distance of each group from its start, below what a certificate allows."""
    for index, (name, values) in enumerate(run.distances.items()):
        color, limit = _COLORS[index % len(_COLORS)], run.bounds.get(f"distance.{name}")
        axes.plot(run.monitor_steps, values, ".-", color=color, label=name)
        if limit is not None:
            axes.plot(run.monitor_steps, limit, "--", color=color)
    broken = [name for name in run.violations if name.startswith("distance.")]
    first = min(broken, key=run.violations.__getitem__, default="")
    bounded = any(name.startswith("distance.") for name in run.bounds)
    _finish(axes, run, first, f"distance from the start{', bound dashed' if bounded else ''}")


def _finish(axes: Axes, run: Records, name: str, title: str, ratio: float = 100.0) -> None:
    """A title, a mark where the promise was broken, and a log scale for values so far apart."""
    values = [float(v) for line in axes.get_lines() for v in np.asarray(line.get_ydata())]
    numbers = [v for v in values if 0 < v < float("inf")]
    if numbers and max(numbers) >= ratio * min(numbers):
        axes.set_yscale("log", nonpositive="mask")
    if name in run.violations:
        axes.axvline(run.violations[name], color=_BROKEN, label="broken")
    axes.set_title(title)
