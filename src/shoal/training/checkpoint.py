"""The file that a run goes on from, and all that its numbers depend on."""

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoal.activations.description import description
from shoal.core.checkpoints import Checkpoint
from shoal.core.checks import real
from shoal.core.files import checksum
from shoal.networks import Network
from shoal.networks.ntk.exact import solve_options
from shoal.training.objective import Objective

_LAYOUT = "2"  # of what is in the file; others are refused


def run_checkpoint(
    path: str | os.PathLike[str] | None,
    seconds: float,
    objective: Objective,
    settings: Mapping[str, str],
) -> Checkpoint | None:
    """The file of a run, if it has one.

    Args:
        path: The file.
        seconds: How much time passes between two checkpoints at least.
        objective: What is trained.
        settings: How.
    """
    seconds = real("checkpoint_seconds", seconds, at_least=0)
    if path is None:
        return None
    identity = {
        "layout": _LAYOUT,
        "net": _network_checksum(objective),
        "x": checksum({}, objective.x.map(Tensor.cpu).named("x")),
        "y": checksum({}, {"y": objective.y.cpu()}),
        "reduction": repr(objective.divisor),
        "loss": getattr(objective.loss, "__qualname__", type(objective.loss).__qualname__),
        **settings,
    }
    return Checkpoint(path, "training", identity, seconds)


def _network_checksum(objective: Objective) -> str:
    """A checksum of the weights, and of all that says what is computed with them."""
    net = objective.network
    networks = [one for one in net.modules() if isinstance(one, Network)]
    solves: list[tuple[Any, ...]] = []
    for one in net.modules():
        if (how := solve_options(one)) is not None:
            warm = getattr(one, "warm_start", False)
            solves.append((how.solver, how.gradient, how.on_failure, warm, one.training))
    # the settings of modules, and of parametrizations of weights, are plain attributes
    modules = [
        (name, type(module).__qualname__, {k: v for k, v in vars(module).items() if _plain(v)})
        for name, module in net.named_modules()
        if not isinstance(module, Network)
    ]
    parts = {
        "architectures": description([one.architecture for one in networks]),
        "trained": " ".join(objective.weights),
        "solves": description(solves),
        "modules": description(modules),
    }
    return checksum(parts, {n: tensor.detach().cpu() for n, tensor in net.state_dict().items()})


def _plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
