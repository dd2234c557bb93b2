r"""The kernels of networks, written once for every way to compute them.

Features of covariance $\Sigma$ enter a cell as $\Lambda = v\Sigma + \beta$, leave it as
$\Sigma' = e^2\Sigma + k^2 D_\varphi(\Lambda)$ (and cross terms, where features have means), and a
change of $\Lambda$ is multiplied by $k^2 E$, $E = D_{\varphi'}(\Lambda)$. So the NTK is
carried along, $\Theta' = e^2\Theta + k^2 E\,(v\Theta + w\Sigma + w_\beta)$, with the shares $w$ of
the groups that are trained.

Around a loop, $\Lambda = \sigma_a^2 G + \sigma_b^2 c + \beta$, where $G$ is the output of the cells
at $\Lambda$. If one iteration multiplies a change by $\sigma_a^2 P$, all iterations together
multiply it by $1/(1 - \sigma_a^2 P)$.

A covariance is a number for each pair, a function of the angle, a power series, or a field of pairs
of pixels. Each is a calculus (see :mod:`shoal.kernels.pairs`) with the few operations below.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from shoal.activations import Activation
from shoal.architectures.layers import Cell, Layers, Weights, squared_gain
from shoal.kernels.fixed_points import geometric

S = TypeVar("S")  # the covariance of features: variances of both sides, covariance, means
Scalar = float | Tensor


class ActivationOutput(NamedTuple, Generic[S]):
    r"""The outputs of an activation at Gaussian arguments.

    Attributes:
        state: The covariance of its values.
        slope: Computes $\mathbb{E}[\varphi'(u)\varphi'(v)]$.
    """

    state: S
    slope: Callable[[], Any]


class Calculus(Protocol[S]):
    """A way to compute with covariances; its numbers have sums, products and scalar factors."""

    def start(self, *, gated: bool) -> tuple[S, Any]:
        """The inputs, or their directions in a gated network, and the factor of the kernels."""
        ...

    def covariance(self, state: S) -> Any:
        """The covariance itself, a number of this calculus."""
        ...

    def patches(self, field: Any) -> Any:
        """Sums over patches, of covariances of pixels or of numbers."""
        ...

    def combine(self, terms: list[tuple[Scalar, S]], constant: Scalar = 0.0) -> S:
        """A weighted sum of covariances of independent features, without means, and a constant."""
        ...

    def residual(self, below: S, pushed: S, skip: float, gain: float) -> S:
        """The covariance of a sum of features and of a layer's output."""
        ...

    def apply_activation(self, phi: Activation, state: S, *, mean: bool) -> ActivationOutput[S]:
        """The covariance of an activation's output; with its means if residuals need them."""
        ...

    def fixed_point(self, loop: "CellLoop", injected: S) -> S:
        r"""The covariance $\Lambda$ at the input of the first cell of a loop."""
        ...

    def sum_iterations(self, first: Any, ratio: Any) -> Any:
        """The sum of the contributions of all iterations of a loop."""
        ...


class VectorCalculus:
    """Base class of the calculi of vectors."""

    def patches(self, field: Any) -> Any:
        """The field itself: a vector is one patch."""
        return field

    def sum_iterations(self, first: Any, ratio: Any) -> Any:
        """A geometric series."""
        return first * self.geometric(ratio)

    def geometric(self, ratio: Any) -> Any:
        """The sum $1/(1 - r)$ of all powers of a number."""
        return geometric(ratio)


@dataclass(frozen=True)
class CellLoop:
    """The cells of an equilibrium, without the injection."""

    cells: tuple[Cell, ...]

    def __call__(self, calculus: Calculus[S], inner: S, injected: S) -> tuple[S, Any]:
        """One iteration: the next input of the first cell, and the factor of small changes."""
        recurrent = self.cells[0].weights.variance
        iteration = _iterate(self.cells, calculus, inner, frozenset())
        value = calculus.combine([(recurrent, calculus.patches(iteration.state)), (1.0, injected)])
        return value, recurrent * iteration.through

    @property
    def contracts(self) -> bool:
        """Whether its equations certainly have one solution."""
        return squared_gain(self.cells) < 1


class _Iteration(NamedTuple, Generic[S]):
    """Features after all cells, their NTK, and the factor of changes of the first argument."""

    state: S
    tangent: Any | None
    through: Any


class NetworkKernels(NamedTuple, Generic[S]):
    """A network at infinite width.

    Attributes:
        ck: Its CK, a number of the calculus.
        ntk: Its NTK.
        features: The input of the readout.
    """

    ck: Any
    ntk: Any
    features: S


def network_kernels(
    layers: Layers, calculus: Calculus[S], trainable: frozenset[str]
) -> NetworkKernels[S]:
    """Pass the inputs of a calculus through a network."""
    start, scale = calculus.start(gated=layers.gated)
    propagate = _explicit_network if layers.injection is None else _equilibrium
    state, tangent = propagate(layers, calculus, start, trainable)
    ck, readout = calculus.covariance(state), layers.readout
    ntk = _share(readout, trainable) * ck
    if readout is not None:
        ck = _times(readout.variance, ck)
        tangent = tangent if tangent is None else _times(readout.variance, tangent)
    return NetworkKernels(_times(scale, ck), _times(scale, _plus(tangent, ntk)), state)


def _explicit_network(
    layers: Layers, calculus: Calculus[S], state: S, trainable: frozenset[str]
) -> tuple[S, Any | None]:
    """Features and NTK of an explicit network."""
    tangent = None  # up to the first layer that is trained
    residual = any(cell.skip for cell in layers.cells)
    for cell in layers.cells:
        state, tangent = _layer(cell, calculus, state, tangent, trainable, mean=residual)
    return state, tangent


def _layer(
    cell: Cell,
    calculus: Calculus[S],
    state: S,
    tangent: Any | None,
    trainable: frozenset[str],
    *,
    mean: bool,
) -> tuple[S, Any | None]:
    """Features and NTK after one more cell of a chain."""
    inner, entering = _entering(cell, calculus, state, tangent, trainable)
    pushed = calculus.apply_activation(cell.activation, inner, mean=mean)
    after = calculus.residual(state, pushed.state, cell.skip, cell.gain)
    if entering is None:
        return after, None
    passed = _times(cell.gain**2, pushed.slope()) * entering
    return after, passed if tangent is None else _times(cell.skip**2, tangent) + passed


def _equilibrium(
    layers: Layers, calculus: Calculus[S], start: S, trainable: frozenset[str]
) -> tuple[S, Any]:
    """Features and NTK of a loop."""
    first, injection = layers.cells[0], layers.injection
    assert injection is not None
    input_patches = calculus.patches(start)
    injected = calculus.combine([(injection.variance, input_patches)], first.bias_variance)
    inner = calculus.fixed_point(CellLoop(layers.cells), injected)
    iteration = _iterate(layers.cells, calculus, inner, trainable)
    recurrent, feature_patches = first.weights, calculus.patches(iteration.state)
    entering = _share(recurrent, trainable) * calculus.covariance(feature_patches)
    entering = entering + _share(injection, trainable) * calculus.covariance(input_patches)
    direct = _plus(iteration.tangent, iteration.through * entering)
    direct = direct + _share(first.bias, trainable) * iteration.through
    if isinstance(recurrent.variance, float) and recurrent.variance == 0:
        return iteration.state, direct  # also where the slope is infinite
    return iteration.state, calculus.sum_iterations(direct, recurrent.variance * iteration.through)


def _iterate(
    cells: tuple[Cell, ...], calculus: Calculus[S], inner: S, trainable: frozenset[str]
) -> _Iteration[S]:
    """One pass through the cells of a loop, without the tangents that enter the first cell."""
    first, *further_cells = cells
    pushed = calculus.apply_activation(first.activation, inner, mean=False)
    state = calculus.combine([(first.gain**2, pushed.state)])
    through, tangent = first.gain**2 * pushed.slope(), None
    for cell in further_cells:
        inner, entering = _entering(cell, calculus, state, tangent, trainable)
        pushed = calculus.apply_activation(cell.activation, inner, mean=False)
        slope = cell.gain**2 * pushed.slope()
        tangent = None if entering is None else slope * entering
        through = cell.weights.variance * (slope * through)
        state = calculus.combine([(cell.gain**2, pushed.state)])
    return _Iteration(state, tangent, through)


def _entering(
    cell: Cell, calculus: Calculus[S], state: S, tangent: Any | None, trainable: frozenset[str]
) -> tuple[S, Any | None]:
    """The input of a cell's activation, and the tangents that enter with it, if any."""
    feature_patches = calculus.patches(state)
    inner = calculus.combine([(cell.weights.variance, feature_patches)], cell.bias_variance)
    if tangent is not None:
        tangent = _times(cell.weights.variance, calculus.patches(tangent))
    if cell.weights.group in trainable:
        tangent = _plus(tangent, _times(cell.weights.share, calculus.covariance(feature_patches)))
    if cell.bias is not None and cell.bias.group in trainable:
        tangent = _plus(tangent, cell.bias.share)
    return inner, tangent


def _share(weights: Weights | None, trainable: frozenset[str]) -> Scalar:
    return weights.share if weights is not None and weights.group in trainable else 0.0


def _plus(number: Any | None, term: Any) -> Any:
    """A sum whose first term may be ``None``."""
    return term if number is None else number + term


def _times(factor: Any, number: Any) -> Any:
    """A product, without work for a factor of one."""
    return number if isinstance(factor, float) and factor == 1 else factor * number
