r"""Deep equilibrium models: how all they are made of changes with the weights.

In the form $Z = \varphi(WZ + UX)$, $\hat y = a^\top Z$, with weights that learn at speeds $s_w$,
$s_u$, $s_a$: the squares of the factors between parameters and weights, all one in Ling 2023. The
lemmas are proved in the documentation, on the page about certificates.
"""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor

from shoal.architectures import DEQ
from shoal.certificates.evidence.enclosures import least_singular_value, spectral_norm
from shoal.certificates.evidence.equilibrium import Equilibrium, Injection, find_equilibrium
from shoal.certificates.evidence.rounding import (
    ROUND_UP,
    UNIT,
    exact,
    gamma,
    norm_upper,
    product_error,
    row_norms,
    up,
)
from shoal.certificates.growth import Geometry, Growth, Obstacle, Radii
from shoal.networks.loop import LoopNetwork

__all__ = ["DEQGeometry", "MeasuredDEQ", "measure_deq"]


@dataclass(frozen=True)
class MeasuredDEQ:
    r"""Bounds of all that the theorems ask of a network and its data.

    Attributes:
        equilibrium: The features and the adjoints.
        singular_value: A lower bound of the least singular value of the features.
        input_norm: $\|X\|_2$, at most.
        input_frobenius: $\|X\|_F$, at most.
        sample_norms: $\|x_i\|$, at most.
        input_weight_norm: $\|U\|_2$, at most.
        readout_norm: $\|a\|_2$, at most.
        error: $\|\hat y - y\|_F$, at most.
        scales: By what the parameters of each group are multiplied to make its weights; zero if the
            group is not trained.
    """

    equilibrium: Equilibrium
    singular_value: float
    input_norm: float
    input_frobenius: float
    sample_norms: Tensor
    input_weight_norm: float
    readout_norm: float
    error: float
    scales: dict[str, float]


def measure_deq(net: LoopNetwork[DEQ], x: Tensor, y: Tensor) -> MeasuredDEQ:
    """Measure a network on float64 inputs, and labels of shape (samples, outputs).

    Raises:
        NotContractingError: If the recurrent layer is not known to be a contraction.
    """
    scales = net.scales
    weights = {g: p.detach().double().cpu() * scales[g] for g, p in net.groups.items()}
    inputs, readout = weights["input"], weights["readout"]
    injection = Injection(x @ inputs.T, product_error(x, inputs))
    found = find_equilibrium(weights["recurrent"], injection, readout, net.layer.activation)
    readout_norm = up(spectral_norm(readout) + 2 * UNIT * norm_upper(readout))
    difference = found.features @ readout.T - y
    terms = norm_upper(found.features) * norm_upper(readout) + norm_upper(y)
    error = norm_upper(difference) + gamma(readout.shape[1] + 6) * terms
    return MeasuredDEQ(
        equilibrium=found,
        singular_value=least_singular_value(found.features.T, error=found.feature_error),
        input_norm=spectral_norm(x),
        input_frobenius=norm_upper(x),
        sample_norms=row_norms(x),
        input_weight_norm=up(spectral_norm(inputs) + 2 * UNIT * norm_upper(inputs)),
        readout_norm=readout_norm,
        error=up(error + readout_norm * found.feature_error),
        scales={g: scales[g] if p.requires_grad else 0.0 for g, p in net.groups.items()},
    )


class DEQGeometry(Geometry):
    """The lemmas for deep equilibrium models.

    Args:
        measured: The network and its data.
    """

    groups = ("recurrent", "input", "readout")

    def __init__(self, measured: MeasuredDEQ) -> None:
        self.measured = measured
        self.scales = {g: exact(scale) for g, scale in measured.scales.items()}
        self.error = exact(measured.error)
        self.rigorous = measured.equilibrium.proved

    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:
        """What holds within these radii, for steps of this size."""
        ball = _Ball(self.measured, radii)
        if ball.gap <= 0 or ball.drift >= ball.start:
            return Obstacle(1 - ball.gap, ball.start, ball.drift)
        s, lever, features = ball.speed, ball.lever, ball.features
        least, twist = ball.start - ball.drift, ball.twist(step * self.error)
        return Growth(
            gain=1 - ball.gap,
            start=ball.start,
            drift=ball.drift,
            floor=s["readout"] * least**2,
            root=self.scales["readout"] * least,
            largest=s["readout"] * features**2 + lever**2 * ball.mixed,
            travel={
                "recurrent": s["recurrent"] * lever * features,
                "input": s["input"] * lever * ball.inputs,
                "readout": s["readout"] * features,
            },
            crossing=twist * lever * ball.mixed,
            turn_square=twist**2 * ball.mixed,
            curvature=ball.curvature(twist),
        )


class _Ball:
    """The lemmas' quantities within given radii; the names are those of the documentation."""

    def __init__(self, measured: MeasuredDEQ, radii: Radii) -> None:
        found, smooth = measured.equilibrium, measured.equilibrium.smooth
        self.measured, self.radii = measured, radii
        self.speed = {g: exact(scale) ** 2 for g, scale in measured.scales.items()}
        self.slope = exact(smooth.lipschitz)
        self.start = exact(measured.singular_value)
        self.inputs = exact(measured.input_norm)
        self.norm = exact(found.weight_norm) + radii["recurrent"]
        self.gap = 1 - self.slope * self.norm
        self.drift = Fraction(0)
        if self.gap <= 0:
            return
        z0 = exact(found.features_norm)
        moved = radii["recurrent"] * z0 + radii["input"] * self.inputs
        self.drift = self.slope * moved / self.gap
        self.features = z0 + self.drift  # ζ
        self.moves = self._moves()
        self.adjoint_moves = found.adjoint_moves(
            self.moves, readout=radii["readout"], recurrent=radii["recurrent"], gap=self.gap
        )
        rough = (exact(measured.readout_norm) + radii["readout"]) / self.gap
        known = float((found.adjoint_norms + self.adjoint_moves).max())
        self.adjoint = min(rough, exact(up(known)))  # β
        self.lever = self.slope * self.adjoint  # κ
        inputs = self.speed["input"] * self.inputs**2
        self.mixed = self.speed["recurrent"] * self.features**2 + inputs
        self.push = self.mixed * self.lever / self.gap  # ‖ΔP‖ ≤ η push ‖e‖

    def _moves(self) -> Tensor:
        """How far the preactivations of each sample may be from the computed ones."""
        found = self.measured.equilibrium
        recurrent, inputs = (up(self.radii[g] / self.gap) for g in ("recurrent", "input"))
        moves = recurrent * found.sample_norms + inputs * self.measured.sample_norms
        return (moves + found.preactivation_error) * ROUND_UP

    def twist(self, reach: Fraction) -> Fraction:
        r"""$\theta$, what units that cross a kink within a step do to a row of $R$.

        Args:
            reach: The step size times the error.
        """
        found, smooth = self.measured.equilibrium, self.measured.equilibrium.smooth
        if smooth.jump == 0:
            return Fraction(0)
        stride = up(self.push * reach)  # how far preactivations move in a step
        weight = found.crossing_weight(self.moves, stride, self.adjoint_moves)
        return exact(up(smooth.jump)) * min(weight, self.adjoint) / self.gap

    def curvature(self, twist: Fraction) -> Fraction | None:
        """$M$; ``None`` where the activation's second derivative has no known bound."""
        bend = self.measured.equilibrium.smooth.curvature
        if bend == float("inf"):
            return None
        linear = self.speed["recurrent"] * (self.lever + twist) * self.lever
        linear += self.speed["readout"]
        second = exact(bend) * self.adjoint * self.push**2 / 2
        return linear * self.features * self.slope * self.push + second
