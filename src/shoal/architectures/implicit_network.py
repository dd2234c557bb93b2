"""The implicit network of Gao 2022."""

from dataclasses import dataclass, field
from typing import final

from shoal.activations import Activation, ReLU
from shoal.architectures.base import ImplicitArchitecture, scale, set_checked, variance
from shoal.architectures.layers import Layers


@final
@dataclass(frozen=True, repr=False)
class ImplicitNetwork(ImplicitArchitecture):
    r"""A ReLU network whose features are an equilibrium and whose input features skip it.

    $$z = \sigma(\gamma m^{-1/2} A z + \phi), \qquad \phi = m^{-1/2} \sigma(W x), \qquad
    \hat y = u^\top z + v^\top \phi \qquad \text{(Gao 2022, Eqs. (2)-(4))}$$

    with $\sigma$ the ReLU, standard Gaussian $A$ (group ``"recurrent"``) and $W$
    (``"input"``), Rademacher $u$ (``"readout"``) and $v$ (``"skip"``). The theory is
    for inputs of norm 1, no two of them parallel.

    It is not a chain or loop of cells, whose arguments are Gaussian. Here the features $\phi$ enter
    the equilibrium unit by unit, without a random matrix. The argument of a unit is the sum of a
    Gaussian and a rectified Gaussian, and its kernel is a function of two covariances.

    Args:
        gamma: $\gamma \geq 0$, the scale of the recurrent weights; in the paper $0 < \gamma < 1$.
            The guarantees hold below 1 (``kernel_guaranteed``) and below 1/2
            (``contraction_guaranteed``, at initialization). The paper's proof lets $\|A\|$ double
            during training and requires 1/4. At 0, $z = \phi$.
        bias_variance: The variance $\beta$ of a bias (group ``"bias"``) beside the input,
            $\phi = m^{-1/2} \sigma(Wx + b)$; without one by default. It is equivalent to the input
            $(x, \sqrt\beta)$ in place of $x$.

    Raises:
        TypeError: If an argument is not a real number.
        ValueError: If an argument is negative, infinite or NaN.

    Example:
        >>> ImplicitNetwork(gamma=0.4)
        ImplicitNetwork(gamma=0.4)
        >>> ImplicitNetwork(gamma=0.5).contraction_guaranteed
        False
    """

    gamma: float
    bias_variance: float = field(default=0.0, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        """Check the fields."""
        set_checked(self, gamma=scale, bias_variance=variance)

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """Refused: the injected features are not Gaussian; kernels have their own equations."""
        raise TypeError(f"{self!r} is no chain or loop of Gaussian cells")

    @property
    def cell_activations(self) -> tuple[Activation, ...]:
        """The ReLU."""
        return (ReLU(),)

    @property
    def layered(self) -> bool:
        """False: the injected features are not Gaussian."""
        return False

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """The readouts ``u`` and ``v``, the weights ``A`` and ``W``, and biases if it has any."""
        groups = ("readout", "skip", "recurrent", "input")
        return (*groups, "bias") if self.bias_variance else groups

    @property
    def variances(self) -> tuple[str, ...]:
        """The variance of the biases, if there are any; ``gamma`` is a scale."""
        return ("bias_variance",) if self.bias_variance else ()

    @property
    def width_matters(self) -> bool:
        """False: weights are trained in the scale in which they act."""
        return False

    @property
    def positively_homogeneous(self) -> bool:
        """Whether the state and the output grow with the norm of the input: without biases."""
        return not self.bias_variance

    @property
    def ignores_input(self) -> bool:
        """False: it always sees its input."""
        return False

    @property
    def recurrent_gain(self) -> float:
        r"""The squared gain of the recurrent layer, $\gamma^2$, since $L = 1$."""
        return self.gamma * self.gamma

    @property
    def contraction_guaranteed(self) -> bool:
        r"""Whether a wide network is a contraction at initialization: $4\gamma^2 < 1$."""
        return 4 * self.recurrent_gain < 1
