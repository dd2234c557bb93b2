r"""Down to which loss a run keeps what is proved: the rounding of all its steps.

Theorems are about exact arithmetic. A computed step is an exact one from the weights as they are,
and what rounding and the rest of unfinished solves make of it. If an exact step multiplies
$\|e\|$ by $\rho = \sqrt{\mathrm{rate}}$, a computed one makes $\|e'\| \le \rho\|e\| + \delta$, so
that after any number of them $\|e_k\| \le \rho^k\|e_0\| + \delta/(1 - \rho)$. To first order
$\delta$ is the sum of

- the error of the outputs, once where they are compared with the labels and once in the gradient;
- that of the gradient relative to its size, times $\|e_0\|$;
- the rounding of the weights, times $\sqrt\Lambda \le \eta^{-1/2}$, by which outputs react to them.

It is an estimate with worst cases, not a proved bound: that of a sum of $n$ products is $nu$ times
their sizes, that of an equilibrium its tolerance over $1 - $ gain.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.certificates.certificate import Certificate, Conclusion
from shoal.equilibrium import Implicit
from shoal.networks import EquilibriumNetwork, Network

_FEW = 64  # roundings of an activation and its slope


def with_resolution(found: Certificate, net: Network[Any], y: Tensor) -> Certificate:
    """The certificate, with the loss that rounding may leave beside each rate of descent."""
    error = found.measurements.get("initial error", 0.0)
    conclusions = tuple(
        replace(c, promises=replace(c.promises, resolution=_resolution(c, net, y, error)))
        if c.holds and c.step_size is not None and c.rate is not None
        else c
        for c in found.conclusions
    )
    return replace(found, conclusions=conclusions)


def _resolution(found: Conclusion, net: Network[Any], y: Tensor, error: float) -> float:
    assert found.step_size is not None
    assert found.rate is not None
    unit = torch.finfo(y.dtype).eps / 2
    share = _relative_error(net, y.dtype, unit) / (1 - (found.promises.gain or 0.0))
    sizes = {
        group: float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64))
        + found.promises.travel.get(group, 0.0)
        for group, p in net.groups.items()
        if p.requires_grad
    }
    last = [sizes[group] for group in ("readout", "skip") if group in sizes]
    reaction = math.sqrt(len(y)) / math.sqrt(found.step_size)  # of outputs to weights, Frobenius
    labels = float(torch.linalg.vector_norm(y, dtype=torch.float64))
    outputs = share * (reaction * math.hypot(*(last or sizes.values())) + labels + error)
    step = 2 * outputs + share * error + unit * reaction * math.hypot(*sizes.values())
    fallen = 1 - math.sqrt(found.rate)
    root = outputs + step / fallen if fallen > 0 else math.inf
    return 0.5 * root * root


def _relative_error(net: Network[Any], dtype: torch.dtype, unit: float) -> float:
    """What a pass through the network and back may make wrong, relative to its numbers."""
    terms = sum(weight[0].numel() + len(weight) + _FEW for weight in net.state_dict().values())
    total: float = terms * unit
    if isinstance(net, EquilibriumNetwork):
        solver, gradient = net.options.solver, net.options.gradient
        solvers = [solver]
        if isinstance(gradient, Implicit):
            solvers.append(gradient.adjoint_solver(solver))
        total += math.fsum(sum(one.tolerances(dtype)) for one in solvers)
    return total
