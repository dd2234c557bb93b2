"""The result of a diagnosis, its verdict, and its picture."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from shoal.core.figures import COLORS, GRAY, Figure, empty_figure
from shoal.core.files import finite, json_text
from shoal.core.words import Part, Row, counted
from shoal.loops.curve import Curve
from shoal.loops.equilibrium import EquilibriumReport
from shoal.loops.loop import Loop
from shoal.loops.verdict import Matters, RunningOn

_RUNNING = {
    "helps": "more iterations than the trained count help",
    "hurts": "running on makes the output worse",
    "changes nothing": "running on changes nothing",
    "unknown": "{} cannot tell whether running on helps",
}


class SampleDiagnosis(NamedTuple):
    """The behavior of one sample's output.

    Attributes:
        status: ``"converges"``, ``"cycles"``, ``"wanders"``, ``"drifts"``, ``"diverges"``, or
            ``"not finite"`` from the first iteration on.
        period: Period of its cycle; zero if it does not cycle.
        first_change: First iteration that changes one of its decisions; zero if none does.
        last_change: Last iteration that changes one of its decisions; zero if none does.
        confidence: Least probability of its chosen classes at ``stop_at``; ``None`` without
            classes.
    """

    status: str
    period: int
    first_change: int
    last_change: int
    confidence: float | None


class Trial(NamedTuple):
    """A way to run the loop, followed on these samples.

    Attributes:
        name: Name of the run.
        steps: Number of iterations, or evaluations of a solver.
        accuracy: Share of correct decisions, explained variance or mean score; ``None`` if unknown.
        agreement: Share of decisions that agree with the model as it runs.
        seconds: Time for all samples.
    """

    name: str
    steps: int
    accuracy: float | None
    agreement: float
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """How many iterations a loop needs, measured on some samples.

    Attributes:
        model: Class of the model.
        loop: The loop.
        trained: Number of iterations that the model runs; ``None`` if unknown.
        behavior: Long-run behavior of the output of most samples: ``"converges"``, ``"cycles"``,
            ``"wanders"``, ``"drifts"`` or ``"diverges"``.
        loop_matters: Whether more than one iteration is needed: ``"yes"``, ``"no"``, ``"hurts"`` if
            more iterations make the output worse, or ``"unknown"``.
        running_on: Effect of more iterations than the trained count: ``"helps"`` up to
            ``stop_at``, ``"hurts"``, ``"changes nothing"`` or ``"unknown"``.
        stop_at: Number of iterations to run; by labels if there are any, else by agreement with the
            trained count. ``None`` if nothing is settled and no count is known.
        curve: The output against iterations.
        samples: Behavior of each sample.
        decided: The decision, in words.
        equilibrium: Equilibria, Jacobian, solvers and gradients; ``None`` if not measured.
        notes: Further remarks.
    """

    model: str
    loop: Loop
    trained: int | None
    behavior: str
    loop_matters: Matters
    running_on: RunningOn
    stop_at: int | None
    curve: Curve
    samples: tuple[SampleDiagnosis, ...]
    decided: str
    equilibrium: EquilibriumReport | None
    notes: tuple[str, ...]

    @property
    def tried(self) -> tuple[Trial, ...]:
        """One iteration, the trained count, ``stop_at``, the long run, and solvers if measured."""
        curve = self.curve
        names = {1: "1 iteration", curve.steps[-1]: counted(curve.steps[-1], "iteration")}
        if self.stop_at is not None:
            names[self.stop_at] = counted(self.stop_at, "iteration")
        if self.trained is not None:
            names[self.trained] = f"{counted(self.trained, 'iteration')}, the trained count"
        runs = [
            Trial(
                name, steps, None if curve.accuracy is None else curve.accuracy[k].value,
                curve.agreement[k].value, curve.seconds[k],
            )
            for steps, name in sorted(names.items()) if (k := curve.at(steps)) >= 0
        ]  # fmt: skip
        solvers = () if self.equilibrium is None else self.equilibrium.solvers
        runs += [
            Trial(f"equilibrium by {c.name}", c.evaluations, c.accuracy, c.agreement, c.seconds)
            for c in solvers
        ]
        return tuple(runs)

    @property
    def verdict(self) -> str:
        """The answer in a sentence."""
        curve, stop, last = self.curve, self.stop_at, self.curve.steps[-1]
        grows = f", while its state grows {self.growth:.2g}-fold" if self.growth > 2 else ""
        output = f"the output {self.behavior}{grows}"
        if stop is None:
            return (
                f"Nothing says where to stop: {output}, and its decisions still change after "
                f"{counted(last, 'iteration')}; labels or the trained count (steps=) would tell."
            )
        run = f"Run {counted(stop, 'iteration')}"
        if self.trained is not None and stop != self.trained:
            run += f" instead of {self.trained}"
        counts = sorted({n for n in (stop, 1, self.trained, last) if n is not None})
        if curve.accuracy is not None:
            numbers = ", ".join(
                f"{_number(curve, curve.accuracy[curve.at(n)].value)} after {n}" for n in counts
            )
            facts = f"{curve.quality} is {numbers}"
        else:
            column = curve.settled if self.trained is None else curve.agreement
            whole = "the long run" if self.trained is None else "the model as it runs"
            numbers = ", ".join(
                f"{column[curve.at(n)].value:.1%} after {n}" for n in counts if n != self.trained
            )
            facts = f"agreement with {whole} is {numbers}"
        if self.loop.solves and self.equilibrium is not None:
            missing = len(self.samples) - self.equilibrium.solved
            if missing:
                output += f"; no equilibrium was found for {counted(missing, 'sample')}"
        if last == self.trained:
            output = f"up to there, {output}"
        tellers = "decisions without labels" if curve.accuracy is None else "these samples"
        no_loop = "; one iteration is as good within a point" if self.loop_matters == "no" else ""
        on = "" if last == self.trained else "; " + _RUNNING[self.running_on].format(tellers)
        if self.trained is not None and stop > self.trained:
            on += self._beyond(stop, self.trained)
        return f"{run}: {facts}{no_loop}{on}; {output}."

    def _beyond(self, stop: int, trained: int) -> str:
        """The reason to run longer than the trained count, and its limit, in words."""
        curve = self.curve
        if curve.accuracy is not None:
            worse = curve.accuracy[-1].value < curve.accuracy[curve.at(stop)].value
            return ", and further ones make it worse" * (worse and self.loop_matters == "hurts")
        if curve.confidence is None:
            return ""
        before, after = (curve.confidence[curve.at(n)] for n in (trained, stop))
        return f", but they come to rest, and confidence rises from {before:.1%} to {after:.1%}"

    @property
    def behaviors(self) -> dict[str, int]:
        """The number of samples with each behavior."""
        names = [one.status for one in self.samples]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    @property
    def growth(self) -> float:
        """Median norm of a state after the most iterations, relative to the trained count."""
        return self.curve.growth[-1]

    def __repr__(self) -> str:
        return f"<Diagnosis of {self.model}: {self.verdict}>"

    def __str__(self) -> str:
        lines = [self.verdict]
        for part in self.parts():
            lines += ["", part.title]
            width = max(len(row.quantity) for row in part.rows)
            for row in part.rows:
                value = "; ".join(text for text in (row.value, row.meaning) if text)
                lines.append(f"  {row.quantity:{width}}  {value}")
            lines += [f"  {note}" for note in part.notes]
        return "\n".join(lines)

    def parts(self) -> list[Part]:
        """The tables, in the order of a page."""
        parts = [
            Part("curve", "Output against iterations", tuple(_curve_rows(self))),
            Part(
                "tried",
                "Tried on these samples",
                tuple(_trial_row(self.curve, one) for one in self.tried),
            ),
            Part("behavior", "In the long run", tuple(_behavior_rows(self))),
        ]
        if self.equilibrium is not None:
            parts.append(Part("equilibrium", "Equilibrium", tuple(self.equilibrium.rows())))
        rows = tuple(Row("note", "", text) for text in self.notes)
        return [*parts, Part("notes", "Notes", rows)] if rows else parts

    def document(self) -> dict[str, Any]:
        """Everything as plain values."""
        names = ("model", "trained", "behavior", "behaviors", "loop_matters", "running_on",
                 "stop_at", "verdict", "decided", "growth", "notes")  # fmt: skip
        document: dict[str, Any] = finite(
            {
                **{name: getattr(self, name) for name in names},
                "curve": vars(self.curve),
                "samples": [one._asdict() for one in self.samples],
                "tried": [one._asdict() for one in self.tried],
                "equilibrium": self.equilibrium and self.equilibrium.document(),
            }
        )
        return document

    def to_json(self) -> str:
        """Return everything as JSON text."""
        return json_text(self.document())

    def plot(self) -> Figure:
        """Draw the curve.

        Raises:
            ImportError: If matplotlib is not installed.
        """
        figure = empty_figure(7.2, 4.2)
        axes, curve = figure.subplots(), self.curve
        lines = {"agreement with the long run": (curve.settled, COLORS[2])}
        if self.trained is not None:
            lines["agreement with the model as it runs"] = (curve.agreement, COLORS[0])
        if curve.accuracy is not None:
            lines[curve.quality] = (curve.accuracy, COLORS[1])
        for label, (column, color) in lines.items():
            low, high = ([getattr(one, end) for one in column] for end in ("low", "high"))
            axes.plot(curve.steps, [one.value for one in column], "o-", ms=3.5, color=color,
                      label=label)  # fmt: skip
            axes.fill_between(curve.steps, low, high, color=color, alpha=0.15, linewidth=0)
        for count, label, style in ((self.trained, "trained", ":"), (self.stop_at, "stop at", "-")):
            if count is not None:
                axes.axvline(count, color=GRAY, linewidth=0.9, linestyle=style,
                             label=f"{label} {count}")  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_xticks(curve.steps[::2], [str(n) for n in curve.steps[::2]])
        axes.set(xlabel="iterations", ylabel="share of decisions")
        axes.legend(frameon=False, fontsize=8)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.set_axisbelow(True)
        return figure


def _number(curve: Curve, value: float, lowest: float | None = None) -> str:
    """A quality in percent; a plain number for scores and very negative explained variance."""
    if curve.quality == "score" or (value if lowest is None else lowest) < -10:
        return f"{value:.4g}"
    return f"{value:.1%}"


def _curve_rows(diagnosis: Diagnosis) -> list[Row]:
    curve, rows = diagnosis.curve, []
    marked = (diagnosis.trained, "trained"), (diagnosis.stop_at, "stop")
    for k, steps in enumerate(curve.steps):
        words = [
            f"agrees with the model as it runs in {curve.agreement[k].value:.1%}, with the long "
            f"run in {curve.settled[k].value:.1%}"
        ]
        value = f"{1e3 * curve.seconds[k]:.3g} ms"
        if curve.accuracy is not None:
            one = curve.accuracy[k]
            middle, low, high = (_number(curve, v, one.low) for v in (one.value, one.low, one.high))
            value = f"{curve.quality} {middle} ({low} to {high}), {value}"
        if curve.sample_accuracy is not None:
            words.append(f"{curve.sample_accuracy[k].value:.1%} of samples all correct")
        marks = [word for count, word in marked if count == steps]
        rows.append(Row(" ".join((str(steps), *marks)), value, ", ".join(words)))
    return rows


def _trial_row(curve: Curve, trial: Trial) -> Row:
    score = ""
    if trial.accuracy is not None:
        score = f"{curve.quality} {_number(curve, trial.accuracy)}, "
    return Row(
        trial.name, f"{score}{1e3 * trial.seconds:.3g} ms", f"agrees in {trial.agreement:.1%}"
    )


def _behavior_rows(diagnosis: Diagnosis) -> list[Row]:
    words = ", ".join(f"{name}: {count}" for name, count in diagnosis.behaviors.items())
    changes = sorted(one.last_change for one in diagnosis.samples)
    middle = changes[len(changes) // 2]
    return [
        Row("output", words, f"up to {counted(diagnosis.curve.steps[-1], 'iteration')}"),
        Row("state", f"{diagnosis.growth:.3g}", "norm relative to the trained count"),
        Row("last change", f"{middle}, {changes[-1]}", "of a decision: half of the samples, all"),
        Row("decision", diagnosis.decided),
    ]
