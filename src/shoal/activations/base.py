"""The base class of activations: values with a function, derivatives and kinks."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from shoal.activations import panels
from shoal.activations.bounds import Evaluated, Smoothness
from shoal.activations.closed_forms import ClosedForm
from shoal.activations.panels import Kink
from shoal.core.checks import dense_tensor, integer


@dataclass(frozen=True, eq=False)
class Activation(ABC):
    r"""An activation function $\varphi : \mathbb{R} \to \mathbb{R}$, as an immutable value.

    Subclass it and define ``function``; everything else is derived from it. A subclass may also
    define ``first_derivative`` (by default autograd differentiates ``function``) and
    ``kink_locations`` (by default the kinks in $|x| \le 512$ are searched for). Both are checked
    against ``function`` at first use. Subclasses with parameters are frozen dataclasses.

    Closed forms can be defined too: ``closed_form`` (Gaussian expectations, used by duals and
    kernels instead of quadrature), ``smoothness`` and ``evaluated`` (bounds for certificates). They
    are checked as well.

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

    # constants of a subclass, in place of the methods of these names
    _curvature: ClassVar[float] = math.inf  # a bound of |φ''| away from kinks, rounded up
    _expression: ClassVar[str | None] = None  # as a formula
    _form: ClassVar[ClosedForm | None] = None
    _homogeneous: ClassVar[bool] = False
    _kinks: ClassVar[tuple[float, ...] | None] = None
    _lipschitz: ClassVar[float | None] = None

    def __init_subclass__(cls) -> None:
        """Refuse a subclass that replaces a function whose dual and bounds are known."""
        super().__init_subclass__()
        giver = next(c for c in cls.__mro__[1:] if "function" in vars(c))
        if "function" in vars(cls) and giver is not Activation and is_ours(giver):
            raise TypeError(
                f"{cls.__name__} must subclass Activation itself: the closed forms of "
                f"{giver.__name__} do not hold for another function"
            )

    def __eq__(self, other: object) -> bool:
        """Whether two activations are of one class and have equal attributes."""
        return isinstance(other, Activation) and self._key == other._key

    def __hash__(self) -> int:
        """A hash of the class and the attributes."""
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        values = ((name, _plain(value)) for name, value in sorted(vars(self).items()))
        return type(self), *values

    @abstractmethod
    def function(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi$ elementwise, in the dtype and on the device of ``x``."""

    def first_derivative(self, x: Tensor) -> Tensor:
        r"""Evaluate $\varphi'$ elementwise where it exists, by autograd unless overridden."""
        return _differentiate(self.function, x, 1)

    @property
    def kink_locations(self) -> tuple[float, ...] | None:
        r"""The points where $\varphi$ is not analytic; ``None`` to search for them."""
        return self._kinks

    @property
    def positively_homogeneous(self) -> bool:
        r"""Whether $\varphi(sx) = s\,\varphi(x)$ for all $s \ge 0$; override it if so."""
        return self._homogeneous

    @property
    def panels_of(self) -> "Activation":
        """The activation whose panels resolve this one; itself unless it is composed of another."""
        return self

    @property
    def panel_edges(self) -> tuple[float, ...] | None:
        """The edges of the pieces on which it is a polynomial of low degree, or ``None``."""
        return None

    @property
    def kinks(self) -> tuple[Kink, ...]:
        r"""The places where $\varphi$, $\varphi'$ or $\varphi''$ jumps, with the jumps."""
        return panels.kinks(self)

    @property
    def lipschitz(self) -> float:
        r"""The Lipschitz constant $\sup |\varphi'|$ (infinite if $\varphi$ jumps or grows so)."""
        return panels.lipschitz(self) if self._lipschitz is None else self._lipschitz

    def closed_form(self) -> ClosedForm | None:
        r"""The Gaussian expectations of $\varphi$ in closed form, or ``None`` if none is known."""
        return self._form

    def smoothness(self) -> Smoothness:
        r"""Bounds of $\varphi'$, its jumps and $\varphi''$; as measured unless overridden."""
        kinks = [kink for kink in self.kinks if kink.jumps[1]]
        return Smoothness(
            lipschitz=self.lipschitz,
            kinks=tuple(kink.location for kink in kinks),
            jump=math.fsum(abs(kink.jumps[1]) for kink in kinks),
            curvature=self._curvature,
        )

    def evaluated(self, x: Tensor) -> Evaluated:
        r"""$\varphi$ and $\varphi'$ with bounds of their errors; estimates unless overridden."""
        return Evaluated.estimated(self(x), self.derivative(x), x)

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
        x = dense_tensor("x", x)
        if type(order) is not int or order < 0:
            order = integer("order", order, at_least=0)
        if order == 0:
            return self.function(x)
        return _differentiate(self.first_derivative, x, order - 1)


def _plain(value: object) -> Hashable:
    return value if isinstance(value, Hashable) and not isinstance(value, Tensor) else repr(value)


def is_ours(kind: type) -> bool:
    """Whether a class is one of shoal's."""
    return kind.__module__.split(".")[0] == __name__.split(".")[0]


def _differentiate(function: Callable[[Tensor], Tensor], x: Tensor, order: int) -> Tensor:
    """Differentiate an elementwise function ``order`` times; keep the graph if ``x`` has one."""
    keep_graph = x.requires_grad and torch.is_grad_enabled()
    # nothing is recorded in inference mode, not even here: all derivatives would be zero
    inference = torch.is_inference_mode_enabled()
    with torch.inference_mode(mode=False) if inference else nullcontext(), torch.enable_grad():
        if not keep_graph:
            x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
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
