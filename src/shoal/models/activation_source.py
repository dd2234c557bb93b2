"""Activations as Python source that needs nothing but PyTorch."""

import ast
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.activations import (
    ELU,
    GELU,
    Activation,
    Affine,
    Cosine,
    Erf,
    HardTanh,
    Hermite,
    Identity,
    LeakyReLU,
    PiecewisePolynomial,
    ReLU,
    Sigmoid,
    Sine,
    Sinusoid,
    Softplus,
    Swish,
    Tanh,
)
from shoal.activations.piecewise_polynomial import lookup_table

__all__ = ["HERMITE", "PIECEWISE", "Expressions"]

HERMITE = '''
def hermite(x: Tensor, coefficients: tuple[float, ...]) -> Tensor:
    """A series of normalized probabilists' Hermite polynomials, by Clenshaw's recurrence."""
    ahead, after = torch.zeros_like(x), torch.zeros_like(x)
    for k in range(len(coefficients) - 1, -1, -1):
        step = x * ahead / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * after
        ahead, after = coefficients[k] + step, ahead
    return ahead
'''

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
        self.register_buffer("knots", torch.zeros(2**steps - 1, dtype=DTYPE))  # NaN after the last
        self.register_buffer("scale", torch.zeros(pieces, dtype=DTYPE))
        self.register_buffer("offset", torch.zeros(pieces, dtype=DTYPE))
        self.register_buffer("powers", torch.zeros(coefficients, pieces, dtype=DTYPE))

    def forward(self, x: Tensor) -> Tensor:
        """Find the piece by bisection, then evaluate it by Horner's rule."""
        index = torch.zeros_like(x, dtype=torch.long)  # how many knots are not above x
        for k in reversed(range(self.steps)):
            ahead = index + 2**k
            index = torch.where(x >= self.knots[ahead - 1], ahead, index)
        s = x * self.scale[index] + self.offset[index]
        value = self.powers[-1][index]
        for k in reversed(range(len(self.powers) - 1)):
            value = self.powers[k][index] + value * s
        return value
'''

_PLAIN: dict[type[Activation], Callable[..., str]] = {
    Identity: lambda _: "x",
    ReLU: lambda _: "torch.relu(x)",
    LeakyReLU: lambda phi: f"torch.where(x > 0, x, {phi.slope!r} * x)",
    HardTanh: lambda phi: f"x.clamp({-phi.bound!r}, {phi.bound!r})",
    ELU: lambda phi: f"torch.where(x > 0, x, {phi.alpha!r} * torch.expm1(x.clamp(max=0.0)))",
    Tanh: lambda _: "torch.tanh(x)",
    Sigmoid: lambda _: "torch.sigmoid(x)",
    Erf: lambda _: "torch.erf(x)",
    Swish: lambda _: "x * torch.sigmoid(x)",
    GELU: lambda _: "x * torch.erfc(x * -math.sqrt(0.5)) / 2",
    Softplus: lambda _: "-nn.functional.logsigmoid(-x)",
    Sine: lambda _: "torch.sin(x)",
    Cosine: lambda _: "torch.cos(x)",
    Sinusoid: lambda phi: (
        f"torch.sin({phi.frequency!r} * x + {phi.phase!r}) + {phi.slope!r} * x"
        if phi.slope
        else f"torch.sin({phi.frequency!r} * x + {phi.phase!r})"
    ),
    Hermite: lambda phi: f"hermite(x / {phi.scale!r}, {phi.coefficients!r})",
}


@dataclass
class Expressions:
    """Activations as expressions in ``x``, and what stands outside of them.

    Attributes:
        tables: The piecewise polynomials so far, which become modules ``self.table1`` and so on.
        helpers: The source of functions and classes that the expressions use.
    """

    tables: list[PiecewisePolynomial] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)

    def of(self, activation: Activation) -> str:
        """The expression of an activation.

        Raises:
            TypeError: If its source is not known.
        """
        if isinstance(activation, Affine):
            inner = self.of(activation.activation)
            simple = isinstance(ast.parse(inner, mode="eval").body, ast.Call | ast.Name)
            scaled = f"{activation.scale!r} * {inner if simple else f'({inner})'}"
            return f"{scaled} + {activation.shift!r}" if activation.shift else scaled
        if isinstance(activation, PiecewisePolynomial):
            self._need(PIECEWISE)
            if activation not in self.tables:
                self.tables.append(activation)
            return f"self.table{self.tables.index(activation) + 1}(x)"
        if type(activation) not in _PLAIN:
            raise TypeError(
                f"network must have activations of shoal, whose source is known, got {activation!r}"
            )
        if isinstance(activation, Hermite):
            self._need(HERMITE)
        return _PLAIN[type(activation)](activation)

    def _need(self, helper: str) -> None:
        if helper not in self.helpers:
            self.helpers.append(helper)

    def state(self, like: Tensor) -> dict[str, Tensor]:
        """The numbers of the tables, by the names of the buffers, in the dtype of a tensor."""
        found: dict[str, Tensor] = {}
        for k, phi in enumerate(self.tables, start=1):
            knots, scale, offset, rows = lookup_table(phi, 0, like.dtype, like.device)
            missing = 2 ** _steps(phi) - 1 - len(knots)
            padded = torch.cat([knots, knots.new_full((missing,), math.nan)])
            values = {
                "knots": padded,
                "scale": scale,
                "offset": offset,
                "powers": torch.stack(rows),
            }
            found |= {f"table{k}.{name}": value for name, value in values.items()}
        return found

    def modules(self) -> list[str]:
        """The tables as assignments."""
        return [
            f"self.table{k} = PiecewisePolynomial("
            f"{_steps(phi)}, {len(phi.pieces) + 2}, {max(2, len(phi.pieces[0]))})"
            for k, phi in enumerate(self.tables, start=1)
        ]


def _steps(phi: PiecewisePolynomial) -> int:
    """How many bisections find a place among the knots."""
    return len(phi.knots).bit_length()
