"""Shallow replacements of trained deep equilibrium models, chosen by measurement."""

from shoal.distillation.cut_loop import CutLoop
from shoal.distillation.distill import distill
from shoal.distillation.measures import Measured, Scores
from shoal.distillation.result import Distillation

__all__ = ["CutLoop", "Distillation", "Measured", "Scores", "distill"]
