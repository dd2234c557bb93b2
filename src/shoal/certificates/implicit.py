r"""Implicit networks: how all they are made of changes with the weights.

In the form $Z = \sigma(BZ + F)$, $F = \mu \sigma(WX)$, $\hat y = u^\top Z + v^\top F$ with
$\mu = m^{-1/2}$ and $B = \gamma \mu A$. The argument is that of deep equilibrium models, with units
that cross a kink in two places. The documentation has the proof, on its page about certificates.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from shoal.certificates.evidence.enclosures import least_singular_value, spectral_norm
from shoal.certificates.evidence.equilibrium import (
    Equilibrium,
    Injection,
    find_equilibrium,
    within_step,
)
from shoal.certificates.evidence.kinks import Crossings
from shoal.certificates.evidence.rounding import (
    ROUND_UP,
    UNIT,
    down,
    exact,
    gamma,
    norm_upper,
    product_error,
    row_norms,
    up,
)
from shoal.certificates.growth import Geometry, Growth, Obstacle, Radii
from shoal.networks.implicit_network import ImplicitNetworkModule

__all__ = ["ImplicitGeometry", "MeasuredImplicit", "measure_implicit"]


@dataclass(frozen=True)
class MeasuredImplicit:
    r"""Bounds of all that the theorems ask of a network and its data.

    Attributes:
        equilibrium: $Z$ and its adjoints.
        stacked_value: A lower bound of the least singular value of the features whose readouts are
            trained, $Z$ and $F$ together; of $F$ if none is.
        skip_value: A lower bound of the least singular value of $F$.
        skip_norm: $\|F\|_2$, at most.
        recurrent_norm: $\|A\|_2$, at most.
        input_weight_norm: $\|W\|_2$, at most.
        readout_norms: $\|u\|_2$ and $\|v\|_2$, at most.
        input_norm: $\|X\|_2$, at most.
        sample_norms: $\|x_i\|$, at most.
        first_error: How far the computed $WX$ may be off.
        first_crossings: What units of the first layer that cross a kink can weigh.
        error: $\|\hat y - y\|_F$, at most.
        scales: By what the parameters of each group are multiplied; zero if not trained.
        inverse_root: $\mu$.
    """

    equilibrium: Equilibrium
    stacked_value: float
    skip_value: float
    skip_norm: float
    recurrent_norm: float
    input_weight_norm: float
    readout_norms: tuple[float, float]
    input_norm: float
    sample_norms: Tensor
    first_error: float
    first_crossings: Crossings
    error: float
    scales: dict[str, float]
    inverse_root: float


def measure_implicit(net: ImplicitNetworkModule, x: Tensor, y: Tensor) -> MeasuredImplicit:
    """Measure a network on float64 inputs, and labels of shape (samples, outputs).

    Raises:
        NotContractingError: If the recurrent layer is not known to be a contraction.
    """
    weights = {g: p.detach().double().cpu() for g, p in net.groups.items()}
    scale, root = net.layer.scale, 1 / math.sqrt(net.spec.width)
    readout, skip, inputs = weights["readout"], weights["skip"], weights["input"]
    inner = x @ inputs.T
    first_error = product_error(x, inputs)
    mapped = torch.relu(inner) * root
    mapped_error = up(root * first_error + 4 * UNIT * norm_upper(mapped))
    injection = Injection(mapped, mapped_error)
    found = find_equilibrium(weights["recurrent"] * scale, injection, readout, net.layer.activation)
    z = found.features
    pushes = found.slopes * found.adjoints + skip[:, None]  # t_i = q_i + v
    sizes_of_pushes = pushes.square().sum(0).sqrt() * (1 + gamma(len(skip) + 16))
    difference = z @ readout.T + mapped @ skip.T - y
    sizes = norm_upper(z) * norm_upper(readout) + norm_upper(mapped) * norm_upper(skip)
    error = norm_upper(difference) + gamma(2 * readout.shape[1] + 8) * (sizes + norm_upper(y))
    norms = spectral_norm(readout), spectral_norm(skip)
    error += norms[0] * found.feature_error + norms[1] * mapped_error
    trained = {g: p.requires_grad for g, p in net.groups.items()}
    parts = [t for t, g in ((z, "readout"), (mapped, "skip")) if trained[g]] or [mapped]
    stacked = torch.cat(parts, 1)
    scales = {"readout": 1.0, "skip": 1.0, "recurrent": scale, "input": 1.0}
    return MeasuredImplicit(
        equilibrium=found,
        stacked_value=least_singular_value(stacked.T, error=found.feature_error + mapped_error),
        skip_value=least_singular_value(mapped.T, error=mapped_error),
        skip_norm=up(spectral_norm(mapped) + mapped_error),
        recurrent_norm=spectral_norm(weights["recurrent"]),
        input_weight_norm=spectral_norm(inputs),
        readout_norms=norms,
        input_norm=spectral_norm(x),
        sample_norms=row_norms(x),
        first_error=first_error,
        first_crossings=Crossings(inner.abs(), sizes_of_pushes),
        error=up(error * ROUND_UP),
        scales={g: scales[g] if trained[g] else 0.0 for g in scales},
        inverse_root=root,
    )


class ImplicitGeometry(Geometry):
    """The lemmas for implicit networks.

    Args:
        measured: The network and its data.
    """

    groups = ("recurrent", "input", "readout", "skip")

    def __init__(self, measured: MeasuredImplicit) -> None:
        self.measured = measured
        self.scales = {g: exact(scale) for g, scale in measured.scales.items()}
        self.error = exact(measured.error)
        self.rigorous = measured.equilibrium.proved

    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:
        """What holds within these radii, for steps of this size."""
        ball = _Ball(self.measured, radii)
        if ball.gap <= 0 or ball.drift >= ball.start:
            return Obstacle(1 - ball.gap, ball.start, ball.drift)
        s, least = {g: scale**2 for g, scale in self.scales.items()}, ball.start - ball.drift
        outer, inner = s["recurrent"] * ball.features**2, s["input"] * ball.mapping**2
        second, first = ball.twists(step * self.error, outer, inner)
        spread = outer * ball.lever + inner * ball.push  # ‖Δ of what enters Z‖ ≤ η spread ‖e‖
        moved = spread / ball.gap
        curvature = (s["recurrent"] * (ball.lever + second) * ball.lever + s["readout"]) * moved
        curvature = curvature * ball.features + s["skip"] * ball.skip * inner * ball.push
        readouts = s["readout"] * ball.features**2 + s["skip"] * ball.skip**2
        both, trained = first + second, s["readout"] + s["skip"] > 0
        return Growth(
            gain=1 - ball.gap,
            start=ball.start,
            drift=ball.drift,
            floor=least**2 if trained else Fraction(0),
            root=least,
            largest=readouts + ball.lever**2 * outer + ball.push**2 * inner,
            travel={
                "recurrent": s["recurrent"] * ball.lever * ball.features,
                "input": s["input"] * ball.push * ball.mapping,
                "readout": s["readout"] * ball.features,
                "skip": s["skip"] * ball.skip,
            },
            crossing=second * ball.lever * outer + both * ball.push * inner,
            turn_square=second**2 * outer + both**2 * inner,
            curvature=curvature,
        )


class _Ball:
    """The lemmas' quantities within given radii; the names are those of the documentation."""

    def __init__(self, measured: MeasuredImplicit, radii: Radii) -> None:
        found = measured.equilibrium
        self.measured, self.radii = measured, radii
        self.start = exact(measured.stacked_value)
        self.gap = 1 - exact(found.weight_norm) - radii["recurrent"]
        self.drift = Fraction(0)
        if self.gap <= 0:
            return
        self.mapping = exact(measured.inverse_root * ROUND_UP) * exact(measured.input_norm)  # μ‖X‖
        skip_drift = radii["input"] * self.mapping
        z0 = exact(found.features_norm)
        drift = (radii["recurrent"] * z0 + skip_drift) / self.gap
        self.features, self.skip = z0 + drift, exact(measured.skip_norm) + skip_drift
        trained = measured.scales
        self.drift = (drift if trained["readout"] else Fraction(0)) + (
            skip_drift if trained["skip"] else Fraction(0)
        )
        self.first_moves, self.moves = self._moves()
        self.adjoint_moves = found.adjoint_moves(
            self.moves, readout=radii["readout"], recurrent=radii["recurrent"], gap=self.gap
        )
        readout, skip = map(exact, measured.readout_norms)
        known = exact(up(float((found.adjoint_norms + self.adjoint_moves).max())))
        self.lever = min((readout + radii["readout"]) / self.gap, known)  # κ
        self.push = self.lever + skip + radii["skip"]  # of t_i

    def _moves(self) -> tuple[Tensor, Tensor]:
        """How far the preactivations of both layers may be from the computed ones."""
        found, root = self.measured.equilibrium, self.measured.inverse_root
        inner = up(self.radii["input"]) * self.measured.sample_norms
        outer = up(self.radii["recurrent"]) * found.sample_norms + root * inner
        outer = outer / down(self.gap) + found.preactivation_error
        return (inner + self.measured.first_error) * ROUND_UP, outer * ROUND_UP

    def twists(
        self, reach: Fraction, outer: Fraction, inner: Fraction
    ) -> tuple[Fraction, Fraction]:
        """What units that cross a kink within a step do to $q_i$ and to $t_i$.

        Args:
            reach: The step size times the error.
            outer: The squared features, in the scale of their parameters.
            inner: The squared inputs, likewise.
        """
        found, ball = self.measured.equilibrium, self
        stride = up((outer * ball.lever + inner * ball.push) / ball.gap * reach)
        first_stride = up(inner * ball.push * reach / exact(down(self.measured.inverse_root)))
        second = found.crossing_weight(self.moves, stride, self.adjoint_moves)
        turned = found.crossings.weight(self.moves) + self.adjoint_moves
        first_moves = within_step(self.first_moves, first_stride)
        weight = self.measured.first_crossings.weight(first_moves) + turned
        first = exact(up(float(weight.max()) * ROUND_UP)) + self.radii["skip"]
        return min(second, self.lever) / self.gap, min(first, self.push)
