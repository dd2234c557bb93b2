"""Running a function in several processes that reach each other."""

import itertools
import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

_IMPORTED = [
    *("shoal.learning.regression", "shoal.equilibrium", "shoal.asymptotics"),
    *("torch.distributed", "torch.fx.experimental.symbolic_shapes"),
]
_COUNTER = itertools.count()
_PATIENCE = timedelta(seconds=60)


def run_ranks(
    work: Callable[..., Any], count: int, folder: Path, *arguments: Any
) -> list[tuple[Any, str]]:
    """What ``work(rank, *arguments)`` returned in each process, or its error as text.

    A process that was killed has neither. The function must be in a module beside this one, which
    processes import by its name: they are forks of one that has imported shoal.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    place = folder / f"ranks {next(_COUNTER)}"
    place.mkdir()
    processes = [
        context.Process(target=_rank, args=(work, rank, count, place, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode is not None, "it hangs"
    found = [place / str(rank) for rank in range(count)]
    return [torch.load(f, weights_only=False) if f.exists() else (None, "") for f in found]


def _rank(
    work: Callable[..., Any], rank: int, count: int, place: Path, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{place / 'store'}",
        rank=rank,
        world_size=count,
        timeout=_PATIENCE,
    )
    try:
        outcome = work(rank, *arguments), ""
    except Exception as error:
        outcome = None, f"{type(error).__name__}: {error}"
    torch.save(outcome, place / str(rank))
    torch.distributed.destroy_process_group()
