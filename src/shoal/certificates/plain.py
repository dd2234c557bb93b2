r"""The theorem by brute force: dense Jacobians along a run of gradient descent.

With $e$ the error of the outputs, $J$ the derivative of all outputs in the trained parameters and
$H = JJ^\top$ the NTK, a step of gradient descent makes $e' = (I - \eta H)e + r$. If $\eta \|H\| \le
1$, and the remainder $\|r\|$ is smaller than the decrease by the least eigenvalue of $H$, the loss
falls. The certificate bounds all these numbers before the run, for all weights within some radii;
here they are computed at each step. Slow, and without any bounds: for readers and tests.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor


class DescentStep(NamedTuple):
    r"""The numbers of the proof at one step, of the network before it.

    Attributes:
        error: $e$, outputs minus labels, flat.
        ntk: $H$.
        singular_value: The least singular value of the Jacobian of the chosen groups.
        gradients: The norm of the gradient of each group.
        traveled: How far the parameters of each group are from their start.
        remainder: $r = e' - (I - \eta H)e$.
    """

    error: Tensor
    ntk: Tensor
    singular_value: float
    gradients: dict[str, float]
    traveled: dict[str, float]
    remainder: Tensor

    @property
    def loss(self) -> float:
        r"""$\frac12\|e\|^2$."""
        return float(self.error.square().sum() / 2)


def trained(net: Any) -> dict[str, Tensor]:
    """The trained parameters by their groups."""
    return {group: p for group, p in net.groups.items() if p.requires_grad}


def jacobians(net: Any, x: Tensor) -> dict[str, Tensor]:
    """The derivatives of all outputs, sample by sample, in the parameters of each trained group."""
    groups, rows = trained(net), []
    for output in net(x).reshape(-1):
        gradients = torch.autograd.grad(output, list(groups.values()), retain_graph=True)
        rows.append([gradient.reshape(-1) for gradient in gradients])
    return {
        group: torch.stack(parts)
        for group, parts in zip(groups, zip(*rows, strict=True), strict=True)
    }


def step(
    net: Any,
    x: Tensor,
    y: Tensor,
    step_size: float,
    *,
    start: Mapping[str, Tensor] | None = None,
    groups: Iterable[str] | None = None,
) -> DescentStep:
    """Take one step of gradient descent, which changes the network, and measure it.

    Args:
        net: The network.
        x: Inputs.
        y: Labels, of the shape of the outputs.
        step_size: The step size.
        start: Parameters by their groups, from which to measure distances; by default those before
            the step.
        groups: The groups whose Jacobian must keep its rank; by default all trained ones.
    """
    parameters, parts = trained(net), jacobians(net, x)
    start = {g: p.detach().clone() for g, p in parameters.items()} if start is None else start
    whole = torch.cat(list(parts.values()), 1)
    some = torch.cat([parts[g] for g in parts if groups is None or g in groups], 1)
    ntk, error = whole @ whole.T, (net(x).detach() - y).reshape(-1)
    gradients = {g: part.T @ error for g, part in parts.items()}
    traveled = {g: float((p.detach() - start[g]).norm()) for g, p in parameters.items()}
    with torch.no_grad():
        for g, p in parameters.items():
            p -= step_size * gradients[g].reshape(p.shape)
        after = (net(x) - y).reshape(-1)
    return DescentStep(
        error=error,
        ntk=ntk,
        singular_value=float(torch.linalg.svdvals(some)[-1]) if len(some) <= some.shape[1] else 0.0,
        gradients={g: float(gradient.norm()) for g, gradient in gradients.items()},
        traveled=traveled,
        remainder=after - error + step_size * ntk @ error,
    )


def descend(
    net: Any,
    x: Tensor,
    y: Tensor,
    step_size: float,
    steps: int,
    groups: Iterable[str] | None = None,
) -> list[DescentStep]:
    """Train for so many steps, and measure each of them."""
    start, y = {g: p.detach().clone() for g, p in net.groups.items()}, y.reshape(len(x), -1)
    return [step(net, x, y, step_size, start=start, groups=groups) for _ in range(steps)]
