"""What the tests of experiments share."""

import pytest
import torch

from experiments.experiment import Experiment, Result, computed


@pytest.fixture
def compute():
    """A function that returns the results of all points, with the seeds that a run gives them."""

    def results_of(experiment: Experiment) -> list[Result]:
        cpu = torch.device("cpu")
        return [Result(p, computed(experiment, p, cpu)) for p in experiment.points()]

    return results_of
