"""Loops as people train them: found in a model, and run for as long as they need."""

from shoal.loops.find import find_loop
from shoal.loops.loop import Loop, StopRule
from shoal.loops.stopping import CalibratedRule, stop_rule

__all__ = ["CalibratedRule", "Loop", "StopRule", "find_loop", "stop_rule"]
