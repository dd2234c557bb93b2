"""The errors of shoal that are not a plain ``ValueError`` or ``TypeError``."""


class ConvergenceError(RuntimeError):
    """An iteration ended before it met its tolerance, or no solution exists.

    Attributes:
        solution: Last result of the fixed-point solver, a ``Solution``; ``None`` for errors of
            other iterations.
    """

    def __init__(self, message: str = "", *, solution: object = None) -> None:
        super().__init__(message)
        self.solution = solution


class ConvergenceWarning(RuntimeWarning):
    """A result is returned although its iteration did not meet its tolerance."""


class AccuracyError(ArithmeticError):
    """A number could not be computed to the requested tolerance."""
