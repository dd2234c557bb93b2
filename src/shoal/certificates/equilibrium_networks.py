r"""Networks with an equilibrium: how all they are made of changes with the weights.

In the form $Z = \varphi(WZ + F)$, $\hat y = a^\top Z + v^\top F$, where the inputs inject $F = UX$
(deep equilibrium models, with $v = 0$) or $F = \mu\,\sigma(UX)$ with $\sigma$ the ReLU (implicit
networks, where units cross a kink in two places). Weights learn at speeds that are the squares of
the factors between parameters and weights. The lemmas are proved in the documentation, on the page
about certificates.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

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
from shoal.networks import EquilibriumNetwork

_GROUPS = ("recurrent", "input", "readout", "skip")


@dataclass(frozen=True)
class MeasuredNetwork:
    r"""Bounds of all that the theorems ask of a network and its data.

    Attributes:
        equilibrium: $Z$ and its adjoints.
        injection: $F$.
        read: The readouts whose features must keep their rank: those that are trained.
        singular_value: A lower bound of the least singular value of these features, stacked.
        injection_norm: $\|F\|_2$, at most; zero if there is no $v$.
        input_weight_norm: $\|U\|_2$, at most.
        readout_norm: $\|a\|_2$, at most.
        skip_norm: $\|v\|_2$, at most.
        input_norm: $\|X\|_2$, at most.
        sample_norms: $\|x_i\|$, at most.
        first_error: How far the computed $UX$ may be off.
        first_crossings: What units that cross a kink of $\sigma$ can weigh; ``None`` without it.
        error: $\|\hat y - y\|_F$, at most.
        scales: By what the parameters of each group are multiplied to make its weights; zero if the
            group is not trained.
        rectified_scale: $\mu$; one without $\sigma$.
    """

    equilibrium: Equilibrium
    injection: Injection
    read: tuple[str, ...]
    singular_value: float
    injection_norm: float
    input_weight_norm: float
    readout_norm: float
    skip_norm: float
    input_norm: float
    sample_norms: Tensor
    first_error: float
    first_crossings: Crossings | None
    error: float
    scales: dict[str, float]
    rectified_scale: float


def measure_equilibrium(
    net: EquilibriumNetwork[Any],
    x: Tensor,
    y: Tensor,
    scales: Mapping[str, float],
    *,
    rectified_scale: float | None = None,
) -> MeasuredNetwork:
    r"""Measure a network on float64 inputs, and labels of shape (samples, outputs).

    Args:
        net: A network with the weights ``recurrent``, ``input``, ``readout`` and maybe ``skip``.
        x: The inputs.
        y: The labels.
        scales: By what the parameters of each group are multiplied to make its weights.
        rectified_scale: $\mu$; by default there is no $\sigma$.

    Raises:
        NotContractingError: If the recurrent layer is not known to be a contraction.
    """
    groups = {g: net.groups[g] for g in _GROUPS if g in net.groups}
    weights = {g: p.detach().double().cpu() * scales[g] for g, p in groups.items()}
    readout, inputs = weights["readout"], weights["input"]
    inner, first_error = x @ inputs.T, product_error(x, inputs)
    injection = Injection(inner, first_error)
    if rectified_scale is not None:
        mapped = torch.relu(inner) * rectified_scale
        rounding = 4 * UNIT * norm_upper(mapped)
        injection = Injection(mapped, up(rectified_scale * first_error + rounding))
    found = find_equilibrium(weights["recurrent"], injection, readout, net.layer.activation)
    seen = {"readout": Injection(found.features, found.feature_error), "skip": injection}
    seen = {g: features for g, features in seen.items() if g in groups}
    read = tuple(g for g in seen if groups[g].requires_grad) or tuple(seen)[-1:]
    norms = {g: _norm(w) for g, w in weights.items() if g != "recurrent"}
    crossings = None
    if rectified_scale is not None:
        pushes = found.slopes * found.adjoints + weights["skip"][:, None]  # t_i = q_i + v
        sizes = pushes.square().sum(0).sqrt() * (1 + gamma(len(readout) + 16))
        crossings = Crossings(inner.abs(), sizes)
    return MeasuredNetwork(
        equilibrium=found,
        injection=injection,
        read=read,
        singular_value=least_singular_value(
            torch.cat([seen[g].value for g in read], 1).T, error=sum(seen[g].error for g in read)
        ),
        injection_norm=up(spectral_norm(injection.value) + injection.error)
        if "skip" in seen
        else 0.0,
        input_weight_norm=norms["input"],
        readout_norm=norms["readout"],
        skip_norm=norms.get("skip", 0.0),
        input_norm=spectral_norm(x),
        sample_norms=row_norms(x),
        first_error=first_error,
        first_crossings=crossings,
        error=_error([(seen[g], weights[g], norms[g]) for g in seen], y),
        scales={g: scales[g] if p.requires_grad else 0.0 for g, p in groups.items()},
        rectified_scale=1.0 if rectified_scale is None else rectified_scale,
    )


def _norm(weight: Tensor) -> float:
    """An upper bound of the norm of weights that were rounded once."""
    return up(spectral_norm(weight) + 2 * UNIT * norm_upper(weight))


def _error(parts: list[tuple[Injection, Tensor, float]], y: Tensor) -> float:
    """An upper bound of the norm of the error, from features, readouts and their norms."""
    difference, sizes, propagated, terms = -y, norm_upper(y), 0.0, 8
    for seen, readout, norm in parts:
        difference = difference + seen.value @ readout.T
        sizes += norm_upper(seen.value) * norm_upper(readout)
        propagated += norm * seen.error
        terms += readout.shape[1]
    return up((norm_upper(difference) + gamma(terms) * sizes + propagated) * ROUND_UP)


class EquilibriumGeometry(Geometry):
    """The lemmas for networks with an equilibrium.

    Args:
        measured: The network and its data.
    """

    def __init__(self, measured: MeasuredNetwork) -> None:
        self.measured = measured
        self.groups = tuple(measured.scales)
        self.scales = {g: exact(scale) for g, scale in measured.scales.items()}
        self.error = exact(measured.error)
        self.rigorous = measured.equilibrium.proved

    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:
        """What holds within these radii, for steps of this size."""
        ball = _Ball(self.measured, radii)
        if ball.gap <= 0 or ball.drift >= ball.start:
            return Obstacle(1 - ball.gap, ball.start, ball.drift)
        s, twists = ball.speed, ball.twists(step * self.error)
        root = max(self.scales[g] for g in self.measured.read) * (ball.start - ball.drift)
        readouts = s["readout"] * ball.features**2 + s["skip"] * ball.injection**2
        travel = {
            "recurrent": s["recurrent"] * ball.lever * ball.features,
            "input": s["input"] * ball.push * ball.mapping,
            "readout": s["readout"] * ball.features,
            "skip": s["skip"] * ball.injection,
        }
        second, both = twists[0], sum(twists)
        return Growth(
            gain=1 - ball.gap,
            start=ball.start,
            drift=ball.drift,
            floor=root**2,
            root=root,
            largest=readouts + ball.lever**2 * ball.outer + ball.push**2 * ball.inner,
            travel={g: travel[g] for g in self.groups},
            crossing=second * ball.lever * ball.outer + both * ball.push * ball.inner,
            turn_square=second**2 * ball.outer + both**2 * ball.inner,
            curvature=ball.curvature(second),
        )


class _Ball:
    """The lemmas' quantities within given radii; the names are those of the documentation."""

    def __init__(self, measured: MeasuredNetwork, radii: Radii) -> None:
        found, smooth = measured.equilibrium, measured.equilibrium.smooth
        self.measured, self.radii = measured, radii
        self.speed = {g: exact(measured.scales.get(g, 0.0)) ** 2 for g in _GROUPS}
        self.slope = exact(smooth.lipschitz)
        self.start = exact(measured.singular_value)
        self.gap = 1 - self.slope * (exact(found.weight_norm) + radii["recurrent"])
        self.drift = Fraction(0)
        if self.gap <= 0:
            return
        # μ‖X‖
        self.mapping = exact(measured.rectified_scale * ROUND_UP) * exact(measured.input_norm)
        z0, injected = exact(found.features_norm), radii["input"] * self.mapping
        moved = self.slope * (radii["recurrent"] * z0 + injected) / self.gap
        drifts = {"readout": moved, "skip": injected}
        self.drift = sum((drifts[g] for g in measured.read), Fraction(0))
        self.features = z0 + moved  # ζ
        self.injection = exact(measured.injection_norm) + injected
        self.first_moves, self.moves = self._moves()
        self.adjoint_moves = found.adjoint_moves(
            self.moves, readout=radii["readout"], recurrent=radii["recurrent"], gap=self.gap
        )
        rough = (exact(measured.readout_norm) + radii["readout"]) / self.gap
        known = float((found.adjoint_norms + self.adjoint_moves).max())
        self.adjoint = min(rough, exact(up(known)))  # β
        self.lever = self.slope * self.adjoint  # κ
        self.push = self.lever + exact(measured.skip_norm) + self._skip_radius  # of t_i
        self.outer = self.speed["recurrent"] * self.features**2
        self.inner = self.speed["input"] * self.mapping**2
        # ‖ΔP‖ ≤ η stride ‖e‖
        self.stride = (self.outer * self.lever + self.inner * self.push) / self.gap

    @property
    def _skip_radius(self) -> Fraction:
        return self.radii.get("skip", Fraction(0))

    def _moves(self) -> tuple[Tensor, Tensor]:
        """How far the preactivations of $UX$ and of $Z$ may be from the computed ones."""
        measured, found = self.measured, self.measured.equilibrium
        inner = up(self.radii["input"]) * measured.sample_norms
        outer = up(self.radii["recurrent"]) * found.sample_norms + measured.rectified_scale * inner
        outer = outer / down(self.gap) + found.preactivation_error
        return (inner + measured.first_error) * ROUND_UP, outer * ROUND_UP

    def twists(self, reach: Fraction) -> tuple[Fraction, Fraction]:
        r"""$\theta_2$ and $\theta_1$: what units that cross a kink within a step do to adjoints.

        Those of $\varphi$ to $q_i$, and those of $\sigma$ to $t_i$.

        Args:
            reach: The step size times the error.
        """
        measured, found = self.measured, self.measured.equilibrium
        second = first = Fraction(0)
        if found.smooth.jump:
            stride = up(self.stride * reach)
            weight = found.crossing_weight(self.moves, stride, self.adjoint_moves)
            second = exact(up(found.smooth.jump)) * min(weight, self.adjoint) / self.gap
        if measured.first_crossings is not None:
            stride = up(self.inner * self.push * reach / exact(down(measured.rectified_scale)))
            crossing = measured.first_crossings.weight(within_step(self.first_moves, stride))
            turned = found.crossings.weight(self.moves) + self.adjoint_moves
            known = float((crossing + turned).max()) * ROUND_UP
            first = min(exact(up(known)) + self._skip_radius, self.push)
        return second, first

    def curvature(self, twist: Fraction) -> Fraction | None:
        """$M$; ``None`` where the activation's second derivative has no known bound."""
        bend = self.measured.equilibrium.smooth.curvature
        if bend == float("inf"):
            return None
        linear = self.speed["recurrent"] * (self.lever + twist) * self.lever
        linear = (linear + self.speed["readout"]) * self.features * self.slope
        skipped = self.speed["skip"] * self.injection * self.inner * self.push
        return (linear + exact(bend) * self.adjoint * self.stride / 2) * self.stride + skipped
