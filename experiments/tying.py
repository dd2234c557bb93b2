"""Loops with tied weights and a residual stream, against their number of iterations."""

from functools import cache

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.drawing import new_row
from experiments.experiment import Experiment, experiment, grid

POWERS = {"constant": 0.0, "root": -0.5, "inverse": -1.0}  # of the step size, in N


@cache
def _digits(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Handwritten digits of norm 1, in random order, with labels."""
    data = shoal.data.load("digits")
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
        label = ", ".join(str(result.point[key]) for key in labels if key in result.point)
        value = float(np.nanmean(result.arrays[name]))
        groups.setdefault(label, []).append((result.point["steps"], value))
    for label, line in groups.items():
        axes.plot(*zip(*sorted(line), strict=True), "o-", label=label)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("iterations $N$")
    axes.legend(fontsize="small")


@experiment("shoal", "tying")
class Tying(_Loops):
    """Kernels of tied and untied streams against the number of iterations."""

    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    width: int = 512
    normalization: str | None = None
    small = dict(steps=(1, 4, 8), width=64)

    def points(self):
        return grid(law=POWERS, tied=(1, 0), steps=self.steps)

    def compute(self, point, seed, device):
        loop, (x, _) = self.loop(point), _digits(2, 0)
        exact = shoal.kernel(loop, x[:1].to(device))
        net = shoal.build(
            loop, in_features=64, width=self.width, seed=seed, dtype=torch.float64, device=device
        )
        found = shoal.empirical_kernel(net, x[:1].to(device))
        numbers = {f"exact_{k}": v.item() for k, v in exact._asdict().items()}
        return numbers | {f"network_{k}": v.item() for k, v in found._asdict().items()}

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
    rates: tuple[float, ...] = tuple(2.0**k for k in range(-4, 9))
    width: int = 256
    samples: int = 128
    descent: int = 30  # steps of gradient descent
    small = dict(steps=(2, 8), rates=(1.0, 8.0, 64.0), width=32, samples=64, descent=5)

    def points(self):
        return grid(law=POWERS, steps=self.steps)

    def compute(self, point, seed, device):
        x, y = _digits(self.samples, 1)
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
        """How many octaves the best step size moves between the least and the largest loop."""
        best = {(r.point["law"], r.point["steps"]): float(r.arrays["best"]) for r in results}
        first, last = min(self.steps), max(self.steps)
        return {f"octaves_{k}": float(np.log2(best[k, last] / best[k, first])) for k in POWERS}

    def plot(self, results):
        figure, several = new_row(11.0, 3.8, len(POWERS))
        for axes, law in zip(several, POWERS, strict=True):
            for result in results:
                if result.point["law"] == law:
                    axes.plot(self.rates, result.arrays["losses"], label=f"{result.point['steps']}")
            axes.set_xscale("log", base=2)
            axes.set_ylim(0, 0.6)
            axes.set_xlabel("learning rate")
            axes.set_title(f"step scale {law}")
        several[0].legend(title="$N$", fontsize="small")
        return figure


@experiment("shoal", "loop-kernels")
class LoopKernels(_Loops):
    """Leave-one-out errors of the kernels of loops, against the number of iterations."""

    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    samples: int = 1000
    activation: str = "relu"
    small = dict(steps=(1, 4), samples=100)

    def points(self):
        deq = [{"law": "DEQ", "tied": 1, "steps": n} for n in self.steps]
        return [*grid(law=("inverse", "root"), tied=(1, 0), steps=self.steps), *deq]

    def compute(self, point, seed, device):
        x, y = _digits(self.samples, 2)
        arch = shoal.DEQ(self.activation, 0.5, 1.0) if point["law"] == "DEQ" else self.loop(point)
        fit = shoal.kernel_regression(arch, x.to(device), y.to(device))
        return {"error": 1 - float(fit.loo().accuracy)}

    def summarize(self, results):
        errors = {}
        for result in results:
            errors.setdefault(result.point["law"], []).append(float(result.arrays["error"]))
        return {f"error_{law}": float(np.mean(found)) for law, found in errors.items()}

    def plot(self, results):
        figure, (axes,) = new_row(5.6, 4.2, 1)
        _lines(axes, results, "error")
        axes.set_ylabel("leave-one-out error")
        return figure
