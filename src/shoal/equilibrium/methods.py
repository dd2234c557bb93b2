"""The ways to differentiate a fixed point, as immutable values."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import final

from shoal.core.checks import integer, one_of, real
from shoal.equilibrium.solvers.base import Solver


@dataclass(frozen=True)
class Gradient:
    """How the gradient of a fixed point is computed: one of the subclasses.

    Args:
        failed: Which gradient samples have whose solve failed, in the forward or in the backward
            pass, where failures do not raise. ``"best"``: that of the iterate of least residual, of
            both equations; it is not exact, and bounded as the iterates are. ``"zero"``: none, as
            if the samples were not there. Where a cell returns NaN for a sample, gradients of
            weights are NaN, as in any network.
    """

    failed: str = field(default="best", kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        one_of("failed", self.failed, ("best", "zero"))


@final
@dataclass(frozen=True)
class Implicit(Gradient):
    r"""The exact gradient, by the implicit function theorem.

    The backward pass solves $g = v + J^\top g$ at the fixed point, by a solver of its own and to a
    tolerance of its own. Memory does not grow with the number of steps, and the gradient can be
    differentiated again.

    Args:
        solver: The method of the backward pass; that of the forward pass by default.
        rtol: Its relative tolerance; by default the solver's. There is no absolute tolerance
            unless ``solver`` has one: gradients have no natural size.
        failed: ``"best"`` or ``"zero"``, see :class:`Gradient`.

    Example:
        >>> from shoal.equilibrium import Anderson, Implicit
        >>> Implicit(Anderson(history=3), rtol=1e-4).solver.history
        3
    """

    solver: Solver | None = None
    rtol: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        if self.solver is not None and not isinstance(self.solver, Solver):
            raise TypeError(f"solver must be a Solver, such as Picard(), got {self.solver!r}")
        if self.rtol is not None:
            object.__setattr__(self, "rtol", real("rtol", self.rtol, at_least=0, below=1))

    def adjoint_solver(self, forward: Solver) -> Solver:
        """The solver of the backward pass, if that of the forward pass is given."""
        return _adjoint_solver(self, forward)


@lru_cache(maxsize=64)
def _adjoint_solver(gradient: Implicit, forward: Solver) -> Solver:
    """The solver of the backward pass; made once, as its fields are checked."""
    solver = forward if gradient.solver is None else gradient.solver
    own = None if gradient.solver is None else solver.atol
    rtol = solver.rtol if gradient.rtol is None else gradient.rtol
    return solver.with_tolerances(rtol, 0.0 if own is None else own)


@final
@dataclass(frozen=True)
class Unrolled(Gradient):
    """The gradient of the iteration itself, step by step.

    The solve is repeated with a graph, so memory grows with the number of steps. The gradient is
    that of the number which the iteration returns; as that converges to the fixed point, it
    converges to the implicit gradient. An iteration that starts near the fixed point is short, and
    its gradient is rough: after one step, the least, it is that of :class:`OneStep`. Warm starts
    are therefore not used.

    It is for ``Picard`` and ``DampedPicard``. The other solvers divide by residuals that vanish as
    they converge, which has no useful derivative. :class:`Implicit` works with every solver. Nor
    is it for ``torch.vmap``: how many steps there are depends on the values.
    """


@final
@dataclass(frozen=True)
class OneStep(Gradient):
    r"""The gradient of one last step $f(z^*)$ with $z^*$ held fixed (Jacobian-free; inexact).

    It leaves out the factor $(I - J^\top)^{-1}$ of the exact gradient. It costs no solve, and is a
    descent direction only if the map contracts strongly enough.
    """


@final
@dataclass(frozen=True)
class Neumann(Gradient):
    r"""The implicit gradient with a partial sum of its Neumann series (inexact).

    Instead of $(I - J^\top)^{-1} v$ it takes $\sum_{i=0}^{k} (J^\top)^i v$: $k$ products and no
    solve. It is off by $(J^\top)^{k+1}(I - J^\top)^{-1} v$: little where the map contracts
    strongly, and without bound where it does not. What it is off by in a case at hand,
    :meth:`shoal.Equilibrium.gradient_error` measures.

    Args:
        terms: $k$, how many terms follow the first. Zero is :class:`OneStep`.
    """

    terms: int = 5

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        object.__setattr__(self, "terms", integer("terms", self.terms, at_least=0))


@final
@dataclass(frozen=True)
class Reversible(Gradient):
    r"""The exact gradient of a damped iteration that is run backwards, in constant memory.

    Two states take turns, $y' = \beta y + (1 - \beta) f(z)$ and
    $z' = \beta z + (1 - \beta) f(y')$, instead of the solver's method, to the solver's tolerance or
    a number of steps. The backward pass computes each step's states from the next one's, and the
    gradient is that of what the forward pass returned, converged or not: as for
    :class:`Unrolled`, but without its memory. It costs four evaluations of the map and two products
    with its Jacobian per step. Rounding grows by $1/\beta$ in each step backwards; a pass
    that does not find back to its start says so. After McCallum et al. 2025.

    Args:
        damping: $\beta$, the share of the old state, above 0 and below 1.
        steps: How many steps to make; by default until all samples have converged.
        failed: ``"best"`` or ``"zero"``, see :class:`Gradient`.
    """

    damping: float = 0.5
    steps: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Check the fields."""
        super().__post_init__()
        damping = real("damping", self.damping, above=0, below=1)
        object.__setattr__(self, "damping", damping)
        if self.steps is not None:
            object.__setattr__(self, "steps", integer("steps", self.steps, at_least=1))


def exact_gradient(gradient: Gradient) -> Implicit:
    """The implicit gradient, to full accuracy, whatever the gradient that a network trains with."""
    if not isinstance(gradient, Implicit) or gradient.solver is None:
        return Implicit()
    return Implicit(gradient.solver.with_tolerances(None, None))


def check_gradient(gradient: Gradient | None) -> Gradient:
    """Return the gradient method, the implicit one by default, or say that it is none."""
    if gradient is None:
        return Implicit()
    if not isinstance(gradient, Gradient):
        raise TypeError(f"gradient must be a Gradient, such as Implicit(), got {gradient!r}")
    return gradient
