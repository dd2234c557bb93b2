"""In which context a cell is called: the same in every step of a solve and of its gradient."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor


class CallScope:
    """The context of a cell's calls: the caller's autocast, and the same random numbers.

    Attributes:
        autocast: Whether autocast is on.
        random: Whether the cell draws random numbers; known after its first call.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.kind = tensor.device.type
        self.autocast = torch.amp.is_autocast_available(self.kind) and torch.is_autocast_enabled(
            self.kind
        )
        self.dtype = torch.get_autocast_dtype(self.kind) if self.autocast else None
        self.random: bool | None = None
        self.first = self.before = self._state()

    def __call__(self) -> AbstractContextManager[None]:
        """The context of one call."""
        nothing = not self.autocast and self.random is False
        return nullcontext() if nothing else self._entered()

    def begin(self) -> None:
        """Let the cell's random numbers come after those that are drawn by now."""
        self.before = self._state()

    @contextmanager
    def prepared_again(self) -> Iterator[None]:
        """Draw the random numbers that came before the cell's, if there were any."""
        if all(map(torch.equal, self.first, self.before)):
            yield
            return
        with self._from(self.first):
            yield

    def repeat(self, other: "CallScope") -> None:
        """Draw the random numbers of another scope, if it was of the same device."""
        if other.random and other.kind == self.kind:
            self.before, self.random = other.before, True

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with torch.autocast(self.kind, self.dtype, enabled=self.autocast):
            if self.random is None:
                try:
                    yield
                except BaseException:
                    self._restore(self.before)  # the call may be made again
                    raise
                now = self._state()
                self.random = not all(map(torch.equal, now, self.before))
            elif self.random:
                with self._from(self.before):
                    yield
            else:
                yield

    @contextmanager
    def _from(self, states: list[Tensor]) -> Iterator[None]:
        """Draw random numbers from a state on, and leave those outside alone."""
        outside = self._state()
        self._restore(states)
        try:
            yield
        finally:
            self._restore(outside)

    def _state(self) -> list[Tensor]:
        states = [torch.get_rng_state()]
        return [*states, torch.cuda.get_rng_state()] if self.kind == "cuda" else states

    def _restore(self, states: list[Tensor]) -> None:
        torch.set_rng_state(states[0])
        if len(states) > 1:
            torch.cuda.set_rng_state(states[1])
