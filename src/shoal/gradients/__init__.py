"""Gradients of fixed points: implicit (exact), unrolled, and of one step."""

from shoal.gradients.function import fixed_point
from shoal.gradients.methods import Gradient, Implicit, OneStep, Unrolled

__all__ = ["Gradient", "Implicit", "OneStep", "Unrolled", "fixed_point"]
