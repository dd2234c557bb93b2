"""What a training returns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from shoal.core.exceptions import ConvergenceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

__all__ = ["TrainingError", "TrainingRun", "TrainingStatus"]

TrainingStatus = Literal["finished", "stopped", "diverged"]


@dataclass(frozen=True, eq=False)
class TrainingRun:
    r"""A training by gradient descent or gradient flow, with all that was watched.

    Attributes:
        method: ``"descent"`` or ``"flow"``.
        step_size: $\eta$; for the flow, the time between two steps.
        steps: How many steps were made.
        times: The time of each step, of shape (steps + 1,): its number times ``step_size``.
        losses: The loss $\Phi$ at each step, of shape (steps + 1,); like ``times``, of shape (0,)
            if the run diverges before the first is found.
        loss_bound: Its bound there, $(1 - \eta\lambda_0/2)^k\Phi(0)$, or $e^{-\lambda_0 t}\Phi(0)$
            for the flow, with $\lambda_0$ divided by $n$ if the loss is; ``None`` if $\lambda_0$
            is not known.
        initial_eigenvalue: $\lambda_0$: as it was given, or the least eigenvalue of the Gram matrix
            at the start.
        gram_group: The group whose share of the NTK the Gram matrix is.
        monitor_steps: The steps at which the monitors looked.
        monitors: What they saw there. ``"gain"``, the gain $sL\|W\|$ of the recurrent layer
            ($\|W\|$ in Ling 2023, $\tilde\gamma\|A\|$ in Gao 2022), and ``"gain_upper"``, a
            certified bound of it; ``"least_eigenvalue"`` of the Gram matrix $G$; ``"pl_ratio"``,
            $\|\nabla\Phi\|^2/(2\lambda\Phi)$ for $\lambda = \lambda_0/2$; ``"drift"``,
            $\|G - G(0)\|$.
        bounds: The bounds of these: 1 for the gain, at least $\lambda_0/2$ for the eigenvalue, at
            least 1 for the ratio, $\lambda_0/4$ for the drift.
        distances: How far each group of weights is from its start, in the Frobenius norm.
        kept: For each promise whether it was kept at all steps that were looked at; a promise that
            nothing was measured of is left out.
        violations: For each that was not, the first step at which it was broken.
        status: ``"finished"``; ``"stopped"``, at a violation; ``"diverged"``: the loss or an
            equilibrium was lost.
        message: What happened.
        seconds: The time that it took, parts before an interruption included.
        monitor_seconds: How much of it was for the monitors.
    """

    method: str
    step_size: float
    steps: int
    times: "Tensor"
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
    status: TrainingStatus
    message: str
    seconds: float
    monitor_seconds: float

    def __repr__(self) -> str:
        """One line, without the values."""
        broken = ", ".join(f"{n} at step {k}" for n, k in self.violations.items())
        losses = self.losses.tolist()
        way = f"loss {losses[0]:.4g} → {losses[-1]:.4g}" if losses else "no loss was found"
        return (
            f"TrainingRun({self.status} after {self.steps} steps, {way}"
            f"{f'; broken: {broken}' if broken else ''})"
        )

    def plot(self) -> "Figure":
        """Draw the loss with its bound and what the monitors saw.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from shoal.training.plot import plot_run

        return plot_run(self)


class TrainingError(ConvergenceError):
    """A training broke a promise, or diverged, and was to raise then.

    Attributes:
        run: The run so far.
    """

    def __init__(self, message: str = "", *, run: Any = None) -> None:
        super().__init__(message)
        self.run: TrainingRun | None = run
