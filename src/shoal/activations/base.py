"""What every activation function is: a value with a function, derivatives and kinks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.activations import panels
from shoal.activations.panels import Kink
from shoal.checks import dense_tensor, integer

__all__ = ["Activation"]


@dataclass(frozen=True, eq=False)
class Activation(ABC):
    r"""An activation function $\varphi : \mathbb{R} \to \mathbb{R}$, as an immutable value.

    Subclass it and give ``function``; everything else follows. A subclass may also give
    ``first_derivative`` (otherwise autograd differentiates ``function``) and ``kink_locations``
    (otherwise the kinks in $|x| \le 512$ are found). Both are checked against ``function`` when
    they are first used. Subclasses with parameters are frozen dataclasses.

    Example:
        >>> import torch
        >>> from shoal.activations import Activation
        >>> class ShiftedReLU(Activation):
        ...     def function(self, x):
        ...         return torch.relu(x - 0.7)
        >>> phi = ShiftedReLU()
        >>> phi.kinks
        (Kink(location=0.7, jumps=(0.0, 1.0, 0.0)),)
        >>> phi.lipschitz
        1.0
    """

    def __eq__(self, other: object) -> bool:
        """Whether two activations are of one class and have equal attributes."""
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), tuple(sorted(vars(self).items()))))

    @abstractmethod
    def function(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi$ elementwise, in the dtype and on the device of ``x``."""

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi'$ elementwise where it exists, by autograd unless overridden."""
        return _differentiate(self.function, x, 1)

    @property
    def kink_locations(self) -> tuple[float, ...] | None:
        r"""Where $\varphi$ is not analytic, or ``None`` to have the places found."""
        return None

    @property
    def positively_homogeneous(self) -> bool:
        r"""Whether $\varphi(sx) = s\,\varphi(x)$ for all $s \ge 0$; override it if so."""
        return False

    @property
    def panels_of(self) -> "Activation":
        """The activation whose panels resolve this one too; itself unless composed of it."""
        return self

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """The places between which it is a polynomial of low degree, or ``None`` if it is none."""
        return None

    @property
    def kinks(self) -> tuple[Kink, ...]:
        r"""The places where $\varphi$, $\varphi'$ or $\varphi''$ jumps, with the jumps."""
        return panels.kinks(self)

    @property
    def lipschitz(self) -> float:
        r"""The Lipschitz constant $\sup |\varphi'|$ (infinite if $\varphi$ jumps or grows so)."""
        return panels.lipschitz(self)

    def __call__(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi$ elementwise."""
        return self.function(dense_tensor("x", x))

    def derivative(self, x: Tensor, order: int = 1) -> Tensor:
        r"""Evaluate the pointwise derivative $\varphi^{(k)}$, $k$ = ``order``, away from kinks.

        Args:
            x: Floating-point tensor of any shape.
            order: Which derivative; 0 is the function itself.

        Returns:
            A tensor like ``x``. At a kink it is one of the two one-sided values.
        """
        order = integer("order", order, at_least=0)
        if order == 0:
            return self(x)
        return _differentiate(self.first_derivative, dense_tensor("x", x), order - 1)


def _differentiate(function: Callable[[Tensor], Tensor], x: Tensor, order: int) -> Tensor:
    """Differentiate an elementwise function ``order`` times; keep the graph if ``x`` has one."""
    keep_graph = x.requires_grad and torch.is_grad_enabled()
    with torch.enable_grad():
        x = x if keep_graph else x.detach().requires_grad_()
        value = function(x)
        for _ in range(order):
            if not value.requires_grad:  # a function that is constant between its kinks
                value = torch.zeros_like(x)
                break
            (value,) = torch.autograd.grad(
                value.sum(), x, create_graph=True, materialize_grads=True
            )
            value = torch.zeros_like(x) + value  # autograd may return zeros without storage
    return value if keep_graph else value.detach()
