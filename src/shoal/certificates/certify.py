"""Will gradient descent train this network?"""

import math
import sys
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from shoal.architectures import DEQ, ConvResNet, FullyConnected, ImplicitNetwork, ResNet
from shoal.certificates.argument import Geometry, conclusions
from shoal.certificates.certificate import Certificate, Conclusion, Condition, condition
from shoal.certificates.enclosures import smoothness
from shoal.certificates.equilibria import NotContractingError
from shoal.certificates.equilibrium_networks import EquilibriumGeometry
from shoal.certificates.explicit import ExplicitGeometry
from shoal.core import checks
from shoal.core.settings import in_standard_settings
from shoal.equilibrium import Implicit
from shoal.networks import EquilibriumNetwork, Network
from shoal.training.objective import TrainingProblem

_LARGEST = 1e152  # largest size of inputs, whose squares are summed
_FEW = 64  # roundings of an activation and its slope
_THEOREMS: dict[str, Any] = {  # by kind of architecture
    "deep equilibrium models": DEQ,
    "implicit networks": ImplicitNetwork,
    "explicit networks": (FullyConnected, ResNet, ConvResNet),
}


@in_standard_settings
def certify(
    net: Network[Any], x: Tensor, y: Tensor, *, step_size: float | None = None
) -> Certificate:
    r"""Prove that full-batch gradient descent trains a network to zero loss, or report why not.

    The loss is $\Phi = \frac12 \sum_i \|f(x_i) - y_i\|^2$, a sum and not a mean. The theorem for
    the architecture is evaluated on the network in its present state, for gradient flow and for
    gradient descent. The proof includes all rounding errors of this evaluation. It assumes exact
    arithmetic in training; ``promises.resolution`` estimates the loss that rounding may leave in a
    run. It also assumes exact gradients of equilibria: networks built with another gradient than
    ``Implicit()`` are rejected. Weights of any dtype count as exact.

    Args:
        net: The network, at the start of its training.
        x: Training inputs of shape (n, in_features), a tensor in the network's dtype or a NumPy
            array.
        y: Labels of shape (n,) or (n, outputs), rounded to the network's dtype as in ``train``.
        step_size: Step size to certify; chosen automatically by default.

    Returns:
        The certificate, with all conditions.

    Raises:
        TypeError: If an argument has the wrong type, or no theorem is known for the architecture.
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
    problem = TrainingProblem.checked(net, x, y)
    if (largest := float(problem.x.abs().max())) > _LARGEST:
        raise ValueError(f"x must have entries up to {_LARGEST:g} in size, got {largest:.4g}")
    _check_network(net)
    if step_size is not None:
        step_size = checks.real("step_size", step_size, above=0)
    with torch.no_grad():
        inputs, labels = problem.x.clone().double().cpu(), problem.y.clone().double().cpu()
        return replace(
            _answer(net, inputs, labels, problem.y.dtype, step_size),
            fingerprint=problem.fingerprint(),
        )


def _check_network(net: Network[Any]) -> None:
    """Refuse networks that no theorem is about."""
    architecture, kind = net.architecture, None
    layers = None if isinstance(architecture, ImplicitNetwork) else architecture.layers()
    if layers is not None and layers.gated:
        kind = "that are gated by the norm"
    elif getattr(architecture, "bias_variance", 0.0):
        kind = "with biases"
    elif layers is not None and layers.injection is not None and len(layers.cells) > 1:
        kind = "with several layers in their loop"
    if kind is not None:
        raise TypeError(f"no theorem is known for networks {kind}, like net")
    built = set(architecture.parameter_groups) | net.spec.trainable
    if net.groups.keys() != built:
        raise TypeError(
            f"net must have the parameters of shoal.build, {', '.join(sorted(built))}, got "
            f"{', '.join(sorted(net.groups))}: undo parametrizations, and weights tied or added"
        )
    # Unrolled ends with the step at which the state converges: its derivative may be far from the
    # gradient then, after one step if the recurrent weights map the state after it to zero
    gradient = net.equilibrium.options.gradient if isinstance(net, EquilibriumNetwork) else None
    if gradient is not None and not isinstance(gradient, Implicit):
        raise ValueError(
            "net must have the exact gradient of its equilibrium, which the theorems are about, "
            f"got gradient={gradient!r}: build it with gradient=Implicit()"
        )
    for name, weights in net.state_dict().items():
        checks.float_tensor(f"net.{name}", weights.detach())


def _answer(
    net: Network[Any], x: Tensor, y: Tensor, dtype: torch.dtype, step_size: float | None
) -> Certificate:
    """The certificate without its fingerprint."""
    kinds = [kind for kind, types in _THEOREMS.items() if isinstance(net.architecture, types)]
    if not kinds:
        name = type(net.architecture).__name__
        raise TypeError(f"no theorem is known for networks like net, a {name}")
    theorem = f"shoal's theorem for {kinds[0]}"
    try:
        geometry = measure(net, x, y)
    except NotContractingError as error:
        return _not_contracting(error.gain, theorem)
    if isinstance(geometry, Condition):
        return _refused(geometry, theorem, {})
    flow, descent = conclusions(geometry, theorem, step_size=step_size)
    if descent.holds:
        resolution = _resolution(descent, net, y, dtype, geometry.measurements["initial error"])
        descent = replace(descent, promises=replace(descent.promises, resolution=resolution))
    return Certificate(flow, descent, geometry.measurements)


def measure(net: Any, x: Tensor, y: Tensor) -> Geometry | Condition:
    """The network's bounds, or the condition that it fails before there are any."""
    if isinstance(net.architecture, ImplicitNetwork):
        scales = dict.fromkeys(net.groups, 1.0) | {"recurrent": net.layer.scale}
        root = 1 / math.sqrt(net.spec.width)
        return EquilibriumGeometry(net, x, y, scales, rectified_scale=root)
    if isinstance(net.architecture, DEQ):
        return EquilibriumGeometry(net, x, y, net.scales)
    for smooth in map(smoothness, net.architecture.activations):
        if smooth.jump or math.isinf(smooth.curvature):
            value, bound = (
                (smooth.jump, 0.0) if smooth.jump else (smooth.curvature, sys.float_info.max)
            )
            words = "the derivative of the activation does not jump, and has a Lipschitz constant"
            remedy = "a smooth activation, such as Softplus or Tanh"
            return condition("smooth", value, "<=", bound, words, remedy)
    return ExplicitGeometry(net, x, y)


def _not_contracting(gain: float, theorem: str) -> Certificate:
    """The answer for a recurrent layer that is not known to be a contraction."""
    remedy = (
        "smaller recurrent weights: a smaller variance (or gamma), or a GainConstraint"
        if math.isfinite(gain)
        else "an activation whose slopes are bounded, such as Tanh"
    )
    words = "the recurrent layer is a contraction"
    failed = condition("contraction", gain, "<", 1, words, remedy)
    return _refused(failed, theorem, {"gain of the recurrent layer": gain})


def _refused(failed: Condition, theorem: str, numbers: dict[str, float]) -> Certificate:
    """The certificate of one condition that fails before all others."""
    flow = Conclusion(theorem, "gradient flow", (failed,))
    return Certificate(flow, replace(flow, dynamics="gradient descent"), numbers)


def _resolution(
    descent: Conclusion, net: Network[Any], y: Tensor, dtype: torch.dtype, error: float
) -> float:
    r"""The loss that rounding may leave in a run.

    Theorems are about exact arithmetic. A computed step is an exact one from the weights as they
    are, moved by rounding and by the tolerance of solvers. If an exact step multiplies $\|e\|$ by
    $\rho = \sqrt{\mathrm{rate}}$, a computed one makes $\|e'\| \le \rho\|e\| + \delta$, so that
    after any number of them $\|e_k\| \le \rho^k\|e_0\| + \delta/(1 - \rho)$. To first order
    $\delta$ is the sum of

    - the error of the outputs, once where they are compared with the labels and once in the
      gradient;
    - the error of the gradient relative to its size, times $\|e_0\|$;
    - the rounding of the weights, times $\sqrt\Lambda \le \eta^{-1/2}$, by which outputs react.

    It is an estimate with worst cases, not a proved bound: a sum of $n$ products is off by $nu$
    times their sizes, an equilibrium by its tolerance over $1 - $ gain.
    """
    assert descent.step_size is not None
    assert descent.rate is not None
    unit = torch.finfo(dtype).eps / 2
    terms = sum(weight[0].numel() + len(weight) + _FEW for weight in net.state_dict().values())
    share = terms * unit  # relative error of a pass and back
    options = net.equilibrium.options if isinstance(net, EquilibriumNetwork) else None
    if options is not None and isinstance(options.gradient, Implicit):
        solvers = (options.solver, options.gradient.adjoint_solver(options.solver))
        share += math.fsum(sum(one.tolerances(dtype)) for one in solvers)
    share /= 1 - (descent.promises.gain or 0.0)
    sizes = {
        group: float(torch.linalg.vector_norm(p.detach(), dtype=torch.float64))
        + descent.promises.travel.get(group, 0.0)
        for group, p in net.groups.items()
        if p.requires_grad
    }
    last = [sizes[group] for group in ("readout", "skip") if group in sizes]
    reaction = math.sqrt(len(y)) / math.sqrt(descent.step_size)  # of outputs to weights, Frobenius
    labels = float(torch.linalg.vector_norm(y))
    outputs = share * (reaction * math.hypot(*(last or sizes.values())) + labels + error)
    step = 2 * outputs + share * error + unit * reaction * math.hypot(*sizes.values())
    fallen = 1 - math.sqrt(descent.rate)
    root = outputs + step / fallen if fallen > 0 else math.inf
    return 0.5 * root * root
