"""The quick runs of experiments, each made once for all tests, in whatever process they are."""

import fcntl
import os
from collections.abc import Callable
from typing import NamedTuple

import pytest

from shoal.lab import Experiment, Result, Run, collect, execute


class QuickRun(NamedTuple):
    """A finished run of a quick size.

    Attributes:
        run: Where it is.
        experiment: The quick size.
        results: Its results, read from the files.
    """

    run: Run
    experiment: Experiment
    results: list[Result]

    @property
    def summary(self) -> dict[str, float]:
        return self.experiment.summarize(self.results)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave whole experiments to ``make test-thorough``."""
    if "quick_run" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def quick_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[Experiment]], QuickRun]:
    """A function that gives the quick run of an experiment; the first call makes it."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent  # of the folders of all processes

    def made(kind: type[Experiment]) -> QuickRun:
        experiment = kind.quick()
        run = Run(experiment, shared / "quick", "cpu")
        # while another process makes it, wait
        with (shared / f"{run.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (run.folder / "figure.svg").is_file():
                with pytest.MonkeyPatch.context() as patch:
                    # no files of data
                    patch.delenv("SHOAL_DATA", raising=False)
                    patch.setattr("shoal.data.folders.cache_folder", lambda: shared / "nothing")
                    execute(run)
        return QuickRun(run, experiment, collect(experiment, run.folder))

    return made
