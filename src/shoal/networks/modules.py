"""Modules of any kind: their inputs, names, modes, and exact gradients."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from shoal.core.checks import as_tensor, check_layout, float_tensor
from shoal.core.torch_compat import changed_copy, pytree, submodules
from shoal.equilibrium.gradients import SolveOptions

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # as users give them

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


@dataclass(frozen=True, eq=False)
class ModuleInputs:
    """The arguments of a module for some samples, each a tensor or a tree of tensors.

    Attributes:
        arguments: Positional and keyword arguments.
    """

    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @classmethod
    def checked(cls, name: str, x: object) -> "ModuleInputs":
        """Check the inputs of a module.

        Args:
            name: Name of the argument, for errors.
            x: A tensor, a tuple of positional arguments, or a dictionary of keyword arguments; all
                tensors have samples in their first dimension.
        """
        if isinstance(x, Mapping):
            if not all(isinstance(key, str) for key in x):
                raise TypeError(f"{name} must have names of arguments as keys, got {list(x)}")
            inputs = cls(((), dict(x)))
        else:
            inputs = cls((tuple(x) if isinstance(x, tuple | list) else (x,), {}))
        tensors = {w: _checked(name, w, leaf) for w, leaf in inputs.named(name).items()}
        if len({len(tensor) for tensor in tensors.values()}) != 1:
            shapes = ", ".join(f"{tuple(t.shape)} in {where}" for where, t in tensors.items())
            raise ValueError(
                f"{name} must have tensors with the same samples in their first dimension, got "
                f"{shapes or 'none'}; store tensors shared by all samples as buffers of the module"
            )
        return cls(pytree.tree_unflatten(tensors.values(), pytree.tree_structure(inputs.arguments)))

    def named(self, name: str) -> dict[str, Tensor]:
        """All tensors: a single one by the name of all, others as ``x[0]`` or ``x['mask']``."""
        leaves = pytree.tree_flatten_with_path(self.arguments)[0]
        if len(leaves) == 1:
            return {name: leaves[0][1]}
        return {name + pytree.keystr(path[1:]): leaf for path, leaf in leaves}

    @property
    def first(self) -> Tensor:
        """The first tensor."""
        tensor: Tensor = pytree.tree_leaves(self.arguments)[0]
        return tensor

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.first)

    def __getitem__(self, rows: slice | Tensor) -> "ModuleInputs":
        """Some of the samples."""
        return self.map(lambda tensor: tensor[rows])

    def blocks(self, size: int) -> list["ModuleInputs"]:
        """All samples in blocks."""
        return [self[slice(start, start + size)] for start in range(0, len(self), size)]

    def map(self, function: Callable[[Tensor], Tensor]) -> "ModuleInputs":
        """A function of each tensor."""
        return ModuleInputs(pytree.tree_map(function, self.arguments))

    def call(self, function: Callable[..., Any]) -> Any:
        """The result of a module, or a function, for these arguments."""
        positional, named = self.arguments
        return function(*positional, **named)


def _checked(name: str, where: str, leaf: object) -> Tensor:
    tensor = as_tensor(leaf, where)
    if not isinstance(tensor, Tensor):
        place = "" if where == name else f" in {where}"
        raise TypeError(
            f"{name} must be a tensor or an array, or a tuple or a dictionary of the arguments of "
            f"the module, got {type(leaf).__name__}{place}; store other data, such as the edges "
            "of a graph, as buffers of the module"
        )
    check_layout(where, tensor)
    if tensor.is_floating_point():
        tensor = float_tensor(where, tensor)
    if not tensor.dim() or not len(tensor):
        raise ValueError(
            f"{where} must have samples in its first dimension, at least one, got shape "
            f"{tuple(tensor.shape)}"
        )
    tensor = tensor.detach()
    return tensor.clone() if tensor.is_inference() else tensor  # to be differentiated


def names_matching(
    argument: str, patterns: Iterable[object], names: Iterable[str], kind: str
) -> list[str]:
    """The names that match patterns: names of parameters or of modules, perhaps with ``*``.

    Raises:
        TypeError: If a pattern is not a string.
        ValueError: If a pattern matches none.

    Example:
        >>> names = ["blocks.0.linear.bias"]
        >>> [names_matching("weights", [p], names, "weights") for p in ("blocks", "*.bias")]
        [['blocks.0.linear.bias'], ['blocks.0.linear.bias']]
    """
    matching: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} must be names of {kind}, got {pattern!r}")
        matches = [name for name in names if _is_named(name, pattern)]
        if not matches:
            raise ValueError(
                f"{argument} must name {kind}, or modules that have them, got {pattern!r}; there "
                f"are {', '.join(names) or 'none'}"
            )
        matching.update(dict.fromkeys(matches))
    return list(matching)


def _is_named(name: str, pattern: str) -> bool:
    parts = name.split(".")
    names = [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return pattern in names or any(fnmatchcase(one, pattern) for one in names)


def exact(module: Module, *, silent: bool = False) -> Any:
    """A view of a module that shares its parameters and has exact gradients of equilibria.

    Only the modules that contain layers or networks with an equilibrium are copied, and no tensor.
    A module without equilibria is returned itself; a compiled or distributed one is unwrapped. The
    view has no warm starts, and does not change the logs of the modules.

    Args:
        module: Any module.
        silent: Whether the view may report failures as a status only, if the module does.
    """
    return _exact(module, silent, {})


def _exact(module: Module, silent: bool, views: dict[int, Module]) -> Module:
    """The view of a module; a module in several places has one view."""
    if id(module) in views:
        return views[id(module)]
    before = dict(submodules(module).items())  # those of TorchScript are no dictionary
    inside = module.module if isinstance(module, _PARALLEL) else before.get("_orig_mod")
    if inside is not None:  # distributed, or compiled
        view = _exact(inside, silent, views)
    else:
        after = {n: None if m is None else _exact(m, silent, views) for n, m in before.items()}
        if (options := solve_options(module)) is not None:
            changes = {"options": options.exact(silent=silent), "warm_start": False}
            view = changed_copy(module, after, **changes)
        elif any(after[name] is not child for name, child in before.items()):
            view = changed_copy(module, after)
        else:
            view = module
    return views.setdefault(id(module), view)


def solve_options(module: Module) -> SolveOptions | None:
    """The options of a module that solves for an equilibrium, with its log."""
    options = getattr(module, "options", None)
    return options if isinstance(options, SolveOptions) else None


def check_whole(name: str, module: Module) -> None:
    """Reject a module whose weights are divided among processes."""
    divided = [key for key, weight in module.named_parameters() if hasattr(weight, "full_tensor")]
    if divided:
        raise ValueError(
            f"{name} must have unsharded weights, got {divided[0]!r} divided among processes, as "
            "by fully_shard; load its full_tensor() into an unsharded module"
        )


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """A context with a module in evaluation mode."""
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for one, mode in modes:
            one.training = mode


def mixing_submodule(module: Module) -> str | None:
    """The name of a submodule that is random or normalizes over samples in its present mode."""
    for name, one in module.named_modules():
        normalizes = isinstance(one, _BATCH_NORMS)
        drops = isinstance(one, _DROPOUTS) and one.p > 0
        attends = isinstance(one, torch.nn.RNNBase | torch.nn.MultiheadAttention)
        random = drops or isinstance(one, torch.nn.RReLU) or (attends and one.dropout > 0)
        if (one.training and (random or normalizes)) or (normalizes and one.running_mean is None):
            return str(name)
    return None
