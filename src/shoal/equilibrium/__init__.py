"""Equilibria of any map: solvers, one driver that owns their loop, and gradients of the result."""

from shoal.equilibrium.anderson import Anderson
from shoal.equilibrium.base import Solver
from shoal.equilibrium.broyden import Broyden
from shoal.equilibrium.fixed_point import fixed_point
from shoal.equilibrium.methods import Gradient, Implicit, Neumann, OneStep, Reversible, Unrolled
from shoal.equilibrium.module import Equilibrium, GradientError
from shoal.equilibrium.newton_krylov import NewtonKrylov
from shoal.equilibrium.penalty import jacobian_penalty
from shoal.equilibrium.picard import DampedPicard, Picard
from shoal.equilibrium.solution import Solution
from shoal.equilibrium.solve import solve
from shoal.equilibrium.status import Status
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
