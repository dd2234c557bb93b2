"""Figure 1: losses and norms of implicit networks of several widths."""

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

from shoal import data
from shoal.architectures import ImplicitNetwork
from shoal.experiments.monitored import MonitoredWidths, Panel, Task
from shoal.experiments.pairs import image_pair
from shoal.experiments.registry import register

__all__ = ["Losses"]


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
        samples: $n$, to train with.
        widths: $m$, ascending.
        steps: How many steps of gradient descent.
        step_share: The step size, in units of $1/\lambda_{\max}$.
        every: After how many steps the monitors look.
        seed: Of the choice of samples.
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
        return Task(train.x, train.y, (test.x, test.y))


@lru_cache(maxsize=8)
def _images(dataset: str, split: str, count: int, seed: int) -> data.Dataset:
    images = image_pair(dataset, split, count, seed=seed).pipe(data.to_gray)
    images = images.pipe(data.resize, 28, 28).pipe(data.flatten).pipe(data.unit_norm)
    return images.pipe(data.perturb_parallel, seed=seed)
