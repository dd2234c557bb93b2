"""Activations as Python source that needs nothing but PyTorch."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from shoal.activations import Activation, PiecewisePolynomial
from shoal.activations.base import is_ours
from shoal.activations.lookup import GradedCells, table

PIECEWISE = '''
class PiecewisePolynomial(nn.Module):
    """A polynomial between each two knots, a line beyond the last ones, by a table."""

    knots: Tensor
    scale: Tensor
    offset: Tensor
    powers: Tensor

    def __init__(self, steps: int, pieces: int, coefficients: int) -> None:
        super().__init__()
        self.steps = steps
        dtype = torch.promote_types(DTYPE, torch.float32)
        self.register_buffer("knots", torch.zeros(2**steps - 1, dtype=dtype))  # NaN after the last
        self.register_buffer("scale", torch.zeros(pieces, dtype=dtype))
        self.register_buffer("offset", torch.zeros(pieces, dtype=dtype))
        self.register_buffer("powers", torch.zeros(coefficients, pieces, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Find the piece by bisection, then evaluate it by Horner's rule."""
        index = torch.zeros_like(x, dtype=torch.long)  # how many knots are not above x
        for k in reversed(range(self.steps)):
            ahead = index + 2**k
            index = torch.where(x >= self.knots[ahead - 1], ahead, index)
        s = x.to(self.scale.dtype) * self.scale[index] + self.offset[index]
        value = self.powers[-1][index]
        for k in reversed(range(len(self.powers) - 1)):
            value = self.powers[k][index] + value * s
        return value.to(x.dtype)
'''

GRADED = '''
class GradedPolynomial(nn.Module):
    """Cubics on cells that the leading bits of x tell, finest at zero; lines beyond the ends."""

    offset: Tensor
    powers: Tensor

    def __init__(self, end: float, octaves: int, bits: int) -> None:
        super().__init__()
        self.end, self.shift = end, 23 - bits
        self.count = (octaves << bits) + 2  # cells on each side of zero
        self.first = ((127 - octaves) << bits) - 1
        dtype = torch.promote_types(DTYPE, torch.float32)
        self.register_buffer("offset", torch.zeros(2 * self.count, dtype=dtype))
        self.register_buffer("powers", torch.zeros(4, 2 * self.count, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Find the cell, then evaluate its cubic by Horner's rule."""
        bits = (x.detach().float() * (1 / self.end)).flatten().view(torch.int32)
        cell = ((bits & 0x7FFFFFFF) >> self.shift) - self.first
        cell = cell.clamp(0, self.count - 1) - self.count * (bits >> 31)
        s = x + self.offset.index_select(0, cell).view_as(x)
        value = self.powers[3].index_select(0, cell).view_as(x)
        for k in (2, 1, 0):
            value = torch.addcmul(self.powers[k].index_select(0, cell).view_as(x), value, s)
        return value.to(x.dtype)
'''


@dataclass
class Expressions:
    """Activations as expressions in ``x``, and what stands outside of them.

    Attributes:
        dtype: That of the network.
        by_bits: Whether cells may be found by the bits of a number, which ONNX has no words for.
        tables: The piecewise polynomials so far, which become modules ``self.table1`` and so on.
        helpers: The source of functions and classes that the expressions use.
    """

    dtype: torch.dtype
    by_bits: bool = True
    tables: list[PiecewisePolynomial] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)

    def expression(self, phi: Activation) -> str:
        """The expression of an activation.

        Raises:
            TypeError: If its source is not known.
            ValueError: If the source that a user gives is that of another function.
        """
        found = phi.source(self)
        if found is None:
            raise TypeError(
                "net must have activations of shoal, or of one's own with a method source, "
                f"got {phi!r}"
            )
        if not is_ours(type(phi)):
            self._check(phi, found)
        return found

    def need(self, helper: str) -> None:
        """Have the source of a function or class among the helpers."""
        if helper not in self.helpers:
            self.helpers.append(helper)

    def table(self, phi: PiecewisePolynomial) -> str:
        """A call of the module that the activation becomes."""
        self.need(PIECEWISE if self._graded(phi) is None else GRADED)
        if phi not in self.tables:
            self.tables.append(phi)
        return f"self.table{self.tables.index(phi) + 1}(x)"

    def _check(self, phi: Activation, source: object) -> None:
        """See that a user's source is an expression with the values of the activation."""
        x = torch.linspace(-6.1, 5.9, 97, dtype=torch.float64)
        names: dict[str, Any] = {"math": math, "torch": torch, "nn": nn, "Tensor": Tensor}
        try:
            for helper in self.helpers:
                exec(helper, names | {"DTYPE": x.dtype})
            value = eval(str(source), names | {"x": x.clone()})
            difference = float((value - phi(x)).abs().max())
        except Exception as error:
            raise ValueError(
                f"source of {phi!r} must be an expression in x, got {source!r}, which fails: "
                f"{error}"
            ) from error
        if not difference <= 1e-9 * (1 + float(phi(x).abs().max())):
            raise ValueError(
                f"source of {phi!r} must have its values, got {source!r}, which is off by "
                f"{difference:.3g}"
            )

    def state(self, device: torch.device) -> dict[str, Tensor]:
        """The numbers of the tables, by the names of the buffers."""
        found: dict[str, Tensor] = {}
        for k, phi in enumerate(self.tables, start=1):
            entries = table(phi, 0, self._precision, torch.device("cpu"))
            values = {"offset": entries.offset, "powers": entries.powers}
            if isinstance(entries.cells, Tensor) and entries.scale is not None:
                missing = 2 ** _steps(phi) - 1 - len(entries.cells)
                padding = entries.cells.new_full((missing,), math.nan)
                values |= {"knots": torch.cat([entries.cells, padding]), "scale": entries.scale}
            found |= {f"table{k}.{name}": t.to(device, self._stored) for name, t in values.items()}
        return found

    def modules(self) -> list[str]:
        """The tables as assignments."""
        return [f"self.table{k} = {self._module(phi)}" for k, phi in enumerate(self.tables, 1)]

    def _module(self, phi: PiecewisePolynomial) -> str:
        cells = self._graded(phi)
        if cells is not None:
            return f"GradedPolynomial({cells.end!r}, {cells.octaves}, {cells.bits})"
        shape = f"{len(phi.pieces) + 2}, {max(2, len(phi.pieces[0]))}"
        return f"PiecewisePolynomial({_steps(phi)}, {shape})"

    def _graded(self, phi: PiecewisePolynomial) -> GradedCells | None:
        """The cells of a table that is found by bits."""
        cells = table(phi, 0, self._precision, torch.device("cpu")).cells
        return cells if isinstance(cells, GradedCells) else None

    @property
    def _stored(self) -> torch.dtype:
        """The dtype of the numbers of a table: never half precision."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def _precision(self) -> torch.dtype:
        """The dtype in which tables are searched; by bits, the one that they are stored in."""
        return self._stored if self.by_bits else torch.float64


def _steps(phi: PiecewisePolynomial) -> int:
    """How many bisections find a place among the knots."""
    return len(phi.knots).bit_length()
