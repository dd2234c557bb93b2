"""Figure 1: losses and norms of implicit networks of several widths."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np

from shoal import data
from shoal.architectures import ImplicitNetwork
from shoal.lab.claims import Claim, Criterion, each
from shoal.lab.formatting import short
from shoal.lab.registry import register
from shoal.reproductions.monitored import MonitoredWidths, Panel, Task
from shoal.reproductions.samples import image_pair


@register
@dataclass(frozen=True)
class Losses(MonitoredWidths):
    r"""Training loss, test loss and $\gamma\|A\|/\sqrt m$ of implicit networks on two classes.

    Images of the classes 0 and 1, half of each, gray, 28 by 28 pixels, scaled to norm 1, no two of
    them parallel. Stated by the paper: that, $n$, widths, the number of steps and a norm of about
    0.2, hence $\gamma = 0.1$. Chosen here, since the paper does not say: labels ($\pm1$) and step
    size.

    Args:
        datasets: Names that :func:`shoal.data.load` knows.
        gamma: $\gamma$.
        tests: How many images to test with.
        optional: Datasets that are left out, with a warning, if their files are absent.
    """

    name: ClassVar[tuple[str, str]] = ("gao2022", "figure1")
    title: ClassVar[str] = "Losses and norms of implicit networks of several widths"
    panels: ClassVar[tuple[Panel, ...]] = (
        Panel("loss", "training loss", logarithmic=True),
        Panel("test", "test loss", logarithmic=True),
        Panel("norm", r"$\gamma\|A\|/\sqrt{m}$", logarithmic=False),
    )
    side_by_side: ClassVar[str] = "panels"

    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar-10", "svhn")
    gamma: float = 0.1
    tests: int = 1000
    optional: tuple[str, ...] = ("svhn",)

    @classmethod
    def quick(cls) -> Self:
        """Few of scikit-learn's digits, narrow networks, few steps."""
        return cls(datasets=("digits",), samples=100, tests=60, widths=(64, 128, 256), steps=40)

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """What happens between the smallest and the largest width."""
        section = "Gao 2022, Figure 1"
        first, last = self.widths[0], self.widths[-1]
        sets = [name for name in self.datasets if f"{name}_{first}_loss" in summary]

        def ends(key: str) -> dict[str, tuple[float, float]]:
            return {d: (summary[f"{d}_{first}_{key}"], summary[f"{d}_{last}_{key}"]) for d in sets}

        def words(key: str) -> str:
            return "; ".join(f"{short(a)} → {short(b)}" for a, b in ends(key).values())

        means = [float(np.mean(column)) for column in zip(*ends("norm").values(), strict=True)]
        growth = {d: b / a for d, (a, b) in ends("norm").items()}
        norms = [value for key, value in summary.items() if key.endswith("_norm")]
        off = max(abs(norm / (2 * self.gamma) - 1) for norm in norms)
        return (
            Claim(
                "Wider networks train faster",
                "a figure",
                f"last losses, widths {first} → {last}: {words('loss')}",
                section,
                self.falls(summary, "loss"),
                remark="slightly; the rate has a limit",
            ),
            Claim(
                "Wider networks have a smaller test loss",
                "a figure",
                words("test"),
                section,
                self.falls(summary, "test"),
                remark="on CIFAR-10 only",
            ),
            Claim(
                "γ‖A‖/√m stays near its start, and is slightly larger for larger m",
                "a figure; axis 0.1980 to 0.1992",
                f"means over datasets {means[0]:.4f} → {means[1]:.4f}",
                section,
                (
                    Criterion("all within 2.5% of 2γ", off, most=0.025),
                    *each("{}: at least that of the narrowest", growth, least=1),
                ),
                remark="near it, and larger on two datasets of three",
            ),
        )

    def architecture(self, features: int) -> ImplicitNetwork:  # noqa: ARG002
        """The network of the paper."""
        return ImplicitNetwork(self.gamma)

    def task(self, dataset: str) -> Task | None:
        """Images of norm 1, and signs."""
        try:
            train = _images(dataset, "train", self.samples, self.seed)
            test = _images(dataset, "test", self.tests, self.seed)
        except FileNotFoundError as error:
            if dataset not in self.optional:
                raise
            warnings.warn(f"{dataset} is left out: {error}", UserWarning, stacklevel=2)
            return None
        return Task(train.x, train.labels, (test.x, test.labels))


@lru_cache(maxsize=8)
def _images(dataset: str, split: str, count: int, seed: int) -> data.Dataset:
    images = image_pair(dataset, split, count, seed=seed).pipe(data.to_gray)
    images = images.pipe(data.resize, 28, 28).pipe(data.flatten).pipe(data.unit_norm)
    return images.pipe(data.perturb_parallel, seed=seed)
