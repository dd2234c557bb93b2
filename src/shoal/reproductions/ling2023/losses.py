r"""Figure 1: training losses of DEQs of several widths, and $\|W\| < 1$ throughout."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

from shoal import data
from shoal.architectures import DEQ
from shoal.lab import Claim, Criterion, register
from shoal.lab.formatting import short
from shoal.reproductions.monitored import MonitoredWidths, Panel, Task
from shoal.reproductions.samples import image_pair


@register
@dataclass(frozen=True)
class Losses(MonitoredWidths):
    r"""Losses and norms of the DEQ of Ling 2023 on random points and on images of two classes.

    ``"sphere"``: uniform points on the sphere of radius $\sqrt d$ with standard normal labels.
    Other datasets: images of the classes 0 and 1, half of each, scaled to norm $\sqrt d$. Stated by
    the paper: $n$, $d$, $\sigma_w^2$, the data. Chosen here, since the paper does not say: widths,
    labels ($\pm1$ for images), step size and number of steps.

    Args:
        datasets: ``"sphere"``, or names that :func:`shoal.data.load` knows.
        weight_variance: $\sigma_w^2$.
        dimension: $d$ of the sphere.
    """

    name: ClassVar[tuple[str, str]] = ("ling2023", "figure1")
    title: ClassVar[str] = "Training losses and norms of DEQs of several widths"
    panels: ClassVar[tuple[Panel, ...]] = (
        Panel("loss", "training loss", logarithmic=True),
        Panel("norm", r"$\|W\|$", logarithmic=False, limit=1.0),
    )
    side_by_side: ClassVar[str] = "datasets"

    datasets: tuple[str, ...] = ("sphere", "mnist", "cifar-10")
    step_share: float = 1.5
    weight_variance: float = 0.08
    dimension: int = 1000

    @classmethod
    def quick(cls) -> Self:
        """Few points in few dimensions, scikit-learn's digits, narrow networks."""
        return cls(
            datasets=("sphere", "digits"),
            samples=60,
            widths=(64, 128, 256),
            steps=100,
            dimension=60,
        )

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Losses fall with the width, and norms stay below one."""
        section = "Ling 2023, Figure 1"
        losses = [summary[f"sphere_{width}_loss"] for width in self.widths]
        norm, upper = (
            max(value for key, value in summary.items() if key.endswith(end))
            for end in ("_norm", "_norm_upper")
        )
        return (
            Claim(
                "Wider DEQs train faster, to smaller losses",
                "a figure",
                f"sphere: {', '.join(map(short, losses))} at widths 500 to 4000",
                section,
                self.falls(summary, "loss"),
                corrected=True,
                remark="the step size explains it, not stable Gram matrices",
            ),
            Claim(
                "‖W‖ < 1 throughout",
                "a figure",
                f"at most {norm:.3f}, certified below {upper:.3f}",
                section,
                (Criterion("largest certified norm at most 1", upper, most=1),),
            ),
        )

    def architecture(self, features: int) -> DEQ:
        """The DEQ of the paper."""
        return DEQ.ling2023(self.weight_variance, features)

    def task(self, dataset: str) -> Task:
        r"""Points of norm $\sqrt d$, and labels."""
        return _task(dataset, self.samples, self.dimension, self.seed)


@lru_cache(maxsize=4)
def _task(dataset: str, samples: int, dimension: int, seed: int) -> Task:
    if dataset == "sphere":
        points = data.sphere(samples, dimension, seed=seed)
        return Task(points.x, points.labels)
    images = image_pair(dataset, "train", samples, seed=seed).pipe(data.flatten)
    images = images.pipe(data.scale_norm, math.sqrt(images.x.shape[1]))
    images = images.pipe(data.perturb_parallel, seed=seed)
    return Task(images.x, images.labels)
