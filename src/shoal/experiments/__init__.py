"""Experiments: frozen configurations whose runs can be interrupted, resumed and repeated."""

from shoal.experiments import du2018, gao2022, ling2023, ling2024
from shoal.experiments.collecting import collect
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.own import (
    CertifiedTraining,
    ConvWidthError,
    GroupError,
    PredictedTraining,
    Recovery,
    Regression,
    RequiredWidths,
    SpectrumError,
    SphereError,
    TrainingCurves,
    WidthError,
)
from shoal.experiments.registry import find, register, registered
from shoal.experiments.runner import Progress, Run, execute, results, run

__all__ = [
    "Arrays",
    "CertifiedTraining",
    "ConvWidthError",
    "Experiment",
    "GroupError",
    "Point",
    "PredictedTraining",
    "Progress",
    "Recovery",
    "Regression",
    "RequiredWidths",
    "Result",
    "Run",
    "SpectrumError",
    "SphereError",
    "TrainingCurves",
    "WidthError",
    "collect",
    "du2018",
    "execute",
    "find",
    "gao2022",
    "ling2023",
    "ling2024",
    "register",
    "registered",
    "results",
    "run",
]
