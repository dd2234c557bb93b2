"""What all architectures have in common."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Self

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.architectures.layers import (
    Cell,
    Layers,
    Weights,
    squared_gain,
)
from shoal.core import checks
from shoal.core.fields import stated_fields
from shoal.gaussian.moments import normalization

_MOST_LAYERS = 10**5


@dataclass(frozen=True)
class Architecture(ABC):
    """The frozen description of a network: how its function is made of its weights.

    Subclasses are final, frozen dataclasses that check their fields when they are made and say of
    which :meth:`layers` they are. They hold neither weights nor data; the verbs (``build``,
    ``kernel``, ...) are functions that take them.
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
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        for weights in layers.weights:
            if weights.field is not None and held.get(weights.field) != weights.variance:
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
    def blind(self) -> bool:
        """Whether it does not see its input, which enters its loop with a variance of zero."""
        injection = self.layers().injection
        return injection is not None and bool(injection.variance == 0)

    @property
    def activation_names(self) -> tuple[str, ...]:
        """What the activation of each cell is called among the fields."""
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
            field, several, _ = name.partition("[")
            before = changes.get(field, ())
            assert isinstance(before, tuple)
            changes[field] = (*before, phi) if several else phi
        with suppress(TypeError, ValueError):  # of fields that take one activation only
            changed = replace(self, **changes)
            if [cell.activation for cell in changed.layers().cells] == list(activations):
                return changed
        held = ", ".join(map(repr, changes))
        raise TypeError(
            f"{type(self).__name__} must take a tuple with an activation for each cell as its "
            f"{held} to be centered, or have a field for each"
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
        the kernel may still exist: that of the ReLU DEQ does so for $\sigma_a^2 < 2$.
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


def one_or_several(value: object) -> Activation | tuple[Activation, ...]:
    """Return a field ``activation`` that holds one activation or several, one after the other."""
    if isinstance(value, Activation | str) or not isinstance(value, Iterable):
        return as_activation("activation", value)
    given = enumerate(checks.items("activation", value))
    several = tuple(as_activation(f"activation[{index}]", phi) for index, phi in given)
    if not several:
        raise ValueError("activation must be an activation or several, got none")
    return several if len(several) > 1 else several[0]


def scale_of_data(eigenvalue: float, constant: float) -> float:
    r"""The residual scale $c_\lambda \lambda^{3/2}$ of Du 2018, or what is wrong with the two."""
    least = checks.real("eigenvalue", eigenvalue, at_least=0.0, at_most=1.0)
    factor = checks.real("constant", constant, above=0.0, below=1.0)
    return factor * math.sqrt(least) ** 3


def biases(group: str, variance: float, tangent: float | None = None) -> Weights | None:
    """The biases of a cell, if they have a variance."""
    return Weights(group, variance, tangent, field="bias_variance") if variance else None


def residual_layers(
    activations: Sequence[Activation], scale: float, bias_variance: float
) -> Layers:
    """The cells of Du 2018's residual networks: the first normalized, all others with a skip."""
    cells = []
    for number, sigma in enumerate(activations, start=1):
        first = number == 1
        gain = math.sqrt(normalization(sigma)) if first else scale / len(activations)
        bias = biases(f"bias{number}", bias_variance)
        cells.append(Cell(sigma, Weights(f"layer{number}"), gain, float(not first), bias))
    return Layers(tuple(cells), readout=None)


def check_depth(value: object) -> int:
    """Return ``value`` if it is a number of layers that can be gone through, or say why not."""
    return checks.integer("depth", value, at_least=1, below=_MOST_LAYERS + 1)
