"""The base classes of architectures, and the checks of their fields."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.architectures.layers import Layers, Weights, squared_gain
from shoal.core import checks
from shoal.core.files import stated_fields

_MOST_LAYERS = 10**5


@dataclass(frozen=True)
class Architecture(ABC):
    """The frozen description of a network: its function, given its weights.

    Subclasses are final, frozen dataclasses. They check their fields on construction and list their
    :meth:`layers`. They hold neither weights nor data; functions such as ``build`` and ``kernel``
    accept them as an argument.
    """

    @abstractmethod
    def layers(self, width: int | None = None) -> Layers:
        """The cells that the network is made of.

        Args:
            width: The width, where the shares of the NTK depend on it; ``None`` for their limits.
        """

    @property
    def parameter_groups(self) -> tuple[str, ...]:
        """The groups of weights that can be trained or frozen, from which ``trainable`` chooses."""
        return checks.instance(f"layers() of {type(self).__name__}", self.layers(), Layers).groups

    @property
    def variances(self) -> tuple[str, ...]:
        """The fields that are variances of weights, in which kernels can be differentiated."""
        layers = self.layers()
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for weights in layers.weights:
            if weights.field is not None and values.get(weights.field) != weights.variance:
                raise ValueError(
                    f"the weights {weights.group!r} of {type(self).__name__} must have the "
                    f"variance that is in the field {weights.field!r}, got {weights.variance!r}"
                )
        return layers.variances

    @property
    def positively_homogeneous(self) -> bool:
        r"""Whether the kernels are $\sqrt{ab}$ times a function of the angle, for norms a and b."""
        return self.layers().positively_homogeneous

    @property
    def width_matters(self) -> bool:
        """Whether the NTK depends on the width: weights are trained in a scale of their own."""
        return self.layers(1) != self.layers()

    @property
    def ignores_input(self) -> bool:
        """Whether it does not see its input, which enters its loop with a variance of zero."""
        injection = self.layers().injection
        return injection is not None and bool(injection.variance == 0)

    @property
    def cell_activations(self) -> tuple[Activation, ...]:
        """The activation of each cell."""
        return tuple(cell.activation for cell in self.layers().cells)

    @property
    def layered(self) -> bool:
        """Whether it is a chain or a loop of cells with weights of their own."""
        return True

    @property
    def activation_names(self) -> tuple[str, ...]:
        """The field that holds the activation of each cell."""
        names: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Activation):
                names.append(field.name)
            elif isinstance(value, tuple) and all(isinstance(phi, Activation) for phi in value):
                names += [f"{field.name}[{index}]" for index in range(len(value))]
        cells = len(self.layers().cells)
        if len(names) == 1 and cells > 1:  # one for all
            names = [f"{names[0]}[{index}]" for index in range(cells)]
        if len(names) != cells:
            raise TypeError(f"the fields of {self!r} do not say which cell has which activation")
        return tuple(names)

    def with_activations(self, activations: Sequence[Activation]) -> Self:
        """The same architecture with another activation in each cell."""
        changes: dict[str, Activation | tuple[Activation, ...]] = {}
        for name, phi in zip(self.activation_names, activations, strict=True):
            field, is_tuple, _ = name.partition("[")
            before = changes.get(field, ())
            assert isinstance(before, tuple)
            changes[field] = (*before, phi) if is_tuple else phi
        with suppress(TypeError, ValueError):  # of fields that take one activation only
            changed = replace(self, **changes)
            if [cell.activation for cell in changed.layers().cells] == list(activations):
                return changed
        names = ", ".join(map(repr, changes))
        raise TypeError(
            f"{type(self).__name__} must take a tuple with an activation for each cell as its "
            f"{names} to be centered, or have a field for each"
        )

    def __repr__(self) -> str:
        """The call that makes it, without biases and hidden layers where there are none."""
        arguments = (f"{name}={value!r}" for name, value in stated_fields(self).items())
        return f"{type(self).__name__}({', '.join(arguments)})"

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


@dataclass(frozen=True, repr=False)
class ImplicitArchitecture(Architecture):
    r"""An architecture whose features are the fixed point of a loop of layers.

    With one layer, that is $z \mapsto m^{-1/2} \phi(\sigma_a A z + \dots)$ up to scaling, with
    independent entries of unit variance in $A$ and an $L$-Lipschitz $\phi$.
    """

    @property
    def recurrent_gain(self) -> float:
        r"""The squared gain of the loop, $\sigma_a^2 L^2$; the product over all cells."""
        return squared_gain(self.layers().cells)

    @property
    def kernel_guaranteed(self) -> bool:
        r"""Whether the infinite-width kernel surely exists and is unique: $\sigma_a^2L^2 < 1$.

        Then $\sqrt{\Lambda_{ii}}$ is the fixed point of a $\sigma_a L$-Lipschitz map (Minkowski),
        and $\Lambda_{ij}$ that of a $\sigma_a^2 L^2$-Lipschitz one (Price). Without the guarantee
        the kernel may still exist: the kernel of the ReLU DEQ exists for $\sigma_a^2 < 2$.
        """
        return self.recurrent_gain < 1

    @property
    def contraction_guaranteed(self) -> bool:
        r"""Whether a wide network is a contraction at initialization: $4\sigma_a^2L^2 < 1$.

        With high probability, since $\|A\| \approx 2\sqrt{m}$ (Ling 2024, Assumption 2.4), which
        counts once for each layer of the loop. A given network is one if
        $\sigma_a L \|A\| < \sqrt{m}$; measure the norm of its weights.
        """
        return 4.0 ** len(self.layers().cells) * self.recurrent_gain < 1


def set_checked(architecture: Architecture, **fields: Callable[[str, Any], object]) -> None:
    """Check fields of an architecture by functions of their name and value that return them."""
    for name, check in fields.items():
        object.__setattr__(architecture, name, check(name, getattr(architecture, name)))


def as_activations(name: str, value: object) -> tuple[Activation, ...]:
    """Return a field that holds activations, one after the other."""
    entries = enumerate(checks.items(name, value, "a sequence of Activation, one per layer"))
    activations = tuple(as_activation(f"{name}[{index}]", phi) for index, phi in entries)
    if not activations:
        raise ValueError(f"{name} must have at least one entry, got none")
    return activations


def one_or_several(name: str, value: object) -> Activation | tuple[Activation, ...]:
    """Return a field that holds one activation, or several."""
    if isinstance(value, Activation | str) or not isinstance(value, Iterable):
        return as_activation(name, value)
    activations = as_activations(name, value)
    return activations if len(activations) > 1 else activations[0]


def scale(name: str, value: object) -> float:
    """Return a finite number that is not negative."""
    return checks.real(name, value, at_least=0)


def variance(name: str, value: object) -> float:
    """Return a variance of weights."""
    if isinstance(value, Tensor):
        raise TypeError(
            f"{name} must be a real number, got a tensor; for derivatives in it, pass the "
            f"tensor to kernel or kernel_function, as variances={{{name!r}: ...}}"
        )
    return scale(name, value)


def biases(group: str, variance: float, tangent: float | None = None) -> Weights | None:
    """The biases of a cell, if they have a variance."""
    return Weights(group, variance, tangent, field="bias_variance") if variance else None


def check_depth(name: str, value: object) -> int:
    """Return a number of layers."""
    return checks.integer(name, value, at_least=1, below=_MOST_LAYERS + 1)
