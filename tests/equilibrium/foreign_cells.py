"""Cells that shoal did not write, as its users come with them: modules with states and inputs."""

import math

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.parametrizations import spectral_norm

from shoal import Equilibrium

__all__ = ["CELLS", "prepared"]


class Normalized(nn.Module):
    """An MLP with layer normalization, residual in its input."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(4, 6), nn.Linear(6, 4), nn.LayerNorm(4)
        with torch.no_grad():
            self.second.weight.mul_(0.5)

    def forward(self, z, x):
        return self.norm(x + self.second(torch.tanh(self.first(z))))


class MultiScale(nn.Module):
    """Two resolutions of an image that exchange what they know; the state is a dictionary."""

    def __init__(self):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.down, self.up = nn.Conv2d(2, 2, 2, stride=2), nn.ConvTranspose2d(2, 2, 2, stride=2)

    def forward(self, z, x):
        fine = torch.tanh(0.4 * self.fine(z["fine"]) + 0.4 * self.up(z["coarse"]) + x)
        coarse = torch.tanh(0.4 * self.coarse(z["coarse"]) + 0.4 * self.down(z["fine"]))
        return {"fine": fine, "coarse": coarse}


class LoopedTransformer(nn.Module):
    """A transformer's block applied again and again to the tokens of a sequence."""

    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norms = nn.ModuleList(nn.LayerNorm(4) for _ in range(2))

    def forward(self, z, x):
        with sdpa_kernel(SDPBackend.MATH):  # PyTorch's fused attention has no forward mode
            seen, _ = self.attention(z, z, z, need_weights=False)
        z = self.norms[0](x + 0.3 * seen)
        return self.norms[1](x + 0.3 * self.outer(torch.nn.functional.gelu(self.inner(z))))


class GraphEquilibrium(nn.Module):
    """An implicit graph network (IGNN): nodes depend on their neighbors, so all are one sample."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(0.4 * torch.randn(3, 3) / math.sqrt(3))
        self.encode = nn.Linear(2, 3)

    def forward(self, z, adjacency, features):
        return torch.tanh(adjacency @ z @ self.weight + self.encode(features))


class Splitting(nn.Module):
    """The alternating direction method of multipliers for the lasso; two variables and a dual."""

    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(5, 4) / 2)
        self.threshold = nn.Parameter(torch.tensor(0.1))

    def forward(self, state, y):
        x, z, u = state
        gram = self.matrix.T @ self.matrix + torch.eye(4, dtype=x.dtype)
        x = torch.linalg.solve(gram, (y @ self.matrix + z - u).T).T
        z = torch.sign(x + u) * torch.relu((x + u).abs() - self.threshold)
        return x, z, u + x - z


class Recurrent(nn.Module):
    """PyTorch's LSTM cell; the state is a pair."""

    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(3, 4)

    def forward(self, state, x):
        return self.cell(x, state)


class Monotone(nn.Module):
    """A monotone operator network, W = (1 - m) I - AᵀA + B - Bᵀ, by forward-backward steps."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 4) / 2)
        self.b = nn.Parameter(torch.randn(4, 4) / 2)
        self.inject = nn.Linear(3, 4)

    def forward(self, z, x):
        w = 0.5 * torch.eye(4, dtype=z.dtype) - self.a.T @ self.a + self.b - self.b.T
        return torch.nn.functional.softplus(0.8 * z + 0.2 * (z @ w.T + self.inject(x))) / 2


class Pretrained(nn.Module):
    """Frozen weights, of which only an adapter of rank one is trained."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.down, self.up = nn.Linear(4, 1, bias=False), nn.Linear(1, 4, bias=False)

    def forward(self, z, x):
        return torch.tanh(0.5 * self.frozen(z) + 0.2 * self.up(self.down(z)) + x)


class WithDropout(nn.Module):
    """Dropout inside: its mask must be the same in every step."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(4, 4), nn.Dropout(0.5)

    def forward(self, z, x):
        return torch.tanh(0.4 * self.dropout(self.linear(z)) + x)


class Parametrized(nn.Module):
    """Weights with a parametrization of PyTorch's, spectral normalization."""

    def __init__(self):
        super().__init__()
        self.linear = spectral_norm(nn.Linear(4, 4))

    def forward(self, z, *, x):
        return torch.tanh(0.8 * self.linear(z) + x)


class Surrounded(nn.Module):
    """A cell whose equilibrium is one part of a model that is compiled, a `CompiledModel`."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, z, x):
        return torch.tanh(0.5 * self.linear(z) + x)


class CompiledModel(nn.Module):
    """Layers, an equilibrium of their output, and a scale: the result is an equilibrium, too."""

    def __init__(self, cell, **options):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double()
        self.equilibrium = Equilibrium(cell, **options)
        self.scale = nn.Parameter(torch.tensor([0.5, 0.8, 1.5, 2.0], dtype=torch.float64))

    def forward(self, z0, x):
        return self.scale * self.equilibrium(z0, self.before(x))

    def cell(self, z, x):
        """The map of which the result is the fixed point."""
        return self.scale * self.equilibrium.cell(z / self.scale, self.before(x))

    @property
    def solution(self):
        return self.equilibrium.solution

    @property
    def log(self):
        return self.equilibrium.log


def _randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def _graph():
    adjacency = torch.rand(6, 6, dtype=torch.float64)
    return adjacency / adjacency.sum(1, keepdim=True)


# cell -> where to start, inputs, inputs by name, and options of the layer
CELLS = {
    Normalized: lambda: (torch.zeros(3, 4).double(), (_randn(3, 4),), {}, {}),
    MultiScale: lambda: (
        {"fine": torch.zeros(2, 2, 4, 4).double(), "coarse": torch.zeros(2, 2, 2, 2).double()},
        (_randn(2, 2, 4, 4),),
        {},
        {},
    ),
    LoopedTransformer: lambda: (torch.zeros(2, 3, 4).double(), (_randn(2, 3, 4),), {}, {}),
    GraphEquilibrium: lambda: (
        torch.zeros(6, 3).double(),
        (_graph(), _randn(6, 2)),
        {},
        {"batched": False},
    ),
    Splitting: lambda: (
        tuple(torch.zeros(3, 4).double() for _ in range(3)),
        (_randn(3, 5),),
        {},
        {},
    ),
    Recurrent: lambda: ((torch.zeros(3, 4).double(),) * 2, (_randn(3, 3),), {}, {}),
    Monotone: lambda: (torch.zeros(3, 4).double(), (_randn(3, 3),), {}, {}),
    Pretrained: lambda: (torch.zeros(3, 4).double(), (_randn(3, 4),), {}, {}),
    WithDropout: lambda: (torch.zeros(3, 4).double(), (_randn(3, 4),), {}, {}),
    Parametrized: lambda: (torch.zeros(3, 4).double(), (), {"x": _randn(3, 4)}, {}),
    Surrounded: lambda: (torch.zeros(3, 4).double(), (_randn(3, 4),), {}, {}),
}


def prepared(kind, *, backend="eager", **options):
    """A layer of a cell, in evaluation mode but for dropout; a start; inputs.

    For `Surrounded` it is a compiled model with such a layer inside.
    """
    torch.manual_seed(0)
    cell = kind().double()
    z0, inputs, named, own = CELLS[kind]()
    own = {"on_failure": "raise", **own, **options}
    if kind is Surrounded:
        torch.compiler.reset()  # each test compiles its own
        layer = torch.compile(CompiledModel(cell, **own), backend=backend)
    else:
        layer = Equilibrium(cell, **own)
    layer.train(kind is WithDropout)
    return layer, z0, inputs, named
