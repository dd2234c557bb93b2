"""Points in parallel processes, or one after the other in this one, with the same results."""

import logging
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from shoal.core.processes import ALONE, Processes, alone
from shoal.core.threads import limited_threads
from shoal.lab.experiment import Arrays, Experiment, Point, as_arrays

_logger = logging.getLogger(__name__)


class Work(NamedTuple):
    """A point to compute: its place in the experiment, and its seed."""

    place: int
    point: Point
    seed: int


class Outcome(NamedTuple):
    """A point that was computed: its place, its arrays, and how long it took."""

    place: int
    arrays: Arrays
    seconds: float


@dataclass(frozen=True)
class _Failure:
    """An error in a worker, with where it happened."""

    error: Exception
    trace: str


def computed(
    experiment: Experiment,
    work: Sequence[Work],
    *,
    device: torch.device,
    jobs: int,
    threads: int,
    shared: Processes = ALONE,
) -> Iterator[Outcome]:
    """Compute points, in any order.

    Every process uses as many threads, also if there is only this one: with another number of
    threads sums are taken in another order, and the last bits differ. Where processes were
    launched together, the first calls this, and the others :func:`assist`.
    """
    if shared.size > 1:
        for start in range(0, len(work), shared.size):
            dealt = shared.common(list(work[start : start + shared.size]))
            yield from _round(experiment, dealt, device, threads, shared)
        shared.common(list(work[:0]))  # which ends it
    elif jobs == 1 or len(work) <= 1:
        with limited_threads(threads):
            for item in work:
                yield _compute(experiment, item, device)
    else:
        yield from _in_parallel(experiment, work, device, min(jobs, len(work)), threads)


def assist(
    experiment: Experiment, *, device: torch.device, threads: int, shared: Processes
) -> None:
    """Compute points that the first of several processes hands out, one to each at a time."""
    nothing: list[Work] = []
    while dealt := shared.common(nothing):
        _round(experiment, dealt, device, threads, shared)


def _round(
    experiment: Experiment,
    dealt: Sequence[Work],
    device: torch.device,
    threads: int,
    shared: Processes,
) -> list[Outcome]:
    """One point in each process, all of which get all outcomes."""
    with shared.telling(), limited_threads(threads), alone():
        own = [_compute(experiment, item, device) for item in dealt[shared.rank : shared.rank + 1]]
    return [outcome for part in shared.collected(own) for outcome in part]


def _compute(experiment: Experiment, item: Work, device: torch.device) -> Outcome:
    start = time.perf_counter()
    arrays = as_arrays(experiment.compute(item.point, seed=item.seed, device=device))
    return Outcome(item.place, arrays, time.perf_counter() - start)


def _in_parallel(
    experiment: Experiment, work: Sequence[Work], device: torch.device, jobs: int, threads: int
) -> Iterator[Outcome]:
    """Hand out points one by one to processes that are ended whatever happens."""
    context = multiprocessing.get_context("spawn")
    workers: dict[Connection, BaseProcess] = {}
    try:
        for _ in range(jobs):
            ours, theirs = context.Pipe()
            arguments = (theirs, experiment, device, threads)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of the process ends our connection
            workers[ours] = process
        _logger.info("%d processes with %d threads each", jobs, threads)
        remaining = iter(work)
        for connection in workers:
            connection.send(next(remaining))
        busy = set(workers)
        while busy:
            for connection in _wait(busy):
                yield _receive(connection, workers[connection])
                following = next(remaining, None)
                if following is None:
                    busy.remove(connection)
                else:
                    connection.send(following)
    finally:
        for connection, worker in workers.items():
            connection.close()
            worker.terminate()
            worker.join()


def _wait(connections: Iterable[Connection]) -> list[Connection]:
    """The connections that have something to say, once one has."""
    ready = set(map(id, wait(list(connections))))
    return [connection for connection in connections if id(connection) in ready]


def _receive(connection: Connection, process: BaseProcess) -> Outcome:
    try:
        answer = connection.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"a worker process ended with exit code {process.exitcode}, perhaps for lack of "
            "memory; fewer jobs need less"
        ) from None
    if isinstance(answer, _Failure):
        _logger.debug("in a worker process:\n%s", answer.trace)
        raise answer.error
    assert isinstance(answer, Outcome)
    return answer


def _serve(
    connection: Connection, experiment: Experiment, device: torch.device, threads: int
) -> None:
    """Compute what comes until nothing comes; what the processes of ``_in_parallel`` do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            item = connection.recv()
        except (EOFError, OSError):
            return
        answer: Outcome | _Failure
        try:
            answer = _compute(experiment, item, device)
        except Exception as error:
            answer = _Failure(error, traceback.format_exc())
        try:
            connection.send(answer)
        except OSError:  # the parent is gone
            return


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
