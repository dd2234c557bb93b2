"""Networks that are trained and timed: figure 3, tables 1 and 2."""

import re
import time
from collections.abc import Callable
from functools import lru_cache, partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments import networks as nets
from experiments.claims import Claim, Criterion, criteria_for, short
from experiments.drawing import COLORS, Axes, draw_lines, draw_panels, logarithmic_axes
from experiments.experiment import Point, Result, by_point, experiment, grid, matching
from experiments.samples import image_samples
from experiments.statistics import curve, spread, z_scores
from shoal.activations import Activation
from shoal.architectures import DEQ

_NETWORKS = {
    "readout": ("deq", "moments", "naive"),
    "all": ("deq", "ntk-design", "moments", "naive"),
}
_LABELS = nets.TITLES | {"naive": "the same activation"}
_KERNEL_SAMPLES = 1000  # their largest eigenvalue, divided by their number, is that of all


def in_paper(network: str, activation: Activation) -> str:
    """The naive network of the paper has two layers for ReLU and one otherwise."""
    two = network == "naive" and isinstance(activation, shoal.activations.ReLU)
    return "naive2" if two else network


@lru_cache(maxsize=16)
def _largest_step(deq: DEQ, dataset: str, samples: int | None, device: torch.device) -> float:
    r"""$2/\lambda_{\max}$ of the NTK per sample, from some of the samples."""
    x = image_samples(dataset, "train", samples, torch.float32, device).x[:_KERNEL_SAMPLES].double()
    return 2 * len(x) / float(torch.linalg.eigvalsh(shoal.kernel(deq, x).ntk)[-1])


@experiment("ling2024", "figure3")
class Accuracies(nets.DEQs):
    r"""Test accuracies of DEQs, designed and naive networks.

    ``readout``: ridge regression on features of random weights. ``all``: mini-batch gradient
    descent with momentum, with one step size for all, a share of $2/\lambda_{\max}$ of the
    infinitely wide DEQ. DEQs are centered for images of norm 1.
    """

    activations: tuple[Activation, ...] = (shoal.activations.Tanh(), shoal.activations.ReLU())
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "cifar-10")
    protocols: tuple[str, ...] = ("readout", "all")
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    trials: int = 5
    samples: int | None = None  # to train with, from the beginning; all
    ridge: float = 0.1  # for features in the scale of the CK
    batch: int = 512
    steps: int = 400
    step_share: float = 0.2  # of the largest stable step size
    momentum: float = 0.9
    small = dict(datasets=("digits",), widths=(32, 128), trials=1, samples=600, batch=100, steps=30)

    def points(self):
        axes = {"dataset": self.datasets, "activation": self.names, "network": _NETWORKS["all"]}
        more = {"width": self.widths, "trial": range(self.trials)}
        points = grid("protocol", "trial", protocol=self.protocols, **axes, **more)
        return [point for point in points if point["network"] in _NETWORKS[point["protocol"]]]

    def compute(self, point, seed, device):
        images = point["dataset"], "train", self.samples, torch.float32, device
        x, y, labels = image_samples(*images)
        tests = image_samples(point["dataset"], "test", None, torch.float32, device)
        centered = shoal.centered(self.deq(point), input_norm=1.0)
        network = nets.rival(in_paper(point["network"], self.activation(point)), centered)
        net = nets.make(network, x, width=point["width"], out_features=y.shape[1], seed=seed)
        readout = None
        if point["protocol"] == "readout":
            readout = nets.ridge_readout(net, x, y, self.ridge)
        else:
            largest = _largest_step(centered, point["dataset"], self.samples, device)
            nets.mini_batches(
                net, x, y, step_size=self.step_share * largest, momentum=self.momentum,
                batch=self.batch, steps=self.steps, seed=seed,
            )  # fmt: skip
        return {
            "train": nets.accuracy(net, x, labels, readout),
            "test": nets.accuracy(net, tests.x, tests.labels, readout),
        }

    def summarize(self, results):
        summary: dict[str, float] = {}
        axes = {"activation": self.names, "dataset": self.datasets, "width": self.widths}
        for case in grid(protocol=self.protocols, **axes):
            deqs = matching(results, {**case, "network": "deq"})
            *place, width = case.values()
            for network in _NETWORKS[case["protocol"]]:
                runs = matching(results, {**case, "network": network})
                name = "_".join(map(str, [*place, network, width]))
                summary[name], summary[f"{name}_deviation"] = map(float, spread(runs, "test"))
                if network != "deq":
                    summary[f"{name}_z"] = float(z_scores(runs, deqs, "test"))
        return summary

    def claims(self, summary):
        """Designs and naive networks beside the DEQ, from width 256 on, readout trained.

        The paper's designs have the DEQ's CK, which is all that a readout sees.
        """

        def words(*networks: str) -> str:
            rows = []
            for phi in ("ReLU", "Tanh"):
                names = [f"readout_{phi.lower()}_mnist_{network}_256" for network in networks]
                rows.append(f"{phi} {', '.join(f'{100 * summary[n]:.1f}' for n in names)}%")
            return ", ".join(rows)

        def least(network: str) -> dict[str, float]:
            """The least z-scores of a network against the DEQ, over the wider half of widths."""
            ends = [f"{network}_{m}_z" for m in self.widths if m >= 256]
            scores = {}
            for phi, data in product(("ReLU", "Tanh"), self.datasets):
                place = f"readout_{phi.lower()}_{data}"
                scores[f"{phi}, {data}"] = min(summary[f"{place}_{end}"] for end in ends)
            return scores

        section = "Ling 2024, Figure 3"
        accuracies = f"MNIST, width 256, readout trained: {words('deq', 'moments')}"
        asked = criteria_for("{}: z-scores at least −3", least("moments"), least=-3)
        yield Claim("Designs classify as well as DEQs", "a figure", accuracies, section, asked)
        yield Claim(
            "Networks with the DEQ's activation do worse",
            "a figure; “noticeable gap”",
            words("deq", "naive"),
            section,
            criteria_for("{}: a z-score of at most −3", least("naive"), most=-3),
            remark="yes for ReLU at small widths; no for Tanh, whose kernels agree",
        )

    def plot(self, results):
        rows = grid(protocol=self.protocols, activation=self.names)
        look = {"fmt": "o-", "markersize": 3, "linewidth": 1.2, "capsize": 2}

        def panel(axes: Axes, case: Point, dataset: str) -> str:
            runs = matching(results, {**case, "dataset": dataset})
            for network, color in zip(_NETWORKS["all"], COLORS, strict=False):
                if network in _NETWORKS[case["protocol"]]:
                    rows = [matching(runs, {"network": network, "width": m}) for m in self.widths]
                    means, deviations = np.array([spread(row, "test") for row in rows]).T * 100
                    label = _LABELS[network]
                    axes.errorbar(self.widths, means, deviations, color=color, label=label, **look)
            axes.set_xscale("log", base=2)
            trained = "readout" if case["protocol"] == "readout" else "all weights"
            return f"{self.point_title(case)}, {dataset}, {trained}"

        size = max(3.5 * len(self.datasets) + 0.8, 7.5), 2.6 * len(rows) + 0.5
        labels = {"x": "width $m$", "y": "test accuracy (%)", "title": 9.5}
        options = {"legend": -1, "sharex": True}  # the last row has all networks if one has
        return draw_panels(rows, self.datasets, panel, size, **labels, **options)


_KINDS = {  # with the number of units per second
    "single": ("inference, one image (ms)", 1e3),
    "batched": ("inference in batches, per image (µs)", 1e6),
    "epoch": ("training, one epoch (s)", 1.0),
}


@experiment("ling2024", "tables")
class Times(nets.DEQs):
    """Times of inference and training of DEQs and explicit networks.

    An epoch is the time of a step with a batch times the number of batches. Each is the median of
    several rounds. Points must not share a device: run them with ``--jobs 1``.
    """

    sizes: tuple[int, ...] = (784, 3072)  # pixels of MNIST and Fashion-MNIST, and of CIFAR-10
    networks: tuple[str, ...] = ("deq", "ntk-design", "moments", "naive")
    widths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024, 2048, 4096)
    batch: int = 128
    images: int = 60000  # of an epoch
    rounds: int = 5
    steps: int = 10  # of a round
    small = dict(sizes=(64,), widths=(64, 256), rounds=3, steps=3)

    def points(self):
        axes = {"network": self.networks, "width": self.widths}
        return grid(pixels=self.sizes, activation=self.names, **axes)

    def compute(self, point, seed, device):
        network = in_paper(point["network"], self.activation(point))
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(self.batch, point["pixels"], generator=generator)
        x = torch.nn.functional.normalize(x).to(device)
        y = torch.eye(10, device=device)[torch.arange(self.batch, device=device) % 10]
        architecture = nets.rival(network, shoal.centered(self.deq(point), input_norm=1.0))
        net = nets.make(architecture, x, width=point["width"], out_features=10, seed=seed)
        with torch.no_grad():
            single = self._seconds(lambda: net(x[:1]), x)
            batched = self._seconds(lambda: net(x), x) / self.batch
        options = {"step_size": 1e-3, "momentum": 0.0, "batch": self.batch, "steps": self.steps}
        step = partial(nets.mini_batches, net, x, y, seed=seed, **options)
        epoch = self._seconds(step, x, passes=1) / self.steps * -(-self.images // self.batch)
        return {"single": single, "batched": batched, "epoch": epoch}

    def _seconds(self, run: Callable[[], object], x: Tensor, passes: int | None = None) -> float:
        """The median time of a call, after a first one that does not count."""
        run()
        passes, times = self.steps if passes is None else passes, []
        for _ in range(self.rounds):
            nets.synchronize(x)
            start = time.perf_counter()
            for _ in range(passes):
                run()
            nets.synchronize(x)
            times.append((time.perf_counter() - start) / passes)
        return float(np.median(times))

    def summarize(self, results):
        def numbers(result: Result) -> dict[str, float]:
            (deq,) = matching(results, {**result.point, "network": "deq"})
            times: dict[str, float] = {}
            for kind in _KINDS:
                times[kind] = result.arrays[kind]
                if result is not deq:
                    times[f"{kind}_ratio"] = deq.arrays[kind] / result.arrays[kind]
            return times

        return by_point(results, numbers)

    def claims(self, summary):
        least, words = {}, {}
        for kind in ("single", "epoch"):
            ratios = [v for k, v in summary.items() if re.search(f"_moments_.*_{kind}_ratio", k)]
            least[kind] = min(ratios)
            words[kind] = f"{short(min(ratios))} to {short(max(ratios))} times as long"
        section = "Ling 2024, Tables 1 and 2"
        yield Claim(
            "Inference of a DEQ takes longer than of its design",
            "“2 − 3×”, 1.5 to 3.2 in the table",
            words["single"],
            section,
            (Criterion("at least 1.5 times as long", least["single"], least=1.5),),
        )
        asked = {"longer at every width": 1, "at least 16 times as long": 16}
        yield Claim(
            "Training of a DEQ takes longer than of its design",
            "16 to 266 times as long in the table",
            words["epoch"],
            section,
            tuple(Criterion(name, least["epoch"], least=times) for name, times in asked.items()),
            remark="our DEQ trains faster",
        )

    def plot(self, results):
        cases = grid(pixels=self.sizes, activation=self.names)

        def panel(axes: Axes, case: Point, kind: str) -> str:
            runs = {n: matching(results, {**case, "network": n}) for n in self.networks}
            words, unit = _KINDS[kind]
            rows = {_LABELS[n]: unit * curve(row, "width", kind)[1] for n, row in runs.items()}
            draw_lines(axes, self.widths, rows)
            logarithmic_axes(axes, self.widths)
            return f"{self.point_title(case)}, {case['pixels']} pixels: {words}"

        size = 11.0, 2.6 * len(cases) + 0.5
        return draw_panels(cases, _KINDS, panel, size, x="width $m$", title=9, sharex=True)
