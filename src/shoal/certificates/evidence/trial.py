"""Whether gradient descent keeps what the theorems conclude, in an actual run."""

from typing import Any

import torch
from torch import Tensor

from shoal.networks import Network, empirical_kernel
from shoal.training import TrainingError, train
from shoal.training.gram import gram_group

__all__ = ["trains"]

_NOTHING = 1e-9  # a share of the NTK below this is rounding


def trains(net: Network[Any], x: Tensor, y: Tensor, *, steps: int = 200) -> bool:
    """Train a network, and say whether all that the theorems conclude held.

    The step size is one over the largest eigenvalue of the NTK at the start.

    Args:
        net: The network; its weights change.
        x: Inputs in its dtype.
        y: Labels, of shape (samples, outputs).
        steps: How many steps to take.
    """
    readouts = [group for group in net.groups if group in ("readout", "skip")] or [gram_group(net)]
    whole = empirical_kernel(net, x, process_group=None).ntk.detach()
    share = empirical_kernel(net, x, trainable=readouts, process_group=None).ntk.detach()
    least, largest = torch.linalg.eigvalsh(share)[0], torch.linalg.eigvalsh(whole)[-1]
    if not bool(least > _NOTHING * largest):
        return False
    try:
        train(net, x, y, steps=steps, step_size="auto", on_violation="raise")
    except TrainingError:
        return False
    return True
