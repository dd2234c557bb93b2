"""A rule that stops each sample of a loop once its decisions are final."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import Module

from shoal.core.checks import as_path, integer, real, seeded
from shoal.core.files import finite, write_json
from shoal.core.words import counted
from shoal.loops.decisions import IGNORED, Decision, Decisions, decisions_of
from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, Memory, Output, State, Stopping, rows_of
from shoal.loops.trace import batch_of, first_samples, rows_of_inputs
from shoal.networks.modules import evaluating

_CHOOSE, _CALIBRATE = 0.2, 0.7  # shares of the samples; savings are measured on the rest
_THRESHOLDS = 100
_BLOCK = 256  # samples that are run at once
_TRACED = 32  # samples of a trace
_FORMAT = "shoal stop rule 1"
_WORDS = {  # meaning of each signal; smaller signals mean more settled samples
    "output": "largest change of a decision's probabilities",
    "state": "change of the state, scaled to length one",
    "margin": "distance of the least margin of a decision from one",
    "ratio": "largest change of a decision's probabilities, relative to its margin",
    "acceleration": "change of the change of a decision's probabilities",
}


@dataclass(frozen=True, repr=False)
class CalibratedRule:
    """A stop rule whose risk is bounded; ``loop.run(*inputs, until=rule)`` applies it.

    Attributes:
        signal: Name of the signal that is compared with the threshold: ``"output"``, ``"state"``,
            ``"margin"``, ``"ratio"`` or ``"acceleration"``.
        threshold: A sample stops when its signal is at most this; minus infinity: never.
        decisions: How an output is read as decisions.
        steps: The full count, where all samples stop.
        risk: Largest share of new samples with a changed decision, or a lost one given labels.
        confidence: Probability, over the samples that calibrate, that the risk is kept.
        calibrated_on: Number of samples that the threshold was calibrated with.
        savings: Saved share of the iterations on held-out samples.
        changed: Share of the held-out samples with a changed, or a lost, decision.
        measured_on: Number of held-out samples.
        labeled: Whether labels were given. A decision is then lost if it is correct after the full
            count and wrong where the sample stops.
    """

    signal: str
    threshold: float
    decisions: Decisions
    steps: int
    risk: float
    confidence: float
    calibrated_on: int
    savings: float
    changed: float
    measured_on: int
    labeled: bool

    def begin(self, output: Output, state: State) -> Memory:
        """Return the rule's memory after the first iteration."""
        return self._signals.begin(output, state)

    def update(self, memory: Memory, output: Output, state: State, n: int) -> tuple[Memory, Tensor]:
        """Return the memory after iteration ``n`` (2, 3, ...), and a mask of stopping samples."""
        memory, signals = self._signals.update(memory, output, state)
        return memory, (signals[:, 0] <= self.threshold) | (n >= self.steps)

    def start(self) -> Stopping:
        """Return an object that applies the rule to one batch, in a loop of your own.

        Example:
            >>> stopping = rule.start()  # doctest: +SKIP
            >>> for n in range(rule.steps):  # doctest: +SKIP
            ...     z = cell(z, x)
            ...     if stopping(readout(z), z):
            ...         break
            >>> y = stopping.output  # doctest: +SKIP
        """
        return Stopping(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the rule as a JSON file, unless it reads outputs by a custom function."""
        if self.decisions.custom is not None:
            raise ValueError("a rule with a custom decision function cannot be saved as JSON")
        values = finite({"format": _FORMAT, **asdict(self)})
        write_json(as_path("path", path), values)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CalibratedRule":
        """Return a rule that was saved."""
        try:
            values = json.loads(as_path("path", path).read_text(encoding="utf-8"))
            valid = values.pop("format") == _FORMAT
            threshold = -math.inf if values["threshold"] is None else values["threshold"]
            decisions = Decisions(**values["decisions"])
            rule = cls(**{**values, "threshold": threshold, "decisions": decisions})
        except (ValueError, KeyError, TypeError, AttributeError):
            valid = False
        if not valid:
            raise ValueError(f"path must be a file of rule.save, got {path}")
        return rule

    def __repr__(self) -> str:
        return f"CalibratedRule({self})"

    def __str__(self) -> str:
        """The rule, its promise and its savings in words."""
        unit = "lose a right decision" if self.labeled else "have a changed decision"
        promise = (
            f"at most {self.risk:.2%} of samples {unit}, with {self.confidence:.0%} confidence"
        )
        if self.threshold == -math.inf:
            return (
                f"runs all {counted(self.steps, 'iteration')}: no threshold ensures that {promise}"
            )
        return (
            f"stops a sample once the {_WORDS[self.signal]} is at most {self.threshold:.3g}, after "
            f"{counted(self.steps, 'iteration')} at the latest: {self.savings:.0%} fewer "
            f"iterations on {counted(self.measured_on, 'held-out sample')}; {promise}"
        )

    @property
    def _signals(self) -> "Signals":
        return Signals(self.decisions, (self.signal,))


def stop_rule(
    loop: Loop | Module,
    *inputs: Any,
    risk: float = 0.01,
    confidence: float = 0.95,
    y: Tensor | None = None,
    steps: int | None = None,
    decision: Decision | None = None,
    seed: int = 0,
) -> CalibratedRule:
    """Calibrate a rule that stops each sample of a loop early, with a bounded risk.

    A sample stops when a signal of its change falls to a threshold. The rule promises, with the
    stated confidence, that at most a share ``risk`` of new samples has a decision that differs
    from the one after the full count. No labels are needed. With labels, the risk is the share of
    samples that lose a correct decision. All tokens of a sample count together, as they depend on
    one another.

    The promise holds for new samples that are exchangeable with ``inputs``: drawn alike, in any
    order, such as independent draws of one distribution. It holds for the model as it is, and not
    for harder samples, nor for several samples made from one. The confidence is over the choice of
    ``inputs``.

    A fifth of the samples chooses the signal and the thresholds to try. Seven tenths calibrate by
    Learn then Test: beginning with the most cautious threshold, each is tested by an exact binomial
    bound, until one fails. The rest measures the savings.

    Args:
        loop: A loop, or a model that contains one.
        inputs: The model's inputs; by default the loop's own batch.
        risk: Largest share of samples that may change.
        confidence: Probability that the risk is kept.
        y: Labels, per sample or per decision; -100 is ignored.
        steps: The full count; as many iterations as the model runs if ``None``.
        decision: How to read an output: ``"class"``, ``"sign"``, ``"value"`` or a function.
        seed: Seed of the split of the samples.

    Returns:
        The rule, for ``loop.run(*new_inputs, until=rule)``.

    Raises:
        ValueError: If there are too few samples for the bound, they depend on one another, or some
            outputs are not finite.

    References:
        Angelopoulos, Bates, Candès, Jordan and Lei, Learn then test, 2021. Clopper and Pearson,
        1934.

    Example:
        >>> import torch, shoal
        >>> x = torch.randn(500, 4)
        >>> cell = lambda z, x: torch.tanh(0.5 * z.flip(1) + x)
        >>> loop = shoal.Loop(cell, torch.zeros_like, x, head=lambda z: z[:, :3], steps=32)
        >>> rule = shoal.stop_rule(loop, x)
        >>> rule.savings > 0.3
        True
    """
    risk = real("risk", risk, above=0, below=1)
    confidence = real("confidence", confidence, above=0, below=1)
    if isinstance(loop, Module):
        loop = find_loop(loop, *first_samples(inputs, _TRACED))
    if not isinstance(loop, Loop):
        raise TypeError(f"loop must be a Loop or a module, got {type(loop).__name__}")
    inputs = inputs or loop.inputs
    steps = integer("steps", loop._count(steps), at_least=3)
    check_loop(loop)
    if isinstance(y, Tensor) and y.dim() and len(y) == batch_of(inputs):
        labeled = (y.reshape(len(y), -1) != IGNORED).any(1).nonzero()[:, 0]
        if len(labeled):  # the risk needs labels
            inputs, y = rows_of_inputs(inputs, labeled), y[labeled]
    few = first_samples(inputs, _BLOCK)
    with evaluating(nn.ModuleList(loop.modules)), torch.no_grad():
        first = loop.run(*few, steps=steps)
    decisions = decisions_of(first, y if y is None else y[:_BLOCK], decision=decision)
    return rule_for(
        loop, inputs, decisions, risk=risk, confidence=confidence, y=y, steps=steps, seed=seed
    )


def rule_for(
    loop: Loop,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    *,
    risk: float,
    steps: int,
    confidence: float = 0.95,
    y: Tensor | None = None,
    seed: int = 0,
) -> CalibratedRule:
    """Calibrate a rule for given decisions, as :func:`stop_rule` does."""
    samples = batch_of(inputs)
    needed = math.ceil(math.log1p(-confidence) / math.log1p(-risk))  # if none of them changes
    if int(_CALIBRATE * samples) < needed:
        raise ValueError(
            f"inputs must have at least {math.ceil(needed / _CALIBRATE)} samples for a risk of "
            f"{risk:g} with a confidence of {confidence:g}, since {_CALIBRATE:.0%} of them, "
            f"{needed}, calibrate the rule; got {samples}"
        )
    record = record_of(loop, inputs, decisions, steps, y)
    order = torch.randperm(samples, generator=seeded("seed", seed))
    return calibrated(record, order, risk, confidence)


def check_loop(loop: Loop) -> None:
    """Refuse a loop for a single batch, and coupled samples."""
    if not loop.dynamic:
        reason = loop.note or "pass z0 as a function of the inputs"
        raise ValueError(f"loop must run on batches other than its own: {reason}")
    if loop.samples_coupled:
        raise ValueError(
            "loop must treat samples independently, but they depend on one another, as through "
            "batch statistics. A sample's result would then depend on which others have stopped"
        )


class Signals:
    """Signals of each sample after each iteration.

    Args:
        decisions: How an output is read as decisions.
        names: Signals to compute; all that the kind of decision has if ``None``.
    """

    def __init__(self, decisions: Decisions, names: tuple[str, ...] | None = None) -> None:
        self.decisions = decisions
        missing = {"value": {"margin", "ratio"}, "label": {*_WORDS} - {"state"}}
        self.names = names or tuple(n for n in _WORDS if n not in missing.get(decisions.kind, ()))
        self._probabilities = bool({*self.names} - {"state"})

    @torch.no_grad()
    def begin(self, output: Output, state: State) -> Memory:
        """Return the memory after the first iteration; one entry per sample."""
        memory = {}
        if "state" in self.names:
            rows = rows_of(state)
            rows = rows.float() if rows.dtype.itemsize < 4 else rows
            memory["state"] = torch.nn.functional.normalize(rows, dim=1)
        if self._probabilities:
            memory["probabilities"] = self._read(output)
        if "acceleration" in self.names:
            memory["change"] = torch.full_like(memory["probabilities"], torch.inf)
        return memory

    @torch.no_grad()
    def update(self, before: Memory, output: Output, state: State) -> tuple[Memory, Tensor]:
        """Return the memory after a further iteration, and the signals (samples, signals)."""
        now = self.begin(output, state)
        compute: dict[str, Callable[[], Tensor]] = {}
        if "state" in now:
            compute["state"] = lambda: (now["state"] - before["state"]).norm(dim=1)
        if self._probabilities:
            margin = self._margin(now["probabilities"])
            change = now["probabilities"] - before["probabilities"]
            size = self._size(change)
            compute["output"] = lambda: size.amax(1)
            compute["margin"] = lambda: 1 - margin.amin(1)
            compute["ratio"] = lambda: (size / margin).nan_to_num(torch.inf, torch.inf).amax(1)
        if "change" in now:
            now["change"] = change
            compute["acceleration"] = lambda: self._size(change - before["change"]).amax(1)
        return now, torch.stack([compute[name]().double() for name in self.names], 1)

    def _read(self, output: Output) -> Tensor:
        """Probabilities of the decisions, or values in units of their spread."""
        scores = self.decisions.scores(output)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.decisions.kind == "class":
            return scores.softmax(-1)
        if self.decisions.kind == "sign":
            threshold = self.decisions.threshold
            return scores if threshold else scores.sigmoid()  # a threshold means probabilities
        return scores / self.decisions.scale

    def _size(self, change: Tensor) -> Tensor:
        """The size of a change; shape (samples, decisions)."""
        if self.decisions.kind == "value":
            return change.square().sum(-1).sqrt()
        return change.abs().sum(-1) / min(change.shape[-1], 2)

    def _margin(self, probabilities: Tensor) -> Tensor:
        """Distance of the two largest probabilities; shape (samples, decisions)."""
        if self.decisions.kind == "class":
            first, second = probabilities.topk(2, -1).values.unbind(-1)
            return first - second
        return (2 * probabilities[..., 0] - 1).abs()


class Record(NamedTuple):
    """Signals of all samples in all iterations, and the iterations that lose a decision."""

    signals: Tensor  # (samples, iterations 2 to N - 1, signals)
    lost: Tensor  # (samples, iterations 2 to N)
    names: tuple[str, ...]  # names of the signals
    decisions: Decisions
    steps: int  # the full count N
    labeled: bool  # whether only correct decisions can be lost


@torch.no_grad()
def record_of(
    loop: Loop,
    inputs: tuple[Any, ...],
    decisions: Decisions,
    steps: int,
    y: Tensor | None = None,
) -> Record:
    """Run a loop to the full count, and record signals and changes of decisions."""
    measured, signals, lost = Signals(decisions), [], []
    with evaluating(nn.ModuleList(loop.modules)):
        for rows in torch.arange(batch_of(inputs)).split(_BLOCK):
            block, decided = [], []
            trajectory = loop.trajectory(*rows_of_inputs(inputs, rows), steps=steps)
            for n, (state, output) in enumerate(trajectory, 1):
                if n == 1:
                    memory = measured.begin(output, state)
                    continue
                decided.append(decisions(output))
                if n < steps:
                    memory, now = measured.update(memory, output, state)
                    block.append(now)
            last = decided[-1]
            check_decided(decisions, last, rows)
            if y is None:
                changed = [~decisions.same(one, last).all(1) for one in decided]
            else:
                labels = decisions.labels(y[rows.to(y.device)], last)
                right = decisions.same(last, labels)
                changed = [(right & ~decisions.same(one, labels)).any(1) for one in decided]
            signals.append(torch.stack(block, 1).cpu())
            lost.append(torch.stack(changed, 1).cpu())
    return Record(
        torch.cat(signals), torch.cat(lost), measured.names, decisions, steps, y is not None
    )


def check_decided(decisions: Decisions, last: Tensor, rows: Tensor) -> None:
    """Refuse samples whose output after the full count is not finite."""
    bad = rows[(~decisions.same(last, last)).any(1).cpu()].tolist()
    if bad:
        shown = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise ValueError(
            "outputs must be finite after the full count, got NaN or infinity for "
            f"{counted(len(bad), 'sample')}: {shown}"
        )


def calibrated(record: Record, order: Tensor, risk: float, confidence: float) -> CalibratedRule:
    """Calibrate a rule on recorded samples, split in the order of ``order``."""
    samples = len(order)
    choose, calibrate = int(_CHOOSE * samples), int(_CALIBRATE * samples)
    chosen, calibration = order[:choose], order[choose : choose + calibrate]
    held_out = order[choose + calibrate :]
    best, signal, grid = -1.0, 0, torch.empty(0)
    for index in range(len(record.names)):
        thresholds = _thresholds(record.signals[chosen][:, :, index])
        accepted = _accepted(
            record, chosen, index, thresholds, lambda lost: float(lost.double().mean()) <= risk / 2
        )
        saved = _savings(_stopped(record, chosen, index, accepted)[1], record.steps)
        if saved > best:
            best, signal, grid = saved, index, thresholds
    accepted = _accepted(
        record, calibration, signal, grid,
        lambda lost: _at_most(int(lost.sum()), len(lost), risk) <= 1 - confidence,
    )  # fmt: skip
    lost, used = _stopped(record, held_out, signal, accepted)
    return CalibratedRule(
        record.names[signal], accepted, record.decisions, record.steps, risk, confidence,
        len(calibration), _savings(used, record.steps), float(lost.double().mean()),
        len(held_out), record.labeled,
    )  # fmt: skip


def _accepted(
    record: Record, rows: Tensor, signal: int, thresholds: Tensor, test: Callable[[Tensor], bool]
) -> float:
    """The last threshold before the first that fails a test; minus infinity without one."""
    accepted = -math.inf
    for threshold in thresholds.tolist():
        if not test(_stopped(record, rows, signal, threshold)[0]):
            break
        accepted = threshold
    return accepted


def _thresholds(signals: Tensor) -> Tensor:
    """Thresholds to try, from the most cautious on."""
    values = signals[signals.isfinite()].sort().values
    places = torch.linspace(0, len(values) - 1, _THRESHOLDS).long()
    return values[places].unique() if len(values) else values


def _stopped(record: Record, rows: Tensor, signal: int, threshold: float) -> tuple[Tensor, Tensor]:
    """The samples lost with a threshold, and the iterations after which they stop."""
    below = record.signals[rows, :, signal] <= threshold
    place = torch.where(below.any(1), below.byte().argmax(1), below.shape[1])
    return record.lost[rows].gather(1, place[:, None])[:, 0], place + 2


def _savings(used: Tensor, steps: int) -> float:
    return 1 - float(used.double().mean()) / steps


def _at_most(count: int, samples: int, share: float) -> float:
    """The probability of at most ``count`` successes in ``samples`` trials.

    The bound of Clopper and Pearson is at most ``share`` if and only if this is at most one minus
    the confidence.
    """
    terms = [
        math.lgamma(samples + 1) - math.lgamma(k + 1) - math.lgamma(samples - k + 1)
        + k * math.log(share) + (samples - k) * math.log1p(-share)
        for k in range(count + 1)
    ]  # fmt: skip
    return math.fsum(map(math.exp, terms))
