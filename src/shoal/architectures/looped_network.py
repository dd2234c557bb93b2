"""Loops of a fixed number of iterations, with tied weights and a residual stream."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation
from shoal.activations.names import ActivationLike, as_activation
from shoal.architectures.base import Architecture, check_depth, scale, set_checked, variance
from shoal.architectures.layers import Layers
from shoal.core import checks


@final
@dataclass(frozen=True, repr=False)
class LoopedNetwork(Architecture):
    r"""A residual stream to which the same layer is applied several times.

    $$h_0 = e, \qquad h_k = \alpha h_{k-1} + \frac{\varepsilon\sigma_a}{\sqrt m} W
    \varphi(n(h_{k-1})) + \gamma e, \quad k = 1, \dots, N, \qquad f(x) = \frac{1}{\sqrt m} a^\top
    n(h_N)$$

    with the embedding $e = \sigma_b B x + b$, and independent standard Gaussian entries in $W$
    (group ``"recurrent"``), $B$ (``"input"``) and $a$ (``"readout"``). The normalization is
    $n(h) = h/\sqrt{\operatorname{mean}(h^2)}$, or none.

    With tied weights, the updates of successive iterations are correlated. For $\alpha = 1$ the
    variance of the stream grows like $(\varepsilon N)^2$; with untied weights, like
    $\varepsilon^2 N$. For $\alpha < 1$ and many steps the state converges to an equilibrium, within
    rounding after $40/(1 - \alpha)$ steps.

    Args:
        activation: $\varphi$.
        steps: The number $N \geq 1$ of iterations.
        step_scale: $\varepsilon \geq 0$, the scale of each iteration's update.
        state_scale: $\alpha \geq 0$, the share of the state that an iteration keeps.
        recall: $\gamma \geq 0$, the factor of the embedding that every iteration adds.
        normalization: ``"rms"`` or ``None``.
        recurrent_variance: $\sigma_a^2 \geq 0$.
        input_variance: $\sigma_b^2 \geq 0$.
        bias_variance: The variance of a bias $b$ in the embedding (group ``"bias"``); without one
            by default.
        tied: Whether all iterations share $W$. Otherwise ``"recurrent"`` has a matrix for each.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If ``steps`` is not between 1 and 10⁵, a scale or a variance negative, infinite
            or NaN, or ``normalization`` unknown.

    Example:
        >>> loop = LoopedNetwork("gelu", steps=8, step_scale=1 / 8, normalization="rms")
        >>> loop.parameter_groups
        ('readout', 'recurrent', 'input')
    """

    activation: Activation
    steps: int
    step_scale: float
    state_scale: float = field(default=1.0, kw_only=True)
    recall: float = field(default=0.0, kw_only=True)
    normalization: Literal["rms"] | None = field(default="rms", kw_only=True)
    recurrent_variance: float = field(default=1.0, kw_only=True)
    input_variance: float = field(default=1.0, kw_only=True)
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)
    tied: bool = field(default=True, kw_only=True)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activation: ActivationLike,
            steps: int,
            step_scale: float,
            *,
            state_scale: float = 1.0,
            recall: float = 0.0,
            normalization: Literal["rms"] | None = "rms",
            recurrent_variance: float = 1.0,
            input_variance: float = 1.0,
            bias_variance: float = 0.0,
            tied: bool = True,
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields."""
        set_checked(self, activation=as_activation, steps=check_depth, tied=checks.flag)
        set_checked(self, step_scale=scale, state_scale=scale, recall=scale)
        set_checked(self, recurrent_variance=variance, input_variance=variance)
        set_checked(self, bias_variance=variance)
        if self.normalization is not None:
            checks.one_of("normalization", self.normalization, ("rms",))

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """Refused: iterations share weights; kernels have their own recursions."""
        raise TypeError(
            "a LoopedNetwork is no chain or loop of independent cells: it has networks and "
            "kernels, but no centering, design, power series or certificate"
        )

    @property
    def cell_activations(self) -> tuple[Activation, ...]:
        """The one activation."""
        return (self.activation,)

    @property
    def layered(self) -> bool:
        """False: its iterations share weights and states."""
        return False

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """The readout, the weights of iterations and input, and biases if any."""
        groups = ("readout", "recurrent", "input")
        return (*groups, "bias") if self.bias_variance else groups

    @property
    def variances(self) -> tuple[str, ...]:
        """The variances of the weights, and of the biases if there are any."""
        names = ("recurrent_variance", "input_variance")
        return (*names, "bias_variance") if self.bias_variance else names

    @property
    def width_matters(self) -> bool:
        """False: weights are trained in the scale in which they are drawn."""
        return False

    @property
    def positively_homogeneous(self) -> bool:
        """Whether the output grows with the norm of the input: nothing normalized, no biases."""
        plain = self.normalization is None and not self.bias_variance
        return plain and self.activation.positively_homogeneous

    @property
    def ignores_input(self) -> bool:
        """Whether the embedding is zero or a bias alone."""
        return self.input_variance == 0
