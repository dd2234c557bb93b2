"""Loops as people train them: found in a model, and run for as long as they need."""

from shoal.loops.curve import Curve, Share
from shoal.loops.diagnose import diagnose
from shoal.loops.diagnosis import Diagnosis, SampleDiagnosis, Trial
from shoal.loops.equilibrium import EquilibriumReport, GradientCost, SolverCost
from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, StopRule
from shoal.loops.stopping import CalibratedRule, stop_rule

__all__ = [
    "CalibratedRule",
    "Curve",
    "Diagnosis",
    "EquilibriumReport",
    "GradientCost",
    "Loop",
    "SampleDiagnosis",
    "Share",
    "SolverCost",
    "StopRule",
    "Trial",
    "diagnose",
    "find_loop",
    "stop_rule",
]
