"""Looped models trained at eight iterations: how many they need, and what may replace them."""

import ast
import random
import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
import torch
from matplotlib.ticker import PercentFormatter
from torch import Tensor, nn
from torch.nn import functional

import shoal
from experiments.drawing import COLORS, draw_panels
from experiments.experiment import Experiment, by_point, experiment, grid, matching

_LETTERS = "".join(map(chr, range(32, 127)))  # other characters are read as spaces
_WITHOUT = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
_WINDOW = 48  # characters of a sample of text
_SIDE = 12  # cells on a side of a maze


class Maze(nn.Module):
    """Cells that a source reaches between walls, by convolutions with recall."""

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.steps = steps
        self.first = nn.Conv2d(2, width, 3, padding=1)
        self.recall = nn.Conv2d(width + 2, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.readout = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the two classes of each cell, classes last."""
        z = torch.tanh(self.first(x))
        for _ in range(self.steps):
            change = self.second(functional.relu(self.recall(torch.cat([z, x], 1))))
            z = torch.tanh(z + change)
        return self.readout(z).movedim(1, -1)


class Block(nn.Module):
    """Causal attention and two layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, z: Tensor) -> Tensor:
        """The stream after the block."""
        q, k, v = (
            part.unflatten(-1, (4, -1)).transpose(1, 2)
            for part in self.qkv(self.norms[0](z)).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        z = z + self.out(mixed.transpose(1, 2).flatten(2))
        return z + self.mlp(self.norms[1](z))


class Text(nn.Module):
    """The next character by a recurrent-depth transformer: prelude, tied core, coda."""

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.steps = steps
        self.embed = nn.Embedding(len(_LETTERS), width)
        self.place = nn.Parameter(0.1 * torch.randn(_WINDOW, width))
        self.prelude, self.coda = Block(width), Block(width)
        self.adapter, self.norm = nn.Linear(2 * width, width), nn.LayerNorm(width)
        self.core = nn.Sequential(Block(width), Block(width))
        self.readout = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, len(_LETTERS)))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next characters."""
        e = self.prelude(self.embed(tokens) + self.place)
        z = torch.zeros_like(e)
        for _ in range(self.steps):
            z = self.norm(self.core(self.adapter(torch.cat([z, e], -1))))
        return self.readout(self.coda(z))


class Next(nn.Module):
    """The last of several characters: one decision for each sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of the next character."""
        return self.model(tokens)[:, -1]


def mazes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random walls with one source, and the cells that it reaches."""
    generator = torch.Generator().manual_seed(seed)
    walls = torch.rand(count, _SIDE, _SIDE, generator=generator) < 0.35
    cell = torch.randint(_SIDE**2, (count, 1), generator=generator)
    source = torch.zeros(count, _SIDE**2, dtype=torch.bool).scatter(1, cell, value=True)
    reached = source = source.view_as(walls)
    walls = walls & ~source
    for _ in range(_SIDE**2):
        wide = functional.pad(reached, (1, 1, 1, 1))
        beside = wide[:, 2:, 1:-1] | wide[:, :-2, 1:-1] | wide[:, 1:-1, 2:] | wide[:, 1:-1, :-2]
        before, reached = reached, (reached | beside) & ~walls
        if torch.equal(before, reached):
            break
    return torch.stack([walls, source], 1).float(), reached.long()


@cache
def documentation() -> tuple[str, ...]:
    """All docstrings of Python's standard library that fill a window, in random order."""
    root, texts = Path(sysconfig.get_paths()["stdlib"]), set()
    named = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path in sorted(root.rglob("*.py")):
        if _WITHOUT & {*path.parts}:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, ValueError):
            continue
        nodes = (node for node in ast.walk(tree) if isinstance(node, named))
        texts |= {" ".join((ast.get_docstring(node) or "").split()) for node in nodes}
    order = sorted(text for text in texts if len(text) > _WINDOW)
    random.Random(0).shuffle(order)
    return tuple(order)


def windows(texts: tuple[str, ...], count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Windows of texts, one of each in their order, again and again; and the next characters."""
    choice, rows = random.Random(seed), []
    for k in range(count):
        text = texts[k % len(texts)]
        start = choice.randrange(len(text) - _WINDOW)
        part = text[start : start + _WINDOW + 1]
        rows.append([max(_LETTERS.find(letter), 0) for letter in part])
    whole = torch.tensor(rows)
    return whole[:, :-1], whole[:, 1:]


@experiment("shoal", "iterations")
class Iterations(Experiment):
    """Loops trained at eight iterations, fixed or random: the curve, stop rules, replacements."""

    tasks: tuple[str, ...] = ("maze", "text")
    depths: tuple[str, ...] = ("fixed", "random")  # random: one to fifteen in each step
    steps: int = 8
    width: int = 32
    training: int = 600  # steps of Adam
    batch: int = 64
    measured: int = 512  # samples of the curve
    calibrating: int = 1000  # samples of the stop rule
    replacing: int = 2000  # samples of replacements
    epochs: int = 6
    risk: float = 0.01

    small = dict(
        width=16, training=40, batch=16, measured=64, calibrating=150, replacing=128, epochs=2,
        risk=0.1,
    )  # fmt: skip

    def points(self):
        return grid(task=self.tasks, depth=self.depths)

    def samples(self, task, seed):
        """Samples to train on, and two sets of others: of the curve, and of the stop rule."""
        counts = self.training * self.batch // 4, self.measured, 2 * self.calibrating
        if task == "maze":
            return [mazes(count, seed + k) for k, count in enumerate(counts)]
        texts = documentation()
        measured, calibrating = counts[1], min(counts[2], len(texts) // 2)
        first, second = calibrating, calibrating + measured
        return [
            windows(texts[second:], counts[0], seed),
            windows(texts[first:second], measured, seed + 1),
            windows(texts[:first], calibrating, seed + 2),
        ]

    def compute(self, point, seed, device):
        torch.manual_seed(seed)
        seed %= 2**31
        sets = [(x.to(device), y.to(device)) for x, y in self.samples(point["task"], seed)]
        model = {"maze": Maze, "text": Text}[point["task"]](self.steps, self.width).to(device)
        self.train(model, *sets[0], point["depth"] == "random", seed)
        (learned, classes), (x, y), (calibration, _) = sets
        diagnosis = shoal.diagnose(model, x, y=y)
        arrays = {"stop_at": diagnosis.stop_at, "steps": diagnosis.curve.steps}
        for name in ("accuracy", "sample_accuracy", "agreement", "settled"):
            arrays[name] = list(getattr(diagnosis.curve, name))
        arrays["growth"] = diagnosis.curve.growth
        decided = Next(model) if point["task"] == "text" else model
        loop, half = shoal.find_loop(decided, x[:32]), len(calibration) // 2
        for steps in (self.steps, 4 * self.steps):
            rule = shoal.stop_rule(loop, calibration[:half], risk=self.risk, steps=steps)
            with torch.no_grad():
                output, used = loop.run(calibration[half:], until=rule, counts=True)
                whole = loop.run(calibration[half:], steps=steps)
            changed = (output.argmax(-1) != whole.argmax(-1)).view(len(used), -1).any(1)
            arrays[f"saved_{steps}"] = 1 - used.double().mean() / steps
            arrays[f"changed_{steps}"] = changed.double().mean()
        twin = shoal.distill(
            model, learned[: self.replacing], classes[: self.replacing], held_out=(x, y),
            epochs=self.epochs, depths=(1, 2, 3, 4),
        )  # fmt: skip
        models = (twin.original, *twin.candidates)
        arrays["names"] = [measured.name for measured in models]
        arrays["seconds"] = [measured.seconds for measured in models]
        for name in ("accuracy", "agreement", "samples_agree"):
            arrays[f"replaced_{name}"] = [getattr(measured.scores, name) for measured in models]
        arrays["chosen"] = (twin.best or twin.original).name
        return arrays

    def train(self, model, x, y, varied, seed):
        """Train a model by Adam, with its own number of iterations or a random one."""
        choice = random.Random(seed)
        optimizer = torch.optim.Adam(model.parameters())
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=self.training)
        for step in range(self.training):
            rows = torch.arange(self.batch, device=x.device) + step * self.batch
            rows = rows % len(x)
            model.steps = choice.randint(1, 2 * self.steps - 1) if varied else self.steps
            scores = model(x[rows]).flatten(0, -2)
            optimizer.zero_grad()
            functional.cross_entropy(scores, y[rows].flatten()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        model.steps = self.steps
        model.eval()

    def summarize(self, results):
        """Accuracies along the curve, savings, and the agreement and time of replacements."""

        def numbers(result):
            arrays, row = result.arrays, {"stop_at": result.arrays["stop_at"]}
            counts = arrays["steps"].tolist()
            for steps in (1, 2, 4, self.steps, 2 * self.steps, 16 * self.steps):
                for name in ("accuracy", "sample_accuracy"):
                    row[f"{name}_{steps}"] = arrays[name][counts.index(steps), 0]
            for steps in (self.steps, 4 * self.steps):
                row |= {f"{k}_{steps}": arrays[f"{k}_{steps}"] for k in ("saved", "changed")}
            for k, name in enumerate(arrays["names"].tolist()):
                words = name.replace(",", "").replace(" ", "_")
                row[f"{words}_chosen"] = name == arrays["chosen"]
                row[f"{words}_agreement"] = arrays["replaced_agreement"][k]
                row[f"{words}_accuracy"] = arrays["replaced_accuracy"][k]
                row[f"{words}_time"] = arrays["seconds"][k] / arrays["seconds"][0]
            return row

        return by_point(results, numbers)

    def plot(self, results):
        def panel(axes, row, task):
            for depth, color in zip(self.depths, COLORS, strict=False):
                (result,) = matching(results, {"task": task, "depth": depth})
                draw = _curve if row == "curve" else _frontier
                draw(axes, result.arrays, color, f"trained at {depth} depth")
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            return f"{task}: " + ("accuracy" if row == "curve" else "agreement of replacements")

        return draw_panels(("curve", "frontier"), self.tasks, panel, (9.5, 7.0))


def _curve(axes, arrays, color, label):
    steps, (value, low, high) = arrays["steps"], arrays["accuracy"].T
    axes.plot(steps, value, "o-", color=color, label=label, markersize=3.5)
    axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.axvline(int(arrays["stop_at"]), color=color, linewidth=0.9, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("iterations")


def _frontier(axes, arrays, color, label):
    """Agreement against time: circles are loops cut short, triangles copies, crosses rules."""
    names, times = arrays["names"], 1e3 * arrays["seconds"]
    for prefix, marker in (("cut", "o-"), ("trained copy", "^--"), ("stop rule", "x")):
        chosen = np.char.startswith(names, prefix)
        axes.plot(times[chosen], arrays["replaced_agreement"][chosen], marker, color=color)
    axes.axvline(times[0], color=color, linewidth=0.9, linestyle=":", label=label)
    axes.set_xlabel("milliseconds of a batch")
