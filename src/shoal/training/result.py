"""What was seen of a training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.exceptions import ConvergenceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

TrainingStatus = Literal["finished", "stopped", "diverged"]


@dataclass(frozen=True, eq=False)
class Records:
    r"""All that was seen of a training, in columns.

    Attributes:
        loss_steps: The steps at which the loss was found.
        losses: The loss $\Phi$ of all samples there; of shape (0,) like ``loss_steps`` if none was
            found.
        loss_bound: Its bound there, $(1 - \eta\lambda_0/2)^k\Phi(0)$, or $e^{-\lambda_0 t}\Phi(0)$
            for the flow, with $\lambda_0$ divided by $n$ if the loss is; ``None`` if $\lambda_0$
            is not known, or another method moves the weights.
        initial_eigenvalue: $\lambda_0$: as it was given, or the least eigenvalue of the Gram matrix
            at the start.
        gram_group: The group whose share of the NTK the Gram matrix is; for other modules their
            parameters.
        monitor_steps: The steps at which the monitors looked.
        monitors: What they saw there. ``"gain"``, the gain $sL\|W\|$ of the recurrent layer
            ($\|W\|$ in Ling 2023, $\tilde\gamma\|A\|$ in Gao 2022), and ``"gain_upper"``, a
            certified bound of it, where there is one; ``"least_eigenvalue"`` of the Gram matrix
            $G$; ``"pl_ratio"``, $\|\nabla\Phi\|^2/(2\lambda\Phi)$ for $\lambda = \lambda_0/2$;
            ``"drift"``, $\|G - G(0)\|$. What cannot be measured is not there.
        bounds: The bounds of these: 1 for the gain, at least $\lambda_0/2$ for the eigenvalue, at
            least 1 for the ratio, $\lambda_0/4$ for the drift.
        distances: How far each group of weights, or parameter, is from its start, in the Frobenius
            norm.
        kept: For each promise whether it was kept at all steps that were looked at; a promise that
            nothing was measured of is left out.
        violations: For each that was not, the first step at which it was broken.
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
        """What a picture is of."""
        return "loss"

    def _way(self) -> str:
        """How the loss fell, and what was broken."""
        broken = ", ".join(f"{n} at step {k}" for n, k in self.violations.items())
        losses = self.losses.tolist()
        way = f"loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else "no loss was found"
        return f"{way}{f'; broken: {broken}' if broken else ''}"

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"Records({len(self.losses)} losses, {self._way()})"

    def plot(self) -> "Figure":
        """Draw the loss with its bound and what the monitors saw.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from shoal.training.plot import plot_records

        return plot_records(self)


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Records):
    r"""A training by ``train``, with all that was watched.

    Losses are found at each step; with mini-batches, and for modules that are random in training,
    where the monitors look, or at the start and at the end without them.

    Attributes:
        method: ``"descent"`` or ``"flow"``, or the class of the optimizer.
        step_size: $\eta$; for the flow, the time between two steps; ``None`` for an optimizer.
        steps: How many steps were made.
        times: The time of each loss: its step times ``step_size``, or the step itself.
        batch_losses: The loss that each step was made for, of shape (steps,), where that is not
            the loss of all samples; else ``None``.
        status: ``"finished"``; ``"stopped"``, at a violation; ``"diverged"``: the loss or an
            equilibrium was lost.
        message: What happened.
        seconds: The time that it took, parts before an interruption included.
        monitor_seconds: How much of it was for the monitors.
    """

    method: str
    step_size: float | None
    steps: int
    times: "Tensor"
    batch_losses: "Tensor | None"
    status: TrainingStatus
    message: str
    seconds: float
    monitor_seconds: float

    @property
    def title(self) -> str:
        """What a picture is of."""
        return f"loss, {self.status}"

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"TrainingRun({self.status} after {self.steps} steps, {self._way()})"


class TrainingError(ConvergenceError):
    """A training broke a promise, or diverged, and was to raise then.

    Attributes:
        run: What was seen so far: the run, or the records of a ``Watch``.
    """

    def __init__(self, message: str = "", *, run: Any = None) -> None:
        super().__init__(message)
        self.run: Any = run
