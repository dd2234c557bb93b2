"""How the solve of a sample ended, what that means and what to do about it."""

from collections.abc import Collection
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
        """What to try, the most certain first."""
        return remedies(self)


_MESSAGES = {
    Status.CONVERGED: "the residual met the tolerance",
    Status.OUT_OF_STEPS: "max_steps was reached before the residual met the tolerance",
    Status.DIVERGED: "the residual or the iterate grew without bound",
    Status.NOT_FINITE: "the map returned NaN or infinity",
    Status.STAGNATED: "the residual stopped falling",
}
_BOUNDED = (
    "keep the norms of recurrent weights that are trained small, below one to be sure "
    "(GainConstraint), or the Jacobian (jacobian_penalty)"
)
_STEPS, _TOLERANCE = "more steps (max_steps)", "a larger rtol, or float64"
_SOLVERS = {  # the most able first
    "NewtonKrylov": "the solver NewtonKrylov(), which needs no contraction",
    "Broyden": "the solver Broyden()",
    "Anderson": "the solver Anderson()",
}


def remedies(status: Status, *, tried: Collection[str] | None = (), rounded: bool = False) -> str:
    """What helps, the most certain first.

    Args:
        status: How the solve ended.
        tried: The names of solvers that have failed; ``None`` if another one would not be taken.
        rounded: Whether the residual is not far above the rounding of its dtype.
    """
    if status == Status.CONVERGED:
        return "nothing to do"
    if status == Status.NOT_FINITE:
        return "check the inputs and the weights for NaN, infinity and overflow"
    names = [] if tried is None else [name for name in _SOLVERS if name not in tried]
    others = [_SOLVERS[name] for name in names[:1]]
    if status == Status.DIVERGED:
        several = [_BOUNDED, *others]
    elif status == Status.OUT_OF_STEPS:
        several = [_STEPS, *others, _BOUNDED, _TOLERANCE]
    else:
        several = [_TOLERANCE, *others] if rounded else [_BOUNDED, *others, _TOLERANCE]
    return "; ".join(f"({number}) {text}" for number, text in enumerate(several, 1))
