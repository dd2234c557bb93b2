"""The quick runs of experiments, each made once by every process of the tests."""

from functools import cache
from typing import NamedTuple

import pytest
import torch

from experiments.experiment import Experiment, Result, computed

CPU = torch.device("cpu")


class QuickRun(NamedTuple):
    """An experiment in its quick size, its results and their summary."""

    experiment: Experiment
    results: list[Result]
    summary: dict[str, float]


def results_of(experiment: Experiment) -> list[Result]:
    """The results of all points, with the seeds that a run would give them."""
    return [Result(p, computed(experiment, p, CPU)) for p in experiment.points()]


@cache
def _quick(kind: type[Experiment]) -> QuickRun:
    experiment = kind.quick()
    results = results_of(experiment)
    return QuickRun(experiment, results, experiment.summarize(results))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave whole experiments to ``make test-thorough``."""
    if "quick_run" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.thorough)


@pytest.fixture
def quick_run():
    """A function that gives the quick run of an experiment."""
    return _quick


@pytest.fixture
def compute():
    """A function that gives the results of an experiment."""
    return results_of
