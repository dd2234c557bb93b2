r"""Networks with an equilibrium: bounds of their features and gradients as the weights move.

In the form $Z = \varphi(WZ + F)$, $\hat y = a^\top Z + v^\top F$, where the inputs inject $F = UX$
(deep equilibrium models, with $v = 0$) or $F = \mu\,\sigma(UX)$ with $\sigma$ the ReLU (implicit
networks, where units cross a kink in two places). Weights learn at speeds that are the squares of
the factors between parameters and weights. The lemmas are proved in the documentation, on the page
about certificates.
"""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from shoal.certificates.argument import Geometry, Growth, Radii
from shoal.certificates.enclosures import (
    exact,
    gamma,
    least_singular_value,
    norm_upper,
    product_error,
    row_norms,
    spectral_norm,
)
from shoal.certificates.equilibria import Crossings, Enclosed, enclose_equilibrium
from shoal.core.rounding import ROUND_UP, UNIT, down, up
from shoal.networks import EquilibriumNetwork

_GROUPS = ("recurrent", "input", "readout", "skip")


class EquilibriumGeometry(Geometry):
    r"""The measured network, with the names of the documentation.

    Args:
        net: A network with the weights ``recurrent``, ``input``, ``readout`` and maybe ``skip``.
        x: Inputs in float64.
        y: Labels, of shape (samples, outputs).
        scales: The factors between the parameters and the weights of each group.
        rectified_scale: $\mu$; ``None`` without $\sigma$.

    Raises:
        NotContractingError: If the recurrent layer is not known to be a contraction.
    """

    def __init__(
        self,
        net: EquilibriumNetwork[Any],
        x: Tensor,
        y: Tensor,
        scales: Mapping[str, float],
        *,
        rectified_scale: float | None = None,
    ) -> None:
        parameters = {g: net.groups[g] for g in _GROUPS if g in net.groups}
        weights = {g: p.detach().double().cpu() * scales[g] for g, p in parameters.items()}
        self.groups = tuple(parameters)
        self.scales = {
            g: exact(scales[g] if p.requires_grad else 0.0) for g, p in parameters.items()
        }
        self.speed = {g: self.scales.get(g, Fraction(0)) ** 2 for g in _GROUPS}
        self.rectified_scale = 1.0 if rectified_scale is None else rectified_scale
        inner, self.first_error = x @ weights["input"].T, product_error(x, weights["input"])
        injection = Enclosed(inner, self.first_error)
        if rectified_scale is not None:
            mapped = torch.relu(inner) * rectified_scale
            rounding = 4 * UNIT * norm_upper(mapped)
            injection = Enclosed(mapped, up(rectified_scale * self.first_error + rounding))
        readout, phi = weights["readout"], net.layer.activation
        self.equilibrium = enclose_equilibrium(weights["recurrent"], injection, readout, phi)
        self.first_crossings = None
        if rectified_scale is not None:
            pushes = self.equilibrium.slopes * self.equilibrium.adjoints
            pushes = pushes + weights["skip"][:, None]  # t_i = q_i + v
            sizes = pushes.square().sum(0).sqrt() * (1 + gamma(len(readout) + 16))
            self.first_crossings = Crossings(inner.abs(), sizes)
        inputs = {"readout": self.equilibrium.features, "skip": injection}
        inputs = {g: features for g, features in inputs.items() if g in parameters}
        # the readouts whose features must keep their rank: those that are trained
        self.read = tuple(g for g in inputs if parameters[g].requires_grad) or tuple(inputs)[-1:]
        stacked = torch.cat([inputs[g].value for g in self.read], 1).T
        least = least_singular_value(stacked, error=sum(inputs[g].error for g in self.read))
        norms = {
            g: up(spectral_norm(w) + 2 * UNIT * norm_upper(w))
            for g, w in weights.items()
            if g != "recurrent"
        }
        self.start = exact(least)
        self.readout_norm = exact(norms["readout"])
        self.skip_norm = exact(norms.get("skip", 0.0))
        injected = up(spectral_norm(injection.value) + injection.error)
        self.injection_norm = exact(injected if "skip" in inputs else 0.0)
        self.mapping = exact(self.rectified_scale * ROUND_UP) * exact(spectral_norm(x))  # μ‖X‖
        self.sample_norms = row_norms(x)
        error = _error([(inputs[g], weights[g], norms[g]) for g in inputs], y)
        self.error, self.rigorous = exact(error), self.equilibrium.proved
        self.measurements = {
            "norm of the recurrent weights": self.equilibrium.weight_norm,
            "gain of the recurrent layer": up(
                self.equilibrium.smooth.lipschitz * self.equilibrium.weight_norm
            ),
            "initial error": error,
            "least eigenvalue of the features": least * least,
        }

    def within(self, radii: Radii, step: Fraction) -> Growth:
        """The bounds within these radii, for steps of this size."""
        equilibrium, slope = self.equilibrium, exact(self.equilibrium.smooth.lipschitz)
        gap = 1 - slope * (exact(equilibrium.weight_norm) + radii["recurrent"])
        if gap <= 0:
            return Growth(1 - gap, self.start, Fraction(0))
        z0, injected = exact(equilibrium.features_norm), radii["input"] * self.mapping
        moved = slope * (radii["recurrent"] * z0 + injected) / gap
        drifts = {"readout": moved, "skip": injected}
        drift = sum((drifts[g] for g in self.read), Fraction(0))
        if drift >= self.start:
            return Growth(1 - gap, self.start, drift)
        ball = _Ball(self, radii, gap, z0 + moved, self.injection_norm + injected)
        second, both = ball.twists(step * self.error)
        s = self.speed
        travel = {
            "recurrent": s["recurrent"] * ball.lever * ball.features,
            "input": s["input"] * ball.push * self.mapping,
            "readout": s["readout"] * ball.features,
            "skip": s["skip"] * ball.injection,
        }
        readouts = s["readout"] * ball.features**2 + s["skip"] * ball.injection**2
        return Growth(
            gain=1 - gap,
            start=self.start,
            drift=drift,
            root=max(self.scales[g] for g in self.read) * (self.start - drift),
            largest=readouts + ball.lever**2 * ball.outer + ball.push**2 * ball.inner,
            travel={g: travel[g] for g in self.groups},
            crossing=second * ball.lever * ball.outer + both * ball.push * ball.inner,
            turn_square=second**2 * ball.outer + both**2 * ball.inner,
            curvature=ball.curvature(second),
        )


class _Ball:
    r"""The lemmas' quantities within given radii.

    Args:
        network: The measured network.
        radii: How far each group of weights may be from its start.
        gap: By how much the gain is below one, at least.
        features: $\zeta$, a bound of the norm of the features.
        injection: The same for the injection.
    """

    def __init__(
        self,
        network: EquilibriumGeometry,
        radii: Radii,
        gap: Fraction,
        features: Fraction,
        injection: Fraction,
    ) -> None:
        equilibrium, self.slope = network.equilibrium, exact(network.equilibrium.smooth.lipschitz)
        self.network, self.gap, self.features, self.injection = network, gap, features, injection
        self.skip_radius = radii.get("skip", Fraction(0))
        # how far the preactivations of UX and of Z may be from the computed ones
        inner = up(radii["input"]) * network.sample_norms
        outer = up(radii["recurrent"]) * equilibrium.sample_norms + network.rectified_scale * inner
        self.first_moves = (inner + network.first_error) * ROUND_UP
        self.moves = (outer / down(gap) + equilibrium.preactivation_error) * ROUND_UP
        self.adjoint_moves = equilibrium.adjoint_moves(
            self.moves, readout=radii["readout"], recurrent=radii["recurrent"], gap=gap
        )
        rough = (network.readout_norm + radii["readout"]) / gap
        moved = float((equilibrium.adjoint_norms + self.adjoint_moves).max())
        self.adjoint = min(rough, exact(up(moved)))  # β
        self.lever = self.slope * self.adjoint  # κ
        self.push = self.lever + network.skip_norm + self.skip_radius  # of t_i
        self.outer = network.speed["recurrent"] * features**2
        self.inner = network.speed["input"] * network.mapping**2
        # ‖ΔP‖ ≤ η stride ‖e‖
        self.stride = (self.outer * self.lever + self.inner * self.push) / gap

    def twists(self, reach: Fraction) -> tuple[Fraction, Fraction]:
        r"""$\theta_2$ and $\theta_1 + \theta_2$: how units that cross a kink change adjoints.

        $\theta_2$ is about $\varphi$ and $q_i$, $\theta_1$ about $\sigma$ and $t_i$.

        Args:
            reach: The step size times the error.
        """
        network, equilibrium = self.network, self.network.equilibrium
        second = first = Fraction(0)
        if equilibrium.smooth.jump:
            weight = equilibrium.crossing_weight(
                self.moves, up(self.stride * reach), self.adjoint_moves
            )
            second = exact(up(equilibrium.smooth.jump)) * min(weight, self.adjoint) / self.gap
        if network.first_crossings is not None:
            stride = up(self.inner * self.push * reach / exact(down(network.rectified_scale)))
            crossing = network.first_crossings.weight_within_step(self.first_moves, stride)
            turned = equilibrium.crossings.weight(self.moves) + self.adjoint_moves
            largest = float((crossing + turned).max()) * ROUND_UP
            first = min(exact(up(largest)) + self.skip_radius, self.push)
        return second, first + second

    def curvature(self, twist: Fraction) -> Fraction | None:
        """$M$; ``None`` where the activation's second derivative has no known bound."""
        bend, speed = self.network.equilibrium.smooth.curvature, self.network.speed
        if bend == float("inf"):
            return None
        linear = speed["recurrent"] * (self.lever + twist) * self.lever
        linear = (linear + speed["readout"]) * self.features * self.slope
        skipped = speed["skip"] * self.injection * self.inner * self.push
        return (linear + exact(bend) * self.adjoint * self.stride / 2) * self.stride + skipped


def _error(parts: list[tuple[Enclosed, Tensor, float]], y: Tensor) -> float:
    """An upper bound of the norm of the error, from features, readouts and their norms."""
    difference, sizes, propagated, terms = -y, norm_upper(y), 0.0, 8
    for inputs, readout, norm in parts:
        difference = difference + inputs.value @ readout.T
        sizes += norm_upper(inputs.value) * norm_upper(readout)
        propagated += norm * inputs.error
        terms += readout.shape[1]
    return up((norm_upper(difference) + gamma(terms) * sizes + propagated) * ROUND_UP)
