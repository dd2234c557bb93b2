"""How many iterations does a loop need, and does running on help or hurt?"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from shoal.core.checks import instance, integer, real
from shoal.core.settings import in_standard_settings
from shoal.core.torch_compat import pytree
from shoal.loops.behavior import behaviors
from shoal.loops.curve import Quality, Recording, curve_of, grid_of, record
from shoal.loops.decisions import Decision, Decisions, decisions_of, scale_of, tensor_of
from shoal.loops.diagnosis import Diagnosis, SampleDiagnosis, trials_of, verdict_of
from shoal.loops.equilibrium import equilibrium_of
from shoal.loops.find import find_loop, mixes
from shoal.loops.loop import Loop
from shoal.loops.verdict import choose
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.modules import evaluating

_BEYOND = 16  # times the trained count that loops are run
_UNKNOWN = 128  # iterations where the trained count is unknown
_LOOKED = 16  # iterations after which an output of such a loop is looked at


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

    The loop runs to 16 times the count that the model was trained with. The output is compared on
    the way: decision by decision with the output of the trained count and of the long run, and with
    labels or a score if there are any. The model is in evaluation mode meanwhile, and is not
    modified. Some tens of samples are enough.

    Args:
        model: A model with a loop inside, which is called as ``model(*inputs)``, or a ``Loop``.
        inputs: Inputs of the model, with samples in the first dimension; not needed for a loop.
        y: Labels per sample, or per decision such as a token; -100 is left out. Real numbers in the
            shape of the output are targets.
        score: In place of ``y``, a function of the output with one number per sample, larger where
            it is better.
        decision: How the output is read: ``"class"``, ``"sign"``, ``"value"``, or a function of the
            output that returns integers. By default classes are in the last axis, or the one that
            labels lack. One number is a sign where labels have two values, and else a value.
        steps: Number of iterations that the model runs, where the loop does not say.
        max_steps: Most iterations to run; 16 times ``steps`` by default, 128 if that is unknown.
        tolerance: Relative distance up to which two values agree.
        equilibrium: Whether to measure the equilibrium: uniqueness near the model's own start, the
            Jacobian, solvers and gradients. By default only for models that solve for one.
        seed: Seed of random starts.

    Returns:
        The measurements. ``print`` shows them, and ``plot`` draws the curve.

    Raises:
        TypeError: If the model is neither a module nor a loop.
        ValueError: If the model has no loop, or labels do not fit the output.

    Example:
        >>> import torch, shoal
        >>> u = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
        >>> loop = shoal.Loop(lambda z, u: -0.5 * z + u, torch.zeros_like(u), u, steps=8)
        >>> d = shoal.diagnose(loop)
        >>> d.behavior, d.loop_matters, d.stop_at
        ('converges', 'yes', 8)
    """
    instance("model", model, Module | Loop)
    if y is not None and score is not None:
        raise ValueError("y and score must not both be given")
    name = type(model).__name__
    loop = model if isinstance(model, Loop) else find_loop(model, *inputs)
    trained = loop.steps if steps is None else integer("steps", steps, at_least=1)
    most = _most_steps(loop, trained, max_steps)
    with evaluating(nn.ModuleList(loop.modules)):
        own = _own_output(model, loop, inputs, trained, most, seed)
        decisions = decisions_of(
            own, y, decision=decision, tolerance=real("tolerance", tolerance, above=0, below=1)
        )
        notes = [loop.note] if loop.note else []
        _refuse_random_steps(loop, inputs)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            run = record(
                *(loop, inputs, grid_of(trained, most), decisions),
                lambda found: Quality(decisions, y, score, found),
            )
        finite = torch.stack(run.norms).isfinite().cpu()
        counted = finite[0]
        if not bool(counted.any()):
            raise ValueError("inputs must have samples with finite outputs, got none after 1 step")
        reference = _reference(run, decisions, own, trained, loop)
        starts = _start_agreement(loop, inputs, decisions, run, trained, seed)
        notes += _notes(model, loop, inputs, counted, run, starts)
        several = behaviors(run, scale_of(tensor_of(own)))
        names = [name for (name, _), one in zip(several, counted.tolist(), strict=True) if one]
        behavior = max(dict.fromkeys(names), key=names.count)
        curve = curve_of(run, reference, decisions, counted.to(reference.device))
        choice = choose(
            *(curve, run, trained, counted),
            converging=names.count("converges") / len(names),
            alike=starts,
        )
        found = Diagnosis(
            model=name, loop=loop, trained=trained, behavior=behavior, curve=curve,
            stop_at=choice.stop_at, loop_matters=choice.loop_matters, running_on=choice.running_on,
            samples=_samples(run, several, finite, choice.stop_at), decided=decisions.words,
            tried=(), verdict="", equilibrium=None, notes=tuple(notes),
        )  # fmt: skip
        wanted = loop.solves if equilibrium is None else equilibrium
        if wanted and not loop.uses_step and (loop.solves or behavior == "converges"):
            judge = _judge(decisions, y, score, reference, counted)
            certified = any(map(_is_certified, nn.ModuleList(loop.modules).modules()))
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                report = equilibrium_of(loop, inputs, judge, certified=certified, seed=seed)
            found = replace(found, equilibrium=report)
        elif wanted:
            why = "its step index" if loop.uses_step else f"an output that {behavior}"
            found = replace(found, notes=(*notes, f"no equilibrium was looked for, due to {why}"))
        found = replace(found, tried=trials_of(found))
    return replace(found, verdict=verdict_of(found))


def _judge(
    decisions: Decisions,
    y: Tensor | None,
    score: Callable[[Any], Tensor] | None,
    reference: Tensor,
    counted: Tensor,
) -> Callable[[Any], tuple[float | None, float]]:
    """A function that returns the quality and the agreement of an output."""

    def judge(output: Any) -> tuple[float | None, float]:
        found = decisions(output)
        agreement = decisions.same(found, reference)[counted].double().mean()
        quality = Quality(decisions, y, score, found)
        if not quality.known:
            return None, float(agreement)
        values, weights = (one[counted].cpu() for one in quality(output, found))
        return float((values * weights).sum() / weights.sum()), float(agreement)

    return judge


def _is_certified(module: Module) -> bool:
    """Whether a module is a network with a loop that provably contracts."""
    return isinstance(module, EquilibriumNetwork) and module.well_posedness().contraction


def _most_steps(loop: Loop, trained: int | None, max_steps: int | None) -> int:
    """The number of iterations to run."""
    most = _UNKNOWN if trained is None else _BEYOND * trained
    if max_steps is not None:
        most = integer("max_steps", max_steps, at_least=trained or 1)
    return most if loop.max_steps is None else min(most, loop.max_steps)


@torch.no_grad()
def _own_output(
    model: Module | Loop,
    loop: Loop,
    inputs: tuple[Any, ...],
    trained: int | None,
    most: int,
    seed: int,
) -> Any:
    """The output of the model as it runs."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if loop.solves and isinstance(model, Module):
            return model(*inputs)
        return loop.run(*inputs, steps=trained or min(_LOOKED, most))


def _reference(
    run: Recording, decisions: Decisions, own: Any, trained: int | None, loop: Loop
) -> Tensor:
    """The decisions that others are compared with."""
    if loop.solves:
        return decisions(own)
    return run.decisions[-1 if trained is None else run.grid.index(trained)]


@torch.no_grad()
def _refuse_random_steps(loop: Loop, inputs: tuple[Any, ...]) -> None:
    state, context = loop.begin(*inputs)
    with torch.random.fork_rng():
        first, second = (pytree.tree_leaves(loop.step(state, context, 0)) for _ in range(2))
    if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second)):  # noqa: B905
        raise ValueError(
            "the loop must do the same each time, got one that draws random numbers in each step"
        )


@torch.no_grad()
def _notes(
    model: Module | Loop,
    loop: Loop,
    inputs: tuple[Any, ...],
    counted: Tensor,
    run: Recording,
    starts: float | None,
) -> list[str]:
    """What else to know."""
    notes = []
    missing = int((~counted).sum())
    if missing:
        rows = (~counted).nonzero()[:5, 0].tolist()
        notes.append(
            f"{missing} of {len(counted)} samples are left out: their outputs are not finite from "
            f"the first iteration on (samples {', '.join(map(str, rows))})"
        )
    if loop.samples_coupled or (len(counted) > 1 and mixes(loop, inputs)):
        notes.append(
            "samples of the batch depend on one another: decisions are those of this batch"
        )
    if isinstance(model, Module) and model.training:
        notes.append("the model was in training mode, and was measured in evaluation mode")
    if loop.max_steps is not None and run.grid[-1] == loop.max_steps:
        notes.append(f"the model's step embeddings end at {loop.max_steps} iterations")
    if starts is not None:
        notes.append(f"the first state is random: two starts agree in {starts:.1%} of decisions")
    return notes


@torch.no_grad()
def _start_agreement(
    loop: Loop,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    run: Recording,
    trained: int | None,
    seed: int,
) -> float | None:
    """The agreement of two random starts after the trained count; ``None`` if none is random."""
    starts = []
    with torch.random.fork_rng():
        for number in (seed, seed + 1):
            torch.manual_seed(number)
            starts.append(pytree.tree_leaves(loop.begin(*inputs)[0]))
        if all(torch.equal(a, b) for a, b in zip(*starts, strict=True)):
            return None
        torch.manual_seed(seed + 1)
        count = trained or run.grid[-1]
        other = decisions(loop.run(*inputs, steps=count))
    same = decisions.same(other, run.decisions[run.grid.index(count)])
    return float(same[run.counted].double().mean())


def _samples(
    run: Recording, several: list[tuple[str, int]], finite: Tensor, stop_at: int | None
) -> tuple[SampleDiagnosis, ...]:
    least: list[float | None] = [None] * finite.shape[1]
    if run.confidence:
        place = run.grid.index(stop_at) if stop_at is not None else -1
        least = run.confidence[place][1].tolist()
    return tuple(
        SampleDiagnosis(
            behavior if bool(finite[0, row]) else "not finite",
            period,
            int(run.first_change[row]),
            int(run.last_change[row]),
            least[row],
        )
        for row, (behavior, period) in enumerate(several)
    )
