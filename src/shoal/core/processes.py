"""Work that several processes share.

Every process makes the same calls with the same numbers. Before they exchange anything they compare
their arguments and errors, so that a failure in one process is raised in all.
"""

import atexit
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import torch
from torch import Tensor

from shoal.core.checks import shown
from shoal.core.files import checksum

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Group: TypeAlias = 'ProcessGroup | Literal["auto"] | None'
_T = TypeVar("_T")

_ABSENCE = timedelta(seconds=60)  # most time between the first and the last that make a call
_NOTE = "This happened"  # of errors that all processes have
_inside: ContextVar[bool] = ContextVar("_inside", default=False)  # of a call that all make


@dataclass(frozen=True, eq=False)
class Processes:
    """The processes that share some work.

    Attributes:
        group: Their group; ``"auto"`` for the default one, which is not referenced, since its
            threads must end before Python does; ``None`` for one process alone.
        rank: The number of this one.
        size: The number of processes.
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
        """Compare values in all processes, and return the number of each.

        Args:
            same: Values that must agree, by name; they are compared as texts.
            number: Any number to send to the others.
            error: The error of this process.

        Raises:
            Exception: The error of the first process that has one, in all of them.
            ValueError: If the values differ.
            ConnectionError: If one of the processes is gone.
        """
        if self.size == 1:
            return [number]
        texts = {name: str(value) for name, value in same.items()}
        gathered: list[Any] = [None] * self.size
        with self._contact():
            sent = (_sendable(error), texts, number)
            torch.distributed.all_gather_object(gathered, sent, group=self._group)
        for rank, (failure, _, _) in enumerate(gathered):
            if failure is not None:
                first: Exception = failure if rank != self.rank or error is None else error
                raise _noted(first, f"in process {rank} of {self.size}")
        names = {name: None for _, texts, _ in gathered for name in texts}
        differ = [name for name in names if len({texts.get(name) for _, texts, _ in gathered}) > 1]
        if differ:
            text = (
                f"the {self.size} processes must make the same call with the same arguments, and "
                f"they differ in: {', '.join(differ)}. Where each computes alone, give "
                "process_group=None"
            )
            raise _noted(ValueError(text), "in all processes")
        return [sent_number for *_, sent_number in gathered]

    @contextmanager
    def collective(self) -> Iterator[None]:
        """A context that ends well in all processes, or in all with the same error.

        It begins when all have entered it. Inside another one it does nothing.
        """
        if self.size == 1 or _inside.get():
            yield
            return
        self._meet()
        outer = _inside.set(True)
        try:
            yield
            self.agree({"end": True})
        except Exception as error:
            if not any(note.startswith(_NOTE) for note in getattr(error, "__notes__", ())):
                self.agree({}, error=error)
            raise
        finally:
            _inside.reset(outer)

    def sum(self, part: Tensor) -> Tensor:
        """Replace the part of each process by the sum of all, the same to the last bit in all."""
        if self.size > 1:
            rows = max(1, 2**22 // max(1, part[:1].numel()))  # so many numbers at once
            with self._contact():
                for piece in part.split(rows):
                    piece.copy_(reduce(torch.add, self._gathered(piece)))
        return part

    def broadcast(self, tensor: Tensor, owner: int = 0) -> Tensor:
        """Replace a tensor by that of one process, where others may have rounded differently."""
        if self.size > 1:
            self.agree({"shape": tuple(tensor.shape)})
            sent = tensor.to(self._carrier(tensor.device)).contiguous()
            with self._contact():
                torch.distributed.broadcast(sent, group=self._group, group_src=owner)
            if sent is not tensor:
                tensor.copy_(sent)
        return tensor

    def of_first(self, value: _T) -> _T:
        """The value of the first process, in all of them."""
        if self.size == 1:
            return value
        self.agree({"value of the first": True})
        box = [value if self.first else None]
        with self._contact():
            torch.distributed.broadcast_object_list(box, group=self._group, group_src=0)
        return box[0]  # type: ignore[return-value]

    def part(self, count: int) -> slice:
        """The rows of this process, given the number of all."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def _meet(self) -> None:
        """Wait until all processes make this call; with NCCL alone, their first exchange waits."""
        if "cpu:gloo" not in torch.distributed.get_backend_config(self._group):
            return
        group: Any = self._group or torch.distributed.group.WORLD
        try:
            # the function of this name refuses groups that also have NCCL
            group.monitored_barrier(_ABSENCE, wait_all_ranks=True)
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} of {self.size} waited for others, which have ended or not "
                f"made this call within {_ABSENCE.total_seconds():g} s. Where one computes alone, "
                "give process_group=None; where others are late, call torch.distributed.barrier() "
                f"before ({error})"
            ) from error

    @property
    def _group(self) -> "ProcessGroup | None":
        """The group as PyTorch takes it: ``None`` is the default group."""
        return None if isinstance(self.group, str) else self.group

    def _gathered(self, tensor: Tensor) -> list[Tensor]:
        sent = tensor.to(self._carrier(tensor.device)).contiguous()
        parts = [torch.empty_like(sent) for _ in range(self.size)]
        torch.distributed.all_gather(parts, sent, group=self._group)
        return [part.to(tensor.device) for part in parts]

    def _carrier(self, device: torch.device) -> torch.device:
        """The device to send tensors from: a GPU with NCCL, the CPU with anything else."""
        backends = torch.distributed.get_backend_config(self._group)
        if device.type == "cuda" and "cuda:nccl" in backends:
            return device
        return torch.device("cpu" if "cpu:" in backends else "cuda")

    @contextmanager
    def _contact(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = ConnectionError(
                f"process {self.rank} of {self.size} lost contact with another one, which has "
                f"ended, failed elsewhere or does not answer: {error}"
            )
            raise _noted(lost, "in all processes") from error


ALONE = Processes()


def processes(group: Group = "auto") -> Processes:
    """The processes of a group.

    Args:
        group: With ``"auto"`` the default one of ``torch.distributed``; if there is none and the
            environment variables of ``torchrun`` are set for several processes, it is made, and
            ended when Python ends. ``None`` is this process alone.

    Raises:
        TypeError: If it is not a group.
        ValueError: If this process is not a member.
        ConnectionError: If the other processes are not found.
    """
    if group is None or not torch.distributed.is_available():
        return ALONE
    if isinstance(group, str):
        if group != "auto":
            raise ValueError(f"process_group must be 'auto', a group or None, got {group!r}")
        group = _default_group()
    if group is None:
        return ALONE
    outside: object = torch.distributed.GroupMember.NON_GROUP_MEMBER  # of new_group, to others
    if group != outside and not isinstance(group, torch.distributed.ProcessGroup):
        raise TypeError(f"process_group must be a group of processes, got {shown(group)}")
    rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
    if rank < 0:
        raise ValueError("process_group must be a group that contains this process")
    if size == 1:
        return ALONE
    return Processes("auto" if group is torch.distributed.group.WORLD else group, rank, size)


def _default_group() -> "ProcessGroup | None":
    if not torch.distributed.is_initialized():
        variables = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # of torchrun
        if os.environ.get("WORLD_SIZE") == "1" or not all(name in os.environ for name in variables):
            return None
        # NCCL requires one GPU for each process
        enough = torch.cuda.device_count() >= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        nccl = enough and torch.distributed.is_nccl_available()
        try:
            torch.distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if nccl else "gloo", timeout=timedelta(minutes=10)
            )
        except RuntimeError as error:
            raise ConnectionError(f"the other processes were not found: {error}") from error
        atexit.register(_end)
    return torch.distributed.group.WORLD


def _end() -> None:
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def fingerprint(tensor: Tensor) -> str:
    """A text that differs for tensors of other shapes, dtypes or bits."""
    return f"{tuple(tensor.shape)} {checksum({}, {'': tensor.cpu()})}"


def _sendable(error: Exception | None) -> Exception | None:
    """An error that other processes can read."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _noted(error: Exception, where: str) -> Exception:
    """An error that all processes have, with a note of where it happened."""
    error.add_note(f"{_NOTE} {where}")
    return error
