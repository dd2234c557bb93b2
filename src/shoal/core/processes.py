"""Work that several processes share: who they are, and what they tell each other.

Every process makes the same calls and holds the same numbers. Before they exchange anything they
agree that all are well and at the same place with the same input, so that what fails in one of them
fails in all, and nobody waits for somebody who went another way.
"""

import atexit
import hashlib
import json
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

import torch
from torch import Tensor

from shoal.core.checks import shown
from shoal.core.hashing import mixed

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

Group: TypeAlias = 'ProcessGroup | Literal["auto"] | None'
_T = TypeVar("_T")

_LAUNCHED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
_PATIENCE = timedelta(minutes=10)  # with a process that neither answers nor ends
_ABSENCE = timedelta(seconds=60)  # most time between the first and the last that make a call
_PIECE = 2**22  # numbers that are gathered together
_CACHED = 2**14  # numbers that a CPU reads together
_BITS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}


@dataclass(frozen=True, eq=False)
class Processes:
    """The processes that share some work.

    Attributes:
        group: How they reach each other: ``"auto"`` by the default group, which is not held on to,
            since its threads must end before Python does; ``None`` for one process alone.
        rank: Which of them this one is.
        size: How many they are.
    """

    group: Group = None
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that reports and writes."""
        return self.rank == 0

    def agree(
        self, same: Mapping[str, object], number: int = 0, error: Exception | None = None
    ) -> list[int]:
        """Wait for all, and return the number of each.

        Args:
            same: What all must have alike, by its name; values are compared as texts.
            number: Any number to tell the others.
            error: What went wrong here.

        Raises:
            Exception: The error of the first process that has one, in all of them.
            ValueError: If the processes do not have the same.
            ConnectionError: If one of them is gone.
        """
        if self.size == 1:
            return [number]
        texts = {name: str(value) for name, value in same.items()}
        with self._contact():
            own = torch.tensor([error is not None, _digest(texts), number], device="cpu")
            failed, digests, numbers = torch.stack(self._gathered(own)).T.tolist()
            if not any(failed) and len(set(digests)) == 1:
                return [int(n) for n in numbers]
            heard: list[Any] = [None] * self.size
            torch.distributed.all_gather_object(heard, (_sendable(error), texts), group=self._group)
        for rank, (failure, _) in enumerate(heard):
            if failure is not None:
                raise self._told(failure if rank != self.rank or error is None else error, rank)
        others = [other for _, other in heard]
        names = {name: None for other in others for name in other}
        differ = [name for name in names if len({other.get(name) for other in others}) > 1]
        raise self._told(
            ValueError(
                f"the {self.size} processes must do the same with the same numbers, and they "
                f"differ in: {', '.join(differ)}. Give all the same, or process_group=None to "
                "what each does alone"
            )
        )

    @contextmanager
    def telling(self) -> Iterator[None]:
        """A context whose errors reach all processes, when they next agree on something.

        It begins when all are there. If all goes well, nothing may follow the last agreement that
        can fail in one of them.
        """
        if self.size == 1 or _met.get():  # within a call they meet in what they exchange
            met = None
        else:
            self._meet()
            met = _met.set(True)
        try:
            yield
        except Exception as error:
            if self.size > 1 and not told(error):
                self.agree({}, error=error)
            raise
        finally:
            if met is not None:
                _met.reset(met)

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context that ends well in all processes, or in all with the same error."""
        with self.telling():
            yield
            self.agree({"end": True})

    def sum(self, part: Tensor) -> Tensor:
        """Replace the part of each process by the sum of all, the same to the last bit in all."""
        if self.size > 1:
            rows = max(1, _PIECE // max(1, part[:1].numel()))
            with self._contact():
                for piece in part.split(rows):
                    piece.copy_(reduce(torch.add, self._gathered(piece)))
        return part

    def spread(self, tensor: Tensor, owner: int = 0) -> Tensor:
        """Replace a tensor by that of one process."""
        if self.size > 1:
            sent = tensor.to(self._carrier(tensor.device)).contiguous()
            with self._contact():
                torch.distributed.broadcast(sent, group=self._group, group_src=owner)
            if sent is not tensor:
                tensor.copy_(sent)
        return tensor

    def same(self, tensor: Tensor) -> Tensor:
        """Replace what all have computed, and may be rounded elsewise, by that of the first."""
        if self.size > 1:
            digest = _digest({"": fingerprint(tensor)})
            if len(set(self.agree({"shape": tuple(tensor.shape)}, digest))) > 1:
                self.spread(tensor)
        return tensor

    def common(self, value: _T) -> _T:
        """What the first process has, in all of them."""
        if self.size == 1:
            return value
        self.agree({"common": True})
        box = [value if self.first else None]
        with self._contact():
            torch.distributed.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]  # type: ignore[return-value]

    def part(self, count: int) -> slice:
        """Which of so many rows are this process's."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def dealt(self, items: Sequence[_T]) -> Iterator[_T]:
        """The items that are this process's to work on: whoever is free takes the next one.

        All of them ask for the same items, and tell each other what they found when there are none.
        """
        if self.size == 1:
            yield from items
            return
        name, place = self.common(uuid4().hex), 0
        while place < len(items):
            with self._contact():
                place = self._store.add(name, 1)
            yield from items[place - 1 : place]

    def collected(self, value: _T) -> list[_T]:
        """What each process has, in all of them."""
        if self.size == 1:
            return [value]
        self.agree({"collected": True})
        values: list[Any] = [None] * self.size
        with self._contact():
            torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def _meet(self) -> None:
        """Wait until all processes make this call, in the store by which they found each other.

        What others exchange meanwhile, the gradients of a training for one, is not disturbed.
        """
        store, own = self._store, f"shoal {self.rank}"
        with self._contact():
            count = store.add(own, 1)
            if count == 1:
                atexit.register(_leave, store, own)
            places = [f"shoal {rank} {count}" for rank in range(self.size)]
            store.set(places[self.rank], _HERE)
            try:
                store.wait(places, _ABSENCE)
            except RuntimeError:
                absent = [r for r, place in enumerate(places) if not store.check([place])]
                store.delete_key(places[self.rank])
                store.add(own, -1)
                if not absent:  # the wait ended for another reason
                    raise
                self._refuse(absent, f"not made this call within {_ABSENCE.total_seconds():g} s")
            ended = [r for r, place in enumerate(places) if store.get(place) != _HERE.encode()]
            store.delete_key(f"{own} {count - 1}")  # which all have seen
        if ended:
            self._refuse(ended, "ended without this call")

    def _refuse(self, absent: list[int], what: str) -> None:
        who = ", ".join(map(str, absent))
        raise ConnectionError(
            f"process {self.rank} of {self.size} waited for process {who}, which has {what}: all "
            "processes must make it. For what one computes alone give process_group=None; where "
            "others are late, call torch.distributed.barrier() before"
        )

    @property
    def _group(self) -> "ProcessGroup | None":
        """The group as PyTorch takes it: ``None`` is the default group."""
        return None if isinstance(self.group, str) else self.group

    @property
    def _store(self) -> "Store":
        """The store through which the processes found each other."""
        group = self._group or torch.distributed.group.WORLD
        assert group is not None
        return group.get_group_store()

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        sent = tensor.to(self._carrier(tensor.device)).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        torch.distributed.all_gather(parts, sent, group=self._group)
        return [part.to(tensor.device) for part in parts]

    def _carrier(self, device: torch.device) -> torch.device:
        """The device to send tensors from: a GPU with NCCL, the CPU with anything else."""
        ways = torch.distributed.get_backend_config(self._group)
        if device.type == "cuda" and "cuda:nccl" in ways:
            return device
        return torch.device("cpu" if "cpu:" in ways else "cuda")

    @contextmanager
    def _contact(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = ConnectionError(
                f"process {self.rank} of {self.size} lost contact with another one, which has "
                f"ended, failed elsewhere or does not answer: {error}"
            )
            raise self._told(lost) from error

    def _told(self, error: Exception, rank: int | None = None) -> Exception:
        who = "in all processes" if rank is None else f"in process {rank} of {self.size}"
        error.add_note(f"{_TOLD} {who}")
        return error


def _leave(store: "Store", own: str) -> None:
    """Say, when Python ends, that this process makes no call any more."""
    with suppress(RuntimeError):  # the store has ended before
        store.set(f"{own} {store.add(own, 1)}", _GONE)


_HERE, _GONE = "here", "gone"
_met: ContextVar[bool] = ContextVar("_met", default=False)
_TOLD = "This happened"
ALONE = Processes()
_by_itself: ContextVar[bool] = ContextVar("_by_itself", default=False)


@contextmanager
def alone() -> Iterator[None]:
    """A context in which each process works by itself, on something that no other one has."""
    token = _by_itself.set(True)
    try:
        yield
    finally:
        _by_itself.reset(token)


def processes(group: Group = "auto") -> Processes:
    """The processes of a group.

    Args:
        group: With ``"auto"`` the default one of ``torch.distributed``; if there is none, and the
            environment variables of ``torchrun`` speak of several processes, it is made, and ended
            when Python ends. ``None`` is this process alone.

    Raises:
        TypeError: If it is no group.
        ValueError: If this process is none of its members.
        ConnectionError: If the others do not come.
    """
    if group is None or not torch.distributed.is_available():
        return ALONE
    if isinstance(group, str):
        if group != "auto":
            raise ValueError(f"process_group must be 'auto', a group or None, got {group!r}")
        group = None if _by_itself.get() else _default_group()
    if group is None:
        return ALONE
    outside: object = torch.distributed.GroupMember.NON_GROUP_MEMBER  # of new_group, to others
    if group != outside and not isinstance(group, torch.distributed.ProcessGroup):
        raise TypeError(f"process_group must be a group of processes, got {shown(group)}")
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if rank < 0:
        raise ValueError("process_group must be a group of which this process is a member")
    if size == 1:
        return ALONE
    return Processes("auto" if group is torch.distributed.group.WORLD else group, rank, size)


def first_launched() -> bool:
    """Whether this is the first, or the only one, of processes that were launched together."""
    return not launched() or os.environ["RANK"] == "0"


def launched() -> bool:
    """Whether the environment speaks of several processes."""
    return all(name in os.environ for name in _LAUNCHED) and os.environ["WORLD_SIZE"] != "1"


def _default_group() -> "ProcessGroup | None":
    if not torch.distributed.is_initialized():
        if not launched():
            return None
        # NCCL is for tensors on GPUs of which each process has its own
        enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        ways = "cpu:gloo,cuda:nccl" if enough and torch.distributed.is_nccl_available() else "gloo"
        try:
            torch.distributed.init_process_group(ways, timeout=_PATIENCE)
        except RuntimeError as error:
            raise ConnectionError(f"the other processes were not found: {error}") from error
        atexit.register(_end)
    return torch.distributed.group.WORLD


def _end() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def fingerprint(tensor: Tensor) -> str:
    """What tells tensors apart whose bits or places differ, at the price of reading them.

    Example:
        >>> import torch
        >>> fingerprint(torch.eye(2)) == fingerprint(torch.eye(2).flip(0))
        False
    """
    numbers = tensor.detach().reshape(-1)
    total, start = 0, 0
    for part in numbers.split(_PIECE if numbers.is_cuda else _CACHED):
        bits = part.contiguous().view(_BITS.get(part.element_size(), torch.int64)).long()
        places = torch.arange(start, start + len(bits), device=bits.device)
        total += int(mixed(bits + mixed(places)).sum())
        start += len(bits)
    return f"{tuple(tensor.shape)} {tensor.dtype} {total % 2**64}"


def _digest(texts: Mapping[str, str]) -> int:
    whole = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).digest()
    return int.from_bytes(whole[:8], "big", signed=True)


def _sendable(error: Exception | None) -> Exception | None:
    """An error that other processes can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def told(error: Exception) -> str:
    """The note of where an error happened, if all processes have been told of it."""
    notes = getattr(error, "__notes__", ())
    return next((note for note in notes if note.startswith(_TOLD)), "")
