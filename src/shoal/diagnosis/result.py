"""What a diagnosis says."""

from dataclasses import dataclass
from typing import Any

from shoal.core.figures import Figure
from shoal.core.files import finite, json_text
from shoal.core.words import counted
from shoal.diagnosis.equilibria import Equilibria, SolverCost
from shoal.diagnosis.gradients import GradientCost
from shoal.diagnosis.iteration import EffectiveDepth, Iteration
from shoal.diagnosis.jacobian import JacobianSpectrum
from shoal.diagnosis.kernel_regime import KernelChange
from shoal.diagnosis.remedies import Remedy, remedies


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    r"""What was measured of a loop; nothing in it is a guess.

    Attributes:
        model: What was diagnosed.
        samples: How many samples.
        size: How many entries the state of a sample has.
        iterations: What the plain iteration did, from each start; the first is the model's own.
        depth: After how many applications the output is what it will be; ``None`` if no sample
            settles so near.
        equilibria: How many there are, and whether the loop contracts.
        spectrum: The Jacobian at equilibria; ``None`` if there are none.
        solvers: What each solver costs.
        gradients: What each gradient costs, and how far off it is; empty if there is nothing to
            differentiate by, or no equilibrium.
        kernel_change: How far the tangent kernel is from that of the ``reference``.
        parameter_bytes: Of all parameters.
        state_bytes: Of the state of all samples.
        notes: What else to know.
    """

    model: str
    samples: int
    size: int
    iterations: tuple[Iteration, ...]
    depth: EffectiveDepth | None
    equilibria: Equilibria
    spectrum: JacobianSpectrum | None
    solvers: tuple[SolverCost, ...]
    gradients: tuple[GradientCost, ...]
    kernel_change: KernelChange | None
    parameter_bytes: int
    state_bytes: int
    notes: tuple[str, ...] = ()

    @property
    def behaviors(self) -> dict[str, int]:
        """What the plain iteration does from the model's own start: how many samples do which."""
        return self.iterations[0].counts

    @property
    def behavior(self) -> str:
        """What most samples do: ``"settles"``, ``"cycles"``, ``"drifts"`` and so on."""
        return max(self.behaviors, key=lambda name: self.behaviors[name])

    @property
    def solved(self) -> int:
        """The number of samples of which any solver found an equilibrium from any start."""
        return sum(count > 0 for count in self.equilibria.counts)

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """What to do, the most promising first; nothing if all is well."""
        return remedies(self)

    def __repr__(self) -> str:
        return f"Diagnosis({self.model}: {self.behavior}, {self.solved}/{self.samples} solved)"

    def __str__(self) -> str:
        """A page of text."""
        from shoal.diagnosis.words import sections_of

        lines = [f"{self.model}: {self._sizes}"]
        for section in sections_of(self):
            lines += ["", section.title]
            rows = section.rows
            width = max(len(row.quantity) for row in rows)
            for row in rows:
                value = (
                    f"{row.value}; {row.meaning}"
                    if row.value and row.meaning
                    else (row.value or row.meaning)
                )
                lines.append(f"  {row.quantity:{width}}  {value}")
        return "\n".join(lines)

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        from shoal.diagnosis.words import document_of

        found: dict[str, Any] = finite(document_of(self))
        return found

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json_text(self.document())

    def plot(self) -> Figure:
        """The iteration, the outputs, the eigenvalues and the costs, in four panels.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        from shoal.diagnosis.plot import plot_diagnosis

        return plot_diagnosis(self)

    @property
    def _sizes(self) -> str:
        return f"{counted(self.samples, 'sample')}, a state of size {self.size}"
