"""Whether a recurrent layer has a unique equilibrium: what is certain, what theory says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.architectures import ImplicitArchitecture
from shoal.networks.contraction.gain import GainBound

__all__ = ["WellPosedness", "well_posedness"]


@dataclass(frozen=True)
class WellPosedness:
    r"""Whether the recurrent layer of a network, or a loop of several, is a contraction.

    Attributes:
        gain_lower: The gain $s L \|W\|$ is at least this, $L$ the activation's Lipschitz constant;
            that of several layers is their product.
        gain_upper: It is at most this. Below one, the layer is a contraction: the equilibrium
            exists, is unique, and Picard iteration converges to it at least at this rate.
        contraction: Whether ``gain_upper`` is below one.
        sufficient: Whether the architecture satisfies $4\sigma_a^2L^2 < 1$, which makes wide
            networks contractions at initialization with high probability (Ling 2024).
        kernel: Whether it satisfies $\sigma_a^2L^2 < 1$, all that the infinite-width kernel needs.
    """

    gain_lower: float
    gain_upper: float
    contraction: bool
    sufficient: bool
    kernel: bool

    def __str__(self) -> str:
        """A few lines for people."""
        return "\n".join(
            [
                f"gain: between {self.gain_lower:.6g} and {self.gain_upper:.6g}",
                f"contraction: {self._contraction()}",
                f"sufficient condition of the theory, at initialization: {_word(self.sufficient)}",
                f"condition of the infinite-width kernel: {_word(self.kernel)}",
            ]
        )

    def _contraction(self) -> str:
        if self.contraction:
            return "yes, certified; the equilibrium is unique"
        if self.gain_lower >= 1:
            return (
                "not certified: the gain is at least one, so the layer may expand. An equilibrium "
                "may still exist, but uniqueness is not guaranteed"
            )
        return "undecided: one lies between the bounds; ask for a smaller tightness"


def _word(holds: bool) -> str:
    return "holds" if holds else "does not hold"


def well_posedness(
    gain: GainBound,
    weights: Sequence[Tensor],
    architecture: ImplicitArchitecture,
    tightness: float,
) -> WellPosedness:
    """The report for recurrent layers and their weights."""
    lower = upper = 1.0
    for factor, norm, weight in zip(gain.factors, gain.norms, weights, strict=True):
        bounds = norm.bounds(weight, tightness=tightness)
        least, most = (0.0 if bound == 0 else factor * bound for bound in bounds)
        lower, upper = lower * least, upper * most
    if math.isnan(upper):
        upper = math.inf
    return WellPosedness(
        gain_lower=lower,
        gain_upper=upper,
        contraction=upper < 1,
        sufficient=architecture.contraction_guaranteed,
        kernel=architecture.kernel_guaranteed,
    )
