"""Kernels of infinitely wide networks for the Gaussian processes of GPyTorch."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.adapters.networks import as_images, recurrent_limit
from shoal.architectures import Architecture, ImageArchitecture, ImplicitArchitecture
from shoal.core.checks import float_tensor, integer, items, known_tensor, one_of, shown
from shoal.kernels import kernel
from shoal.kernels.function import chosen_kernels

try:
    from gpytorch.constraints import GreaterThan, Interval
    from gpytorch.kernels import Kernel
    from gpytorch.priors import Prior
except ImportError as error:
    raise ImportError(
        "GPyTorchKernel needs GPyTorch, which is not installed: pip install 'shoal-deq[gpytorch]'"
    ) from error


def _variance(name: str) -> Any:
    """A variance as a property: learned, or fixed by the architecture."""

    def get(self: "GPyTorchKernel") -> Tensor:
        return self.variance(name)

    def put(self: "GPyTorchKernel", value: Tensor | float) -> None:
        self.set_variance(name, value)

    return property(get, put, doc=f"The architecture's ``{name}``, learned or fixed.")


class GPyTorchKernel(Kernel):  # type: ignore[misc]
    r"""The conjugate or neural tangent kernel of an architecture, with variances to learn.

    It adds and multiplies with other kernels and stands in a ``ScaleKernel`` like any other.
    Learned variances are constrained: $\sigma_b^2$ and that of biases are positive, and
    $\sigma_a^2 L^2 < 1$ for an activation with Lipschitz constant $L$, where the kernel is known to
    exist.

    With ``ard_num_dims`` the network sees $x_k / \ell_k$, and the length scales $\ell_k$ of the
    features are learned too. With ``batch_shape`` there is one kernel for each batch of inputs;
    ``kernel[index]`` chooses among them.

    Where the activation is positively homogeneous and there are no biases, the input variance is a
    factor of the kernel, like the ``outputscale`` of a ``ScaleKernel``: learn one of them. It is
    also a common factor of length scales, and not learned by default beside these.

    Args:
        architecture: The network. Its variances are the initial ones.
        which: ``"ck"``, the prior of the network's function at initialization, or ``"ntk"``.
        trainable: The groups of parameters that the NTK counts; all by default.
        width: See :func:`shoal.kernel_function`.
        learn: Names out of ``architecture.variances`` that become parameters; all by default, but
            the input variance beside length scales. The others stay fixed.
        constraints: Constraints that replace these, by the names of variances.
        priors: Priors of variances, by their names.
        ard_num_dims: The number of features, to learn a length scale for each; by default there
            are none.
        lengthscale_prior: Their prior.
        lengthscale_constraint: Their constraint; positive by default.
        batch_shape: Shape of a batch of kernels with separate parameters, broadcast with the batch
            dimensions of inputs; one kernel by default.
        active_dims: Features that the kernel sees; all by default.
        image_shape: For architectures of images, such as a ``ConvDEQ``: channels and pixels along
            each axis, such as ``(1, 28, 28)``. Inputs are rows of numbers as ever, without batches.

    Raises:
        TypeError: If an argument is of the wrong kind, or the architecture has no kernel.
        ValueError: If a name is unknown, or an initial variance violates its constraint.

    Example:
        >>> import shoal
        >>> covariance = GPyTorchKernel(shoal.DEQ("tanh", 0.2, 0.8))
        >>> [name for name, _ in covariance.named_parameters()]
        ['raw_recurrent_variance', 'raw_input_variance']
        >>> covariance(torch.eye(2)).to_dense().shape
        torch.Size([2, 2])
    """

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
        constraints: Mapping[str, Interval] | None = None,
        priors: Mapping[str, Prior] | None = None,
        ard_num_dims: int | None = None,
        lengthscale_prior: Prior | None = None,
        lengthscale_constraint: Interval | None = None,
        batch_shape: torch.Size | tuple[int, ...] | None = None,
        active_dims: tuple[int, ...] | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        self.has_lengthscale = ard_num_dims is not None  # which the constructor below asks for
        if ard_num_dims is not None:
            integer("ard_num_dims", ard_num_dims, at_least=1)
        elif lengthscale_prior is not None or lengthscale_constraint is not None:
            raise ValueError("ard_num_dims must be given where length scales are, got None")
        super().__init__(
            ard_num_dims=ard_num_dims,
            batch_shape=torch.Size(batch_shape or ()),
            active_dims=active_dims,
            lengthscale_prior=lengthscale_prior,
            lengthscale_constraint=lengthscale_constraint,
        )
        if not isinstance(architecture, Architecture):
            raise TypeError(f"architecture must be an Architecture, got {architecture!r}")
        chosen_kernels(architecture, trainable=trainable, width=width)  # or an error
        self.image_shape = image_shape
        self.which = one_of("which", which, ("ck", "ntk"))
        self.trainable = architecture.check_trainable(trainable)
        self.width = width
        self._initial = architecture
        variances, constraints, priors = architecture.variances, constraints or {}, priors or {}
        if learn is None:
            scaled = "input_variance" if self.has_lengthscale else None
            learn = [name for name in variances if name != scaled]
        self.learned = _names("learn", learn, variances)
        _names("constraints", constraints, self.learned)
        _names("priors", priors, self.learned)
        for name in self.learned:
            constraint = constraints.get(name) or _default(architecture, name)
            self._learn(name, constraint, priors.get(name))

    def _learn(self, name: str, constraint: Interval, prior: Prior | None) -> None:
        """Make a variance a parameter."""
        value = torch.full(self.batch_shape, getattr(self._initial, name))
        if not isinstance(constraint, Interval):
            raise TypeError(f"constraints must be constraints of GPyTorch, got {constraint!r}")
        if not _is_inside(constraint, value):
            raise ValueError(
                f"{name} must lie {_between(constraint)} to be learned, "
                f"got {getattr(self._initial, name):g}; give other constraints, or leave it out of "
                "learn"
            )
        self.register_parameter(f"raw_{name}", torch.nn.Parameter(torch.zeros_like(value)))
        self.register_constraint(f"raw_{name}", constraint)
        self.set_variance(name, value)
        if prior is not None:
            self.register_prior(f"{name}_prior", prior, name)

    @property
    def batch_shape(self) -> torch.Size:
        """The batch shape of the parameters; empty if there are none."""
        return self._batch_shape if self.has_lengthscale or self.learned else torch.Size()

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:
        self._batch_shape = value

    @property
    def is_stationary(self) -> bool:
        """No: it depends on norms and angles, not on differences."""
        return False

    def variance(self, name: str) -> Tensor:
        """The current value of a variance, learned (one for each kernel of a batch) or not."""
        if name not in self._initial.variances:
            raise AttributeError(f"{type(self._initial).__name__} has no {name}")
        if name not in self.learned:
            return torch.tensor(getattr(self._initial, name), dtype=self.dtype)
        constraint = getattr(self, f"raw_{name}_constraint")
        value: Tensor = constraint.transform(getattr(self, f"raw_{name}"))
        return value

    def set_variance(self, name: str, value: Tensor | float) -> None:
        """Set a learned variance, within its constraint; a number sets those of all kernels."""
        if name not in self.learned:
            raise AttributeError(f"{name} is not among the learned variances {self.learned}")
        raw = getattr(self, f"raw_{name}")
        constraint = getattr(self, f"raw_{name}_constraint")
        values = float_tensor("value", value).detach().to(raw)
        if values.numel() == 1:
            values = values.reshape(())
        elif values.shape != raw.shape:
            raise ValueError(
                f"value must be a number or of shape {tuple(raw.shape)}, got {shown(value)}"
            )
        if not _is_inside(constraint, values):
            raise ValueError(f"value must be {_between(constraint)}, got {shown(value)}")
        number = constraint.inverse_transform(values.expand(raw.shape))
        self.initialize(**{f"raw_{name}": number})

    @property
    def architecture(self) -> Architecture:
        """The architecture with the variances that were learned so far.

        It is that of inputs that are divided by the length scales, where there are any.

        Raises:
            ValueError: If there is a batch of kernels: ask one of them, such as ``kernel[0]``.
        """
        if self.batch_shape.numel() != 1 and self.learned:
            raise ValueError(
                "architecture is that of one kernel, such as kernel[0].architecture, "
                f"got a batch of shape {tuple(self.batch_shape)}"
            )
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
        # one set has an exactly symmetric matrix; but each tensor must get its gradient
        same = x1 is x2 or (not (x1.requires_grad or x2.requires_grad) and torch.equal(x1, x2))
        inputs = [x1] if same else [x1, x2]
        variances = {name: self.variance(name) for name in self.learned}
        if self.has_lengthscale:
            inputs = [x / self.lengthscale for x in inputs]
        if last_dim_is_batch:
            inputs = [x.transpose(-1, -2).unsqueeze(-1) for x in inputs]
            if self.batch_shape:
                variances = {name: value.unsqueeze(-1) for name, value in variances.items()}
        if self.batch_shape and variances:
            return self._batch(inputs, variances, diag=diag)
        return self._matrix(inputs, variances, diag=diag)

    def _matrix(self, inputs: list[Tensor], variances: dict[str, Tensor], *, diag: bool) -> Tensor:
        """The kernel with variances that are numbers, of one or two sets of inputs."""
        kernels = kernel(
            self._initial,
            *(as_images(x, self._initial, self.image_shape) for x in inputs),
            trainable=self.trainable,
            width=self.width,
            variances=variances or None,
            diag=diag,
        )
        result: Tensor = getattr(kernels, self.which)
        return result

    def _batch(self, inputs: list[Tensor], variances: dict[str, Tensor], *, diag: bool) -> Tensor:
        """The kernels with each of the variances in a batch, of their shares of the inputs."""
        batch = next(iter(variances.values())).shape
        shape = torch.broadcast_shapes(batch, *(x.shape[:-2] for x in inputs))
        outer = len(shape) - len(batch)  # dimensions of inputs alone, which all kernels share
        inputs = [x.expand(*shape, *x.shape[-2:]) for x in inputs]
        values = {name: value.expand(shape[outer:]) for name, value in variances.items()}
        kernels = [
            self._matrix(
                [x[(..., *index, slice(None), slice(None))] for x in inputs],
                {name: value[index] for name, value in values.items()},
                diag=diag,
            )
            for index in np.ndindex(*shape[outer:])
        ]
        stacked: Tensor = torch.stack(kernels).unflatten(0, shape[outer:])
        return stacked.movedim(tuple(range(len(batch))), tuple(range(outer, len(shape))))


def _is_inside(constraint: Interval, value: Tensor) -> bool:
    """Whether all values lie strictly within the bounds."""
    low, high = constraint.lower_bound.to(value), constraint.upper_bound.to(value)
    return bool(((low < value) & (value < high)).all())


def _between(constraint: Interval) -> str:
    low, high = constraint.lower_bound, constraint.upper_bound
    return f"between {float(low.max()):g} and {float(high.min()):g}"


def _names(argument: str, value: Iterable[str], options: tuple[str, ...]) -> tuple[str, ...]:
    """Return checked names, or raise an error that lists the options."""
    names = items(argument, value, "a collection of names")
    if names and not options:
        raise ValueError(
            f"{argument} must be empty, as there is no variance to learn, got {names!r}"
        )
    return tuple(one_of(argument, name, options) for name in names)


def _default(architecture: Architecture, name: str) -> Interval:
    """The constraint that an architecture asks for."""
    activation = getattr(architecture, "activation", None)
    limit = math.inf
    equilibrium = isinstance(architecture, ImplicitArchitecture | ImageArchitecture)
    if name == "recurrent_variance" and equilibrium and isinstance(activation, Activation):
        limit = recurrent_limit(activation)
    return GreaterThan(0.0) if limit == math.inf else Interval(0.0, limit)
