"""Tables 1 and 2: how long inference and training of DEQs and explicit networks take."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal.lab import Claim, Criterion, Point, Result, grid, matching, register
from shoal.lab.descent import make, mini_batches, synchronize
from shoal.lab.experiment import by_point
from shoal.lab.figures import draw_panels
from shoal.lab.formatting import short
from shoal.lab.rivals import TITLES, rival
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.reproductions.deqs import DEQs
from shoal.reproductions.ling2024.accuracies import in_paper

_KINDS = {
    "single": "inference, one image (ms)",
    "batched": "inference in batches, per image (µs)",
    "epoch": "training, one epoch (s)",
}
_UNITS = {"single": 1e3, "batched": 1e6, "epoch": 1.0}


@register
@dataclass(frozen=True)
class Times(DEQs):
    """Times of inference and training, in float32, with random images of norm 1.

    Times depend on the sizes alone, not on what is in the images. Inference is that of one image,
    and of a batch; an epoch is the time of a step of stochastic gradient descent with a batch times
    the number of batches. Each is the median of several rounds. Points must not share a device:
    run them with ``jobs=1``.

    Args:
        activations: Of the DEQs, which are centered.
        recurrent_variance: The variance of recurrent weights.
        input_variance: The variance of input weights.
        sizes: How many pixels images have: 784 for MNIST and Fashion-MNIST, 3072 for CIFAR-10.
        networks: What is compared.
        widths: Of the networks.
        batch: The size of a batch.
        images: How many images an epoch has.
        rounds: How often each time is taken.
        steps: How many passes a round has.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "tables")
    title: ClassVar[str] = "Times of inference and training of DEQs and explicit networks"

    sizes: tuple[int, ...] = (784, 3072)
    networks: tuple[str, ...] = ("deq", "ntk-design", "moments", "naive")
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    batch: int = 128
    images: int = 60000
    rounds: int = 5
    steps: int = 10

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few rounds."""
        return cls(sizes=(64,), widths=(64, 256), rounds=3, steps=3)

    def points(self) -> Sequence[Point]:
        """Every network of every size."""
        return grid(
            pixels=self.sizes, activation=self.names, network=self.networks, width=self.widths
        )

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, float]:
        """The three times, in seconds."""
        network = in_paper(str(point["network"]), self.activation(point))
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.batch, int(point["pixels"]), generator=generator)
        x = torch.nn.functional.normalize(x).to(device)
        y = torch.eye(10, device=device)[torch.arange(self.batch, device=device) % 10]
        architecture = rival(network, shoal.centered(self.deq(point), tau0=1.0))
        net = make(architecture, x, width=int(point["width"]), out_features=10, seed=seed)
        with torch.no_grad():
            single = self._seconds(lambda: net(x[:1]), x)
            batched = self._seconds(lambda: net(x), x) / self.batch

        def train() -> None:
            options: dict[str, Any] = {"step_size": 1e-3, "momentum": 0.0, "batch": self.batch}
            mini_batches(net, x, y, steps=self.steps, seed=seed, **options)

        step = self._seconds(train, x, passes=1) / self.steps
        epoch = step * -(-self.images // self.batch)
        return {"single": single, "batched": batched, "epoch": epoch}

    def _seconds(self, run: Callable[[], object], x: Tensor, passes: int | None = None) -> float:
        """The median time of a call, after a first one that does not count."""
        run()
        passes, times = self.steps if passes is None else passes, []
        for _ in range(self.rounds):
            synchronize(x)
            start = time.perf_counter()
            for _ in range(passes):
                run()
            synchronize(x)
            times.append((time.perf_counter() - start) / passes)
        return float(np.median(times))

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """All times, in seconds, and how much longer the DEQ takes."""

        def numbers(result: Result) -> dict[str, float]:
            (deq,) = matching(results, {**result.point, "network": "deq"})
            found: dict[str, float] = {}
            for kind in _KINDS:
                found[kind] = float(result.arrays[kind])
                if result is not deq:
                    found[f"{kind}_ratio"] = float(deq.arrays[kind] / result.arrays[kind])
            return found

        return by_point(results, numbers)

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """How many times as long as its design a DEQ takes, over all sizes and widths."""
        least, most = {}, {}
        for kind in ("single", "epoch"):
            ratios = [v for k, v in summary.items() if re.search(f"_moments_.*_{kind}_ratio", k)]
            least[kind], most[kind] = min(ratios), max(ratios)

        def ours(kind: str) -> str:
            return f"{short(least[kind])} to {short(most[kind])} times as long"

        section = "Ling 2024, Tables 1 and 2"
        return (
            Claim(
                "Inference of a DEQ takes longer than of its design",
                "“2 − 3×”, 1.5 to 3.2 in the table",
                ours("single"),
                section,
                (Criterion("at least 1.5 times as long", least["single"], least=1.5),),
            ),
            Claim(
                "Training of a DEQ takes longer than of its design",
                "16 to 266 times as long in the table",
                ours("epoch"),
                section,
                (
                    Criterion("longer at every width", least["epoch"], least=1),
                    Criterion("at least 16 times as long", least["epoch"], least=16),
                ),
                remark="our DEQ trains faster",
            ),
        )

    def plot(self, results: Sequence[Result]) -> Figure:
        """Kinds of times side by side, sizes and activations below each other."""
        cases = grid(pixels=self.sizes, activation=self.names)

        def panel(axes: Axes, case: Point, kind: str) -> str:
            for network, color in zip(self.networks, COLORS, strict=False):
                found = matching(results, {**case, "network": network})
                values = [_UNITS[kind] * float(r.arrays[kind]) for r in found]
                label = "the same activation" if network == "naive" else TITLES[network]
                axes.plot(self.widths, values, "o-", color=color, markersize=3, label=label)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            return f"{self.title_at(case)}, {case['pixels']} pixels: {_KINDS[kind]}"

        size = 11.0, 2.6 * len(cases) + 0.5
        return draw_panels(cases, _KINDS, panel, size, x="width $m$", title=9, sharex=True)
