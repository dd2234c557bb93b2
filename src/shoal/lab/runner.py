"""Running an experiment: every point once, resumed where it was interrupted."""

import hashlib
import logging
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shoal.core import checks
from shoal.core.fields import plain
from shoal.core.files import write_whole
from shoal.core.processes import ALONE, Group, Processes, processes
from shoal.lab.experiment import (
    Arrays,
    Experiment,
    Result,
    check_experiment,
    digest,
    point_names,
    seed_of,
)
from shoal.lab.records import check_record, locked, packed, read_arrays, read_json, write_json
from shoal.lab.workers import Work, assist, computed
from shoal.pages.figures import require_matplotlib, save_figure
from shoal.pages.provenance import all_versions, hardware, resolve_device, versions

_logger = logging.getLogger(__name__)


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        finished: How many points are finished.
        total: How many there are.
        share: The share of the cost that is behind, between 0 and 1.
        resumed: How many points had been finished by earlier runs.
    """

    finished: int
    total: int
    share: float
    resumed: int


@dataclass(frozen=True)
class Run:
    """An experiment and where it is computed and kept.

    Args:
        experiment: The experiment.
        output: A folder; the run has a folder of its own in it, named after the experiment and a
            hash of all that its numbers depend on, so that no run mixes with another.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"cuda:N"``.
        threads: How many threads each process uses.

    Raises:
        TypeError: If the experiment is none, or its configuration is not made of plain values.
        ValueError: If the device or the number of threads makes no sense.
    """

    experiment: Experiment
    output: Path
    device: str = "auto"
    threads: int = 1

    def __post_init__(self) -> None:
        """Check the fields."""
        check_experiment(self.experiment)
        checks.integer("threads", self.threads, at_least=1)
        object.__setattr__(self, "device", str(resolve_device(self.device)))
        object.__setattr__(self, "output", Path(self.output))
        point_names(self.experiment)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the numbers depend on."""
        return {
            "experiment": list(self.experiment.name),
            "configuration": plain(self.experiment),
            "device": torch.device(self.device).type,
            "threads": self.threads,
            "versions": versions(),
        }

    @cached_property
    def folder(self) -> Path:
        """Where the run is kept."""
        return self.output / "-".join([*self.experiment.name, digest(self.identity)[:12]])

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Where the arrays of each point are, or will be."""
        names = point_names(self.experiment)
        return tuple(self.folder / "points" / f"{name}.npz" for name in names)

    @property
    def finished(self) -> int:
        """How many points are finished."""
        return sum(file.is_file() for file in self.files)


def run(
    experiment: Experiment,
    output: str | PathLike[str],
    *,
    jobs: int = 1,
    threads: int = 1,
    device: str = "auto",
    on_progress: Callable[[Progress], None] | None = None,
    process_group: Group = "auto",
) -> list[Result]:
    """Run an experiment, or what is left of it, and draw its figure.

    Args:
        experiment: The experiment.
        output: The folder in which the run gets a folder of its own; see :class:`Run`.
        jobs: How many processes compute points.
        threads: How many threads each of them uses.
        device: Where to compute; ``"auto"`` is the GPU where there is one.
        on_progress: Called at the start and after every point.
        process_group: The processes that share the points, and all make this call: those that
            ``torchrun`` launched by default, or any group; ``None`` is this process alone.

    Returns:
        The results of all points, in their order, whatever was resumed or done in parallel.

    Raises:
        ValueError: If an argument is out of range, or the folder holds something else.
        RuntimeError: If another run is writing to the folder.
    """
    place = checks.as_path("output", output)
    one = Run(experiment, place, device, threads)
    return execute(one, jobs=jobs, on_progress=on_progress, process_group=process_group)


def execute(
    one: Run,
    *,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    process_group: Group = "auto",
) -> list[Result]:
    """Like :func:`run`, for a :class:`Run`.

    Where processes share the points, each has one job; the first writes, and all have the results.
    """
    require_matplotlib()  # now, not when all is computed
    shared, ordered = processes(process_group), None
    with shared.together():
        if shared.size > 1 and checks.integer("jobs", jobs, at_least=1) > 1:
            raise ValueError(f"jobs must be 1 in each of {shared.size} processes, got {jobs}")
        if shared.first:
            found = dict(results(one, jobs=jobs, on_progress=on_progress, shared=shared))
            ordered = [found[index] for index in range(len(found))]
            save_figure(one.experiment.plot(ordered), one.folder / "figure")
        else:
            device = torch.device(one.device)
            assist(one.experiment, device=device, threads=one.threads, shared=shared)
        ordered = shared.common(ordered)
    assert ordered is not None
    return ordered


def results(
    one: Run,
    *,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    shared: Processes = ALONE,
) -> Iterator[tuple[int, Result]]:
    """The results point by point, each kept before it is yielded: finished ones first.

    If it fails before any point is finished, no folder is left.

    Yields:
        The place of the point among ``experiment.points()``, and its result.
    """
    jobs = checks.integer("jobs", jobs, at_least=1)
    absent = [place for place in (one.folder, *one.folder.parents) if not place.exists()]
    (one.folder / "points").mkdir(parents=True, exist_ok=True)
    with locked(one.folder), _kept(one, absent):
        record = _Record(one, jobs)
        points, costs = one.experiment.points(), record.costs
        done = _finished(one, record)
        resumed, spent = len(done), sum(costs[index] for index in done)
        _logger.info("%s: %d of %d points are there", one.folder, resumed, len(points))

        def report(finished: int) -> None:
            if on_progress is not None:
                on_progress(Progress(finished, len(points), spent / sum(costs), resumed))

        report(resumed)
        found = {index: Result(points[index], arrays) for index, arrays in done.items()}
        yield from found.items()
        work = [Work(i, p, record.seeds[i]) for i, p in enumerate(points) if i not in done]
        device = torch.device(one.device)
        for outcome in computed(
            one.experiment, work, device=device, jobs=jobs, threads=one.threads, shared=shared
        ):
            content = packed(outcome.arrays)
            # the record first: a file that it does not know is none of this run's
            record.note(outcome.place, outcome.seconds, hashlib.sha256(content).hexdigest())
            write_whole(one.files[outcome.place], partial(Path.write_bytes, data=content))
            found[outcome.place] = Result(points[outcome.place], outcome.arrays)
            spent += costs[outcome.place]
            report(len(found))
            yield outcome.place, found[outcome.place]
        record.complete(one.experiment.summarize([found[i] for i in range(len(found))]))


def _finished(one: Run, record: "_Record") -> dict[int, Arrays]:
    """The arrays of the points whose files are those that the record knows."""
    found: dict[int, Arrays] = {}
    for index, (file, known) in enumerate(zip(one.files, record.digests, strict=True)):
        arrays = None if known is None else read_arrays(file, known)
        if arrays is not None:
            found[index] = arrays
    return found


@contextmanager
def _kept(one: Run, made: Sequence[Path]) -> Iterator[None]:
    """Remove the folders that were made for a run if nothing came of it."""
    try:
        yield
    finally:
        if made and not one.finished:
            shutil.rmtree(one.folder, ignore_errors=True)
            with suppress(OSError):  # something else is there
                for place in made[1:]:
                    place.rmdir()


class _Record:
    """The JSON of a run: what was computed, from what, where, and how long it took."""

    def __init__(self, one: Run, jobs: int) -> None:
        self.path = one.folder / "run.json"
        points = one.experiment.points()
        self.costs = [float(one.experiment.cost(point)) for point in points]
        self.seeds = [seed_of(one.experiment, point) for point in points]
        before = read_json(self.path)
        if before is None and any(file.exists() for file in one.files):
            raise ValueError(f"{one.folder} must have a run.json that says what its points are of")
        names = point_names(one.experiment)
        if before is not None:
            if isinstance(before, dict) and before.get("identity") != one.identity:
                raise ValueError(
                    f"{one.folder} must hold this configuration, and holds another; choose another "
                    "output, or remove the folder"
                )
            check_record(self.path, before, names)
        else:
            rows = [
                {"name": name, "point": dict(point), "seed": seed, "seconds": None}
                for name, point, seed in zip(names, points, self.seeds, strict=True)
            ]
            before = {"title": one.experiment.title, "identity": one.identity, "complete": False}
            before |= {"wall_seconds": 0.0, "summary": None, "points": rows, "sessions": []}
        self.document = before
        self.start = time.perf_counter()
        self.session: dict[str, Any] = {
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "computed": 0,
            "jobs": jobs,
            "versions": all_versions(),
            "hardware": hardware(torch.device(one.device)),
        }
        if not before["complete"]:
            before["sessions"].append(self.session)
            write_json(self.path, before)

    @property
    def digests(self) -> list[str | None]:
        """The SHA-256 of the file of each point that was computed."""
        return [row.get("sha256") for row in self.document["points"]]

    def note(self, index: int, seconds: float, sha256: str) -> None:
        """A point was computed."""
        document, session = self.document, self.session
        if session not in document["sessions"]:  # points of a complete run were damaged or removed
            document["sessions"].append(session)
        document["points"][index] |= {"seconds": round(seconds, 6), "sha256": sha256}
        session["seconds"] = round(time.perf_counter() - self.start, 6)
        session["computed"] += 1
        document["wall_seconds"] = round(sum(s["seconds"] for s in document["sessions"]), 6)
        write_json(self.path, document)

    def complete(self, summary: dict[str, float]) -> None:
        """All points are there."""
        if not self.document["complete"] or self.document["summary"] != summary:
            self.document |= {"complete": True, "summary": summary}
            write_json(self.path, self.document)
