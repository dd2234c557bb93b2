r"""A kernel matrix with targets and a ridge, and the memory that work on it may take."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.asymptotics.labels import Class, class_indices, classes_of
from shoal.core.checks import flag, float_tensor, one_of, real
from shoal.core.processes import ALONE, Processes
from shoal.core.words import memory_words
from shoal.kernels import KernelFunction, KernelOperator, kernel, kernel_operator
from shoal.kernels.arguments import as_tensor, memory_limit
from shoal.kernels.function import chosen_kernels
from shoal.kernels.images.function import ImageKernels
from shoal.numerics.krylov import Map
from shoal.numerics.operator import refuse_gradients

Which = Literal["ck", "ntk"]

_DEFAULT_MEMORY = 8 * 2**30
_COPIES = 4  # of the inputs, as they are and as directions
_SCALES = 10  # ratio of the columns' ranges at which small ones do not count
_FAR = 10  # standard deviations that a mean is large beside
_CLASSES, _EACH = 20, 5  # more classes, with fewer samples each, are likely real targets
_VECTORS = 12  # of the size of the targets, that conjugate gradients hold


@dataclass(frozen=True, eq=False)
class RegressionProblem:
    r"""The system $(K + \lambda I) \alpha + b1 = y$, $1^T\alpha = 0$, in float64.

    Attributes:
        function: The kernels.
        x: The inputs. shape: (n, p), or that of images
        y: The targets, less their mean if a constant $b$ is fitted. shape: (n, q)
        mean: Subtracted mean, or zeros. shape: (q,)
        center: Whether there is a constant.
        classes: The classes that the columns indicate, or one column the second of two; ``None``
            for real targets.
        ridge: $\lambda$.
        which: Kernel: ``"ck"`` or ``"ntk"``.
        memory: Bytes available beside inputs and vectors; it may be negative.
        processes: The processes that share the products with the matrix.
    """

    function: KernelFunction | ImageKernels
    x: Tensor
    y: Tensor
    mean: Tensor
    center: bool
    classes: tuple[Class, ...] | None
    ridge: float
    which: Which
    memory: int
    processes: Processes = ALONE

    @classmethod
    def from_data(
        cls,
        architecture: Architecture | KernelFunction,
        x: Any,
        y: Any,
        ridge: float,
        which: str,
        memory: int | str | None,
        *,
        center: bool = True,
        trainable: Iterable[str] | None = None,
        width: int | None = None,
    ) -> "RegressionProblem":
        """Check the arguments of a regression, and warn of unsuitable data."""
        function = chosen_kernels(architecture, trainable=trainable, width=width)
        inputs = function.samples("x", as_tensor(x, "x"))
        values, classes = targets_or_indicators(y)
        targets = checked_labels("y", values, len(inputs))
        flag("center", center)
        tensors = {"x": inputs, "y": targets, **dict(function.variances)}
        refuse_gradients(tensors, "a regression is not differentiated; detach() it")
        function = replace(function.in_precision(inputs.dtype), variances=())
        points = inputs.detach().to(torch.float64, copy=True)  # later changes are not seen
        columns = targets.detach().reshape(len(targets), -1)
        columns = columns.to(points.device, torch.float64, copy=True)
        warn_of_scales(points, columns, center)
        mean = columns.mean(0) if center else torch.zeros_like(columns[0])
        classes = classes or _indicated(columns)
        chosen: Which = one_of("which", which, ("ck", "ntk"))  # type: ignore[assignment]
        ridge = real("ridge", ridge, at_least=0.0)
        limit = _limit(memory, points.device)
        problem = cls(function, points, columns - mean, mean, center, classes, ridge, chosen, limit)
        return replace(problem, memory=problem.memory - problem.data_bytes)

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.x)

    @property
    def contrasts(self) -> int:
        """Number of independent differences of targets, from which a ridge is judged."""
        return self.size - self.center

    def accuracy(self, errors: Tensor) -> float | None:
        """The share of samples whose class is predicted, from targets less predictions."""
        if self.classes is None:
            return None
        values = self.y + self.mean
        predictions = values - errors
        if values.shape[1] == 1:
            middle = (values.max() + values.min()) / 2
            same = (predictions > middle) == (values > middle)
        else:
            same = predictions.argmax(1) == values.argmax(1)
        return float(same.double().mean())

    @property
    def data_bytes(self) -> int:
        """Bytes of inputs, their directions, and vectors."""
        return _COPIES * self.x.nbytes + _VECTORS * self.y.nbytes

    @cached_property
    def diagonal(self) -> Tensor:
        """The diagonal of the kernel matrix."""
        return self.kernel_diagonal(self.x)

    def kernel_diagonal(self, x: Tensor) -> Tensor:
        """The kernel of inputs with themselves."""
        diagonals = kernel(self.function, x, diag=True)
        return diagonals.ck if self.which == "ck" else diagonals.ntk

    def operator(self, memory: int, precision: torch.dtype | None = None) -> KernelOperator:
        """The kernel matrix, computed within a memory budget in bytes."""
        return self.cross(self.x, None, memory, precision=precision)

    def cross(
        self,
        left: Tensor,
        right: Tensor | None,
        memory: int,
        *,
        precision: torch.dtype | None = None,
        shared: bool = True,
    ) -> KernelOperator:
        """The kernel between inputs, by all processes or by this one alone."""
        group = self.processes.group if shared else None
        options: dict[str, Any] = {"memory": memory, "precision": precision, "process_group": group}
        operators = kernel_operator(self.function, left, right, **options)
        return operators.ck if self.which == "ck" else operators.ntk

    def matrix(self) -> Tensor:
        """The kernel matrix itself."""
        return self.operator(self.memory - 8 * self.size**2).to_dense()

    def shifted(self, operator: KernelOperator) -> Map:
        r"""$V \mapsto (K + \lambda I) V$, given $K$."""
        return partial(_shifted_product, operator, self.ridge)

    def check_room(self, purpose: str, needed: int, instead: str) -> None:
        """Refuse work that needs more bytes than there are."""
        if needed > self.memory:
            room = memory_words(self.memory)
            there = f"leaves {room}" if self.memory > 0 else "is too little even for these"
            raise ValueError(
                f"{purpose} needs {memory_words(needed)} besides inputs and targets, and memory "
                f"{there}: give more, {instead}"
            )


def _shifted_product(operator: KernelOperator, ridge: float, vectors: Tensor) -> Tensor:
    product: Tensor = operator @ vectors
    return product + ridge * vectors


def _limit(memory: int | str | None, device: torch.device) -> int:
    """Most bytes to use."""
    most = memory_limit(memory)
    if most is None:
        most = _DEFAULT_MEMORY
        if device.type == "cuda":
            cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            most = (torch.cuda.mem_get_info(device)[0] + cached) * 9 // 10
    return most


def checked_labels(name: str, y: Any, samples: int) -> Tensor:
    """Labels of shape (n,) or (n, q), or an error that names the fault."""
    targets = float_tensor(name, as_tensor(y, name))
    if targets.dim() not in (1, 2) or len(targets) != samples:
        raise ValueError(
            f"{name} must have shape (n,) or (n, outputs) with n = {samples}, "
            f"got {tuple(targets.shape)}"
        )
    return targets


def targets_or_indicators(y: Any) -> tuple[Any, tuple[Class, ...] | None]:
    """Real targets as they are, or indicators of the classes that integers and strings name."""
    kind = getattr(y, "dtype", None)
    if isinstance(kind, torch.dtype) and (kind.is_floating_point or kind.is_complex):
        return y, None
    if isinstance(kind, np.dtype) and kind.kind in "fc":
        return as_tensor(y, "y"), None
    labels = y + 0 if kind in (torch.bool, np.dtype(bool)) else y
    classes = classes_of(labels, "y")
    if len(classes) < 2:
        raise ValueError(f"y must have at least two classes, got one class, {classes[0]!r}")
    places = class_indices(labels, classes)
    many = len(classes) > _CLASSES and len(places) < _EACH * len(classes)
    if many and not isinstance(classes[0], str):
        warnings.warn(
            f"y has {len(classes)} different integers among {len(places)} samples, and "
            "integers are read as classes; if they are real targets, pass floats",
            stacklevel=5,
        )
    return torch.nn.functional.one_hot(places, len(classes)).double(), classes


def _indicated(columns: Tensor) -> tuple[Class, ...] | None:
    """The classes of targets in floats that are ones among zeros or minus ones."""
    highs = columns == 1
    lows = (columns == 0) if bool((columns == 0).any()) else (columns == -1)
    if not bool((highs | lows).all()):
        return None
    if columns.shape[1] > 1:
        return tuple(range(columns.shape[1])) if bool((highs.sum(1) == 1).all()) else None
    return (0 if bool((columns == 0).any()) else -1, 1) if bool(highs.any() & lows.any()) else None


def warn_of_scales(x: Tensor, y: Tensor, center: bool) -> None:
    """Warn of columns of very different scales, and of large means that are not fitted."""
    if x.dim() == 2 and len(x):
        ranges = x.amax(0) - x.amin(0)  # rare values are not on another scale
        ranges = ranges[ranges > 0]
        if len(ranges) > 1 and bool(ranges.max() > _SCALES * ranges.quantile(0.25)):
            warnings.warn(
                f"the columns of x have ranges from {float(ranges.min()):.2g} to "
                f"{float(ranges.max()):.2g}, so a few of them dominate the kernel; standardize "
                "them first: x = (x - x.mean(0)) / x.std(0)",
                stacklevel=5,
            )
    if not center and len(y) > 1:
        size = y.abs().amax(0)
        unit = y / size.where(size > 0, 1.0)  # whose squares neither overflow nor underflow
        mean, deviation = unit.mean(0).abs(), unit.std(0)
        worst = int((mean - _FAR * deviation).argmax())
        if bool(mean[worst] > _FAR * deviation[worst]):
            warnings.warn(
                f"the mean of the targets, {float(mean[worst] * size[worst]):.3g}, is large "
                "compared with their standard deviation, "
                f"{float(deviation[worst] * size[worst]):.2g}, and the ridge shrinks it; pass "
                "center=True to fit it",
                stacklevel=5,
            )


def like_input(x: Any, values: Tensor, dtype: torch.dtype) -> Any:
    """Results in a dtype, as an array where the input is one, and on its device."""
    result = values.to(dtype)
    return result.cpu().numpy() if isinstance(x, np.ndarray) else result.to(x.device)
