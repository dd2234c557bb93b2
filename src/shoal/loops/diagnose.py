"""How many iterations does a loop need, and does running on help or hurt?"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from shoal.core.checks import integer, real
from shoal.core.exceptions import ConvergenceWarning
from shoal.core.settings import in_standard_settings
from shoal.core.torch_compat import pytree
from shoal.core.words import counted
from shoal.loops.curve import Quality, curve_of, grid_of, record, some_entries
from shoal.loops.decisions import Decision, Decisions, decisions_of, scale_of, tensor_of
from shoal.loops.diagnosis import Diagnosis, SampleDiagnosis
from shoal.loops.equilibrium import EquilibriumReport, equilibrium_of
from shoal.loops.find import couples_samples, find_loop
from shoal.loops.loop import Loop, State
from shoal.loops.verdict import behaviors, choose_by_agreement, choose_by_quality
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.modules import evaluating


@in_standard_settings
def diagnose(
    model: Module | Loop,
    *inputs: Any,
    y: Tensor | None = None,
    score: Callable[[Any], Tensor] | None = None,
    decision: Decision | None = None,
    steps: int | None = None,
    max_steps: int | None = None,
    tolerance: float = 0.01,
    equilibrium: bool | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Measure how many iterations a loop needs, and whether more of them help or hurt.

    The loop runs to 16 times the count that the model was trained with. After each recorded count,
    the decisions are compared with the trained count and with the long run, and with labels
    or a score if given. The model runs in evaluation mode and is not modified. Some tens of samples
    are enough.

    Args:
        model: A model with a loop inside, which is called as ``model(*inputs)``, or a ``Loop``.
        inputs: Inputs of the model, with samples in the first dimension; optional for a loop.
        y: Labels per sample, or per decision such as a token; -100 is left out. Real numbers in the
            shape of the output are targets.
        score: In place of ``y``, a function of the output with one number per sample, larger where
            it is better.
        decision: How the output is read: ``"class"``, ``"sign"``, ``"value"``, or a function of the
            output that returns integers. By default, classes are in the last axis, or in the axis
            that labels lack. A single number is read as a sign if labels have two values, and as a
            value otherwise.
        steps: Number of iterations that the model runs, if the loop does not define it.
        max_steps: Largest number of iterations; by default 16 times ``steps``, or 128 if that is
            unknown.
        tolerance: Relative distance up to which two values agree.
        equilibrium: Whether to measure the equilibrium: uniqueness near the model's own start, the
            Jacobian, solvers and gradients. By default only for models that solve for one.
        seed: Seed of random starts.

    Returns:
        The measurements. ``print`` shows them, and ``plot`` draws the curve.

    Raises:
        TypeError: If the model is neither a module nor a loop.
        ValueError: If the model has no loop, inputs do not fit it, or labels do not fit the output.

    Example:
        >>> import torch, shoal
        >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
        >>> loop = shoal.Loop(lambda z, u: -0.5 * z + u, torch.zeros_like(u), u, steps=8)
        >>> d = shoal.diagnose(loop)
        >>> d.behavior, d.loop_matters, d.stop_at
        ('converges', 'yes', 8)
    """
    if not isinstance(model, Module | Loop):
        raise TypeError(
            f"model must be a torch.nn.Module or a shoal.Loop, got {type(model).__name__}; for a "
            "cell, pass shoal.Loop(cell, z0, *inputs)"
        )
    if isinstance(model, Module):
        try:
            inspect.signature(model.forward).bind(*inputs)
        except TypeError as error:
            raise ValueError(
                f"inputs must be the arguments of the model, got {len(inputs)} ({error}); pass "
                "labels as y="
            ) from None
    if y is not None and score is not None:
        raise ValueError("y and score must not both be given")
    tolerance = real("tolerance", tolerance, above=0, below=1)
    training = isinstance(model, Module) and model.training
    with warnings.catch_warnings(), torch.random.fork_rng(), torch.no_grad():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the result has every status
        loop = model if isinstance(model, Loop) else find_loop(model, *inputs)
        trained = loop.steps if steps is None else integer("steps", steps, at_least=1)
        most = _most_steps(loop, trained, max_steps)
        with evaluating(nn.ModuleList(loop.modules)):
            _refuse_random_steps(loop, inputs)
            torch.manual_seed(seed)
            if loop.solves and isinstance(model, Module):
                as_run = model(*inputs)
            else:
                as_run = loop.run(*inputs, steps=trained or min(16, most))
            decisions = decisions_of(as_run, y, decision=decision, tolerance=tolerance)
            quality = Quality(decisions, y, score, decisions(as_run))
            run = _EvaluatedRun(loop, inputs, trained, most, decisions, quality, as_run, seed)
            return run.diagnosis(type(model).__name__, equilibrium, training=training)


class _EvaluatedRun:
    """A recorded run of a loop, and its evaluation.

    ``counted`` marks the samples with a finite output after the first iteration; ``reference`` are
    the decisions of the model as it runs.
    """

    def __init__(
        self,
        loop: Loop,
        inputs: tuple[Any, ...],
        trained: int | None,
        most: int,
        decisions: Decisions,
        quality: Quality,
        as_run: Any,
        seed: int,
    ) -> None:
        self.loop, self.inputs, self.trained, self.seed = loop, inputs, trained, seed
        self.decisions, self.quality = decisions, quality
        self.doubtful_axis = not quality.measurable and _channels_first(
            decisions, as_run, inputs or loop.inputs
        )
        self.scale = scale_of(some_entries(as_run))
        torch.manual_seed(seed)
        self.run = record(loop, inputs, grid_of(trained, most), decisions, quality)
        self.counted = self.run.norms[0].isfinite()
        if not bool(self.counted.any()):
            raise ValueError("inputs must have samples with finite outputs, got none after 1 step")
        if loop.solves:
            self.reference = decisions(as_run)
        else:
            place = -1 if trained is None else self.run.grid.index(trained)
            self.reference = self.run.decisions[place]

    def diagnosis(self, name: str, equilibrium: bool | None, *, training: bool) -> Diagnosis:
        run, counted, starts = self.run, self.counted, self._start_agreement()
        long_run = behaviors(run, self.scale)
        names = [name for (name, _), one in zip(long_run, counted.tolist(), strict=True) if one]
        behavior = max(dict.fromkeys(names), key=names.count)
        longest = self.trained or run.grid[-1]
        curve = curve_of(run, self.reference, longest, self.decisions, counted)
        converging = names.count("converges") / len(names)
        if run.quality:
            choice = choose_by_quality(curve, run, self.trained, counted)
        else:
            choice = choose_by_agreement(
                curve, run, self.trained, counted, converging=converging, starts=starts
            )
        notes = ["the model was in training mode, and was measured in evaluation mode"] * training
        notes += self._notes(starts)
        report = None
        if self.loop.solves if equilibrium is None else equilibrium:
            if self.loop.uses_step or not (self.loop.solves or behavior == "converges"):
                why = "step index" if self.loop.uses_step else f"output, which {behavior}"
                notes.append(f"no equilibrium was looked for because of the {why}")
            else:
                report = self.equilibrium()
        return Diagnosis(
            model=name, loop=self.loop, trained=self.trained, behavior=behavior, curve=curve,
            **choice._asdict(), samples=self._samples(long_run, choice.stop_at),
            decided=self.decisions.words, equilibrium=report, notes=tuple(notes),
        )  # fmt: skip

    def equilibrium(self) -> EquilibriumReport:
        torch.manual_seed(self.seed)
        certified = any(
            isinstance(module, EquilibriumNetwork) and module.well_posedness().contraction
            for module in nn.ModuleList(self.loop.modules).modules()
        )
        return equilibrium_of(
            self.loop, self.inputs, self._judge, certified=certified, seed=self.seed
        )

    def _judge(self, output: Any) -> tuple[float | None, float]:
        """The quality of an output, and its agreement with the model as it runs."""
        decided = self.decisions(output)
        same = self.decisions.same(decided, self.reference)[self.counted]
        agreement = float(same[self.run.counted[self.counted]].double().mean())
        if not self.quality.measurable:
            return None, agreement
        values, weights = (one[self.counted].cpu() for one in self.quality(output, decided))
        return float((values * weights).sum() / weights.sum()), agreement

    def _start_agreement(self) -> float | None:
        """The agreement of two random starts after the trained count; ``None`` if not random."""
        starts = []
        for number in (self.seed, self.seed + 1):
            torch.manual_seed(number)
            starts.append(self.loop.begin(*self.inputs)[0])
        if _equal(*starts):
            return None
        torch.manual_seed(self.seed + 1)
        count = self.trained or self.run.grid[-1]
        other = self.decisions(self.loop.run(*self.inputs, steps=count))
        same = self.decisions.same(other, self.run.decisions[self.run.grid.index(count)])
        return float(same[self.run.counted].double().mean())

    def _notes(self, starts: float | None) -> Iterator[str]:
        if self.loop.note:
            yield self.loop.note
        count = len(self.counted)
        if count < 16:
            yield f"{counted(count, 'sample')} give wide intervals: pass 64 or more"
        if self.doubtful_axis:
            yield (
                f"without labels, {self.decisions.words} decides; if classes are in axis 1, pass "
                "y=, or decision=lambda out: out.argmax(1)"
            )
        missing = (~self.counted).nonzero()[:, 0].tolist()
        if missing:
            yield (
                f"{len(missing)} of {len(self.counted)} samples are left out: their outputs are "
                f"not finite from the first iteration on (samples "
                f"{', '.join(map(str, missing[:5]))})"
            )
        coupled = self.loop.samples_coupled
        if coupled or (len(self.counted) > 1 and couples_samples(self.loop, self.inputs)):
            yield "samples of the batch depend on one another: decisions are those of this batch"
        if self.loop.max_steps is not None and self.run.grid[-1] == self.loop.max_steps:
            yield (
                f"the model's step embeddings, or the parts of the input that its iterations "
                f"read, end at {self.loop.max_steps} iterations"
            )
        if starts is not None:
            yield f"the first state is random: two starts agree in {starts:.1%} of decisions"

    def _samples(
        self, long_run: list[tuple[str, int]], stop_at: int | None
    ) -> tuple[SampleDiagnosis, ...]:
        run = self.run
        least: list[float | None] = [None] * len(long_run)
        if run.confidence:
            place = -1 if stop_at is None else run.grid.index(stop_at)
            least = run.confidence[place][1].tolist()
        return tuple(
            SampleDiagnosis(
                behavior if bool(self.counted[row]) else "not finite",
                period,
                int(run.first_change[row]),
                int(run.last_change[row]),
                least[row],
            )
            for row, (behavior, period) in enumerate(long_run)
        )


def _channels_first(decisions: Decisions, output: Any, inputs: tuple[Any, ...]) -> bool:
    """Whether the last axis, which is read as classes, has the length of the inputs."""
    if decisions.kind != "class" or decisions.axis != -1:
        return False
    shape = tuple(tensor_of(output).shape)
    lengths = {t.shape[-1] for t in pytree.tree_leaves(inputs) if isinstance(t, Tensor) and t.dim()}
    return len(shape) == 3 and 1 < shape[1] != shape[2] and shape[2] in lengths


def _most_steps(loop: Loop, trained: int | None, max_steps: int | None) -> int:
    most = 128 if trained is None else 16 * trained
    if max_steps is not None:
        most = integer("max_steps", max_steps, at_least=trained or 1)
    if loop.max_steps is None:
        return most
    if trained is not None and trained > loop.max_steps:
        raise ValueError(
            f"steps must be at most {loop.max_steps}, the number of the model's step embeddings, "
            f"got {trained}"
        )
    return min(most, loop.max_steps)


def _refuse_random_steps(loop: Loop, inputs: tuple[Any, ...]) -> None:
    state, context = loop.begin(*inputs)
    if not _equal(loop.step(state, context, 0), loop.step(state, context, 0)):
        raise ValueError(
            "the loop must be deterministic, got one that draws random numbers in each step"
        )


def _equal(first: State, second: State) -> bool:
    pairs = zip(pytree.tree_leaves(first), pytree.tree_leaves(second), strict=True)
    return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)


class LoopMeasures:
    """Numbers of a loop with the present weights, such as for ``Watch(..., also=...)``.

    Each call runs the loop to twice its trained count. It returns ``"iterations"``, the mean number
    of iterations up to the last that changes a decision of a sample; ``"agreement"`` of the
    decisions after the trained count and after twice as many; and ``"growth"`` of the state between
    the two.

    Args:
        loop: The loop; a loop from :func:`find_loop` follows the weights of its model.
        inputs: The model's inputs; by default the loop's own batch.
        decision: How the output is read, as for :func:`diagnose`.

    Example:
        >>> import torch, shoal
        >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
        >>> loop = shoal.Loop(lambda z, u: -0.5 * z + u, torch.zeros_like(u), u, steps=8)
        >>> shoal.loops.LoopMeasures(loop)()["agreement"]
        1.0
    """

    def __init__(self, loop: Loop, *inputs: Any, decision: Decision | None = None) -> None:
        if loop.steps is None:
            raise ValueError("loop must have a known number of steps, got steps=None")
        self.loop, self.inputs, self.decision = loop, inputs, decision
        self.steps = loop.steps

    @torch.no_grad()
    def __call__(self) -> dict[str, float]:
        """Run the loop to twice its count."""
        most = min(2 * self.steps, self.loop.max_steps or 2 * self.steps)
        with evaluating(torch.nn.ModuleList(self.loop.modules)), torch.random.fork_rng():
            torch.manual_seed(0)
            output = self.loop.run(*self.inputs, steps=self.steps)
            decisions = decisions_of(output, decision=self.decision)
            torch.manual_seed(0)
            run = record(
                *(self.loop, self.inputs, (self.steps, most), decisions),
                Quality(decisions, None, None, decisions(output)),
            )
        same = decisions.same(run.decisions[0], run.decisions[-1])
        return {
            "iterations": float(run.last_change.clamp_min(1).double().mean()),
            "agreement": float(same.double().mean()),
            "growth": float((run.state_norms[-1] / run.state_norms[self.steps - 1]).median()),
        }
