"""Loops with tied weights and a residual stream, against their number of iterations."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.drawing import new_row
from experiments.experiment import Experiment, experiment, grid

POWERS = {"constant": 0.0, "root": -0.5, "inverse": -1.0}  # of the step size, in N
_SAID = {"constant": "$1$", "root": "$1/\\sqrt{N}$", "inverse": "$1/N$", "DEQ": "DEQ"}
_SAID |= {1: "tied", 0: "untied"}


@cache
def _images(samples: int, seed: int, name: str = "digits") -> tuple[Tensor, Tensor]:
    """Images of norm 1, in random order, with labels."""
    data = shoal.data.load(name)
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))[:samples]
    x = torch.nn.functional.normalize(data.x[order].double().flatten(1), dim=1)
    return x, data.y[order].long()


class _Loops(Experiment):
    """Loops of several numbers of iterations, whose step size is a power of it."""

    activation: str = "gelu"
    step_scale: float = 1.0  # of one iteration
    normalization: str | None = "rms"

    def loop(self, point):
        n = point["steps"]
        return shoal.LoopedNetwork(
            self.activation,
            n,
            self.step_scale * n ** POWERS[point["law"]],
            normalization=self.normalization,
            tied=bool(point.get("tied", 1)),
        )


def _lines(axes, results, name, labels=("law", "tied")):
    """One line for each law and kind of weights, against the number of iterations."""
    groups = {}
    for result in results:
        label = ", ".join(_SAID.get(result.point[key], "") for key in labels)
        value = float(np.nanmean(result.arrays[name]))
        groups.setdefault(label, []).append((result.point["steps"], value))
    for label, line in groups.items():
        axes.plot(*zip(*sorted(line), strict=True), "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("iterations $N$")
    axes.legend(title=r"$\varepsilon$, weights", fontsize="small")


@experiment("shoal", "tying")
class Tying(_Loops):
    """Kernels of tied and untied streams against the number of iterations."""

    activation: str = "erf"
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    width: int = 512
    normalization: str | None = None
    small = dict(steps=(1, 4, 8), width=64)

    def points(self):
        return grid(law=POWERS, tied=(1, 0), steps=self.steps)

    def compute(self, point, seed, device):
        loop, (x, _) = self.loop(point), _images(2, 0)
        exact = shoal.kernel(loop, x[:1].to(device))
        net = shoal.build(
            loop, in_features=64, width=self.width, seed=seed, dtype=torch.float64, device=device
        )
        kernels = shoal.empirical_kernel(net, x[:1].to(device))
        numbers = {f"exact_{k}": v.item() for k, v in exact._asdict().items()}
        return numbers | {f"network_{k}": v.item() for k, v in kernels._asdict().items()}

    def summarize(self, results):
        """By how much the variance grows from the second largest to the largest loop."""
        last, before = max(self.steps), sorted(self.steps)[-2]
        value = {
            (r.point["law"], r.point["tied"], r.point["steps"]): float(r.arrays["exact_ck"])
            for r in results
        }
        return {
            f"growth_{law}_{'tied' if tied else 'untied'}": value[law, tied, last]
            / value[law, tied, before]
            for law in POWERS
            for tied in (1, 0)
        }

    def plot(self, results):
        figure, (left, right) = new_row(9.0, 4.2, 2)
        for axes, name, title in ((left, "ck", "variance of the stream"), (right, "ntk", "NTK")):
            _lines(axes, results, f"exact_{name}")
            _dots(axes, results, f"network_{name}")
            axes.set_yscale("log")
            axes.set_title(title)
        return figure


def _dots(axes, results, name):
    points = [(r.point["steps"], float(r.arrays[name])) for r in results]
    axes.plot(*zip(*points, strict=True), "k.", markersize=3)


@experiment("shoal", "transfer")
class Transfer(_Loops):
    """Training losses of tied loops by gradient descent, against its step size."""

    steps: tuple[int, ...] = (2, 4, 8, 16, 32)
    rates: tuple[float, ...] = tuple(2.0**k for k in range(-16, 3))
    activation: str = "erf"
    normalization: str | None = None
    width: int = 256
    samples: int = 64
    descent: int = 30  # steps of gradient descent
    small = dict(steps=(2, 8), rates=(0.25, 1.0, 4.0), width=32, samples=64, descent=5)

    def points(self):
        return grid(law=POWERS, steps=self.steps)

    def compute(self, point, seed, device):
        x, y = _images(self.samples, 1)
        x, target = x.float().to(device), torch.eye(10)[y].to(device)
        losses = []
        for rate in self.rates:
            net = shoal.build(
                self.loop(point), in_features=64, width=self.width, out_features=10, seed=seed,
                device=device,
            )  # fmt: skip
            optimizer = torch.optim.SGD(net.parameters(), lr=rate)
            for _ in range(self.descent):
                optimizer.zero_grad()
                loss = (net(x) - target).square().sum(1).mean() / 2
                loss.backward()
                optimizer.step()
            losses.append(float(loss.detach()) if bool(loss.isfinite()) else np.inf)
        return {"losses": losses, "best": self.rates[int(np.argmin(losses))]}

    def summarize(self, results):
        """Octaves by which the best step size moves between the smallest and the largest loop."""
        best = {(r.point["law"], r.point["steps"]): float(r.arrays["best"]) for r in results}
        first, last = min(self.steps), max(self.steps)
        return {f"octaves_{k}": float(np.log2(best[k, last] / best[k, first])) for k in POWERS}

    def plot(self, results):
        figure, panels = new_row(11.0, 3.8, len(POWERS))
        for axes, law in zip(panels, POWERS, strict=True):
            for result in results:
                if result.point["law"] == law:
                    axes.plot(self.rates, result.arrays["losses"], label=f"{result.point['steps']}")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_ylim(0.1, 1000)
            axes.set_xlabel("learning rate")
            axes.set_title(r"$\varepsilon = $ " + _SAID[law])
        panels[0].set_ylabel("training loss")
        panels[0].legend(title="$N$", fontsize="small")
        return figure


@experiment("shoal", "loop-kernels")
class LoopKernels(_Loops):
    """Leave-one-out errors of the kernels of loops, against the number of iterations."""

    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    samples: int = 1000
    activation: str = "relu"
    datasets: tuple[str, ...] = ("digits", "fashion-mnist")
    small = dict(steps=(1, 4), samples=100, datasets=("digits",))

    def points(self):
        pairs = [("inverse", 1), ("root", 1), ("root", 0), ("DEQ", 1)]
        every = [grid(data=self.datasets, law=(k,), tied=(t,), steps=self.steps) for k, t in pairs]
        return [point for points in every for point in points]

    def compute(self, point, seed, device):
        x, y = _images(self.samples, 2, point["data"])
        arch = shoal.DEQ(self.activation, 0.5, 1.0) if point["law"] == "DEQ" else self.loop(point)
        fit = shoal.kernel_regression(arch, x.to(device), y.to(device))
        return {"error": 1 - float(fit.loo().accuracy)}

    def summarize(self, results):
        errors = {}
        for result in results:
            weights = "" if result.point["law"] == "DEQ" else f"_{_SAID[result.point['tied']]}"
            name = f"{result.point['data']}_{result.point['law']}{weights}"
            errors.setdefault(name, []).append(float(result.arrays["error"]))
        spread = {
            f"{name}_{end.__name__}": end(e) for name, e in errors.items() for end in (min, max)
        }
        return dict(sorted(spread.items()))

    def plot(self, results):
        figure, panels = new_row(5.0 * len(self.datasets), 4.2, len(self.datasets))
        for axes, name in zip(panels, self.datasets, strict=True):
            _lines(axes, [r for r in results if r.point["data"] == name], "error")
            axes.set_ylabel("leave-one-out error")
            axes.set_title(name)
        return figure
