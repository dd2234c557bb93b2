"""Fixed-point solvers: one small immutable object per method, one driver that owns the loop."""

from shoal.solvers.anderson import Anderson
from shoal.solvers.base import Solver
from shoal.solvers.broyden import Broyden
from shoal.solvers.newton_krylov import NewtonKrylov
from shoal.solvers.picard import DampedPicard, Picard
from shoal.solvers.solution import Solution
from shoal.solvers.solve import solve
from shoal.solvers.status import Status

__all__ = [
    "Anderson",
    "Broyden",
    "DampedPicard",
    "NewtonKrylov",
    "Picard",
    "Solution",
    "Solver",
    "Status",
    "solve",
]
