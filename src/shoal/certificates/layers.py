r"""Explicit networks: how their gradients change with the weights.

The lemmas for $x^{(h)} = e x^{(h-1)} + k \sigma(W \pi(x^{(h-1)}))$ are proved in the documentation,
on the page about certificates. They bound how far features, adjoints and gradients are from the
*computed* ones, so that errors of computing them are a part of what they may move.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import torch
from torch import Tensor

from shoal.certificates.evidence.rounding import ROUND_UP, UNIT, exact, norm_upper, up
from shoal.certificates.explicit import MeasuredExplicit, MeasuredLayer, gram_root, least_root
from shoal.certificates.growth import RANK_REMEDY, Geometry, Growth, Obstacle, Radii


class ExplicitGeometry(Geometry):
    """The lemmas for explicit networks.

    Args:
        measured: The network and its data.
    """

    subject = "gradients"
    remedy = "more width, labels nearer to the initial outputs, less similar inputs"
    rank_remedy = f"{RANK_REMEDY}; a readout that stays fixed must not be zero"

    def __init__(self, measured: MeasuredExplicit) -> None:
        self.measured = measured
        trained = {layer.name: layer.trained for layer in measured.layers}
        trained["readout"] = measured.readout_trained
        self.groups = tuple(name for name, learns in trained.items() if learns)
        if not self.groups:
            self.rank_remedy = "train some weights: none requires a gradient"
        self.scales = dict.fromkeys(self.groups, Fraction(1))
        self.rigorous = measured.proved
        kernel = measured.ntk()
        self.start, self.norm = exact(least_root(*kernel)), exact(gram_root(*kernel))
        self.norms = {layer.name: layer.jacobian_norm for layer in measured.layers if layer.trained}
        if measured.readout_trained:
            self.norms["readout"] = gram_root(*measured.readout_gram)
        nowhere = LayerBounds(measured, dict.fromkeys(self.groups, 0.0), {})
        error = norm_upper(measured.difference) + measured.output_error
        self.error = exact(up(up(error) + measured.readout_norm * norm_upper(nowhere.pooled)))

    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:  # noqa: ARG002
        """What holds within these radii."""
        ball = LayerBounds(self.measured, {g: up(r) for g, r in radii.items()}, self.norms)
        drift = exact(ball.drift)
        if drift >= self.start:
            return Obstacle(None, self.start, drift)
        return Growth(
            gain=None,
            start=self.start,
            drift=drift,
            floor=(self.start - drift) ** 2,
            root=self.start - drift,
            largest=(self.norm + drift) ** 2,
            travel={g: exact(t) for g, t in ball.travel.items()},
            crossing=Fraction(0),
            turn_square=Fraction(0),
            curvature=exact(ball.curvature),
        )


@dataclass(frozen=True)
class LayerBounds:
    """The lemmas' quantities within given radii; tensors have one entry for each sample.

    Attributes:
        measured: The network and its data.
        radii: How far each group of weights may be from its start.
        norms: Bounds of the norms of the groups' gradients at the start.
    """

    measured: MeasuredExplicit
    radii: dict[str, float]
    norms: dict[str, float]

    def _norm(self, layer: MeasuredLayer) -> float:
        r"""$\|W\|$ times $\|\pi\|$."""
        return (layer.norm + self.radii.get(layer.name, 0.0)) * layer.reach * ROUND_UP

    @cached_property
    def moves(self) -> list[tuple[Tensor, Tensor]]:
        """For each layer how far the features below and the preactivations are from computed ones.

        The features above the last layer come last, with nothing beside them.
        """
        below = torch.zeros_like(self.measured.layers[0].inputs)
        found = []
        for layer in self.measured.layers:
            radius = self.radii.get(layer.name, 0.0)
            inner = self._norm(layer) * below + radius * layer.inputs + layer.inner_error
            found.append((below, inner * ROUND_UP))
            lift = layer.factor * layer.smooth.lipschitz * ROUND_UP
            below = (layer.skip * below + lift * found[-1][1] + layer.feature_error) * ROUND_UP
        return [*found, (below, torch.zeros_like(below))]

    @cached_property
    def pooled(self) -> Tensor:
        """How far the features that the readout sees are from computed ones."""
        return self.moves[-1][0] * (math.sqrt(self.measured.pixels) * ROUND_UP)

    @cached_property
    def adjoints(self) -> list[tuple[Tensor, Tensor]]:
        r"""For each layer how far $g$ and $k\,\sigma'(p)\,g$ are from computed ones."""
        radius = self.radii.get("readout", 0.0) * math.sqrt(self.measured.pixels) * ROUND_UP
        above = torch.full_like(self.measured.layers[0].inputs, radius)
        found = []
        for layer, (_, inner) in zip(
            reversed(self.measured.layers), self.moves[-2::-1], strict=True
        ):
            smooth = layer.smooth
            turned = smooth.curvature * ROUND_UP * layer.peaks * inner
            turned = turned + layer.slope_error * layer.adjoints + smooth.lipschitz * above
            turned = turned * ROUND_UP
            found.append(
                (above, (layer.factor * turned + 4 * UNIT * layer.factor * layer.levers) * ROUND_UP)
            )
            through = self._norm(layer) * turned
            through = through + self.radii.get(layer.name, 0.0) * layer.reach * layer.levers
            above = (layer.skip * above + layer.factor * through + layer.adjoint_error) * ROUND_UP
        return found[::-1]

    @cached_property
    def drifts(self) -> dict[str, float]:
        """How far the gradients of each trained group are from computed ones."""
        found = {}
        for layer, (below, _), (_, lever) in zip(
            self.measured.layers, self.moves[:-1], self.adjoints, strict=True
        ):
            if layer.trained:
                moved = layer.reach * below
                change = lever * (layer.inputs + moved) + layer.factor * layer.levers * moved
                found[layer.name] = norm_upper(change * ROUND_UP)
        if self.measured.readout_trained:
            found["readout"] = norm_upper(self.pooled)
        return found

    @property
    def drift(self) -> float:
        """How far the gradient of all groups together can have moved."""
        return norm_upper(torch.tensor(list(self.drifts.values()), dtype=torch.float64))

    @property
    def travel(self) -> dict[str, float]:
        """Bounds of the norms of the groups' gradients."""
        return {g: up(self.norms[g] + drift) for g, drift in self.drifts.items()}

    @property
    def curvature(self) -> float:
        r"""Half the norm of $f''[v, v]$ for $\|v_g\| \le t_g$."""
        tangent = second = torch.zeros_like(self.measured.layers[0].inputs)
        travel = self.travel
        for layer, (below, _), (above, lever) in zip(
            self.measured.layers, self.moves[:-1], self.adjoints, strict=True
        ):
            pace, smooth = travel.get(layer.name, 0.0), layer.smooth
            reactions = layer.factor * layer.levers + lever
            second = second + 2 * pace * layer.reach * reactions * tangent
            inner = pace * (layer.inputs + layer.reach * below) + self._norm(layer) * tangent
            bend = layer.factor * smooth.curvature * (layer.peaks + above)
            second = (second + bend * inner**2 * ROUND_UP) * ROUND_UP
            lift = layer.factor * smooth.lipschitz
            tangent = (layer.skip * tangent + lift * inner * ROUND_UP) * ROUND_UP
        readout = 2 * travel.get("readout", 0.0) * math.sqrt(self.measured.pixels)
        return up(norm_upper((second + readout * tangent) * ROUND_UP) / 2)
