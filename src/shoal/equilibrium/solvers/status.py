"""How the solve of a sample ended, what that means and what to do about it."""

from enum import IntEnum

RUNNING = -1  # the code of a sample that has not ended yet


class Status(IntEnum):
    """How the solve of one sample ended.

    Example:
        >>> from shoal.equilibrium import Status
        >>> Status.STAGNATED.message
        'the residual stopped falling'
    """

    CONVERGED = 0
    OUT_OF_STEPS = 1
    DIVERGED = 2
    NOT_FINITE = 3
    STAGNATED = 4

    @property
    def message(self) -> str:
        """What happened."""
        return _MESSAGES[self]

    @property
    def remedy(self) -> str:
        """What to try."""
        return _REMEDIES[self]


_MESSAGES = {
    Status.CONVERGED: "the residual met the tolerance",
    Status.OUT_OF_STEPS: "max_steps was reached before the residual met the tolerance",
    Status.DIVERGED: "the residual or the iterate grew without bound",
    Status.NOT_FINITE: "the map returned NaN or infinity",
    Status.STAGNATED: "the residual stopped falling",
}
_REMEDIES = {
    Status.CONVERGED: "nothing to do",
    Status.OUT_OF_STEPS: "raise max_steps or rtol; where the map contracts slowly, Anderson and "
    "NewtonKrylov need the fewest steps",
    Status.DIVERGED: "the map expands or has no fixed point: try Anderson or NewtonKrylov, and "
    "keep the recurrent weights small while they are trained (GainConstraint, jacobian_penalty)",
    Status.NOT_FINITE: "check the inputs and the weights for NaN, infinity and overflow",
    Status.STAGNATED: "the iteration cycles, or rtol is below what the dtype can resolve: use "
    "Anderson, NewtonKrylov or DampedPicard, a larger rtol, or float64; recurrent weights that "
    "have grown in training are kept small by GainConstraint or jacobian_penalty",
}
