"""Models with loops as people write them, independent of shoal."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    """A transformer block with normalization first."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class LoopedTransformer(nn.Module):
    def __init__(self, steps: int = 5, width: int = 16) -> None:
        super().__init__()
        self.embed, self.block = nn.Embedding(11, width), Block(width)
        self.norm, self.readout = nn.LayerNorm(width), nn.Linear(width, 5)
        self.steps = steps

    def forward(self, tokens: Tensor) -> Tensor:
        x = z = self.embed(tokens)
        for _ in range(self.steps):
            z = self.block(z + x)
        return self.readout(self.norm(z))


class StepEmbedding(LoopedTransformer):
    """A loop with a step embedding and an initial state of zeros."""

    def __init__(self, steps: int = 4, rows: int = 6) -> None:
        super().__init__(steps)
        self.time = nn.Embedding(rows, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        z = torch.zeros_like(x)
        for n in range(self.steps):
            z = self.block(z + x + self.time(torch.tensor(n)))
        return self.readout(self.norm(z))


class TwoStates(nn.Module):
    """Slow and fast states; only the last outer iteration has gradients."""

    def __init__(self, outer: int = 3, inner: int = 2, width: int = 16) -> None:
        super().__init__()
        self.embed, self.fast, self.slow = nn.Embedding(11, width), Block(width), Block(width)
        self.readout = nn.Linear(width, 5)
        self.start = nn.ParameterList(torch.randn(width) for _ in range(2))
        self.outer, self.inner = outer, inner

    def turn(self, a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(self.inner):
            b = self.fast(b + a + x)
        return self.slow(a + b), b

    def forward(self, tokens: Tensor) -> Tensor:
        x, (a, b) = self.embed(tokens), self.start
        with torch.no_grad():
            for _ in range(self.outer - 1):
                a, b = self.turn(a, b, x)
        a, b = self.turn(a.detach(), b.detach(), x)
        return self.readout(a)


class RecurrentDepth(nn.Module):
    """A language model with a prelude, a recurrent block from a random start, and a coda."""

    def __init__(self, steps: int = 4, width: int = 16) -> None:
        super().__init__()
        self.embed, self.prelude, self.coda = nn.Embedding(11, width), Block(width), Block(width)
        self.adapter = nn.Linear(2 * width, width)
        self.core = nn.Sequential(Block(width), Block(width))
        self.readout, self.steps = nn.Linear(width, 11), steps

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.prelude(self.embed(tokens))
        z = torch.randn_like(x)
        for _ in range(self.steps):
            z = self.core(self.adapter(torch.cat([z, x], -1)))
        return self.readout(self.coda(z))


class ConvolutionWithRecall(nn.Module):
    def __init__(self, steps: int = 5, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.recall = nn.Conv2d(channels + 1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.readout, self.steps = nn.Conv2d(channels, 2, 3, padding=1), steps

    def forward(self, x: Tensor) -> Tensor:
        z = functional.relu(self.first(x))
        for _ in range(self.steps):
            y = functional.relu(self.recall(torch.cat([z, x], 1)))
            z = functional.relu(z + self.second(y))
        return self.readout(z)


class Vectors(nn.Module):
    """A cell of vectors; subclasses override ``turn``."""

    def __init__(self, steps: int = 6, size: int = 7) -> None:
        super().__init__()
        self.cell, self.readout, self.steps = nn.Linear(size, size), nn.Linear(size, 3), steps

    def forward(self, x: Tensor) -> Tensor:
        z = x.new_zeros(len(x), x.shape[1])  # the length of a tensor is a plain number
        for n in range(self.steps):
            z = self.turn(z, x, n)
        return self.readout(z)

    def turn(self, z: Tensor, x: Tensor, n: int) -> Tensor:  # noqa: ARG002
        return torch.tanh(self.cell(z) + x)


class Averaged(Vectors):
    """A loop that averages each iteration with a separate weight."""

    def turn(self, z: Tensor, x: Tensor, n: int) -> Tensor:
        return z + (super().turn(z, x, n) - z) / (n + 1.5)


class BatchCentered(Vectors):
    def turn(self, z: Tensor, x: Tensor, n: int) -> Tensor:
        return super().turn(z - z.mean(0), x, n)


class Noisy(Vectors):
    def turn(self, z: Tensor, x: Tensor, n: int) -> Tensor:
        return functional.dropout(super().turn(z, x, n), 0.1, training=True)


class Momentum(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        a = b = x
        for n in range(self.steps):
            a, b = self.turn(a, x, n) + 0.3 * (a - b), a
        return self.readout(a)


class InPlace(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        z = x.clone()
        for _ in range(self.steps):
            z += torch.tanh(self.cell(z))
            z *= 0.7
        return self.readout(z)


class TwoLoops(Vectors):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        z = x
        for n in range(self.steps):
            z = self.turn(z, x, n)
        y = z
        for _ in range(3):
            y = torch.tanh(self.other(y) + z)
        return self.readout(y)


class UntilTolerance(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        z = x
        for n in range(50):
            z, before = self.turn(z, x, n), z
            if (z - before).norm() < 1e-3:
                break
        return self.readout(z)


class AllOutputs(Vectors):
    def forward(self, x: Tensor) -> Tensor:
        z, outputs = x, []
        for n in range(self.steps):
            z = self.turn(z, x, n)
            outputs.append(self.readout(z))
        return torch.stack(outputs)


class Plain(nn.Module):
    """Three blocks with separate weights, and no loop."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.readout = nn.Embedding(11, 16), nn.Linear(16, 5)
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.readout(self.blocks(self.embed(tokens)))


class SequenceFirst(nn.Module):
    """PyTorch's own layer, with the batch in the second dimension of the state."""

    def __init__(self, steps: int = 3) -> None:
        super().__init__()
        self.embed, self.readout = nn.Embedding(11, 16), nn.Linear(16, 5)
        self.block, self.steps = nn.TransformerEncoderLayer(16, 2, 32), steps

    def forward(self, tokens: Tensor) -> Tensor:
        x = z = self.embed(tokens).transpose(0, 1)
        for _ in range(self.steps):
            z = self.block(z) + x
        return self.readout(z.mean(0))


def tokens(samples: int = 5, length: int = 6) -> Tensor:
    return torch.randint(11, (samples, length))


def vectors(samples: int = 5) -> Tensor:
    return torch.randn(samples, 7)


def images(samples: int = 5) -> Tensor:
    return torch.randn(samples, 1, 6, 6)
