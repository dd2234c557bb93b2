"""Experiments: frozen configurations whose runs can be interrupted, resumed and repeated."""

from shoal.experiments.experiment import Arrays, Experiment, Point, Result
import shoal.experiments.ling2024  # noqa: F401  registers its experiments
from shoal.experiments.registry import find, register, registered
from shoal.experiments.runner import Progress, Run, execute, results, run
from shoal.experiments.spectrum import SpectrumError
from shoal.experiments.width import WidthError

__all__ = [
    "Arrays",
    "Experiment",
    "Point",
    "Progress",
    "Result",
    "Run",
    "SpectrumError",
    "WidthError",
    "execute",
    "find",
    "register",
    "registered",
    "results",
    "run",
]
