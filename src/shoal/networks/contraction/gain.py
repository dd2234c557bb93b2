"""A certified bound of recurrent layers' gain, followed through training, and what it says."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shoal.architectures import ImplicitArchitecture
from shoal.core.checks import float_tensor
from shoal.networks.recurrent_layers import Layer
from shoal.numerics.norms import (
    Eigenpair,
    NormBounds,
    dominant_singular_pair,
    operator_norm_bounds,
)


class WeightNorm(Protocol):
    """How the norm of the map that a layer's weights make is bounded."""

    @property
    def drift(self) -> float:
        """The ratio by which the Frobenius norm of a change bounds the change of the norm."""
        ...

    def bounds(self, weight: Tensor, *, tightness: float = 1e-3) -> NormBounds:
        """Certified bounds."""
        ...

    def estimate(self, weight: Tensor, near: Tensor | None = None) -> Eigenpair:
        """The norm, nearly, and the vector that says so; ``near`` is that of similar weights."""
        ...


@dataclass(frozen=True)
class MatrixNorm:
    """The norm of weights as a matrix, with a row for each entry of their first dimension.

    Attributes:
        groups: Of how many matrices, one below the other, they are made, each of which acts on
            entries of its own.
    """

    groups: int = 1

    @property
    def drift(self) -> float:
        """One: no norm of a matrix exceeds its Frobenius norm."""
        return 1.0

    def bounds(self, weight: Tensor, *, tightness: float = 1e-3) -> NormBounds:
        """Certified bounds of the norm, by products of matrices."""
        rows = weight.flatten(1)
        if self.groups > 1:
            rows = rows.reshape(self.groups, len(rows) // self.groups, -1)
        return operator_norm_bounds(rows, tightness=tightness)

    def estimate(self, weight: Tensor, near: Tensor | None = None) -> Eigenpair:
        """An estimate of the norm, by Lanczos iteration."""
        return dominant_singular_pair(weight, near)


def gain_factor(layer: Layer) -> float:
    r"""$s L$: by what the norm of the weights is multiplied to make the gain."""
    return layer.scale * layer.activation.lipschitz if layer.scale else 0.0


class GainBound:
    r"""Bounds the gain of recurrent layers from above while weights change, rounding included.

    It is $s L \|W\|$, or the product of those of several layers. Since
    $\|W'\| \le \|W\| + c\,\|W' - W\|_F$ ($c = 1$ for matrices), the norms themselves are bounded
    anew only when the weights have moved far enough for it to matter.

    Args:
        factors: $s L$ of each layer.
        norms: How the norm of each one's weights is bounded; as that of a matrix by default.
        name: What errors call the weights.
    """

    def __init__(
        self,
        factors: Sequence[float],
        norms: Sequence[WeightNorm] | None = None,
        *,
        name: str = "recurrent weights",
    ) -> None:
        self.factors, self.name = tuple(factors), name
        default: tuple[WeightNorm, ...] = (MatrixNorm(),) * len(self.factors)
        self.norms = default if norms is None else tuple(norms)
        self.known: list[tuple[Tensor, float]] = []  # weights, and bounds of their gains

    @torch.no_grad()
    def upper(self, weights: Sequence[Tensor], limit: float) -> float:
        """A bound; above ``limit`` only if that is within a thousandth of the truth."""
        if self.known:
            steps = (f * norm.drift for f, norm in zip(self.factors, self.norms, strict=True))
            drifted = zip(steps, weights, self.known, strict=True)
            bound = math.prod(_after_drift(*one) for one in drifted)
            if bound <= limit:
                return bound
        self.learn(weights, self.measure(weights))
        return math.prod(bound for _, bound in self.known)

    def measure(self, weights: Sequence[Tensor]) -> list[float]:
        """Bounds of the gains of all layers, as their weights are."""
        each = zip(self.factors, self.norms, weights, strict=True)
        return [f * norm.bounds(float_tensor(self.name, w)).upper for f, norm, w in each]

    def learn(self, weights: Sequence[Tensor], bounds: Sequence[float]) -> None:
        """Take over bounds that are known."""
        self.known = [(w.detach().clone(), b) for w, b in zip(weights, bounds, strict=True)]


def _after_drift(factor: float, weight: Tensor, known: tuple[Tensor, float]) -> float:
    before, bound = known
    drift = float(torch.linalg.vector_norm((weight - before).double()))
    return bound + factor * drift * (1 + 1e-9 + torch.finfo(weight.dtype).eps)


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
