"""Equilibria of any map: solvers, one driver that owns their loop, and gradients of the result."""

from shoal.equilibrium.fixed_point import fixed_point
from shoal.equilibrium.methods import Gradient, Implicit, Neumann, OneStep, Reversible, Unrolled
from shoal.equilibrium.module import Equilibrium, GradientError
from shoal.equilibrium.penalty import jacobian_penalty
from shoal.equilibrium.prepared_cell import PreparedCell
from shoal.equilibrium.solvers.anderson import Anderson
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.broyden import Broyden
from shoal.equilibrium.solvers.newton_krylov import NewtonKrylov
from shoal.equilibrium.solvers.picard import DampedPicard, Picard
from shoal.equilibrium.solvers.solution import Solution
from shoal.equilibrium.solvers.solve import solve
from shoal.equilibrium.solvers.status import Status
from shoal.equilibrium.subhomogeneity import subhomogeneity

__all__ = [
    "Anderson",
    "Broyden",
    "DampedPicard",
    "Equilibrium",
    "Gradient",
    "GradientError",
    "Implicit",
    "Neumann",
    "NewtonKrylov",
    "OneStep",
    "Picard",
    "PreparedCell",
    "Reversible",
    "Solution",
    "Solver",
    "Status",
    "Unrolled",
    "fixed_point",
    "jacobian_penalty",
    "solve",
    "subhomogeneity",
]
