"""Every registered experiment runs in its quick size, without any file of data."""

import json
import math
from pathlib import Path

import pytest

from shoal.lab import Experiment, registered

EXPERIMENTS = {"-".join(name): kind for name, kind in registered().items() if name[0] != "tests"}


@pytest.mark.parametrize("kind", EXPERIMENTS.values(), ids=EXPERIMENTS)
def test_it_runs_to_the_end(kind: type[Experiment], quick_run) -> None:
    run, experiment, results = quick_run(kind)
    assert [result.point for result in results] == list(experiment.points())
    record = json.loads((run.folder / "run.json").read_text())
    assert record["complete"]
    assert record["summary"] == experiment.summarize(results)
    assert record["summary"]
    assert all(math.isfinite(value) for value in record["summary"].values())
    for ending, beginning in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        figure: Path = run.folder / f"figure.{ending}"
        assert figure.read_bytes().startswith(beginning)
        assert figure.stat().st_size > 10_000
