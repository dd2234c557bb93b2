"""What everything stands on: checks of arguments, exceptions, files, settings and caches."""

from shoal.core import interrupts as _interrupts  # noqa: F401, before all that takes time

# isort: split
from shoal.core.caches import clear_caches
from shoal.core.exceptions import AccuracyError, ConvergenceError, ConvergenceWarning

__all__ = ["AccuracyError", "ConvergenceError", "ConvergenceWarning", "clear_caches"]
