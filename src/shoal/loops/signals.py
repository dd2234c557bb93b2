"""How much a sample still changes from iteration to iteration, as numbers that a rule can bound."""

from collections.abc import Callable

import torch
from torch import Tensor

from shoal.loops.decisions import Decisions
from shoal.loops.loop import Memory, Output, State, rows_of

WORDS = {  # what each signal measures; the smaller, the more settled the sample is
    "output": "largest change of a decision's probabilities",
    "state": "change of the state, scaled to length one",
    "margin": "distance of the least margin of a decision from one",
    "ratio": "largest change of a decision's probabilities, relative to its margin",
    "acceleration": "change of the change of a decision's probabilities",
}


class Signals:
    """Signals of each sample after each iteration.

    Args:
        decisions: How an output is read as decisions.
        names: Signals to compute; all that the kind of decision has if ``None``.
    """

    def __init__(self, decisions: Decisions, names: tuple[str, ...] | None = None) -> None:
        self.decisions = decisions
        missing = {"value": {"margin", "ratio"}, "label": {*WORDS} - {"state"}}
        self.names = names or tuple(n for n in WORDS if n not in missing.get(decisions.kind, ()))
        self._probabilities = bool({*self.names} - {"state"})

    @torch.no_grad()
    def begin(self, output: Output, state: State) -> Memory:
        """Return what is remembered of the first iteration; one entry per sample."""
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
        found: dict[str, Callable[[], Tensor]] = {}
        if "state" in now:
            found["state"] = lambda: (now["state"] - before["state"]).norm(dim=1)
        if self._probabilities:
            margin = self._margin(now["probabilities"])
            change = now["probabilities"] - before["probabilities"]
            size = self._size(change)
            found["output"] = lambda: size.amax(1)
            found["margin"] = lambda: 1 - margin.amin(1)
            found["ratio"] = lambda: (size / margin).nan_to_num(torch.inf, torch.inf).amax(1)
        if "change" in now:
            now["change"] = change
            found["acceleration"] = lambda: self._size(change - before["change"]).amax(1)
        return now, torch.stack([found[name]().double() for name in self.names], 1)

    def _read(self, output: Output) -> Tensor:
        """Probabilities of the decisions, or values in units of their spread."""
        scores = self.decisions.scores(output)
        scores = scores.float() if scores.dtype.itemsize < 4 else scores
        if self.decisions.kind == "class":
            return scores.softmax(-1)
        if self.decisions.kind == "sign":
            threshold = self.decisions.threshold
            return scores if threshold else scores.sigmoid()  # which are probabilities already
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
