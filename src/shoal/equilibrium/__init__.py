"""Equilibria of any map: solvers, one driver that owns their loop, and gradients of the result."""

from shoal.equilibrium.anderson import Anderson
from shoal.equilibrium.broyden import Broyden
from shoal.equilibrium.fixed_point import fixed_point, solve
from shoal.equilibrium.gradients import Gradient, Implicit, Neumann, OneStep, Unrolled
from shoal.equilibrium.module import Equilibrium, GradientError
from shoal.equilibrium.newton_krylov import NewtonKrylov
from shoal.equilibrium.penalty import jacobian_penalty, subhomogeneity
from shoal.equilibrium.prepared_cell import PreparedCell
from shoal.equilibrium.reversible import Reversible
from shoal.equilibrium.solution import Solution, Status
from shoal.equilibrium.solver import DampedPicard, Picard, Solver

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
