"""Will gradient descent train this network?"""

from dataclasses import replace
from functools import singledispatch
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.certificates.certificate import Certificate
from shoal.certificates.evidence.resolution import with_resolution
from shoal.certificates.refusals import uncovered
from shoal.core import checks
from shoal.core.settings import in_standard_settings
from shoal.equilibrium import Implicit
from shoal.networks import EquilibriumNetwork, Network
from shoal.training.objective import Problem

_LARGEST = 1e152  # of the inputs, whose squares are summed


class Question(NamedTuple):
    """What is asked.

    Attributes:
        net: The network.
        x: Inputs in float64 on the CPU.
        y: Labels in float64 on the CPU, of shape (samples, outputs).
        step_size: The step size to certify, or ``None``.
    """

    net: Network[Any]
    x: Tensor
    y: Tensor
    step_size: float | None


@in_standard_settings
def certify(
    net: Network[Any], x: Tensor, y: Tensor, *, step_size: float | None = None
) -> Certificate:
    r"""Say whether full-batch gradient descent trains a network to zero loss, and how fast.

    The loss is $\Phi = \frac12 \sum_i \|f(x_i) - y_i\|^2$, a sum and not a mean. Every theorem that
    applies is evaluated on the network as it is now, for gradient flow and for gradient descent.
    All errors of evaluating it count. Those of a training run do not: a certificate is about exact
    arithmetic, and says in ``promises.resolution`` what loss rounding may leave in a run. It is
    about the exact gradient of equilibria, too: networks built with another gradient than
    ``Implicit()`` are refused. Weights of any dtype are taken as the numbers that they are.

    Args:
        net: The network, at the start of its training.
        x: The training inputs, of shape (n, in_features), in the network's dtype; NumPy arrays too.
        y: The labels, of shape (n,) or (n, outputs), rounded to the network's dtype as ``train``
            does.
        step_size: The step size to certify; by default one is chosen.

    Returns:
        The answer, with all conditions.

    Raises:
        TypeError: If an argument is not of its kind, or no theorem is known for the architecture.
        ValueError: If shapes do not fit, a number is out of range, or the network was built with
            another gradient than ``Implicit()``.

    Example:
        >>> import torch, shoal
        >>> generator = torch.Generator().manual_seed(0)
        >>> x = torch.randn(2, 10, generator=generator, dtype=torch.float64)
        >>> x = x / x.norm(dim=1, keepdim=True) * 10**0.5
        >>> deq = shoal.DEQ.ling2023(weight_variance=0.001, in_features=10)
        >>> net = shoal.build(
        ...     deq, in_features=10, width=500, readout_scale=0.0, dtype=torch.float64
        ... )
        >>> certificate = shoal.certify(net, x, torch.tensor([0.1, -0.1]).double())
        >>> certificate.holds, certificate.status
        (True, 'proved')
    """
    problem = Problem.checked(net, x, y)
    if (largest := float(problem.x.abs().max())) > _LARGEST:
        raise ValueError(f"x must have entries up to {_LARGEST:g} in size, got {largest:.4g}")
    if (kind := uncovered(net.architecture)) is not None:
        raise TypeError(f"no theorem is known for networks {kind}, like net")
    _check_groups(net)
    _check_gradient(net)
    for name, weights in net.state_dict().items():
        checks.float_tensor(f"net.{name}", weights.detach())
    if step_size is not None:
        step_size = checks.real("step_size", step_size, above=0)
    with torch.no_grad():
        inputs, labels = problem.x.clone().double().cpu(), problem.y.clone().double().cpu()
        found = certify_architecture(net.architecture, Question(net, inputs, labels, step_size))
        found = with_resolution(found, net, problem.y)
        return replace(found, fingerprint=problem.fingerprint())


def _check_groups(net: Network[Any]) -> None:
    """Refuse networks whose weights are made of other parameters: no theorem is about those."""
    built = set(net.architecture.parameter_groups) | net.spec.trainable
    if net.groups.keys() != built:
        raise TypeError(
            f"net must have the parameters of shoal.build, {', '.join(sorted(built))}, got "
            f"{', '.join(sorted(net.groups))}: undo parametrizations, and weights tied or added"
        )


def _check_gradient(net: Network[Any]) -> None:
    """Refuse networks that may be trained along another direction than their gradient.

    ``Unrolled`` ends with the step at which the state converges. Its derivative may be far from the
    gradient then: after one step, if the recurrent weights map the state after it to zero.
    """
    if isinstance(net, EquilibriumNetwork) and not isinstance(net.options.gradient, Implicit):
        raise ValueError(  # noqa: TRY004
            "net must have the exact gradient of its equilibrium, which the theorems are about, "
            f"got gradient={net.options.gradient!r}: build it with gradient=Implicit()"
        )


@singledispatch
def certify_architecture(
    architecture: Architecture,
    question: Question,  # noqa: ARG001
) -> Certificate:
    """What the theorems about an architecture say; one file registers for each architecture.

    Args:
        architecture: What to dispatch on.
        question: The network, its data and the step size.
    """
    raise TypeError(f"no theorem is known for networks like net, a {type(architecture).__name__}")
