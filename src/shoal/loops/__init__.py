"""Loops as people train them: found in a model, stopped when decided, and replaced."""

from shoal.loops.curve import Curve, Share
from shoal.loops.diagnose import LoopMeasures, diagnose
from shoal.loops.diagnosis import Diagnosis, SampleDiagnosis, Trial
from shoal.loops.distill import distill
from shoal.loops.distillation import Distillation
from shoal.loops.equilibrium import EquilibriumReport, GradientCost, SolverCost
from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, StopRule
from shoal.loops.stopping import CalibratedRule, stop_rule

__all__ = [
    "CalibratedRule",
    "Curve",
    "Diagnosis",
    "Distillation",
    "EquilibriumReport",
    "GradientCost",
    "Loop",
    "LoopMeasures",
    "SampleDiagnosis",
    "Share",
    "SolverCost",
    "StopRule",
    "Trial",
    "diagnose",
    "distill",
    "find_loop",
    "stop_rule",
]
