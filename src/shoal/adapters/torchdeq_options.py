"""The options of torchdeq, as values that are checked and mapped to shoal's."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from shoal.core.checks import flag, integer, items, one_of, real
from shoal.equilibrium.solvers.anderson import Anderson
from shoal.equilibrium.solvers.base import Solver
from shoal.equilibrium.solvers.broyden import Broyden
from shoal.equilibrium.solvers.picard import DampedPicard, Picard
from shoal.equilibrium.solvers.solution import check_on_failure

_SOLVERS = ("fixed_point_iter", "anderson", "broyden")
_CORES = ("sliced", "indexing")
_MODES = ("abs", "rel")


@dataclass(frozen=True)
class Options:
    """The options of torchdeq with its defaults, and ``on_failure``."""

    core: str = "sliced"
    f_solver: str | Solver = "fixed_point_iter"
    b_solver: str | Solver = "fixed_point_iter"
    no_stat: bool | None = None
    f_max_iter: int = 40
    b_max_iter: int = 40
    f_tol: float = 1e-3
    b_tol: float = 1e-6
    f_stop_mode: str = "abs"
    b_stop_mode: str = "abs"
    eval_factor: float = 1.0
    eval_f_max_iter: int = 0
    ift: bool = False
    hook_ift: bool = False
    grad: int | Sequence[int] = 1
    tau: float = 1.0
    sup_gap: int = -1
    sup_loc: Sequence[int] | None = None
    n_states: int = 1
    indexing: Sequence[int] | None = None
    on_failure: str = "warn"

    def __post_init__(self) -> None:
        """Check the fields that no other object checks."""
        one_of("core", self.core, _CORES)
        for name in ("ift", "hook_ift"):
            flag(name, getattr(self, name))
        for name in ("f_max_iter", "b_max_iter", "n_states"):
            integer(name, getattr(self, name), at_least=1)
        integer("eval_f_max_iter", self.eval_f_max_iter, at_least=0)
        real("eval_factor", self.eval_factor, above=0)
        real("tau", self.tau, above=0)
        check_on_failure(self.on_failure)
        for steps in self.phantom_steps:
            integer("grad", steps, at_least=1)
        states = len(self.slices(self.f_max_iter))
        if len(self.phantom_steps) not in (1, states):
            raise ValueError(
                f"grad must be one number or one for each state that is returned, got {self.grad}"
            )
        if states > 1 and self.core == "indexing" and self.f_solver != "fixed_point_iter":
            raise ValueError(
                "core='indexing' with several states is for f_solver='fixed_point_iter', as other "
                f"solvers would lose what they know, got {self.f_solver!r}; use core='sliced'"
            )

    @property
    def phantom_steps(self) -> tuple[int, ...]:
        """How many steps the phantom gradient follows, one number or one for each state."""
        return (self.grad,) if isinstance(self.grad, int) else items("grad", self.grad)

    @property
    def test_steps(self) -> int:
        """How many steps there are at most in evaluation mode."""
        return self.eval_f_max_iter or max(1, int(self.f_max_iter * self.eval_factor))

    def slices(self, steps: int) -> list[int]:
        """How many steps lead from each state that is returned to the next, of so many."""
        count = min(self.n_states, steps)
        if count > 1:
            rest = steps % count if self.core == "indexing" else 0
            return [steps // count + rest, *[steps // count] * (count - 1)]
        ends = [0, *items("indexing", self.indexing or ()), steps]
        return [integer("indexing", b - a, at_least=1) for a, b in itertools.pairwise(ends)]

    def samples(self, step: int, last: int) -> bool:
        """Whether the state after a step of the phantom gradient is returned."""
        if self.sup_gap > 0:
            return step % self.sup_gap == 0
        return step == last or step in (self.sup_loc or ())


def mapping_of(args: object) -> Mapping[str, Any]:
    """Options by name, of whatever holds them."""
    if args is None:
        return {}
    if isinstance(args, Mapping):
        return args
    if not hasattr(args, "__dict__"):
        raise TypeError(
            f"args must be a namespace, a dictionary or None, got {type(args).__name__}"
        )
    return vars(args)


def solver_of(
    which: str, kind: str | Solver, steps: int, tol: float, mode: str, own: dict[str, Any]
) -> Solver:
    """A method by torchdeq's name of it."""
    rtol, atol = (tol, 0.0) if one_of(f"{which}_stop_mode", mode, _MODES) == "rel" else (0.0, tol)
    solver: Solver
    if isinstance(kind, Solver):
        solver = replace(kind, max_steps=steps)
    elif kind == "simple_fixed_point_iter":
        raise ValueError(
            f"{which}_solver must look at the residual, got 'simple_fixed_point_iter'; use "
            "'fixed_point_iter', which looks at it as seldom as may be"
        )
    elif one_of(f"{which}_solver", kind, _SOLVERS) == "anderson":
        memory = max(1, integer("m", own.pop("m", 6), at_least=2) - 1)  # iterates; differences
        solver = Anderson(memory, own.pop("tau", 1.0), max_steps=steps)
    elif kind == "broyden":
        solver = Broyden(own.pop("LBFGS_thres", None) or steps, max_steps=steps)
    else:
        tau = own.pop("tau", 1.0)
        solver = Picard(max_steps=steps) if tau == 1 else DampedPicard(tau, max_steps=steps)
    if own:
        raise ValueError(
            f"solver_kwargs must be options of {kind!r}, got {next(iter(own))!r}; give one of "
            "shoal's solvers as f_solver to set all that it knows"
        )
    return solver.with_tolerances(rtol, atol)


def add_deq_args(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``get_deq`` to a program's command line."""
    known = {"f_solver": str, "b_solver": str, "grad": int, "sup_loc": int, "indexing": int}
    for field in fields(Options):
        name, default = f"--{field.name}", field.default
        described = f"of get_deq (default: {default})"
        if isinstance(default, bool) or field.name == "no_stat":
            parser.add_argument(name, action="store_true", default=default, help=described)
            continue
        several = "+" if field.name in ("grad", "sup_loc", "indexing") else None
        kind = known.get(field.name, type(default))
        parser.add_argument(name, type=kind, nargs=several, default=default, help=described)
    parser.add_argument("--norm_type", default="weight_norm", help="of apply_norm")
    parser.add_argument("--jac_loss_weight", type=float, default=0.0, help="of jac_reg, yours")
    parser.add_argument("--jac_loss_freq", type=float, default=0.0, help="of jac_reg, yours")
    parser.add_argument("--sradius_mode", action="store_true", help="estimate spectral radii")
