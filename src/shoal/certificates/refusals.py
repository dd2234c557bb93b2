"""Certificates that end before a theorem begins."""

from shoal.certificates.values import Certificate, Conclusion, at_most

__all__ = ["not_contracting"]


def not_contracting(gain: float, theorem: str) -> Certificate:
    """The answer for a recurrent layer that is not known to be a contraction."""
    condition = at_most(
        "contraction",
        gain,
        1,
        words="the recurrent layer is a contraction",
        remedy="smaller recurrent weights: a smaller variance (or gamma), or a GainConstraint",
        rigorous=True,
        strict=True,
    )
    flow = Conclusion(theorem, "sharper", "gradient flow", (condition,))
    descent = Conclusion(theorem, "sharper", "gradient descent", (condition,))
    return Certificate((flow, descent), {"gain of the recurrent layer": gain})
