"""The implicit network of Gao 2022."""

from dataclasses import dataclass
from typing import final

from shoal.architectures.base import ImplicitArchitecture
from shoal.architectures.layers import Layers
from shoal.core import checks

__all__ = ["ImplicitNetwork"]


@final
@dataclass(frozen=True)
class ImplicitNetwork(ImplicitArchitecture):
    r"""A ReLU network whose features are an equilibrium and whose input features skip it.

    $$z = \sigma(\gamma m^{-1/2} A z + \phi), \qquad \phi = m^{-1/2} \sigma(W x), \qquad
    \hat y = u^\top z + v^\top \phi \qquad \text{(Gao 2022, Eqs. (2)-(4))}$$

    with $\sigma$ the ReLU, standard Gaussian $A$ (group ``"recurrent"``) and $W$
    (``"input"``), Rademacher $u$ (``"readout"``) and $v$ (``"skip"``). The theory is
    for inputs of norm 1, no two of them parallel.

    Args:
        gamma: $\gamma \geq 0$, the scale of the recurrent weights. The paper takes it from
            (0, 1). The guarantees hold below 1 (``kernel_guaranteed``) and below 1/2
            (``contraction_guaranteed``, at initialization; the paper's proof, which lets
            $\|A\|$ double during training, wants 1/4). At 0, $z = \phi$.

    Raises:
        TypeError: If ``gamma`` is not a real number.
        ValueError: If ``gamma`` is negative, infinite or NaN.

    Example:
        >>> ImplicitNetwork(gamma=0.4)
        ImplicitNetwork(gamma=0.4)
        >>> ImplicitNetwork(gamma=0.5).contraction_guaranteed
        False
    """

    gamma: float

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "gamma", checks.real("gamma", self.gamma, at_least=0))

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        """None: what is injected is not Gaussian, and its kernels have equations of their own."""
        raise TypeError(f"{self!r} is no chain or loop of Gaussian cells")

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """The readouts ``u`` and ``v``, the recurrent weights ``A`` and the input weights ``W``."""
        return ("readout", "skip", "recurrent", "input")

    @property
    def variances(self) -> tuple[str, ...]:
        """None: kernels are not differentiated in the scale of the weights."""
        return ()

    @property
    def width_matters(self) -> bool:
        """False: weights are trained in the scale in which they act."""
        return False

    @property
    def positively_homogeneous(self) -> bool:
        """True: the state and the output grow with the norm of the input."""
        return True

    @property
    def recurrent_gain(self) -> float:
        r"""The squared gain of the recurrent layer, $\gamma^2$, since $L = 1$."""
        return self.gamma * self.gamma

    @property
    def contraction_guaranteed(self) -> bool:
        r"""Whether a wide network is a contraction at initialization: $4\gamma^2 < 1$."""
        return 4 * self.recurrent_gain < 1
