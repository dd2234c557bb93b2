r"""One argument for all networks: the features move less than it takes to lose their rank.

Let $e = \hat y - y$, and let the weights stay within given radii of where they start. There, an
architecture says (``Growth``) that the Gram matrix of the features has no eigenvalue below
$\lambda_-$, the NTK $H$ none above $\Lambda$, that the gradient of group $g$ is at most
$t_g \|e\|$, and that a step of gradient descent makes $e' = (I - \eta H) e + E_1 + E_2$, where
$\|E_1\| \le \eta \varepsilon \|e\|$ is due to units that cross a kink,
$e^\top E_1 \le \eta \psi \|e\| \|\Gamma\|$ with $\Gamma$ the gradient of all but readouts, and
$\|E_2\| \le \eta^2 M \|e\|^2$. So $\|e\|$ falls at the rate $\omega = \lambda_-$ under gradient
flow, and under gradient descent, where $\eta \Lambda \le 1$, at the larger of

- $\omega = \lambda_- - \varepsilon - \eta M e_0$, and
- $\omega = c \lambda_- - \psi^2/4c - \eta (\Lambda \varepsilon + M e_0 +
  (\varepsilon + \eta M e_0)^2/2)$ with $c = 1 - \eta\Lambda/2$.

The weights travel no farther than $t_g e_0/\omega$; other bounds of their paths are below. If that
is less than the radii, they never leave them, and the promise holds forever. The radii are free:
the best ones are searched for. The documentation has the proofs, on its page about certificates.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

Radii = Mapping[str, Fraction]

RANK_REMEDY = (
    "at least as many units as samples, better many more; inputs that are parallel or nearly so "
    "must be perturbed, merged or removed"
)


class Obstacle(NamedTuple):
    """Radii within which nothing is certain.

    Attributes:
        gain: The Lipschitz constant of the recurrent layer, if there is one.
        start: A lower bound of the least singular value of the initial features.
        drift: How far the features may move.
    """

    gain: Fraction | None
    start: Fraction
    drift: Fraction


class Growth(NamedTuple):
    r"""What holds as long as the weights stay within some radii; see the module.

    Attributes:
        gain: The Lipschitz constant of the recurrent layer, if there is one.
        start: A lower bound of the least singular value of the initial features.
        drift: How far the features may move.
        floor: $\lambda_-$.
        root: $\sqrt{\lambda_-}$.
        largest: $\Lambda$.
        travel: $t_g$.
        crossing: $\varepsilon$.
        turn_square: $\psi^2$.
        curvature: $M$; ``None`` if there is no bound.
    """

    gain: Fraction | None
    start: Fraction
    drift: Fraction
    floor: Fraction
    root: Fraction
    largest: Fraction
    travel: Radii
    crossing: Fraction
    turn_square: Fraction
    curvature: Fraction | None


class Geometry(ABC):
    """What an architecture must say of a network and its data.

    Attributes:
        groups: The groups of weights.
        scales: By what the parameters of each group are multiplied to make its weights.
        error: A bound of the norm of the initial error.
        rigorous: Whether all bounds include the errors of computing them.
        subject: What must keep its rank: the features that readouts see, or all gradients.
        remedy: What keeps weights from traveling too far.
        rank_remedy: What raises the rank.
    """

    subject = "features"
    remedy = "a zero readout (readout_scale=0) with smaller labels; more width; less similar inputs"
    rank_remedy = RANK_REMEDY

    groups: tuple[str, ...]
    scales: Radii
    error: Fraction
    rigorous: bool

    @abstractmethod
    def within(self, radii: Radii, step: Fraction) -> Growth | Obstacle:
        """What holds within these radii, one for each group, for steps of this size."""


class Way(NamedTuple):
    r"""A rate $\omega$, and how far the weights travel at it."""

    rate: Fraction
    needed: Radii


def flow(growth: Growth, geometry: Geometry) -> Way:
    """Gradient flow: no path is longer than the error over the root of the rate."""
    if growth.floor == 0:
        return Way(Fraction(0), {})
    path = geometry.error / growth.root
    needed = {
        g: min(t * geometry.error / growth.floor, geometry.scales[g] * path)
        for g, t in growth.travel.items()
    }
    return Way(growth.floor, needed)


def descents(growth: Growth, geometry: Geometry, step: Fraction, curvature: Fraction) -> list[Way]:
    """Gradient descent, by the two rates of the module."""
    error, floor, root = geometry.error, growth.floor, growth.root
    if floor == 0:
        return []
    second = curvature * error  # M e_0
    kept = 1 - step * growth.largest / 2  # c
    plain = floor - growth.crossing - step * second
    whole = growth.crossing + step * second
    squared = kept * floor - growth.turn_square / (4 * kept)
    squared -= step * (growth.largest * growth.crossing + second + whole * whole / 2)
    ways = []
    for rate, path, groups in (
        (plain, floor * error / (root * kept), tuple(growth.travel)),
        (squared, root * error, ("readout", "skip")),
    ):
        if rate <= 0:
            ways.append(Way(rate, {}))
        else:
            needed = {g: t * error / rate for g, t in growth.travel.items()}
            for g in groups:
                if g in needed:
                    needed[g] = min(needed[g], geometry.scales[g] * path / rate)
            ways.append(Way(rate, needed))
    return ways
