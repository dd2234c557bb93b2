"""Certificates that end before a theorem begins."""

import math
import sys
from dataclasses import replace

from shoal.architectures import Architecture, ImplicitNetwork
from shoal.certificates.certificate import Certificate, Conclusion, Condition, condition
from shoal.certificates.evidence.activations import Smoothness


def uncovered(architecture: Architecture) -> str | None:
    """The kind of networks that no theorem is about, in words after "networks"; ``None`` if one is.

    Architectures of one's own are refused elsewhere, by having no theorem registered.
    """
    if isinstance(architecture, ImplicitNetwork):
        return "with biases" if architecture.bias_variance else None
    layers = architecture.layers()
    if layers.gated:
        return "that are gated by the norm"
    if layers.biased:
        return "with biases"
    if layers.injection is not None and len(layers.cells) > 1:
        return "with several layers in their loop"
    return None


def not_contracting(gain: float, theorem: str) -> Certificate:
    """The answer for a recurrent layer that is not known to be a contraction."""
    remedy = (
        "smaller recurrent weights: a smaller variance (or gamma), or a GainConstraint"
        if math.isfinite(gain)
        else "an activation whose slopes are bounded, such as Tanh"
    )
    words = "the recurrent layer is a contraction"
    failed = condition("contraction", gain, "<", 1, words, remedy, rigorous=True)
    return _refused(failed, theorem, {"gain of the recurrent layer": gain})


def not_smooth(smooth: Smoothness, theorem: str) -> Certificate:
    """The answer for an activation whose derivative jumps, or has no known Lipschitz constant."""
    value, bound = (smooth.jump, 0.0) if smooth.jump else (smooth.curvature, sys.float_info.max)
    words = "the derivative of the activation does not jump, and has a Lipschitz constant"
    remedy = "a smooth activation, such as Softplus or Tanh"
    failed = condition("smooth", value, "<=", bound, words, remedy, rigorous=True)
    return _refused(failed, theorem, {"Lipschitz constant": smooth.lipschitz})


def _refused(failed: Condition, theorem: str, numbers: dict[str, float]) -> Certificate:
    """The certificate of one condition that fails before all others."""
    flow = Conclusion(theorem, "sharper", "gradient flow", (failed,))
    return Certificate((flow, replace(flow, dynamics="gradient descent")), numbers)
