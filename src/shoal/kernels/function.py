r"""The kernel of an architecture as a function of two norms and an inner product.

Matrices, operators, high-dimensional equivalents and designs are all made of it. It follows from
the cells of the architecture (see :mod:`shoal.kernels.recursions`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.architectures import Architecture, ImageArchitecture, ImplicitArchitecture, Layers
from shoal.core.caches import cached
from shoal.core.checks import float_tensor, integer, shown
from shoal.core.settings import in_standard_settings
from shoal.gaussian.domain import covariance, scale_tensor
from shoal.kernels.angles import Angles, HalfAngle, NoAngleError
from shoal.kernels.arguments import Kernels, PolarInputs, Work, checked_inputs, checked_samples
from shoal.kernels.pairs import Pairs, SingleInputs
from shoal.kernels.recursions import NetworkKernels, network_kernels

if TYPE_CHECKING:
    from shoal.kernels.images.function import ImageKernels
    from shoal.kernels.plan import Plan


@singledispatch
def calculus_kernels(
    architecture: Architecture,  # noqa: ARG001
    calculus: Any,
    function: "KernelFunction",
) -> NetworkKernels[Any]:
    """The kernels in a calculus; architectures other than chains and loops register their own."""
    layers = function.layers.with_variances(dict(function.variances))
    return network_kernels(layers, calculus, function.trainable)


@cached
def _layers(architecture: Architecture, width: int | None) -> Layers:
    """The cells of a network, checked once."""
    return architecture.layers(width)


@dataclass(frozen=True)
class KernelFunction:
    r"""$\kappa(a, b, c)$ for $a = \|x\|^2$, $b = \|x'\|^2$, $c = \langle x, x' \rangle$.

    Calling it evaluates CK and NTK elementwise, in float64, by the scalar equations themselves: no
    interpolation. The result is differentiable by autograd, up to third order for implicit
    architectures. A covariance near $\pm\sqrt{ab}$ has lost half the digits of the angle, and the
    NTK of an activation with kinks depends on it: there its error may reach 1e-8, except for an
    input with itself. :func:`~shoal.kernels.kernel` takes angles from the inputs and is exact for
    inputs of one norm, and of any norms if the activations are positively homogeneous.

    Attributes:
        architecture: The network.
        trainable: The groups of parameters that the NTK counts.
        width: The width, where the NTK depends on it.
        variances: Tensors that stand for variances of the architecture, which has their values.

    Example:
        >>> import shoal
        >>> f = shoal.kernel_function(shoal.FullyConnected(["relu"]))
        >>> [round(float(k), 12) for k in f(1.0, 1.0, 1.0)]
        [0.5, 1.0]
    """

    architecture: Architecture
    trainable: frozenset[str]
    width: int | None = None
    variances: tuple[tuple[str, Tensor], ...] = field(default=(), compare=False)

    @property
    def layers(self) -> Layers:
        """The cells, with the values of the architecture."""
        return _layers(self.architecture, self.width)

    @in_standard_settings
    def __call__(self, a: Tensor | float, b: Tensor | float, c: Tensor | float) -> Kernels:
        """Evaluate both kernels; arguments broadcast as in :func:`shoal.gaussian.dual`."""
        pair = covariance(a, b, c)
        kernels = self._pairs(*pair.in_double())
        return Kernels(*(k.to(pair.dtype) for k in kernels))

    @in_standard_settings
    def derivative(
        self,
        a: Tensor | float,
        b: Tensor | float,
        c: Tensor | float,
        *,
        orders: tuple[int, int, int],
    ) -> Kernels:
        r"""$\partial_a^i \partial_b^j \partial_c^k \kappa$ for ``orders`` $= (i, j, k)$.

        For implicit architectures $i + j + k$ is at most 3.

        Example:
            >>> import shoal
            >>> f = shoal.kernel_function(shoal.FullyConnected(["relu"]))
            >>> round(float(f.derivative(1.0, 1.0, 0.0, orders=(0, 0, 1)).ck), 12)
            0.25
        """
        orders = _checked_orders(self.architecture, orders)
        pair = covariance(a, b, c)
        with torch.enable_grad():
            point = [t.detach().clone().requires_grad_() for t in pair.in_double()]
            kernels = self._pairs(point[0], point[1], point[2])
            derivatives = [_differentiate(k, point, orders) for k in kernels]
        return Kernels(*(d.detach().to(pair.dtype) for d in derivatives))

    @in_standard_settings
    def diagonal(self, a: Tensor) -> Kernels:
        """Both kernels of inputs with themselves, given their squared norms in float64.

        They are differentiable also where those of pairs are not (with kinks, these have an
        infinite derivative in $c$ there).
        """
        a = scale_tensor("a", a, at_least=0)
        return self._evaluate(lambda needs_grad: SingleInputs(a, needs_grad), a)

    def in_precision(self, dtype: torch.dtype) -> "KernelFunction":  # noqa: ARG002
        """The same kernels: kernels of vectors are as exact as their inputs."""
        return self

    def checked(
        self, x1: object, x2: object | None = None, *, diag: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The inputs of rows and columns, checked."""
        return checked_inputs(x1, x2, diag=diag)

    def samples(self, name: str, x: object) -> Tensor:
        """Inputs without batches, at least one, checked."""
        return checked_samples(name, x, batches=False)

    def plan(self, first: Tensor, second: Tensor | None, memory: int | None = None) -> "Plan":  # noqa: ARG002
        """How the matrix of inputs without gradients is computed."""
        from shoal.kernels.plan import Plan

        row_inputs = PolarInputs(first)
        column_inputs = row_inputs if second is None else PolarInputs(second)
        return Plan.for_inputs(replace(self, variances=()), row_inputs, column_inputs)

    def matrices(self, first: Tensor, second: Tensor | None, work: Work) -> Kernels:
        """All matrices of a batch of inputs, with gradients."""
        from shoal.kernels.matrix import matrices

        return matrices(self, first, second, work)

    def partners(self, first: Tensor, second: Tensor | None, work: Work) -> Kernels:  # noqa: ARG002
        """Both kernels of each input with its partner, or with itself, with gradients."""
        from shoal.kernels.plan import input_diagonal, partner_diagonal

        if not first.numel():
            return Kernels(*(first.new_zeros(first.shape[:-1]) for _ in range(2)))
        if second is None:
            return input_diagonal(self, first)
        return partner_diagonal(self, first, second)

    def at_angles(self, squared_norm: float, half: HalfAngle) -> Kernels:
        """Both kernels of inputs of one norm, accurate at all angles."""
        try:
            return self._evaluate(lambda _: Angles(squared_norm, half))
        except NoAngleError:
            return self.at_cosines(squared_norm, half)

    def at_cosines(self, squared_norm: float, half: HalfAngle) -> Kernels:
        """Both kernels of inputs of one norm, by the equations of single pairs."""
        norm = torch.full_like(half.cosine, squared_norm)
        return self._pairs(norm, norm, norm * half.cosine)

    def _pairs(self, a: Tensor, b: Tensor, c: Tensor) -> Kernels:
        return self._evaluate(
            lambda needs_grad: Pairs.from_products(a, b, c, differentiable=needs_grad), a, b, c
        )

    def _evaluate(self, calculus: Callable[[bool], Any], *point: Tensor) -> Kernels:
        """The kernels in a calculus, made for values with or without derivatives."""
        values = tuple((name, v.to(point[0])) for name, v in self.variances) if point else ()
        needs_grad = torch.is_grad_enabled() and any(
            t.requires_grad for t in (*point, *(value for _, value in values))
        )
        function = replace(self, variances=values if needs_grad else ())
        result = calculus_kernels(self.architecture, calculus(needs_grad), function)
        return Kernels(result.ck, result.ntk)


@in_standard_settings
def kernel_function(
    architecture: "Architecture | KernelFunction",
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    variances: Mapping[str, Tensor] | None = None,
) -> KernelFunction:
    r"""Return the kernels of an architecture as a function of norms and inner products.

    Args:
        architecture: An architecture that has a kernel of this form, or its kernel function. All
            functions of kernels accept a kernel function in place of an architecture and its
            options.
        trainable: Names out of ``architecture.parameter_groups``; all of them by default.
        width: Only for a ``DEQ`` in the standard parametrization, whose NTK grows with the width
            $m$: the NTK at width $m$; by default the limit of NTK$/m$, to which the input weights
            do not contribute.
        variances: Scalar tensors that replace variances of the architecture, such as
            ``{"recurrent_variance": v}`` for a ``DEQ``, and receive gradients.

    Raises:
        TypeError: If the architecture has no such kernel.
        ValueError: If ``trainable``, ``width`` or ``variances`` do not fit the architecture.
    """
    if isinstance(architecture, KernelFunction):
        options = {"trainable": trainable, "width": width, "variances": variances}
        for name, value in options.items():
            if value is not None:
                raise ValueError(
                    f"{name} must be left out with a kernel function, which has its own, "
                    f"got {value!r}"
                )
        return architecture
    if not isinstance(architecture, Architecture):
        raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
    if isinstance(architecture, ImageArchitecture):
        raise TypeError(
            f"the kernels of a {type(architecture).__name__} are no functions of norms and inner "
            "products; shoal.kernel makes its matrices"
        )
    width = check_width(architecture, width)
    named = checked_variances(architecture, variances)
    architecture = with_values(architecture, named)
    return KernelFunction(architecture, architecture.check_trainable(trainable), width, named)


def chosen_kernels(
    architecture: "Architecture | KernelFunction | ImageKernels",
    *,
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    variances: Mapping[str, Tensor] | None = None,
) -> "KernelFunction | ImageKernels":
    """The kernels of an architecture of vectors or of images; see ``kernel_function``."""
    from shoal.kernels.images.function import ImageKernels

    if isinstance(architecture, ImageKernels):
        return architecture
    if not isinstance(architecture, ImageArchitecture):
        return kernel_function(architecture, trainable=trainable, width=width, variances=variances)
    check_width(architecture, width)
    named = checked_variances(architecture, variances)
    changed = with_values(architecture, named)
    assert isinstance(changed, ImageArchitecture)
    return ImageKernels(changed, architecture.check_trainable(trainable), named)


def check_width(architecture: Architecture, width: int | None) -> int | None:
    """Return the width, checked."""
    if width is None:
        return None
    width = integer("width", width, at_least=1)
    if not architecture.width_matters:
        raise ValueError(f"width has no meaning for the kernels of {architecture!r}")
    return width


def checked_variances(
    architecture: Architecture, variances: Mapping[str, Tensor] | None
) -> tuple[tuple[str, Tensor], ...]:
    """Return names and scalar tensors, checked."""
    if variances is None:
        return ()
    if not isinstance(variances, Mapping):
        raise TypeError(f"variances must map names to scalar tensors, got {variances!r}")
    names = ", ".join(map(repr, architecture.variances)) or "none"
    for name, value in variances.items():
        if name not in architecture.variances:
            raise ValueError(
                f"variances must be among those of {type(architecture).__name__} ({names}), "
                f"got {name!r}"
            )
        if not isinstance(value, Tensor) or value.dim():
            raise TypeError(
                f"variances[{name!r}] must be a floating-point tensor of shape (), "
                f"got {shown(value)}"
            )
        float_tensor(f"variances[{name!r}]", value)
    return tuple(variances.items())


def with_values(
    architecture: Architecture, variances: tuple[tuple[str, Tensor], ...]
) -> Architecture:
    """The architecture with the values of the tensors, which it checks."""
    if not variances:
        return architecture
    return replace(architecture, **{name: float(value.detach()) for name, value in variances})


def _checked_orders(
    architecture: Architecture, orders: tuple[int, int, int]
) -> tuple[int, int, int]:
    if not isinstance(orders, tuple) or len(orders) != 3:
        raise ValueError(f"orders must be three integers, for a, b and c, got {orders!r}")
    i, j, k = (integer("orders", order, at_least=0) for order in orders)
    if isinstance(architecture, ImplicitArchitecture) and i + j + k > 3:  # two Newton steps carry
        raise ValueError(f"orders must sum to at most 3 for implicit architectures, got {orders}")
    return i, j, k


def _differentiate(value: Tensor, point: list[Tensor], orders: tuple[int, int, int]) -> Tensor:
    for variable, order in zip(point, orders, strict=True):
        for _ in range(order):
            if not value.requires_grad:  # the derivative of something linear
                return torch.zeros_like(value)
            (value,) = torch.autograd.grad(
                value.sum(), variable, create_graph=True, materialize_grads=True
            )
    return value
