"""Diagnose foreign loops before and after training: a looped transformer, and a torchdeq model.

python benchmarks/trained_loops.py [--steps N] [--seed S] [--torchdeq FOLDER]

Both learn whether the largest of six numbers comes before the smallest. The transformer is trained
through 8 unrolled applications of its block, as looped models are, and diagnosed as a loop without
end; the other is written for torchdeq and trained on the adapter, and with --torchdeq, the folder
that holds the package torchdeq, on that too. Prints a table in Markdown.
"""

import argparse
import sys

import torch
from torch import Tensor, nn

import shoal
from shoal.adapters.torchdeq import get_deq

TOKENS, SIZE, LOOPS = 6, 16, 8


class Block(nn.Module):
    """A block of a transformer, which sees the inputs at every application."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.inner, self.outer = nn.Linear(SIZE, 2 * SIZE), nn.Linear(2 * SIZE, SIZE)
        self.norms = nn.ModuleList(nn.LayerNorm(SIZE) for _ in range(2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """One application."""
        z = z + x
        z = self.norms[0](z + self.attention(z, z, z, need_weights=False)[0])
        return self.norms[1](z + self.outer(nn.functional.gelu(self.inner(z))))


class LoopedTransformer(nn.Module):
    """The block applied a few times, and a readout of the mean token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Linear(1, SIZE), Block()
        self.places = nn.Parameter(torch.randn(TOKENS, SIZE))
        self.readout = nn.Linear(SIZE, 2)

    def tokens(self, x: Tensor) -> Tensor:
        """What is seen at every application."""
        return self.embedding(x[:, :, None]) + self.places

    def head(self, z: Tensor) -> Tensor:
        """The scores of the two classes."""
        return self.readout(z.mean(1))

    def forward(self, x: Tensor) -> Tensor:
        """A few applications."""
        tokens = self.tokens(x)
        z = torch.zeros_like(tokens)
        for _ in range(LOOPS):
            z = self.block(z, tokens)
        return self.head(z)


class TorchDEQ(nn.Module):
    """A model written for torchdeq."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.deq = self.make_layer()
        self.recurrent, self.input = nn.Linear(width, width), nn.Linear(TOKENS, width)
        self.readout = nn.Linear(width, 2)

    def make_layer(self) -> nn.Module:
        """The layer that solves, of the adapter."""
        return get_deq(f_solver="anderson", f_tol=1e-6, ift=True, on_failure="status")

    def forward(self, x: Tensor) -> Tensor:
        """The readout of the equilibrium."""
        u = self.input(x)
        states, _ = self.deq(lambda z: torch.tanh(self.recurrent(z) + u), torch.zeros_like(u))
        return self.readout(states[-1])


class Itself(TorchDEQ):
    """The same model on torchdeq itself."""

    def make_layer(self) -> nn.Module:
        """The layer that solves, torchdeq's own."""
        from torchdeq import get_deq as own

        return own(f_solver="anderson", f_tol=1e-6, f_max_iter=100, b_max_iter=100, ift=True)


def diagnosis(model: nn.Module, x: Tensor) -> shoal.diagnosis.Diagnosis:
    """Of the model's loop."""
    if isinstance(model, TorchDEQ):
        return shoal.diagnose(model, None, x)
    tokens = model.tokens(x).detach()
    return shoal.diagnose(model.block, torch.zeros_like(tokens), tokens, output=model.head)


def row(name: str, model: nn.Module, x: Tensor, y: Tensor) -> str:
    """A line of the table."""
    found = diagnosis(model, x[:32])
    with torch.no_grad():
        accuracy = float((model(x).argmax(1) == y).double().mean())
    depth = found.depth
    depths = "none" if depth is None else f"{depth.quantile(0.5)}, {depth.quantile(1.0)}"
    radius = "" if found.spectrum is None else f"{found.spectrum.radius:.2f}"
    norm = "" if found.spectrum is None else f"{found.spectrum.norm:.2f}"
    behaviors = ", ".join(f"{name} {count}" for name, count in found.behaviors.items())
    off = {cost.name: cost for cost in found.gradients}.get("OneStep")
    error = "" if off is None else f"{off.relative:.0%}"
    several = max(found.equilibria.counts)
    return (
        f"| {name} | {accuracy:.1%} | {behaviors} | {depths} | {found.solved} | {several} | "
        f"{norm} | {radius} | {error} |"
    )


def main() -> None:
    """Train, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--torchdeq", help="the folder that holds the package")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(options.seed)
    x = torch.randn(4096, TOKENS, generator=generator)
    y = (x.argmax(1) < x.argmin(1)).long()
    print(
        "| | accuracy | of 32 samples | effective depth: half, all that settle | solved | "
        "equilibria, up to | ‖J‖ | spectral radius | one-step gradient off by |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    if options.torchdeq:
        sys.path.insert(0, options.torchdeq)
    for kind in (LoopedTransformer, TorchDEQ, *([Itself] if options.torchdeq else [])):
        torch.manual_seed(options.seed)
        model = kind()
        print(row(f"{kind.__name__}, as drawn", model, x[2048:], y[2048:]), flush=True)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for step in range(options.steps):
            rows = torch.arange(64 * step, 64 * (step + 1)) % 2048
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        print(row(f"{kind.__name__}, trained", model, x[2048:], y[2048:]), flush=True)


if __name__ == "__main__":
    main()
