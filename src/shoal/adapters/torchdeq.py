"""The interface of torchdeq on shoal's equilibria: existing code switches by its import.

torchdeq itself is not needed. An option is supported, or must equal torchdeq's default.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from shoal.core.checks import integer, one_of, real
from shoal.core.torch_compat import uncompiled
from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    Equilibrium,
    Implicit,
    Picard,
    Solver,
)

__all__ = [
    "DEQ",
    "add_deq_args",
    "apply_norm",
    "get_deq",
    "jac_reg",
    "remove_norm",
    "reset_deq",
    "reset_norm",
]

State = Tensor | list[Tensor]

# torchdeq's options with their defaults: those of "get_deq" are supported, those of "flags" belong
# to the calling program, and all others must equal their defaults
_OPTIONS: dict[str, dict[str, Any]] = {
    "get_deq": {
        "f_solver": "fixed_point_iter",
        "b_solver": "fixed_point_iter",
        "f_max_iter": 40,
        "b_max_iter": 40,
        "f_tol": 1e-3,
        "b_tol": 1e-6,
        "f_stop_mode": "abs",
        "b_stop_mode": "abs",
        "eval_factor": 1.0,
        "eval_f_max_iter": 0,
        "ift": False,
        "hook_ift": False,
        "grad": 1,
        "tau": 1.0,
        "on_failure": "warn",  # shoal's
    },
    "states": {
        "core": "sliced",
        "n_states": 1,
        "indexing": [],
        "sup_gap": -1,
        "sup_loc": [],
        "no_stat": None,
    },
    "norms": {
        "norm_no_scale": False,
        "norm_target_norm": 1.0,
        "norm_clip": False,
        "norm_clip_value": 1.0,
        "sn_n_power_iters": 1,
    },
    "solver_kwargs": {"lam": 1e-4, "ls": False, "return_final": False},
    "call": {"sradius_mode": False, "backward_writer": None},
    "flags": {
        "norm_type": "weight_norm",
        "gamma": 0.8,
        "jac_loss_weight": 0.0,
        "jac_loss_freq": 0.0,
        "jac_incremental": 0,
        "sradius_mode": False,
    },
}
_LINEAR = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _check_defaults(kind: str, options: Mapping[str, Any]) -> None:
    """Refuse unsupported options at other values than torchdeq's defaults."""
    for name, default in _OPTIONS[kind].items():
        value = options.get(name, default)
        if value != default and (value or default):  # None for an empty list
            raise ValueError(
                f"{name} must be {default!r}, torchdeq's default, got {value!r}: "
                "docs/coming-from-torchdeq.md has shoal's equivalents"
            )


class DEQ(nn.Module):
    """The module that ``get_deq`` returns: called with a function and a start, it solves.

    Attributes:
        options: The options.
        log: The last solve of each pass, and the failures of all of them.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.options = options
        self.log = Equilibrium(torch.tanh, on_failure=options.on_failure).log
        self._layer(torch.tanh, {})  # refuses bad options

    @uncompiled
    def forward(
        self,
        func: Callable[..., Any],
        z_init: Tensor | Sequence[Tensor],
        solver_kwargs: Mapping[str, Any] | None = None,
        sradius_mode: bool = False,
        backward_writer: None = None,
    ) -> tuple[list[State], dict[str, Tensor]]:
        """The equilibrium of a function.

        Args:
            func: Called with the state, or with its tensors if there are several; returns the same.
            z_init: The start: a tensor, or a list or tuple of tensors.
            solver_kwargs: Options of this call: ``f_max_iter``, ``tau`` (damping), ``m`` (memory
                of ``"anderson"``), ``LBFGS_thres`` (of ``"broyden"``).
            sradius_mode: Not supported: ``shoal.diagnose`` estimates spectral radii.
            backward_writer: Not supported: ``log.backward`` has the statistics.

        Returns:
            A list with the equilibrium, which has no gradient in evaluation mode, and statistics of
            each sample: ``"abs_lowest"`` and ``"rel_lowest"``, the residual of the state and its
            ratio to the state's norm; ``"nstep"``; and ``"status"``, a
            :class:`shoal.equilibrium.Status`.
        """
        _check_defaults("call", {"sradius_mode": sradius_mode, "backward_writer": backward_writer})
        single = isinstance(z_init, Tensor)
        cell = func if single else lambda z: list(func(*z))
        layer, options = self._layer(cell, dict(solver_kwargs or {})), self.options
        exact = self.training and (options.ift or options.hook_ift)
        with torch.set_grad_enabled(exact and torch.is_grad_enabled()):
            state: State = layer(z_init if single else list(z_init))
        for _ in range(options.grad if self.training and not exact else 0):
            value: Any = cell(state)
            if isinstance(state, list):
                state = [a.lerp(b, options.tau) for a, b in zip(state, value, strict=True)]
            else:
                state = state.lerp(value, options.tau)
        solution = layer.solution
        assert solution is not None
        leaves = solution.value if isinstance(solution.value, list) else [solution.value]
        norm = torch.cat([leaf.reshape(len(leaf), -1) for leaf in leaves], 1).norm(dim=1)
        relative = solution.residual / norm.clamp_min(torch.finfo(norm.dtype).tiny)
        return [state], {
            "abs_lowest": solution.residual,
            "rel_lowest": relative,
            "nstep": solution.steps,
            "status": solution.status,
        }

    def _layer(self, cell: Callable[..., Any], solver_kwargs: dict[str, Any]) -> Equilibrium:
        o, steps = self.options, self.options.f_max_iter
        if not self.training:
            steps = o.eval_f_max_iter or max(1, int(steps * o.eval_factor))
        steps = solver_kwargs.pop("f_max_iter", steps)
        solver = _solver("f", o, steps, solver_kwargs)
        gradient = Implicit(_solver("b", o, o.b_max_iter, {}))
        layer = Equilibrium(cell, solver=solver, gradient=gradient, on_failure=o.on_failure)
        layer.options = replace(layer.options, log=self.log)
        return layer


def _solver(which: str, o: argparse.Namespace, steps: int, options: Mapping[str, Any]) -> Solver:
    """The method of the forward (``"f"``) or the backward pass, with options of a call."""
    kind, tol, mode = (getattr(o, f"{which}_{name}") for name in ("solver", "tol", "stop_mode"))
    one_of(f"{which}_stop_mode", mode, ("abs", "rel"))
    _check_defaults("solver_kwargs", options)
    remaining = {name: v for name, v in options.items() if name not in _OPTIONS["solver_kwargs"]}
    solver: Solver
    if isinstance(kind, Solver):
        solver = replace(kind, max_steps=steps)
    elif kind == "anderson":
        history = max(1, integer("m", remaining.pop("m", 6), at_least=2) - 1)  # differences
        solver = Anderson(history, remaining.pop("tau", 1.0), max_steps=steps)
    elif kind == "broyden":
        solver = Broyden(remaining.pop("LBFGS_thres", None) or steps, max_steps=steps)
    else:
        one_of(f"{which}_solver", kind, ("fixed_point_iter", "anderson", "broyden"))
        tau = remaining.pop("tau", 1.0)
        solver = Picard(max_steps=steps) if tau == 1 else DampedPicard(1 - tau, max_steps=steps)
    if remaining:
        raise ValueError(f"solver_kwargs must be options of {kind!r}, got {sorted(remaining)}")
    return solver.with_tolerances(*((tol, 0.0) if mode == "rel" else (0.0, tol)))


def get_deq(args: object = None, **options: Any) -> DEQ:
    """A module that finds equilibria, with the options of torchdeq's function of that name.

    The gradient is the phantom gradient of ``grad`` steps with damping ``tau``, or the exact one
    with ``ift=True``. Samples that do not converge are reported, as ``on_failure`` says.

    Args:
        args: Options as attributes or in a dictionary; other entries are ignored.
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
    names = sorted([*_OPTIONS["get_deq"], *_OPTIONS["states"]])
    if unknown := sorted(set(options) - set(names)):
        raise TypeError(f"get_deq has no option {unknown[0]!r}; it has {', '.join(names)}")
    chosen = {**_mapping(args), **options}
    _check_defaults("states", chosen)
    o = argparse.Namespace(**{n: chosen.get(n, v) for n, v in _OPTIONS["get_deq"].items()})
    if isinstance(o.grad, list) and len(o.grad) == 1:
        (o.grad,) = o.grad
    integer("grad", o.grad, at_least=1)
    for name in ("eval_factor", "tau"):
        real(name, getattr(o, name), above=0)
    return DEQ(o)


def _mapping(args: object) -> Mapping[str, Any]:
    """Options by name, of a dictionary or a namespace."""
    if args is not None and not isinstance(args, Mapping) and not hasattr(args, "__dict__"):
        kind = type(args).__name__
        raise TypeError(f"args must be a namespace, a dictionary or None, got {kind}")
    return args if isinstance(args, Mapping) else {} if args is None else vars(args)


def add_deq_args(parser: argparse.ArgumentParser) -> None:
    """Add torchdeq's options to a program's command line, with its defaults."""
    for kind in ("get_deq", "states", "norms", "flags"):
        for name, default in _OPTIONS[kind].items():
            if default is None or isinstance(default, bool):
                parser.add_argument(f"--{name}", action="store_true")
            elif isinstance(default, list) or name == "grad":
                start = default if isinstance(default, list) else [default]
                parser.add_argument(f"--{name}", type=int, nargs="+", default=start)
            else:
                parser.add_argument(f"--{name}", type=type(default), default=default)


def apply_norm(
    model: nn.Module,
    norm_type: str = "weight_norm",
    prefix_filter_out: str | Sequence[str] = (),
    filter_out: str | Sequence[str] = (),
    args: object = None,
) -> None:
    """Give linear and convolutional layers weight normalization with a learned scale, PyTorch's.

    Args:
        model: The model.
        norm_type: ``"weight_norm"`` or ``"none"``.
        prefix_filter_out: Layers whose names begin so are left out.
        filter_out: Layers whose names contain this are left out.
        args: May have ``norm_type``, instead of the argument, and torchdeq's other options of
            norms at their defaults.
    """
    options = _mapping(args)
    norm_type = options.get("norm_type", norm_type)
    if one_of("norm_type", norm_type, ("weight_norm", "none")) == "none":
        return
    _check_defaults("norms", options)
    starts, parts = (
        (names,) if isinstance(names, str) else tuple(names or ())
        for names in (prefix_filter_out, filter_out)
    )
    for name, module in list(model.named_modules()):
        left_out = name.startswith(starts) or any(part in name for part in parts)
        if type(module) in (*_LINEAR, *_TRANSPOSED) and not left_out:
            parametrizations.weight_norm(module, "weight", int(type(module) in _TRANSPOSED))


def remove_norm(model: nn.Module) -> None:
    """Replace normalized weights by plain ones of the same values."""
    for module in list(model.modules()):
        normed = parametrize.is_parametrized(module, "weight")
        if normed and isinstance(module, (*_LINEAR, *_TRANSPOSED)):
            parametrize.remove_parametrizations(module, "weight")


def reset_deq(model: nn.Module) -> None:
    """Nothing to do: norms are up to date, and dropout is drawn once for each solve."""


reset_norm = reset_deq


def jac_reg(f0: Tensor, z0: Tensor, vecs: int = 1, create_graph: bool = True) -> Tensor:
    r"""A random estimate of $\|J\|_F^2$ per entry of the state, to be added to a loss.

    Args:
        f0: The value of a function at ``z0``, with its graph.
        z0: The point, which requires a gradient.
        vecs: Number of random vectors that it is averaged over.
        create_graph: Whether it is differentiable itself.
    """
    total = f0.new_zeros(())
    for _ in range(integer("vecs", vecs, at_least=1)):
        (product,) = torch.autograd.grad(
            f0, z0, torch.randn_like(f0), retain_graph=True, create_graph=create_graph
        )
        total = total + product.square().sum()
    return total / (vecs * z0.numel())
