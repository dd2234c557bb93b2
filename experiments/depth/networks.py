"""Several networks of one kind side by side, which are trained at once."""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

import shoal
from shoal.activations import Activation


def _line(z: Tensor) -> Tensor:
    """The states before, at and after each place of a line. shape: (..., places, 3 features)."""
    return torch.cat([functional.pad(z, (0, 0, *s)) for s in ((1, -1), (0, 0), (-1, 1))], -1)


def _grid(z: Tensor) -> Tensor:
    """The nine states around each place of a grid. shape: (..., rows, columns, 9 features)."""
    shifts = ((1, -1), (0, 0), (-1, 1))
    return torch.cat([functional.pad(z, (0, 0, *c, *r)) for r in shifts for c in shifts], -1)


def _chain(z: Tensor) -> Tensor:
    r"""The mean of each node of a chain and its neighbors, by $D^{-1/2} (A + I) D^{-1/2}$."""
    length = z.shape[-2]
    one = torch.ones(length, device=z.device, dtype=z.dtype)
    adjacency = torch.diag(one) + torch.diag(one[1:], 1) + torch.diag(one[1:], -1)
    root = adjacency.sum(0).rsqrt()
    return (root[:, None] * adjacency * root) @ z


# the neighboring states that a cell reads, and their number
NEIGHBORS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "none": (lambda z: z, 1),
    "line": (_line, 3),
    "grid": (_grid, 9),
    "chain": (_chain, 1),
}


class Stack(nn.Module):
    r"""Networks of one kind, alike but for their weights.

    The first layer is $z_1 = \varphi(U x)$. Plain networks go on with
    $z_{l+1} = \varphi(A_l \, N z_l)$, where $N$ lays the states around each place side by side;
    unrolled ones with $z \leftarrow \varphi(A \, N z + U x)$, and a DEQ takes the limit of that.
    Answers are read from the last state, at every place or from the mean of all.
    """

    def __init__(
        self, kind: str, activations: Sequence[Activation],
        shape: tuple[int, tuple[int, ...], tuple[int, ...]], *, count: int, width: int,
        neighbors: str, pooled: bool, gain: float, readout: float, solver: shoal.Picard, seed: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__()
        features, places, self.answers = shape
        outputs = math.prod(self.answers)
        self.kind, self.activations, self.pooled, self.gain = kind, activations, pooled, gain
        self.gather, parts = NEIGHBORS[neighbors]
        self.width = width
        generator = torch.Generator().manual_seed(seed)

        def draw(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            values = torch.randn(count, rows, columns, generator=generator) * scale
            return nn.Parameter(values.to(device))

        matrices = len(activations) - 1 if kind == "plain" else 1
        self.input = draw(features, width)
        self.recurrent = nn.ParameterList(draw(parts * width, width) for _ in range(matrices))
        self.readout = draw(width, outputs, readout)
        self.bias = nn.Parameter(torch.zeros(count, outputs, device=device))
        self.direction = torch.randn(1, count, *places, width, generator=generator).to(device)
        if kind == "plain":
            with torch.no_grad():  # the designs' scale: the mean square of a layer is kept
                for matrix in self.recurrent:
                    matrix /= math.sqrt(parts)
        else:
            for _ in range(20):
                self._normalize(exactly=True)
        self.layer = shoal.Equilibrium(self._rows, solver=solver, on_failure="status")

    def mixed(self, z: Tensor, weights: Tensor) -> Tensor:
        """The states around each place, times weights. shape: (samples, networks, *places, m)."""
        return _times(self.gather(z), weights) / math.sqrt(self.width)

    def cell(self, z: Tensor, u: Tensor) -> Tensor:
        return self.activations[0](self.mixed(z, self.recurrent[0]) + u)

    def _rows(self, z: Tensor, u: Tensor) -> Tensor:
        """The loop with one row per network and sample: one may fail where others converge."""
        stacked = (-1, len(self.bias), *z.shape[1:])
        return self.cell(z.view(stacked), u.view(stacked)).flatten(0, 1)

    def states(self, x: Tensor) -> Tensor:
        """The features of the readout, for inputs (samples, networks, *places, features)."""
        u = _times(x, self.input)
        if self.kind in ("deq", "free"):
            rows = u.flatten(0, 1)
            return cast(Tensor, self.layer(torch.zeros_like(rows), rows)).view(u.shape)
        z = self.activations[0](u)
        for index, activation in enumerate(self.activations[1:]):
            if self.kind == "plain":
                z = activation(self.mixed(z, self.recurrent[index]))
            else:
                z = self.cell(z, u)
        return z

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes. shape: (samples, networks, *places, classes)."""
        z = self.states(x)
        if self.pooled and z.ndim > 3:
            z = z.flatten(2, -2).mean(2)
        bias = self.bias.view(len(self.bias), *[1] * (z.ndim - 3), -1)
        scores = _times(z, self.readout) / math.sqrt(self.width) + bias
        return scores.view(*scores.shape[:-1], *self.answers)

    def project(self) -> None:
        """Make the norms of a DEQ's recurrent weights at most its gain, after a step."""
        if self.kind == "deq":
            self._normalize(exactly=False)

    def _normalize(self, *, exactly: bool) -> None:
        """Scale recurrent weights to the gain; unless ``exactly``, only down from a larger norm.

        One step of a power iteration estimates the norm; it starts at the last direction, so that
        it follows the weights in training.
        """
        (weights,) = self.recurrent
        with torch.enable_grad():
            v = self.direction.detach().requires_grad_()
            image = self.mixed(v, weights.detach())
            (back,) = torch.autograd.grad(image, v, image.detach())
        axes = tuple(range(2, v.ndim))
        norms = image.detach().square().sum(axes).sqrt()[0]
        self.direction = back / back.square().sum(axes, keepdim=True).sqrt()
        with torch.no_grad():
            over = norms / self.gain
            weights /= (over if exactly else over.clamp_min(1.0))[:, None, None]


def _times(z: Tensor, weights: Tensor) -> Tensor:
    """Features of each network's states times its own weights."""
    networks = z.shape[1]
    rows = z.transpose(0, 1).reshape(networks, -1, z.shape[-1])
    product = torch.bmm(rows, weights)
    return product.view(networks, z.shape[0], *z.shape[2:-1], weights.shape[-1]).transpose(0, 1)
