"""Whether gradient descent keeps what the theorems conclude, in an actual run."""

from typing import Any

import torch
from torch import Tensor

from shoal.empirical import empirical_kernel
from shoal.models import EquilibriumNetwork

__all__ = ["trains"]

_STEPS = 200
_NOTHING = 1e-9  # a share of the NTK below this is rounding


def trains(net: EquilibriumNetwork[Any], x: Tensor, y: Tensor, *, steps: int = _STEPS) -> bool:
    r"""Train a network, and say whether the conclusions of Ling 2023 held at every step.

    The step size is one over the largest eigenvalue of the NTK at the start. The conclusions are
    $\Phi(k) \le (1 - \eta\lambda_0/2)^k \Phi(0)$ with $\lambda_0$ the least eigenvalue of the share
    that the readouts have in the NTK, and a recurrent layer that remains a contraction.

    Args:
        net: The network; its weights change.
        x: Inputs in its dtype.
        y: Labels, of shape (samples, outputs).
        steps: How many steps to take.
    """
    readouts = {group for group in ("readout", "skip") if group in net.groups}
    whole = empirical_kernel(net, x).ntk.detach()
    share = empirical_kernel(net, x, trainable=readouts).ntk.detach()
    step = 1 / float(torch.linalg.eigvalsh(whole)[-1])
    least = float(torch.linalg.eigvalsh(share)[0])
    if not step * least > _NOTHING:
        return False
    rate = 1 - step * least / 2
    parameters = [p for p in net.parameters() if p.requires_grad]
    bound = None
    for _ in range(steps):
        loss = (net(x) - y).square().sum() / 2
        value = float(loss.detach())
        bound = value if bound is None else bound * rate
        if not value <= bound * (1 + 1e-9) + 1e-24 or net.well_posedness().gain_lower >= 1:
            return False
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(step * gradient)
    return True
