"""Warm starts: where to begin a solve if similar ones came before it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.torch_compat import version

# Polynomial extrapolation through the last solutions, newest first.
_COEFFICIENTS = ((1.0,), (2.0, -1.0), (3.0, -3.0, 1.0), (4.0, -6.0, 4.0, -1.0))
_ORDER = len(_COEFFICIENTS) - 1
_SLOTS = len(_COEFFICIENTS)
_JUDGED = 32  # samples that decide on the degree


class Recall:
    """The last solutions of a slowly changing problem, and an extrapolation of them.

    Which degree is extrapolated with is decided by hindsight: the one that would have come
    closest to the newest solution. The decision stays on the device.
    """

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int, bool], Tensor] = {}
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.count, self._newest, self.steps = 0, -1, 0
        self._values: Tensor | None = None  # in turn, newest where _newest says; (n, slots, size)
        self._duals: Tensor | None = None  # right-hand sides by their squared lengths, likewise
        self._coefficients: Tensor | None = None  # of the next extrapolation; shape (1, slots)
        self._ratios: Tensor | None = None  # of the right-hand side to the past; (n, 1, slots)
        self._tables.clear()

    @property
    def past(self) -> list[Tensor]:
        """The solutions that are known, newest first."""
        if self._values is None:
            return []
        return [self._values[:, (self._newest - age) % _SLOTS] for age in range(self.count)]

    def state(self) -> dict[str, Tensor]:
        """All that the next guesses depend on; nothing if nothing is known."""
        if self._values is None or self._coefficients is None:
            return {}
        place = torch.tensor([self.count, self._newest, self.steps])
        state = {"place": place, "values": self._values, "coefficients": self._coefficients}
        return state if self._duals is None else state | {"duals": self._duals}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "Recall":
        """The memory that a saved state describes."""
        recall = cls()
        if state:
            # states of older versions lack the steps: their next solves may look once more
            recall.count, recall._newest, recall.steps = (*state["place"].tolist(), 0)[:3]
            recall._values, recall._coefficients = state["values"], state["coefficients"]
            recall._duals = state.get("duals")
        return recall

    def guess(self, like: Tensor, *, linear: bool = False) -> Tensor | None:
        """Where to start, or ``None`` if nothing of that shape, dtype and device is known.

        Args:
            like: A tensor like the solution; if the problem is linear, its right-hand side.
            linear: Whether solutions are proportional to the right-hand side. Those of the past
                are then scaled to the part of it that is parallel to their own.
        """
        self._ratios = None
        if self._values is None or self._coefficients is None or not _alike(self._values, like):
            return None
        weights = self._coefficients.expand(len(like), 1, _SLOTS)
        if linear and self._duals is not None:
            self._ratios = torch.bmm(like[:, None], self._duals.transpose(1, 2))
            weights = weights * self._ratios
        return torch.bmm(weights, self._values)[:, 0]

    def remember(self, value: Tensor, right: Tensor | None = None, *, steps: int = 0) -> None:
        """Add the newest solution, with its right-hand side if the problem is linear.

        Args:
            value: The solution.
            right: The right-hand side.
            steps: How many it took.
        """
        if self._values is None or not _alike(self._values, value):
            self.clear()
            self._values = value.new_zeros(len(value), _SLOTS, value.shape[1])
            self._duals = None if right is None else torch.zeros_like(self._values)
        best = self._hindsight(value) if self.count else None
        self._newest = (self._newest + 1) % _SLOTS
        self._values[:, self._newest].copy_(value)
        if right is not None and self._duals is not None:
            square = (right * right).sum(1, keepdim=True).clamp_min_(torch.finfo(right.dtype).tiny)
            torch.div(right, square, out=self._duals[:, self._newest])
        self._coefficients = self._table(choice=True)
        if best is not None:
            self._coefficients = self._coefficients.index_select(0, best)
        self.count, self.steps = min(self.count + 1, _SLOTS), steps

    def _hindsight(self, value: Tensor) -> Tensor:
        """Which degree would have come closest to a solution, judged by some of its rows."""
        assert self._values is not None
        some = slice(None, None, -(-len(value) // _JUDGED))
        values, target = self._values[some], value[some, None]
        table = self._table()
        weights = table.expand(len(values), *table.shape)
        if self._ratios is not None:
            weights = weights * self._ratios[some]
        target = target.expand(-1, len(table), -1)
        misses = torch.baddbmm(target, weights, values, alpha=-1)
        lengths: Tensor = torch.linalg.vector_norm(misses, dim=(0, 2))
        return lengths.argmin(0, keepdim=True)

    def _table(self, *, choice: bool = False) -> Tensor:
        """Coefficients by degree, or by what to use next if a degree was the best."""
        key = (self.count, self._newest, choice)
        if key not in self._tables:
            assert self._values is not None
            degrees = list(range(max(self.count, 1)))
            if choice and self.count:
                # a degree higher is possible now than before: try it if the highest was the best
                degrees[-1] = min(degrees[-1] + 1, _ORDER)
            rows = [[0.0] * _SLOTS for _ in degrees]
            for row, degree in zip(rows, degrees, strict=True):
                for age, factor in enumerate(_COEFFICIENTS[degree]):
                    row[(self._newest - age) % _SLOTS] = factor
            self._tables[key] = self._values.new_tensor(rows)
        return self._tables[key]


@dataclass(eq=False)
class WarmStart:
    """What the forward and the backward solves of a network recall."""

    forward: Recall = field(default_factory=Recall)
    backward: Recall = field(default_factory=Recall)

    def state(self) -> dict[str, Tensor]:
        """All that the next solves depend on."""
        parts = {"forward": self.forward, "backward": self.backward}
        return {f"{p}.{n}": t for p, recall in parts.items() for n, t in recall.state().items()}

    @classmethod
    def of(cls, state: Mapping[str, Tensor]) -> "WarmStart":
        """The memory that a saved state describes."""
        parts: dict[str, dict[str, Tensor]] = {"forward": {}, "backward": {}}
        for name, tensor in state.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        return cls(*(Recall.of(part) for part in parts.values()))

    def clear(self) -> None:
        """Forget everything."""
        self.forward.clear()
        self.backward.clear()


class Series:
    """Warm starts for a series of solves on the same inputs; others start a new series."""

    def __init__(self) -> None:
        self._last: tuple[WarmStart, tuple[tuple[Tensor, int], ...]] | None = None

    def start(self, *inputs: Tensor) -> WarmStart:
        """What is recalled of the inputs, which must be the last ones, unchanged or equal."""
        if self._last is not None:
            warm, before = self._last
            if len(before) == len(inputs) and all(map(_same, before, inputs)):
                return warm
        return self.resume(WarmStart(), *inputs)

    def resume(self, warm: WarmStart, *inputs: Tensor) -> WarmStart:
        """Go on with a series of which the state is known."""
        self._last = (warm, tuple((tensor, version(tensor)) for tensor in inputs))
        return warm

    def state(self) -> dict[str, Tensor]:
        """All that the next solves depend on; nothing if nothing is known."""
        return {} if self._last is None else self._last[0].state()

    def clear(self) -> None:
        """Let the next solve start cold."""
        self._last = None


def _same(known: tuple[Tensor, int], now: Tensor) -> bool:
    before, then = known
    if version(before) != then:
        return False
    return before is now or (
        (before.shape, before.device) == (now.shape, now.device) and torch.equal(before, now)
    )


def _alike(values: Tensor, like: Tensor) -> bool:
    """Whether past solutions are like a new one."""
    return (len(values), values.shape[2]) == like.shape and (values.dtype, values.device) == (
        like.dtype,
        like.device,
    )
