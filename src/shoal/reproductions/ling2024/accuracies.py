"""Figure 3: test accuracies of DEQs and of networks that are designed like them, or not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab import Claim, Point, Result, grid, matching, register
from shoal.lab.claims import each
from shoal.lab.descent import accuracy, make, mini_batches, ridge_readout
from shoal.lab.figures import draw_panels
from shoal.lab.fits import spread, z_scores
from shoal.lab.rivals import TITLES, rival
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.reproductions.deqs import DEQs
from shoal.reproductions.samples import image_samples

_NETWORKS = {
    "readout": ("deq", "moments", "naive"),
    "all": ("deq", "ntk-design", "moments", "naive"),
}
_KERNEL_SAMPLES = 1000  # their largest eigenvalue, divided by their number, is that of all


@register
@dataclass(frozen=True)
class Accuracies(DEQs):
    r"""Test accuracies against the width, with the readout trained or all weights.

    The paper does not say what is trained, nor how, so both is done. ``readout``: features are
    those of random weights, and the readout is that of ridge regression on one-hot targets.
    ``all``: mini-batch gradient descent with momentum for half the mean squared error, with a step
    size that is a share of $2/\lambda_{\max}$ of the infinitely wide DEQ, the same for all.

    Images are scaled to norm 1, and the DEQs are centered for that norm. Naive networks have the
    activation as it is; as in the paper, that of ReLU has two layers. CIFAR-10 comes as pixels; the
    paper takes features of VGG-19.

    Args:
        activations: Of the DEQs.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$.
        datasets: Names that :func:`shoal.data.load` knows.
        protocols: ``"readout"``, ``"all"`` or both.
        widths: Of the networks.
        trials: How many networks are drawn for each.
        samples: How many images to train with, from the beginning; all if ``None``.
        ridge: $\lambda$ of the ridge regression, for features in the scale of the CK.
        batch: The size of a mini-batch.
        steps: How many mini-batches.
        step_share: The step size, as a share of the largest stable one.
        momentum: Of gradient descent.
    """

    name: ClassVar[tuple[str, str]] = ("ling2024", "figure3")
    title: ClassVar[str] = "Test accuracies of DEQs, designed and naive networks"

    activations: tuple[Activation, ...] = (shoal.Tanh(), shoal.ReLU())
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar-10")
    protocols: tuple[str, ...] = ("readout", "all")
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    trials: int = 5
    samples: int | None = None
    ridge: float = 0.1
    batch: int = 512
    steps: int = 400
    step_share: float = 0.2
    momentum: float = 0.9

    @classmethod
    def quick(cls) -> Self:
        """Scikit-learn's digits, narrow networks, few steps."""
        return cls(
            datasets=("digits",), widths=(32, 128), trials=1, samples=600, batch=100, steps=30
        )

    def points(self) -> Sequence[Point]:
        """All networks of one trial, then all of the next; the readouts before the rest."""
        return [
            point
            for protocol in self.protocols
            for point in grid(
                "trial",
                protocol=[protocol],
                dataset=self.datasets,
                activation=self.names,
                network=_NETWORKS[protocol],
                width=self.widths,
                trial=range(self.trials),
            )
        ]

    def cost(self, point: Point) -> float:
        """Seconds on a large GPU, roughly."""
        width, deq = float(point["width"]) / 4096, point["network"] == "deq"
        if point["protocol"] == "readout":
            return 0.1 + (1.0 if deq else 0.3) * width**2
        return 1e-3 * self.steps * ((6 if deq else 1.5) + 6 * width**2)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, float]:
        """The accuracies on the training and on the test images."""
        x, y, labels = image_samples(
            str(point["dataset"]), "train", self.samples, torch.float32, device
        )
        tests = image_samples(str(point["dataset"]), "test", None, torch.float32, device)
        centered = shoal.centered(self.deq(point), tau0=1.0)
        network = rival(in_paper(str(point["network"]), self.activation(point)), centered)
        net = make(network, x, width=int(point["width"]), out_features=y.shape[1], seed=seed)
        readout = None
        if point["protocol"] == "readout":
            readout = ridge_readout(net, x, y, self.ridge)
        else:
            largest = _largest_step(centered, str(point["dataset"]), self.samples, device)
            mini_batches(
                net, x, y, step_size=self.step_share * largest, momentum=self.momentum,
                batch=self.batch, steps=self.steps, seed=seed,
            )  # fmt: skip
        return {
            "train": accuracy(net, x, labels, readout),
            "test": accuracy(net, tests.x, tests.labels, readout),
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """Mean test accuracies, their deviations, and z-scores of differences from the DEQ."""
        summary: dict[str, float] = {}
        for case in self._cases():
            for network in _NETWORKS[str(case["protocol"])]:
                for width in self.widths:
                    found = matching(results, {**case, "network": network, "width": width})
                    deqs = matching(results, {**case, "network": "deq", "width": width})
                    mean, deviation = spread(found, "test")
                    name = "_".join([*map(str, case.values()), network, str(width)])
                    summary |= {name: float(mean), f"{name}_deviation": float(deviation)}
                    if network != "deq":
                        summary[f"{name}_z"] = float(z_scores(found, deqs, "test"))
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Designs and naive networks beside the DEQ, from width 256 on, readout trained.

        The paper's designs have the DEQ's CK, which is all that a readout sees. z-scores are
        differences of mean accuracies in units of their standard errors.
        """

        def accuracy_of(activation: str, network: str) -> float:
            return 100 * summary[f"readout_{activation.lower()}_mnist_{network}_256"]

        def words(*networks: str) -> str:
            return ", ".join(
                f"{phi} " + ", ".join(f"{accuracy_of(phi, n):.1f}" for n in networks) + "%"
                for phi in ("ReLU", "Tanh")
            )

        def least(network: str) -> dict[str, float]:
            """The least z-scores of a network against the DEQ, over the wider half of widths."""
            cases = [(phi, dataset) for phi in ("ReLU", "Tanh") for dataset in self.datasets]
            wide = [m for m in self.widths if m >= 256]
            return {
                f"{phi}, {dataset}": min(
                    summary[f"readout_{phi.lower()}_{dataset}_{network}_{m}_z"] for m in wide
                )
                for phi, dataset in cases
            }

        section = "Ling 2024, Figure 3"
        return (
            Claim(
                "Designs classify as well as DEQs",
                "a figure",
                f"MNIST, width 256, readout trained: {words('deq', 'moments')}",
                section,
                each("{}: z-scores at least −3", least("moments"), least=-3),
            ),
            Claim(
                "Networks with the DEQ's own activation do worse",
                "a figure; “noticeable gap”",
                words("deq", "naive"),
                section,
                each("{}: a z-score of at most −3", least("naive"), most=-3),
                remark="ReLU yes, while networks are not wide; Tanh no, as the kernels agree",
            ),
        )

    def plot(self, results: Sequence[Result]) -> Figure:
        """Protocols and activations below each other, datasets side by side."""
        rows = grid(protocol=self.protocols, activation=self.names)

        def panel(axes: Axes, case: Point, dataset: str) -> str:
            networks = _NETWORKS[str(case["protocol"])]
            self._draw(axes, matching(results, {**case, "dataset": dataset}), networks)
            trained = "readout" if case["protocol"] == "readout" else "all weights"
            return f"{self.title_at(case)}, {dataset}, {trained}"

        return draw_panels(
            rows,
            self.datasets,
            panel,
            (max(3.5 * len(self.datasets) + 0.8, 7.5), 2.6 * len(rows) + 0.5),
            x="width $m$",
            y="test accuracy (%)",
            title=9.5,
            legend=-1,  # the last row has all networks if one has
            sharex=True,
        )

    def _draw(self, axes: Axes, found: Sequence[Result], networks: Sequence[str]) -> None:
        colors = dict(zip(_NETWORKS["all"], COLORS, strict=False))
        for network in networks:
            rows = [matching(found, {"network": network, "width": m}) for m in self.widths]
            means, deviations = np.array([spread(row, "test") for row in rows]).T * 100
            label = "the same activation" if network == "naive" else TITLES[network]
            axes.errorbar(
                self.widths, means, deviations, fmt="o-", color=colors[network], markersize=3,
                linewidth=1.2, capsize=2, label=label,
            )  # fmt: skip
        axes.set_xscale("log", base=2)

    def _cases(self) -> list[Point]:
        return grid(protocol=self.protocols, activation=self.names, dataset=self.datasets)


def in_paper(network: str, activation: Activation) -> str:
    """The naive network of the paper has two layers for ReLU and one otherwise."""
    return "naive2" if network == "naive" and isinstance(activation, shoal.ReLU) else network


@lru_cache(maxsize=16)
def _largest_step(deq: DEQ, dataset: str, samples: int | None, device: torch.device) -> float:
    r"""$2/\lambda_{\max}$ of the NTK per sample, from some of the samples."""
    x = image_samples(dataset, "train", samples, torch.float32, device).x
    x = x[:_KERNEL_SAMPLES].double()
    return 2 * len(x) / float(torch.linalg.eigvalsh(shoal.kernel(deq, x).ntk)[-1])
