"""Stop rules and few-step copies of three small loops, trained here in seconds.

python benchmarks/loops.py [stop] [distill] [--splits N] [--output FOLDER]

The loops: cells of a line that a source reaches (convolutions with recall; the cells of a line
depend strongly on one another), sorted positions of tokens (a looped transformer), and classes of
vectors (a normalized residual stream).

"stop" records all iterations of 4,000 samples, calibrates a rule on many splits (1,500 samples for
the rule, the others stand for new ones), and prints how often more than 1% of the new samples
change, and the savings. "distill" prints the errors of the loop cut after 1, 2 and 3 iterations,
and of the copy trained for few iterations.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import shoal
from shoal.loops.decisions import decisions_of
from shoal.loops.stopping import calibrated, record_of

STEPS = {"line": 24, "sort": 8, "classes": 16}


class Line(nn.Module):
    """Which cells of a line does a source reach, between walls?"""

    def __init__(self, channels: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, channels, 3, padding=1)
        self.recall = nn.Conv1d(channels + 2, channels, 3, padding=1)
        self.second = nn.Conv1d(channels, channels, 1)
        self.readout = nn.Conv1d(channels, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        z = functional.relu(self.first(x))
        for _ in range(STEPS["line"]):
            y = functional.relu(self.recall(torch.cat([z, x], 1)))
            z = torch.tanh(z + self.second(y))
        return self.readout(z).transpose(1, 2)

    @staticmethod
    def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Samples and their labels."""
        generator = torch.Generator().manual_seed(seed)
        walls = torch.rand(count, 24, generator=generator) < 0.08
        source = torch.rand(count, 24, generator=generator) < 0.04
        reached = source & ~walls
        for _ in range(24):
            beside = functional.pad(reached, (1, 1))
            reached = (reached | beside[:, 2:] | beside[:, :-2]) & ~walls
        return torch.stack([walls, source & ~walls], 1).float(), reached.long()


class Sort(nn.Module):
    """What is the k-th smallest token?"""

    def __init__(self, width: int = 32, length: int = 8) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(16, width), nn.Parameter(torch.randn(length, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.readout = nn.Linear(width, 16)

    def block(self, z: Tensor) -> Tensor:
        """Attention and two layers."""
        parts = self.qkv(self.norms[0](z)).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        z = z + self.out(mixed.transpose(1, 2).flatten(2))
        return z + self.mlp(self.norms[1](z))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the tokens in each place."""
        x = z = self.embed(tokens) + self.place
        for _ in range(STEPS["sort"]):
            z = self.block(z + x)
        return self.readout(self.norms[2](z))

    @staticmethod
    def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Samples and their labels."""
        tokens = torch.randint(16, (count, 8), generator=torch.Generator().manual_seed(seed))
        return tokens, tokens.sort(1).values


class Classes(nn.Module):
    """Which of six curved regions does a vector lie in?"""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.norm = nn.Linear(6, width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(2 * width, 64), nn.GELU(), nn.Linear(64, width))
        self.last, self.readout = nn.LayerNorm(width), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes."""
        x = z = self.embed(x)
        for _ in range(STEPS["classes"]):
            z = z + self.mlp(torch.cat([self.norm(z), x], 1)) / 4
        return self.readout(self.last(z))

    @staticmethod
    def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Samples and their labels."""
        x = torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))
        return x, (2 * x * x.roll(1, 1) + x.sin()).argmax(1)


def trained(kind: type[nn.Module], steps: int = 400) -> nn.Module:
    """A loop trained by Adam."""
    torch.manual_seed(0)
    model = kind()
    x, y = kind.samples(20_000, 1)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.arange(64) + 64 * step
        output = model(x[rows % len(x)])
        loss = functional.cross_entropy(output.flatten(0, -2), y[rows % len(x)].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval()


def stop(name: str, model: nn.Module, x: Tensor, splits: int) -> None:
    """Violations and savings over splits of one recording."""
    loop = shoal.find_loop(model, x[:8])
    record = record_of(loop, (x,), decisions_of(model(x[:8])), loop.steps)
    broken, savings, signals = 0, [], {}
    for split in range(splits):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(split))
        rule = calibrated(record, order[:1500], 0.01, 0.95)
        new, index = order[1500:], record.names.index(rule.signal)
        below = record.signals[new, :, index] <= rule.threshold
        place = torch.where(below.any(1), below.byte().argmax(1), below.shape[1])
        lost = record.lost[new].gather(1, place[:, None])
        broken += float(lost.double().mean()) > 0.01
        savings.append(1 - float((place + 2).double().mean()) / loop.steps)
        signals[rule.signal] = signals.get(rule.signal, 0) + 1
    saved = f"{sum(savings) / len(savings):.0%} of {loop.steps} saved"
    print(f"{name}: {broken} of {splits} splits above 1%; {saved}; {signals}", flush=True)


def distill(name: str, model: nn.Module, x: Tensor, folder: Path | None) -> None:
    """Errors of the cut loop and of the trained copy, and the verdict."""
    t = shoal.distill(model, x)
    found = {one.name: one.scores for one in t.candidates}
    for steps in ("1 iteration", "2 iterations", "3 iterations"):
        cut, copy = found[f"cut to {steps}"], found[f"trained copy, {steps}"]
        decisions, samples = (
            (1 - getattr(cut, field), 1 - getattr(copy, field))
            for field in ("agreement", "samples_agree")
        )
        print(
            f"{name}, {steps}: decisions that differ {decisions[0]:.1%} cut, {decisions[1]:.1%} "
            f"trained, factor {decisions[0] / max(decisions[1], 1e-9):.1f}; samples "
            f"{samples[0]:.1%}, {samples[1]:.1%}"
        )
    print(t, flush=True)
    if folder is not None:
        t.plot().savefig(folder / f"{name}.png")


def main() -> None:
    """Train the loops and print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["stop", "distill"])
    parser.add_argument("--output", type=Path, help="a folder for pictures")
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kind in (Line, Sort, Classes):
        name = kind.__name__.lower()
        begin = time.process_time()
        model = trained(kind)
        x, y = kind.samples(4000, 2)
        with torch.no_grad():
            right = (model(x).argmax(-1) == y).double().view(len(x), -1)
        print(
            f"{name}: trained in {time.process_time() - begin:.0f} s, "
            f"{right.mean():.1%} right, {right.amin(1).mean():.1%} of samples wholly",
            flush=True,
        )
        if "stop" in options.parts:
            stop(name, model, x, options.splits)
        if "distill" in options.parts:
            distill(name, model, x, options.output)


if __name__ == "__main__":
    main()
