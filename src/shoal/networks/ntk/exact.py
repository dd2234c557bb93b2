"""Modules with exact gradients, whatever the networks in them train with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn import Module

from shoal.core.torch_compat import changed_copy, submodules
from shoal.equilibrium.gradients import SolveOptions
from shoal.equilibrium.solution import LastSolution
from shoal.networks.network import Network

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
_DROPOUTS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(nn.AlphaDropout, nn.FeatureAlphaDropout),
)
_PARALLEL = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


def exact(module: Module, *, silent: bool = False) -> Module:
    """A copy of a module that shares its parameters and has exact gradients of equilibria.

    What is copied is the way to layers and networks with an equilibrium, no tensor; a module
    without any is returned itself, one that was compiled or distributed as what that was made
    from. The copy has no warm starts, and the modules' own notes of their last solves stay.

    Args:
        module: Any module.
        silent: As in :meth:`Network.exact`.
    """
    return _exact(module, silent, {})


def _exact(module: Module, silent: bool, copies: dict[int, Module]) -> Module:
    """The copy of a module; one that stands in several places stays one."""
    if id(module) not in copies:
        copies[id(module)] = _copied(module, silent, copies)
    return copies[id(module)]


def _copied(module: Module, silent: bool, copies: dict[int, Module]) -> Module:
    if isinstance(module, Network):
        return module.exact(silent=silent)
    if isinstance(module, _PARALLEL):
        return _exact(module.module, silent, copies)
    before = dict(submodules(module).items())  # those of TorchScript are no dictionary
    if (source := before.get("_orig_mod")) is not None:
        return _exact(source, silent, copies)
    children = {
        name: None if child is None else _exact(child, silent, copies)
        for name, child in before.items()
    }
    same = all(children[name] is child for name, child in before.items())
    modules = None if same else children
    if (options := solve_options(module)) is not None:
        exact_options = options.exact(silent=silent)
        return changed_copy(module, modules=modules, options=exact_options, warm_start=False)
    return module if same else changed_copy(module, modules=modules)


def check_whole(name: str, module: Module) -> None:
    """Refuse a module whose weights are divided among processes."""
    divided = [key for key, weight in module.named_parameters() if hasattr(weight, "full_tensor")]
    if divided:
        raise ValueError(
            f"{name} must have whole weights, and {divided[0]!r} is divided among processes, as by "
            "fully_shard: load what its full_tensor() gives into a module that is not"
        )


def solve_options(module: Module) -> SolveOptions | None:
    """How a module solves for an equilibrium, with the notes of its last solves, if it does."""
    options = getattr(module, "options", None)
    return options if isinstance(options, SolveOptions) else None


def forget(module: Module) -> None:
    """Let the next solves of all equilibria in a module start cold, whatever came before."""
    for one in module.modules():
        if isinstance(last := getattr(one, "_last", None), LastSolution):
            last.value = None


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """A context with a module in evaluation mode, neither random nor learning."""
    modes = [(one, one.training) for one in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for one, mode in modes:
            one.training = mode


def mixing_submodule(module: Module) -> str | None:
    """The name of a submodule, as its mode is, that is random or lets samples see each other."""
    for name, one in module.named_modules():
        normalizes = isinstance(one, _BATCH_NORMS)
        drops = isinstance(one, _DROPOUTS) and one.p > 0
        attends = isinstance(one, torch.nn.RNNBase | torch.nn.MultiheadAttention)
        random = drops or isinstance(one, torch.nn.RReLU) or (attends and one.dropout > 0)
        if (one.training and (random or normalizes)) or (normalizes and one.running_mean is None):
            return str(name)
    return None
