"""What a regression by conjugate gradients takes: measured rates in, time and memory out."""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch

from shoal.architectures import Architecture
from shoal.core.checks import integer, real
from shoal.core.measuring import best_times
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction, KernelOperator, kernel_operator
from shoal.kernels.arguments import as_tensor
from shoal.numerics import Columns

_COPIES = 4  # of the inputs, in float64
_VECTORS = 12  # of the size of the targets
_RANK = 512  # of the columns that rates are measured with
_REPEATS = 3


class Cost(NamedTuple):
    """What a regression takes.

    Attributes:
        prepare_seconds: The preconditioner.
        step_seconds: A step of conjugate gradients, in reduced precision.
        look_seconds: A look at true residuals, in float64.
        exchange_seconds: What processes tell each other, as a part of a step.
        seconds: All of it.
        memory: Bytes of each process, besides blocks of a few gigabytes.
    """

    prepare_seconds: float
    step_seconds: float
    look_seconds: float
    exchange_seconds: float
    seconds: float
    memory: int


@dataclass(frozen=True, kw_only=True)
class CostModel:
    r"""Rates of a device, from which times of regressions follow.

    Of $R$ processes each has $n^2/2R$ entries of the matrix in a step, made in reduced precision,
    multiplied from both sides and dropped, and $n/R$ rows of the preconditioner; $Rnq$ numbers
    arrive at each after either. So a step takes
    $\frac{n^2}{2R} e + \frac{nr}R c + 16 R n q\,x$ seconds, a look at true residuals
    $\frac{n^2}{2R} f + 8 R n q\,x$, and the preconditioner
    $\frac{nr}R f + \frac32 \frac{nr^2}R g + 8 R r^2 x$.

    Args:
        features: Of the inputs, for which the rates hold.
        columns: $q$, the right-hand sides.
        entry: $e$, seconds for an entry in reduced precision and its products from both sides.
        exact_entry: $f$, the same in float64.
        column_entry: $c$, seconds for an entry of the preconditioner's columns.
        multiply_add: $g$, seconds for a multiplication and an addition in float64.
        exchanged_byte: $x$, seconds for a byte that another process sends.

    Example:
        >>> from shoal.learning.regression import CostModel
        >>> rates = {"entry": 1e-11, "exact_entry": 1e-10, "column_entry": 1e-11}
        >>> model = CostModel(features=784, columns=10, multiply_add=2e-14, **rates)
        >>> round(model.predict(100_000, rank=2000, steps=30).step_seconds, 3)
        0.052
    """

    features: int
    columns: int
    entry: float
    exact_entry: float
    column_entry: float
    multiply_add: float
    exchanged_byte: float = 1e-10

    def __post_init__(self) -> None:
        for name in ("features", "columns"):
            object.__setattr__(self, name, integer(name, getattr(self, name), at_least=1))
        for rate in fields(self)[2:]:
            value = real(rate.name, getattr(self, rate.name), above=0.0)
            object.__setattr__(self, rate.name, value)

    def predict(
        self, samples: int, *, rank: int, steps: int, looks: int = 2, processes: int = 1
    ) -> Cost:
        """The cost of a regression.

        Args:
            samples: How many samples.
            rank: That of the preconditioner, at most all samples, whose columns are halves.
            steps: Steps of conjugate gradients.
            looks: How often true residuals are computed.
            processes: How many share the matrix.
        """
        samples = integer("samples", samples, at_least=1)
        rank = min(integer("rank", rank, at_least=1), samples)
        steps = integer("steps", steps, at_least=1)
        looks = integer("looks", looks, at_least=1)
        processes = integer("processes", processes, at_least=1)
        entries, columns = samples**2 / 2 / processes, samples * rank / processes
        shared = 8 * self.exchanged_byte * processes * (processes > 1)  # that all tell each other
        exchange = 2 * shared * samples * self.columns
        step = entries * self.entry + columns * self.column_entry + exchange
        look = entries * self.exact_entry + exchange / 2
        prepare = columns * (self.exact_entry + 1.5 * rank * self.multiply_add) + shared * rank**2
        data = _COPIES * samples * self.features + _VECTORS * samples * self.columns + 4 * rank**2
        memory = 8 * data + 2 * samples * rank // processes
        total = prepare + steps * step + looks * look
        return Cost(prepare, step, look, exchange, total, memory)

    @classmethod
    @in_standard_settings
    def measured(
        cls,
        architecture: Architecture | KernelFunction,
        x: Any,
        *,
        columns: int = 10,
        exchanged_byte: float = 1e-10,
    ) -> "CostModel":
        """Measure the rates with some inputs: in seconds, with ten thousand of them on a GPU.

        Args:
            architecture: The network, or its kernel function.
            x: Inputs like those of the regression, on its device.
            columns: The right-hand sides.
            exchanged_byte: Seconds for a byte between processes, which is not measured here.
        """
        points = as_tensor(x, "x").double()
        if points.dim() != 2:
            raise ValueError(f"x must have shape (n, features), got {tuple(points.shape)}")
        size, features = points.shape
        columns = integer("columns", columns, at_least=1)
        vectors = torch.ones(size, columns, dtype=torch.float64, device=points.device)
        memory = max(1, 3 * size**2)  # less than the matrix takes in float32

        def operator(precision: torch.dtype) -> KernelOperator:
            return kernel_operator(
                architecture, points, memory=memory, precision=precision, process_group=None
            ).ntk

        rank = min(_RANK, size)
        some = torch.ones(size, rank, dtype=torch.float16, device=points.device)
        near = Columns(some, some.double().T @ some.double(), 1.0)
        rows = some.double()
        rounded = operator(torch.float32)
        work = {
            "entry": (lambda: rounded @ vectors, size**2 / 2),
            "exact_entry": (lambda: operator(torch.float64) @ vectors, size**2 / 2),
            "column_entry": (lambda: near.solve(vectors), size * rank),
            "multiply_add": (lambda: rows.T @ rows, size * rank**2),
        }
        functions = {name: function for name, (function, _) in work.items()}
        times = best_times(functions, points.device, repeats=_REPEATS)
        rates = {name: times[name] / count for name, (_, count) in work.items()}
        return cls(features=features, columns=columns, exchanged_byte=exchanged_byte, **rates)
