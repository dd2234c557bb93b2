"""Kernels of infinitely wide networks for the Gaussian processes of GPyTorch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.adapters.limits import GUARANTEES, recurrent_limit
from shoal.adapters.networks import as_images
from shoal.architectures import Architecture
from shoal.core.checks import float_tensor, items, known_tensor, one_of, shown
from shoal.kernels import kernel
from shoal.kernels.image_function import chosen_kernels

try:
    from gpytorch.constraints import GreaterThan, Interval
    from gpytorch.kernels import Kernel
    from gpytorch.priors import Prior
except ImportError as error:
    raise ImportError(
        "GPyTorchKernel needs GPyTorch, which is not installed: pip install 'shoal[gpytorch]'"
    ) from error

__all__ = ["GPyTorchKernel"]


def _variance(name: str) -> Any:
    """A variance as a property: the learned one, or that of the architecture."""

    def get(self: "GPyTorchKernel") -> Tensor:
        return self.variance(name)

    def put(self: "GPyTorchKernel", value: Tensor | float) -> None:
        self.set_variance(name, value)

    return property(get, put, doc=f"The architecture's ``{name}``, learned or fixed.")


class GPyTorchKernel(Kernel):  # type: ignore[misc]
    r"""The conjugate or neural tangent kernel of an architecture, with variances to learn.

    It adds and multiplies with other kernels and stands in a ``ScaleKernel`` like any other.
    Learned variances are constrained: $\sigma_b^2$ and that of biases are positive, and
    $\sigma_a^2$ lies below the limit of well-posedness of the activation. Inputs may have batch
    dimensions; variances have none.

    Where the activation is positively homogeneous, the input variance is a factor of the kernel,
    and does what the ``outputscale`` of a ``ScaleKernel`` does: learn one of them.

    Args:
        architecture: The network. Its variances are the initial ones.
        which: ``"ck"``, the prior of the network's function at initialization, or ``"ntk"``.
        trainable: The groups of parameters that the NTK counts; all by default.
        width: See :func:`shoal.kernel_function`.
        learn: Names out of ``architecture.variances`` that become parameters; all by default. The
            others stay what they are.
        guarantee: ``"kernel"`` or ``"contraction"``: what the limit of a learned recurrent variance
            guarantees, $\sigma_a^2 L^2 < 1$ or $4 \sigma_a^2 L^2 < 1$.
        constraints: Constraints that replace these, by the names of variances.
        priors: Priors of variances, by their names.
        active_dims: Features that the kernel sees; all by default.
        image_shape: For architectures of images, such as a ``ConvDEQ``: channels and pixels along
            each axis, such as ``(1, 28, 28)``. Inputs are rows of numbers as ever, without batches.

    Raises:
        TypeError: If an argument is of the wrong kind, or the architecture has no kernel.
        ValueError: If a name is unknown, or an initial variance violates its constraint.

    Example:
        >>> import shoal
        >>> covariance = GPyTorchKernel(shoal.DEQ(shoal.Tanh(), 0.2, 0.8))
        >>> [name for name, _ in covariance.named_parameters()]
        ['raw_recurrent_variance', 'raw_input_variance']
        >>> covariance(torch.eye(2)).to_dense().shape
        torch.Size([2, 2])
    """

    has_lengthscale = False
    recurrent_variance = _variance("recurrent_variance")
    input_variance = _variance("input_variance")
    bias_variance = _variance("bias_variance")

    def __init__(
        self,
        architecture: Architecture,
        *,
        which: Literal["ck", "ntk"] = "ck",
        trainable: Iterable[str] | None = None,
        width: int | None = None,
        learn: Iterable[str] | None = None,
        guarantee: Literal["kernel", "contraction"] = "kernel",
        constraints: Mapping[str, Interval] | None = None,
        priors: Mapping[str, Prior] | None = None,
        active_dims: tuple[int, ...] | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims=active_dims)
        if not isinstance(architecture, Architecture):
            raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
        chosen_kernels(architecture, trainable=trainable, width=width)  # or say why there is none
        self.image_shape = image_shape
        self.which = one_of("which", which, ("ck", "ntk"))
        one_of("guarantee", guarantee, GUARANTEES)
        self.trainable = architecture.check_trainable(trainable)
        self.width = width
        self._initial = architecture
        self.learned = _names("learn", learn, architecture.variances, architecture.variances)
        given = dict(constraints or {})
        chosen = dict(priors or {})
        _names("constraints", given, self.learned)
        _names("priors", chosen, self.learned)
        for name in self.learned:
            constraint = given.get(name) or _default(architecture, name, guarantee)
            self._learn(name, constraint, chosen.get(name))

    def _learn(self, name: str, constraint: Interval, prior: Prior | None) -> None:
        """Make a variance a parameter."""
        value = torch.tensor(getattr(self._initial, name), dtype=torch.get_default_dtype())
        if not isinstance(constraint, Interval):
            raise TypeError(f"constraints must be constraints of GPyTorch, got {constraint!r}")
        low, high = float(constraint.lower_bound), float(constraint.upper_bound)
        if not low < float(value) < high:
            raise ValueError(
                f"{name} must lie between {low:g} and {high:g} to be learned, "
                f"got {float(value):g}; give other constraints, or leave it out of learn"
            )
        self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.zeros_like(value)))
        self.register_constraint(f"raw_{name}", constraint)
        self.set_variance(name, value)
        if prior is not None:
            self.register_prior(f"{name}_prior", prior, name)

    def variance(self, name: str) -> Tensor:
        """The current value of a variance of the architecture, learned or not."""
        if name not in self._initial.variances:
            raise AttributeError(f"{type(self._initial).__name__} has no {name}")
        if name not in self.learned:
            return torch.tensor(getattr(self._initial, name), dtype=self.dtype)
        constraint = getattr(self, f"raw_{name}_constraint")
        value: Tensor = constraint.transform(getattr(self, f"raw_{name}"))
        return value

    def set_variance(self, name: str, value: Tensor | float) -> None:
        """Set a learned variance, within its constraint."""
        if name not in self.learned:
            raise AttributeError(f"{name} is not among the learned variances {self.learned}")
        raw = getattr(self, f"raw_{name}")
        constraint = getattr(self, f"raw_{name}_constraint")
        low, high = float(constraint.lower_bound), float(constraint.upper_bound)
        given = float_tensor("value", value)
        if given.numel() != 1 or not low < float(given) < high:
            raise ValueError(f"value must be between {low:g} and {high:g}, got {shown(value)}")
        number = given.detach().to(raw).reshape(())
        self.initialize(**{f"raw_{name}": constraint.inverse_transform(number)})

    @property
    def architecture(self) -> Architecture:
        """The architecture with the variances that were learned so far."""
        values = {name: float(self.variance(name).detach()) for name in self.learned}
        return replace(self._initial, **values) if values else self._initial

    def forward(
        self,
        x1: Tensor,
        x2: Tensor,
        diag: bool = False,
        last_dim_is_batch: bool = False,
        **params: Any,  # noqa: ARG002
    ) -> Tensor:
        """The kernel between two sets of inputs, of shape (..., n, m); (..., n) with ``diag``."""
        for name, x in (("x1", x1), ("x2", x2)):
            known_tensor(name, x)
        # one set has an exactly symmetric matrix; but gradients must reach the tensor they are of
        one = x1 is x2 or (not (x1.requires_grad or x2.requires_grad) and torch.equal(x1, x2))
        if last_dim_is_batch:
            x1, x2 = (x.transpose(-1, -2).unsqueeze(-1) for x in (x1, x2))
        x1, x2 = (as_images(x, self._initial, self.image_shape) for x in (x1, x2))
        found = kernel(
            self._initial,
            x1,
            None if one else x2,
            trainable=self.trainable,
            width=self.width,
            variances={name: self.variance(name) for name in self.learned} or None,
            diag=diag,
        )
        result: Tensor = getattr(found, self.which)
        return result


def _names(
    argument: str,
    given: Iterable[str] | None,
    options: tuple[str, ...],
    default: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """The given names, or say which there are."""
    if given is None:
        return default
    names = items(argument, given, "a collection of names")
    if names and not options:
        raise ValueError(
            f"{argument} must be empty, as there is no variance to learn, got {names!r}"
        )
    return tuple(one_of(argument, name, options) for name in names)


def _default(architecture: Architecture, name: str, guarantee: str) -> Interval:
    """The constraint that an architecture asks for."""
    activation = getattr(architecture, "activation", None)
    limit = math.inf
    if name == "recurrent_variance" and isinstance(activation, Activation):
        limit = recurrent_limit(activation, guarantee)
    return GreaterThan(0.0) if limit == math.inf else Interval(0.0, limit)
