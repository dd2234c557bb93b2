"""Experiments that no paper has: shoal's own, on what it adds to them."""

from shoal.experiments.own.certificate import CertifiedTraining
from shoal.experiments.own.conv_width import ConvWidthError
from shoal.experiments.own.groups import GroupError
from shoal.experiments.own.predicted import PredictedTraining
from shoal.experiments.own.recovery import Recovery
from shoal.experiments.own.regression import Regression
from shoal.experiments.own.required import RequiredWidths
from shoal.experiments.own.spectrum import SpectrumError
from shoal.experiments.own.sphere import SphereError
from shoal.experiments.own.training import TrainingCurves
from shoal.experiments.own.width import WidthError

__all__ = [
    "CertifiedTraining",
    "ConvWidthError",
    "GroupError",
    "PredictedTraining",
    "Recovery",
    "Regression",
    "RequiredWidths",
    "SpectrumError",
    "SphereError",
    "TrainingCurves",
    "WidthError",
]
