"""Loops as people train them: found in a model, stopped when decided, and replaced."""

from shoal.loops.distill import distill
from shoal.loops.distillation import Distillation
from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, StopRule
from shoal.loops.stopping import CalibratedRule, stop_rule

__all__ = [
    "CalibratedRule",
    "Distillation",
    "Loop",
    "StopRule",
    "distill",
    "find_loop",
    "stop_rule",
]
