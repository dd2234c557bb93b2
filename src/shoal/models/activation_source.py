"""Activations as Python source that needs nothing but PyTorch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    """Polynomials in s, -1 <= s <= 1, between knots, and lines beyond the last ones."""

    knots: Tensor
    scale: Tensor
    offset: Tensor
    powers: Tensor

    def __init__(self, knots: tuple[float, ...], pieces: tuple[tuple[float, ...], ...]) -> None:
        super().__init__()
        t, p = (torch.tensor(values, dtype=torch.float64) for values in (knots, pieces))
        half = (t[1:] - t[:-1]) / 2
        j = torch.arange(p.shape[1], dtype=torch.float64)
        first, last = p[0] * (-1.0) ** j, p[-1]
        table = torch.zeros(len(p) + 2, max(2, p.shape[1]), dtype=torch.float64)
        table[0, 0], table[0, 1] = first.sum(), -(j * first).sum() / half[0]
        table[-1, 0], table[-1, 1] = last.sum(), (j * last).sum() / half[-1]
        table[1:-1, : p.shape[1]] = p
        one = half.new_ones(1)
        self.steps = [2**k for k in range(len(t).bit_length() - 1, -1, -1)]
        padding = t.new_full((2 * self.steps[0] - 1 - len(t),), math.nan)
        tables = {
            "knots": torch.cat([t, padding]),
            "scale": torch.cat([one, 1 / half, one]),
            "offset": torch.cat([-t[:1], -(t[1:] + t[:-1]) / (2 * half), -t[-1:]]),
            "powers": table.T.contiguous(),
        }
        for name, values in tables.items():
            self.register_buffer(name, values.to(DTYPE), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.zeros_like(x, dtype=torch.long)
        for step in self.steps:  # bisection: how many knots are not above x
            ahead = index + step
            index = torch.where(x >= self.knots[ahead - 1], ahead, index)
        s = x * self.scale[index] + self.offset[index]
        value = self.powers[-1][index]
        for k in range(len(self.powers) - 2, -1, -1):
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
            scaled = f"{activation.scale!r} * ({inner})"
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

    def constants(self) -> str:
        """The numbers of the tables, as assignments."""
        return "\n".join(
            f"\nKNOTS{k} = {_row(phi.knots)}\nPIECES{k} = {_rows(phi.pieces)}"
            for k, phi in enumerate(self.tables, start=1)
        )


def _row(row: Sequence[float], indent: str = "") -> str:
    """A tuple of numbers, four in a line."""
    numbers = [f"{value!r}," for value in row]
    lines = [" ".join(numbers[k : k + 4]) for k in range(0, len(numbers), 4)]
    return "(" + "".join(f"\n{indent}    {line}" for line in lines) + f"\n{indent})"


def _rows(rows: Sequence[Sequence[float]]) -> str:
    return "(" + "".join(f"\n    {_row(row, '    ')}," for row in rows) + "\n)"
