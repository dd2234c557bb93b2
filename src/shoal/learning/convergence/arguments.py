"""Arguments of the functions that predict training."""

import math
from collections.abc import Iterable
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import float_tensor, number, real, real_array
from shoal.kernels import Kernels
from shoal.kernels.arguments import as_tensor

Initial = tuple[Tensor, Tensor | None]  # at the training and at the test inputs

_ASYMMETRY = 1e-5  # relative, what the rounding of float32 can explain


def checked_times(name: str, values: object, *, whole: bool = False) -> list[float]:
    """Return one number or several as a list of non-negative floats, perhaps infinite."""
    if isinstance(values, Tensor | np.ndarray):  # integers too, which no other array may hold
        if values.ndim > 1:
            raise ValueError(f"{name} must have one axis, got shape {tuple(values.shape)}")
        values = real_array(name, values).reshape(-1).tolist()
    elif isinstance(values, Real):
        values = [values]
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a number or a sequence of numbers, got {values!r}")
    numbers = []
    for value in values:
        found = number(name, value)
        if not found >= 0:  # NaN neither
            raise ValueError(f"{name} must be >= 0, got {found:g}")
        if whole and math.isfinite(found) and found != int(found):
            raise ValueError(f"{name} must be whole numbers or infinity, got {found:g}")
        numbers.append(found)
    if not numbers:
        raise ValueError(f"{name} must not be empty")
    return numbers


def checked_schedule(times: object, steps: object, step_size: object) -> list[float]:
    """Return either the times of gradient flow, or the numbers of steps of gradient descent."""
    if (times is None) == (steps is None):
        came = "neither" if times is None else "both"
        raise TypeError(f"either times or steps must be given, got {came}")
    if (steps is None) != (step_size is None):
        raise TypeError("steps and step_size must be given together; times are for gradient flow")
    if steps is None:
        return checked_times("times", times)
    return checked_times("steps", steps, whole=True)


def checked_labels(name: str, y: object, samples: int) -> Tensor:
    """Return labels, of shape (n,) or (n, k)."""
    labels = float_tensor(name, as_tensor(y, name))
    if labels.dim() not in (1, 2) or len(labels) != samples:
        raise ValueError(
            f"{name} must have shape (n,) or (n, outputs) with n = {samples}, "
            f"got {tuple(labels.shape)}"
        )
    return labels.detach()


def checked_kernels(
    name: str, kernels: object, rows: int | None = None, columns: int | None = None
) -> Kernels:
    """Return two matrices of one shape; a symmetric pair if no shape is given."""
    if not isinstance(kernels, tuple) or len(kernels) != 2:
        raise TypeError(f"{name} must be Kernels, got {type(kernels).__name__}")
    named = {f"{name}.{part}": k for part, k in zip(("ck", "ntk"), kernels, strict=True)}
    pair = {part: float_tensor(part, as_tensor(k, part)).detach() for part, k in named.items()}
    for part, matrix in pair.items():
        shape = (rows or len(matrix), columns or len(matrix)) if matrix.dim() else ()
        if matrix.shape != shape:
            wanted = f"({rows or 'n'}, {columns or 'n'})"
            raise ValueError(f"{part} must have shape {wanted}, got {tuple(matrix.shape)}")
        if columns is None and (matrix - matrix.T).abs().max() > _ASYMMETRY * matrix.abs().max():
            raise ValueError(f"{part} must be symmetric")
    ck, ntk = pair.values()
    if ck.shape != ntk.shape:
        raise ValueError(
            f"{name} must be of one shape, got {tuple(ck.shape)} and {tuple(ntk.shape)}"
        )
    return Kernels(ck, ntk)


def initial_function(initial: object, y: Tensor, tests: int | None) -> Initial:
    """Return the values of the initial function, shaped like the labels."""
    if not isinstance(initial, tuple) or len(initial) != 2:
        raise TypeError(
            'initial must be "random", "zero", a network or a pair (at x, at x_test), '
            f"got {initial!r}"
        )
    train = _values("initial[0]", initial[0], len(y), y)
    if (initial[1] is None) != (tests is None):
        raise ValueError(
            "initial[1] must hold the initial values at the test inputs, and be None if there "
            f"are none, got {'None' if initial[1] is None else 'values'}"
        )
    return train, None if tests is None else _values("initial[1]", initial[1], tests, y)


def _values(name: str, values: object, samples: int, y: Tensor) -> Tensor:
    tensor = float_tensor(name, as_tensor(values, name)).detach()
    shape = (samples, *y.shape[1:])
    if y.dim() == 1 and tensor.shape == (samples, 1):  # what a network of one output returns
        tensor = tensor[:, 0]
    if tensor.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    return tensor


def checked_step_size(step_size: object, limit: float) -> float:
    """Return a step size with which gradient descent converges."""
    size = real("step_size", step_size, above=0)
    if size >= limit:
        raise ValueError(
            f"step_size must be < 2 divided by the largest eigenvalue of the NTK, {limit:g}, "
            f"or gradient descent diverges; got {size:g}"
        )
    return size


def columns(values: Tensor) -> Tensor:
    """Values of shape (n,) or (n, k) as an (n, k) matrix in float64."""
    values = values.to(torch.float64)
    return values[:, None] if values.dim() == 1 else values
