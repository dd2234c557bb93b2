"""The errors of shoal that are not a plain ``ValueError`` or ``TypeError``."""

__all__ = ["AccuracyError", "ConvergenceError"]


class ConvergenceError(RuntimeError):
    """An iteration ended before it met its tolerance, or cannot meet it."""


class AccuracyError(ArithmeticError):
    """A number could not be computed to the tolerance that was asked for."""
