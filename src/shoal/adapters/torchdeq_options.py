"""The options of torchdeq, as values that are checked and mapped to shoal's."""

import argparse
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from shoal.core.checks import flag, integer, items, one_of, real
from shoal.equilibrium.anderson import Anderson
from shoal.equilibrium.broyden import Broyden
from shoal.equilibrium.solution import check_on_failure
from shoal.equilibrium.solver import DampedPicard, Picard, Solver

_SOLVERS = ("fixed_point_iter", "anderson", "broyden")
_CORES = ("sliced", "indexing")
_MODES = ("abs", "rel")
# options of single solvers that must have torchdeq's default
_FIXED = {"lam": 1e-4, "ls": False, "return_final": False}
# options that are lists on a command line: their defaults there
_SEVERAL: dict[str, list[int]] = {"grad": [1], "sup_loc": [], "indexing": []}
# options on a command line that get_deq does not read: their defaults, and who reads them
_OF_OTHERS: dict[str, tuple[Any, str]] = {
    "norm_type": ("weight_norm", "of apply_norm"),
    "norm_no_scale": (False, "of apply_norm, which refuses it"),
    "norm_clip": (False, "of apply_norm, which refuses it"),
    "norm_clip_value": (1.0, "of apply_norm, which refuses others"),
    "norm_target_norm": (1.0, "of apply_norm, which refuses others"),
    "sn_n_power_iters": (1, "of apply_norm, which refuses others"),
    "gamma": (0.8, "read by the program alone: weights of losses of several states"),
    "jac_loss_weight": (0.0, "read by the program alone: the weight of jac_reg"),
    "jac_loss_freq": (0.0, "read by the program alone: how often jac_reg is added"),
    "jac_incremental": (0, "read by the program alone: when jac_loss_weight grows"),
    "sradius_mode": (False, "of deq(f, z), if the program passes it on"),
}


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
        parts = [b - a for a, b in itertools.pairwise(ends)]
        if min(parts) < 1:
            raise ValueError(
                f"indexing must be rising numbers of steps below f_max_iter = {steps}, got "
                f"{list(self.indexing or ())}"
            )
        return parts

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
        solver = Picard(max_steps=steps) if tau == 1 else DampedPicard(1 - tau, max_steps=steps)
    for name, value in own.items():
        known = name in _FIXED
        if known and value == _FIXED[name]:
            continue
        expected = f"have {name}={_FIXED[name]!r}" if known else f"be options of {kind!r}"
        raise ValueError(
            f"solver_kwargs must {expected}, got {name}={value!r}; give one of shoal's solvers as "
            "f_solver to set all that it knows"
        )
    return solver.with_tolerances(rtol, atol)


def add_deq_args(parser: argparse.ArgumentParser) -> None:
    """Add torchdeq's options to a program's command line, with its defaults.

    ``no_stat`` and ``on_failure`` of ``get_deq`` are added too.

    Args:
        parser: The program's own parser.
    """
    for field in fields(Options):
        _add(parser, field.name, _SEVERAL.get(field.name, field.default), "of get_deq")
    for name, (default, reader) in _OF_OTHERS.items():
        _add(parser, name, default, reader)


def _add(parser: argparse.ArgumentParser, name: str, default: Any, reader: str) -> None:
    described = f"{reader} (default: {default})"
    if default is None or isinstance(default, bool):
        parser.add_argument(f"--{name}", action="store_true", default=default, help=described)
    elif isinstance(default, list):
        parser.add_argument(f"--{name}", type=int, nargs="+", default=default, help=described)
    else:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=described)
