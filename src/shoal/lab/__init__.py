"""Experiments: frozen configurations whose runs can be interrupted, resumed and repeated."""

from shoal.lab.claims import Claim, Criterion
from shoal.lab.experiment import Arrays, Experiment, Point, Result, grid, matching
from shoal.lab.records import collect
from shoal.lab.registry import find, register, registered
from shoal.lab.runner import Progress, Run, execute, results, run

__all__ = [
    "Arrays",
    "Claim",
    "Criterion",
    "Experiment",
    "Point",
    "Progress",
    "Result",
    "Run",
    "collect",
    "execute",
    "find",
    "grid",
    "matching",
    "register",
    "registered",
    "results",
    "run",
]
