"""The foundation: checks of arguments, exceptions, files, settings and caches."""

from shoal.core.caches import clear_caches
from shoal.core.exceptions import AccuracyError, ConvergenceError, ConvergenceWarning

__all__ = ["AccuracyError", "ConvergenceError", "ConvergenceWarning", "clear_caches"]
