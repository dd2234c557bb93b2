"""The deep equilibrium model of Ling 2024 and Ling 2023."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

from shoal.activations import Activation, ReLU
from shoal.activations.names import ActivationLike
from shoal.architectures.base import (
    ImplicitArchitecture,
    biases,
    one_or_several,
    scale,
    set_checked,
    variance,
)
from shoal.architectures.layers import Cell, Layers, Weights
from shoal.core import checks


@final
@dataclass(frozen=True, repr=False)
class DEQ(ImplicitArchitecture):
    r"""A deep equilibrium model: a recurrent layer, iterated until its state converges.

    $$z = m^{-1/2} \, \phi(\sigma_a A z + \sigma_b B x), \qquad f(x) = a^\top z
    \qquad \text{(Ling 2024, Definition 2.1)}$$

    with independent entries of mean zero and unit variance in $A$ (group ``"recurrent"``),
    $B$ (``"input"``) and $a$ (``"readout"``).

    The parametrization sets the scale in which the weights are drawn and trained. It changes the
    gradients, hence the NTK. The function at initialization and the conjugate kernel stay the same:

    - ``"ntk"``: $A, B, a$ are the parameters, as in Ling 2024. With a variance of zero, the weights
      have no effect and do not train.
    - ``"standard"``: $W = \sigma_a A/\sqrt{m}$, $U = \sigma_b B$ and $a/\sqrt{m}$ are the
      parameters, as in Ling 2023: $Z = \phi(WZ + UX)$ with $Z = \sqrt{m} z$. The NTK then depends
      on the width: it is $m G$ (readout) $+ \, m G M$ (recurrent) $+ \, x^\top x' M$ (input), with
      $G$ the conjugate kernel, $M = \dot E/(1 - \sigma_a^2 \dot E)$ and $\dot E$ the kernel of
      $\phi'$. With a variance of zero, the weights start at zero and still train.

    With several activations, one iteration applies as many layers,
    $z = \phi_2(W_2\, \phi_1(\sigma_a A z + \sigma_b B x))$ up to the same scaling: $W_l$
    (``"layer<l>"``, from the second on) has entries of mean zero and variance
    ``hidden_variances[l - 2]``. With biases, $b_l$ of variance $\sigma_0^2$ is added to the
    argument of each activation (groups ``"bias"``, ``"bias2"``, ...).

    Args:
        activation: $\phi$, or a sequence $\phi_1, \phi_2, \dots$ for a loop of several layers.
        recurrent_variance: $\sigma_a^2 \geq 0$; zero makes a network of one hidden layer. The
            properties ``kernel_guaranteed`` and ``contraction_guaranteed`` report whether it is
            small enough.
        input_variance: $\sigma_b^2 \geq 0$; with zero the output does not depend on the input, and
            equals that of any DEQ at $x = 0$.
        parametrization: ``"ntk"`` or ``"standard"``.
        bias_variance: $\sigma_0^2 \geq 0$; without biases by default.
        hidden_variances: Variances of the entries of $W_2, W_3, \dots$; ones by default.

    Raises:
        TypeError: If the activation is not an ``Activation`` or a variance not a real number.
        ValueError: If a variance is negative, infinite or NaN, or the parametrization unknown.

    Example:
        >>> from shoal.activations import Tanh
        >>> deq = DEQ(Tanh(), recurrent_variance=0.3, input_variance=0.8)
        >>> deq.parameter_groups
        ('readout', 'recurrent', 'input')
        >>> deq.kernel_guaranteed, deq.contraction_guaranteed
        (True, False)
    """

    activation: Activation | tuple[Activation, ...]
    recurrent_variance: float
    input_variance: float
    parametrization: Literal["ntk", "standard"] = field(default="ntk", kw_only=True)
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)
    hidden_variances: tuple[float, ...] = field(default=(), kw_only=True, repr=False)

    if TYPE_CHECKING:  # names and modules are activations too

        def __init__(
            self,
            activation: ActivationLike | Sequence[ActivationLike],
            recurrent_variance: float,
            input_variance: float,
            *,
            parametrization: Literal["ntk", "standard"] = "ntk",
            bias_variance: float = 0.0,
            hidden_variances: Sequence[float] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        """Check the fields; one activation in a sequence is that activation."""
        set_checked(self, activation=one_or_several, recurrent_variance=variance)
        set_checked(self, input_variance=variance, bias_variance=variance)
        set_checked(self, hidden_variances=self._one_for_each_hidden_layer)
        checks.one_of("parametrization", self.parametrization, ("ntk", "standard"))

    @classmethod
    def ling2023(cls, weight_variance: float, in_features: int) -> "DEQ":
        r"""Return the DEQ of Ling 2023, trained in its own scale.

        $$Z = \phi(WZ + UX), \quad \hat y = a^\top Z, \quad
        W_{ij} \sim \mathcal N(0, 2\sigma_w^2/m), \quad U_{ij} \sim \mathcal N(0, 2/d), \quad
        a_i \sim \mathcal N(0, 1/m) \qquad \text{(Ling 2023, Eq. (2) and Assumption 1)}$$

        for ReLU and inputs of norm $\sqrt{d}$. This is the DEQ with $\sigma_a^2 = 2\sigma_w^2$ and
        $\sigma_b^2 = 2/d$ in the standard parametrization; ``contraction_guaranteed`` is the
        $\sigma_w^2 < 1/8$ of the paper. The value keeps $\sigma_b^2$, not $d$: its kernel is a
        function of norms and inner products, in which no dimension is left to divide by.

        Args:
            weight_variance: $\sigma_w^2 \geq 0$.
            in_features: The dimension $d$ of the inputs.

        Raises:
            TypeError: If an argument is not a number of its kind.
            ValueError: If ``weight_variance`` is negative, infinite or NaN, or ``in_features`` not
                positive.

        Example:
            >>> deq = DEQ.ling2023(weight_variance=0.1, in_features=8)
            >>> deq.recurrent_variance, deq.input_variance, deq.parametrization
            (0.2, 0.25, 'standard')
        """
        half = scale("weight_variance", weight_variance)
        dimension = checks.integer("in_features", in_features, at_least=1)
        return cls(ReLU(), 2 * half, 2 / dimension, parametrization="standard")

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activation of each layer of the loop."""
        phi = self.activation
        return phi if isinstance(phi, tuple) else (phi,)

    def layers(self, width: int | None = None) -> Layers:
        """A loop of one cell, or of several."""
        growing = fixed = None  # weights in the scale in which they act
        if self.parametrization == "standard":  # weights in their own, so that the NTK grows
            growing, fixed = (1.0, 0.0) if width is None else (float(width), 1.0)
        first, *hidden = self.activations
        recurrent = Weights("recurrent", self.recurrent_variance, growing, "recurrent_variance")
        cells = [Cell(first, recurrent, bias=biases("bias", self.bias_variance, fixed))]
        for number, (phi, v) in enumerate(zip(hidden, self.hidden_variances, strict=True), start=2):
            bias = biases(f"bias{number}", self.bias_variance, fixed)
            cells.append(Cell(phi, Weights(f"layer{number}", v, growing), bias=bias))
        injection = Weights("input", self.input_variance, fixed, "input_variance")
        return Layers(tuple(cells), Weights("readout", 1.0, growing), injection)

    def _one_for_each_hidden_layer(self, name: str, value: object) -> tuple[float, ...]:
        entries = enumerate(checks.items(name, value, "a sequence of numbers"))
        values = tuple(scale(f"{name}[{index}]", variance) for index, variance in entries)
        count = len(self.activations) - 1
        if values and len(values) != count:
            raise ValueError(
                f"{name} must be one for each activation but the first, {count} of them, "
                f"got {len(values)}"
            )
        return values or (1.0,) * count
