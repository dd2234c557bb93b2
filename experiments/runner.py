"""Running an experiment: a file for each point, which is there whole or not at all."""

import io
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from joblib import Parallel, delayed

import shoal
from experiments.drawing import STYLE
from experiments.experiment import Experiment, Point, Result, computed, digest, plain

_SECONDS = "seconds of this point"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it, so that it is always whole or absent."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    os.replace(part, path)


@dataclass(frozen=True)
class Run:
    """An experiment, its folder, and everything else that its numbers depend on."""

    experiment: Experiment
    output: Path  # the run has a folder of its own in it
    device: str = "cpu"
    threads: int = 1

    @property
    def identity(self) -> dict[str, Any]:
        """All that the numbers depend on."""
        versions = {"shoal": shoal.__version__, "torch": str(torch.__version__)}
        return {
            "experiment": list(self.experiment.name),
            "configuration": plain(self.experiment),
            "device": torch.device(self.device).type,
            "threads": self.threads,
            "versions": versions | {"numpy": np.__version__},
        }

    @property
    def folder(self) -> Path:
        """Where the run is kept: named by a hash of its identity, so that no two runs mix."""
        return self.output / "-".join([*self.experiment.name, digest(self.identity)[:12]])

    @property
    def record(self) -> dict[str, Any]:
        """The record of a finished run."""
        return json.loads((self.folder / "run.json").read_text(encoding="utf-8"))

    def file(self, point: Point) -> Path:
        """The file for the arrays of a point."""
        name = "-".join(f"{key}{value}" for key, value in point.items())
        return self.folder / "points" / f"{name}.npz"

    def compute(self, point: Point) -> None:
        """Compute a point, unless its file is there."""
        if self.file(point).exists():
            return
        torch.set_num_threads(self.threads)
        start = time.perf_counter()
        arrays = computed(self.experiment, point, torch.device(self.device))
        content = io.BytesIO()
        np.savez(content, **arrays, **{_SECONDS: time.perf_counter() - start})
        write_whole(self.file(point), content.getvalue())

    def results(self) -> tuple[list[Result], float]:
        """The results of all points, and their total seconds."""
        results, seconds = [], 0.0
        for point in self.experiment.points():
            with np.load(self.file(point), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            seconds += float(arrays.pop(_SECONDS))
            results.append(Result(point, arrays))
        return results, seconds

    def execute(self, jobs: int = 1, tell: Callable[[int, int], None] = lambda *_: None) -> None:
        """Compute missing points in ``jobs`` processes, then write the record and the figure.

        After each point ``tell`` gets the number of finished points and of all points.
        """
        points = self.experiment.points()
        (self.folder / "points").mkdir(parents=True, exist_ok=True)
        work = Parallel(jobs, return_as="generator_unordered")
        for count, _ in enumerate(work(delayed(self.compute)(p) for p in points), start=1):
            tell(count, len(points))
        for part in self.folder.rglob(".*.part"):  # of runs that were killed
            part.unlink()
        results, seconds = self.results()
        hardware = {"machine": platform.machine(), "cores": os.cpu_count()}
        if torch.device(self.device).type == "cuda":
            hardware["gpu"] = torch.cuda.get_device_name(self.device)
        record = {
            "title": self.experiment.title,
            "identity": self.identity,
            "summary": self.experiment.summarize(results),
            "wall_seconds": round(seconds / jobs, 3),
            "sessions": [{"computed": len(points), "jobs": jobs, "hardware": hardware}],
        }
        image = io.BytesIO()
        with mpl.rc_context(STYLE):
            self.experiment.plot(results).savefig(image, format="png", dpi=160)
        write_whole(self.folder / "run.json", (json.dumps(record, indent=1) + "\n").encode())
        write_whole(self.folder / "figure.png", image.getvalue())
