"""What all architectures have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass

from shoal import checks
from shoal.activations import Activation

__all__ = [
    "Architecture",
    "ImplicitArchitecture",
    "check_activation",
    "layer_groups",
    "scale_of_data",
]

_MOST_LAYERS = 10**6  # each takes a step of every computation


@dataclass(frozen=True)
class Architecture(ABC):
    """The frozen description of a network: how its function is made of its weights.

    Subclasses are final, frozen dataclasses that check their fields when they are made. They hold
    neither weights nor data, and the verbs (``build``, ``kernel``, ...) dispatch on their type.
    """

    @property
    @abstractmethod
    def parameter_groups(self) -> tuple[str, ...]:
        """The groups of weights that can be trained or frozen, from which ``trainable`` chooses."""

    @property
    def variances(self) -> tuple[str, ...]:
        """The fields that are variances of weights, in which kernels can be differentiated."""
        return ()

    @property
    def positively_homogeneous(self) -> bool:
        r"""Whether the kernels are $\sqrt{ab}$ times a function of the angle, for norms a and b."""
        return False

    def check_trainable(self, trainable: Iterable[str] | None = None) -> frozenset[str]:
        """Return the names of the groups that are trained.

        Args:
            trainable: Names out of ``parameter_groups``; all of them if ``None``.

        Raises:
            TypeError: If ``trainable`` is not a collection of names (a bare string is not one).
            ValueError: If ``trainable`` is empty or names a group that does not exist.

        Example:
            >>> from shoal.architectures import ImplicitNetwork
            >>> sorted(ImplicitNetwork(gamma=0.4).check_trainable({"readout", "skip"}))
            ['readout', 'skip']
        """
        if trainable is None:
            return frozenset(self.parameter_groups)
        names = checks.items("trainable", trainable, "a set of group names")
        groups = ", ".join(map(repr, self.parameter_groups))
        if not names:
            raise ValueError(f"trainable must name at least one of {groups}, got none")
        for name in names:
            if not isinstance(name, str) or name not in self.parameter_groups:
                shown = checks.shown(name)
                raise ValueError(f"trainable must be chosen from {groups}, got {shown}")
        return frozenset(names)


@dataclass(frozen=True)
class ImplicitArchitecture(Architecture):
    r"""An architecture whose features are the fixed point of a recurrent layer.

    The layer is $z \mapsto m^{-1/2} \phi(\sigma_a A z + \dots)$ up to scaling, with independent
    entries of unit variance in $A$ and an $L$-Lipschitz $\phi$.
    """

    @property
    @abstractmethod
    def recurrent_gain(self) -> float:
        r"""The squared gain of the recurrent layer, $\sigma_a^2 L^2$."""

    @property
    def kernel_guaranteed(self) -> bool:
        r"""Whether the infinite-width kernel surely exists and is unique: $\sigma_a^2L^2 < 1$.

        Then $\sqrt{\Lambda_{ii}}$ is the fixed point of a $\sigma_a L$-Lipschitz map (Minkowski),
        and $\Lambda_{ij}$ that of a $\sigma_a^2 L^2$-Lipschitz one (Price). Without the guarantee
        the kernel may still exist: that of the ReLU DEQ does so for $\sigma_a^2 < 2$.
        """
        return self.recurrent_gain < 1

    @property
    def contraction_guaranteed(self) -> bool:
        r"""Whether a wide network is a contraction at initialization: $4\sigma_a^2L^2 < 1$.

        With high probability, since $\|A\| \approx 2\sqrt{m}$ (Ling 2024, Assumption 2.4). A given
        network is one if $\sigma_a L \|A\| < \sqrt{m}$; measure the norm of its weights.
        """
        return 4 * self.recurrent_gain < 1


def check_activation(name: str, value: object) -> Activation:
    """Return ``value`` if it is an activation, or say that it is not one."""
    if not isinstance(value, Activation):
        raise TypeError(f"{name} must be an Activation, such as ReLU(), got {value!r}")
    return value


def scale_of_data(eigenvalue: float, constant: float) -> float:
    r"""The residual scale $c_\lambda \lambda^{3/2}$ of Du 2018, or what is wrong with the two."""
    least = checks.real("eigenvalue", eigenvalue, at_least=0.0, at_most=1.0)
    factor = checks.real("constant", constant, above=0.0, below=1.0)
    return factor * math.sqrt(least) ** 3


def check_depth(value: object) -> int:
    """Return ``value`` if it is a number of layers that can be gone through, or say why not."""
    depth = checks.integer("depth", value, at_least=1)
    if depth > _MOST_LAYERS:
        raise ValueError(f"depth must be <= {_MOST_LAYERS}, got {depth}")
    return depth


def layer_groups(depth: int) -> tuple[str, ...]:
    """Return ``("layer1", ..., "layer<depth>")``, from the input to the output."""
    return tuple(f"layer{layer}" for layer in range(1, depth + 1))
