"""Experiments: frozen configurations whose runs can be interrupted, resumed and repeated."""

from shoal.experiments import du2018, gao2022, ling2023, ling2024
from shoal.experiments.certificate import CertifiedTraining
from shoal.experiments.collecting import collect
from shoal.experiments.conv_width import ConvWidthError
from shoal.experiments.experiment import Arrays, Experiment, Point, Result
from shoal.experiments.groups import GroupError
from shoal.experiments.predicted import PredictedTraining
from shoal.experiments.recovery import Recovery
from shoal.experiments.registry import find, register, registered
from shoal.experiments.regression import Regression
from shoal.experiments.required import RequiredWidths
from shoal.experiments.runner import Progress, Run, execute, results, run
from shoal.experiments.spectrum import SpectrumError
from shoal.experiments.sphere import SphereError
from shoal.experiments.training import TrainingCurves
from shoal.experiments.width import WidthError

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
