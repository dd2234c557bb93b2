"""Results of experiments without a run: no files, no figure."""

import torch

from shoal.lab import Experiment, Result
from shoal.lab.experiment import as_arrays, seed_of

CPU = torch.device("cpu")


def compute(experiment: Experiment) -> list[Result]:
    """The results of all points, with the seeds that a run would give them."""
    return [
        Result(p, as_arrays(experiment.compute(p, seed=seed_of(experiment, p), device=CPU)))
        for p in experiment.points()
    ]
