"""The interface of torchdeq on shoal's equilibria: existing code switches by its import.

torchdeq itself is not needed. What it offers and this does not is refused, with a word on what to
use instead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from shoal.adapters.torchdeq_norms import (
    apply_norm,
    jac_reg,
    remove_norm,
    reset_deq,
    reset_norm,
)
from shoal.adapters.torchdeq_options import Options, add_deq_args, mapping_of, solver_of
from shoal.core.torch_compat import pytree, uncompiled
from shoal.equilibrium.gradients import Implicit
from shoal.equilibrium.module import Equilibrium
from shoal.equilibrium.problem import FunctionProblem
from shoal.equilibrium.solution import Solution, SolveLog
from shoal.equilibrium.solver import Solver
from shoal.equilibrium.state import State

__all__ = [
    "DEQ",
    "SolverInfo",
    "add_deq_args",
    "apply_norm",
    "get_deq",
    "jac_reg",
    "remove_norm",
    "reset_deq",
    "reset_norm",
]

_POWER_STEPS = 100
_INSTEAD = {
    "mem_gc": "torch.utils.checkpoint.checkpoint(f, *inputs, use_reentrant=False)",
    "register_deq": "shoal.Equilibrium, which takes any cell, solver and gradient",
    "register_solver": "one of shoal's solvers as f_solver, such as shoal.NewtonKrylov()",
    "get_solver": "shoal.equilibrium.solve(f, z0, solver=...)",
    "register_norm": "torch.nn.utils.parametrize.register_parametrization",
    "register_norm_module": "torch.nn.utils.parametrize.register_parametrization",
    "power_method": "deq(f, z, sradius_mode=True) in evaluation mode",
    "fp_correction": "a weighted sum of your loss over the states that deq returns",
    "register_weight_func": "a weighted sum of your loss over the states that deq returns",
    "solver_stat_from_final_step": "the second result of deq, which has the residual of its state",
    "mixed_init": "a start of your own, z0",
    "reset_dropout": "nothing: random numbers of a cell are drawn once for each solve",
    **dict.fromkeys(
        ("core", "dropout", "grad", "loss", "norm", "solver", "utils"),
        "its functions, which are in shoal.adapters.torchdeq itself",
    ),
}


def __getattr__(name: str) -> NoReturn:
    if name in _INSTEAD or name.startswith("Variational"):
        instead = _INSTEAD.get(name, "torch.nn.Dropout: its mask is drawn once for each solve")
        raise ImportError(f"shoal.adapters.torchdeq has no {name}; use {instead}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class SolverInfo(dict[str, Tensor]):
    """How the last solve of a call went, per sample.

    Its keys are ``"abs_lowest"`` and ``"rel_lowest"``, the residual of the state and its ratio to
    the state's norm; ``"nstep"``; in evaluation mode ``"sradius"``; and ``"status"``, a
    :class:`shoal.equilibrium.Status` each.
    """

    def __missing__(self, key: str) -> NoReturn:
        if key in ("abs_trace", "rel_trace"):
            raise KeyError(
                f"{key} is not recorded: residuals are looked at as seldom as may be; "
                "'abs_lowest' and 'rel_lowest' are those of the result"
            )
        raise KeyError(key)


class DEQ(nn.Module):
    """What ``get_deq`` returns: called with a function and a start, it returns equilibria.

    Attributes:
        options: The options.
        log: The last solve of each pass, and the failures of all of them.
    """

    def __init__(self, options: Options) -> None:
        super().__init__()
        self.options, self.log = options, SolveLog(once=True)
        o = options
        self._adjoint = solver_of("b", o.b_solver, o.b_max_iter, o.b_tol, o.b_stop_mode, {})
        self._solver_with({}, o.f_max_iter)  # to see that it can be made

    @uncompiled
    def forward(
        self,
        func: Callable[..., State],
        z_init: State,
        solver_kwargs: Mapping[str, Any] | None = None,
        sradius_mode: bool = False,
        backward_writer: None = None,
    ) -> tuple[list[State], SolverInfo]:
        """The equilibrium of a function.

        Args:
            func: Called with the state, or with its tensors if there are several; returns the same.
            z_init: Where to start: a tensor, or a list or tuple of tensors.
            solver_kwargs: Options of this call: ``f_max_iter``, ``tau`` (damping), ``m`` (memory
                of ``"anderson"``), ``LBFGS_thres`` (of ``"broyden"``).
            sradius_mode: Whether to estimate the spectral radius of the Jacobian, in evaluation
                mode.
            backward_writer: Refused: ``log.backward`` has what it would be told.

        Returns:
            States with gradients, the last of which is the equilibrium, and how the solve went. In
            evaluation mode there is one state, without a gradient.
        """
        if backward_writer is not None:
            raise ValueError(
                "backward_writer must be None, got a function; after a backward pass "
                "deq.log.backward has the statistics, one entry per sample"
            )
        own = dict(solver_kwargs or {})
        cell: Callable[..., State] = func
        if isinstance(z_init, list | tuple):
            z_init, cell = list(z_init), _Several(func)
        if self.training:
            return self._train(cell, z_init, own)
        steps = own.pop("f_max_iter", self.options.test_steps)
        with torch.no_grad():
            problem, found = self._solve(cell, z_init, self._solver_with(own, steps))
        state = problem.layout.state(found.value)
        info = _info(found)
        if sradius_mode:
            info["sradius"] = _spectral_radius(problem, found.value)
        return [state], info

    def _train(
        self, cell: Callable[..., State], z: State, own: dict[str, Any]
    ) -> tuple[list[State], SolverInfo]:
        options = self.options
        slices = options.slices(own.pop("f_max_iter", options.f_max_iter))
        counts = options.phantom_steps * (len(slices) // len(options.phantom_steps))
        states: list[State] = []
        found: Solution | None = None
        for index, (steps, count) in enumerate(zip(slices, counts, strict=True)):
            last = index == len(slices) - 1
            solver = self._solver_with(dict(own), steps)
            if last and (options.ift or options.hook_ift):
                layer = self._layer(cell, solver)
                states.append(layer(z))
                found = layer.solution
                break
            problem, found = self._solve(cell, z, solver, silent=not last)
            several = self._phantom(problem, found.value, count)
            states += several
            z = several[-1] if options.core == "sliced" else problem.layout.state(found.value)
            z = pytree.tree_map(Tensor.detach, z)
        assert found is not None
        return states, _info(found)

    def _phantom(self, problem: FunctionProblem, rows: Tensor, count: int) -> list[State]:
        """The states after steps from the solution, damped, that autograd follows."""
        states = []
        for step in range(1, count + 1):
            value = problem.evaluate(rows)
            rows = value if self.options.tau == 1 else rows.lerp(value, self.options.tau)
            if self.options.samples(step, count):
                states.append(problem.layout.state(rows))
        return states

    def _solve(
        self, cell: Callable[..., State], z: State, solver: Solver, *, silent: bool = False
    ) -> tuple[FunctionProblem, Solution]:
        """Solve without a gradient."""
        layer = self._layer(cell, solver)
        if silent:  # a state on the way, of which nobody expects that it has converged
            layer.options = replace(layer.options, on_failure="status", log=SolveLog())
        problem, start = layer.problem(z)
        with torch.no_grad():
            return problem, layer.options.solve_forward(problem, start).solution

    def _layer(self, cell: Callable[..., State], solver: Solver) -> Equilibrium:
        on_failure = self.options.on_failure
        gradient = Implicit(self._adjoint)
        layer = Equilibrium(cell, solver=solver, gradient=gradient, on_failure=on_failure)
        layer.options = replace(layer.options, log=self.log)
        return layer

    def _solver_with(self, own: dict[str, Any], steps: int) -> Solver:
        """The method of the forward pass, with what a call says of it."""
        o = self.options
        return solver_of("f", o.f_solver, steps, o.f_tol, o.f_stop_mode, own)


class _Several:
    """A function of several tensors as one of their list."""

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function

    def __call__(self, z: list[Tensor]) -> list[Tensor]:
        return list(self.function(*z))


def get_deq(args: object = None, **options: Any) -> DEQ:
    """A module that finds equilibria, with the options of torchdeq's function of that name.

    The gradient is the phantom gradient of ``grad`` steps with damping ``tau``, or the exact one
    with ``ift=True``. Samples that do not converge are reported, as ``on_failure`` says.

    Args:
        args: Options as attributes or in a dictionary; what else is in it is the caller's own.
        options: Options by name, before those of ``args``; ``on_failure`` is ``"warn"``,
            ``"raise"`` or ``"status"``, as in :class:`shoal.Equilibrium`.

    Example:
        >>> import torch
        >>> from shoal.adapters.torchdeq import get_deq
        >>> deq = get_deq(f_solver="anderson", f_tol=1e-8, ift=True)
        >>> x = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
        >>> states, info = deq(lambda z: z / 2 + x, torch.zeros_like(x))
        >>> states[-1].sum().backward()
        >>> [round(float(t), 4) for t in (states[-1][0].detach(), x.grad[0], info["status"][0])]
        [2.0, 2.0, 0.0]
    """
    names = {field.name for field in fields(Options)}
    unknown = sorted(set(options) - names)
    if unknown:
        raise TypeError(f"get_deq has no option {unknown[0]!r}; it has {', '.join(sorted(names))}")
    chosen = {name: value for name, value in mapping_of(args).items() if name in names}
    return DEQ(Options(**{**chosen, **options}))


def _info(found: Solution) -> SolverInfo:
    leaves: list[Tensor] = pytree.tree_leaves(found.value)
    norms = [leaf.detach().reshape(len(leaf), -1).norm(dim=1) for leaf in leaves]
    size = torch.stack(norms).norm(dim=0)
    relative = found.residual / size.clamp_min(torch.finfo(size.dtype).tiny)
    return SolverInfo(
        abs_lowest=found.residual, rel_lowest=relative, nstep=found.steps, status=found.status
    )


def _spectral_radius(problem: FunctionProblem, z: Tensor) -> Tensor:
    """The growth of a random vector under products with the Jacobian, in the second half."""
    near = problem.linearize(z.detach())
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    logs = []
    with torch.no_grad():
        for _ in range(_POWER_STEPS):
            vector = near.pull(vector)
            size = vector.norm(dim=1, keepdim=True).clamp_min(torch.finfo(z.dtype).tiny)
            vector = vector / size
            logs.append(size[:, 0].log())
    return torch.stack(logs[_POWER_STEPS // 2 :]).mean(0).exp()
