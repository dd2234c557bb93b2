"""The file that a run goes on from, and all that its numbers depend on."""

import os
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from shoal.activations.description import description
from shoal.core.checkpoints import Checkpoint
from shoal.core.checks import real
from shoal.core.files import checksum
from shoal.networks import Network
from shoal.networks.ntk.exact import solve_options
from shoal.training.functions import Describer
from shoal.training.objective import Objective

_LAYOUT = "3"  # of what is in the file; others are refused


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
    describer = Describer()
    identity = {
        "layout": _LAYOUT,
        "net": _network_checksum(objective, describer),
        "x": checksum({}, objective.x.map(Tensor.cpu).named("x")),
        "y": checksum({}, {"y": objective.y.cpu()}),
        "reduction": repr(objective.divisor),
        "loss": checksum({"loss": describer.text(objective.loss)}, {}),
        **settings,
    }
    if describer.unknown:
        warnings.warn(
            f"net or loss uses objects of {', '.join(describer.unknown)}, of which checkpoint "
            "compares the class alone: give the same ones again when the run goes on",
            UserWarning,
            stacklevel=3,
        )
    return Checkpoint(path, "training", identity, seconds)


def _network_checksum(objective: Objective, describer: Describer) -> str:
    """A checksum of the weights, and of all that says what is computed with them."""
    net = objective.network
    networks = [one for one in net.modules() if isinstance(one, Network)]
    solves: list[tuple[Any, ...]] = []
    for one in net.modules():
        if (how := solve_options(one)) is not None:
            warm = getattr(one, "warm_start", False)
            solvers = (how.solver, *how.fallbacks)
            solves.append((solvers, how.gradient, how.on_failure, warm, one.training))
    parts = {
        "architectures": description([one.architecture for one in networks]),
        "trained": " ".join(objective.weights),
        "solves": description(solves),
        "modules": describer.text(net),
    }
    return checksum(parts, {})
