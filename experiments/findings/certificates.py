"""A certificate that says yes, three that say no, and what the runs show."""

import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import shoal
from experiments.drawing import (
    COLORS,
    GRAY,
    Axes,
    draw_limit,
    draw_panels,
    logarithmic_axes,
)
from experiments.experiment import Arrays, Experiment, Result, by_point, experiment, grid, matching
from experiments.monitored import kept_promises, run_arrays
from experiments.samples import on_sphere
from experiments.statistics import curve
from shoal.architectures import Architecture
from shoal.networks import EquilibriumNetwork

_STATUS = {"not established": 0.0, "holds at the measured values": 1.0, "proved": 2.0}
_CASES = ("certified", "step", "gain", "equilibrium")


@experiment("shoal", "certificate", "A proved certificate and its run, and refusals with theirs")
class CertifiedTraining(Experiment):
    r"""Training with a proved certificate, and the same where the certificate refuses.

    The DEQ of Ling 2023 with a readout of zero, on random points of the sphere with small labels.
    ``certified``: as certified, with the certificate's promises watched at every step. ``step``: a
    step size ten times as large. ``gain``: a $\sigma_w^2$ with $\|W\| > 1$, so that nothing is
    proved, though the equilibria are there. ``equilibrium``: a $\sigma_w^2$ so large that they are
    not. The last two keep the certified step size, and all three are watched for what Theorem 1 of
    Ling 2023 concludes.
    """

    width: int = 1000  # $m$
    samples: int = 4  # $n$, half of them with the label ``label``, half with its negative
    features: int = 100  # $d$
    label: float = 0.1  # the size of the labels
    # $\sigma_w^2$, as certified, for ``gain`` and for ``equilibrium``
    weight_variances: tuple[float, float, float] = (0.001, 0.2, 0.9)
    step_factor: float = 10.0  # how much too large the step size is
    steps: int = 40  # how many steps of gradient descent
    seed: int = 0  # of points and weights

    small = dict(width=256, steps=15)

    def points(self):
        return grid(case=_CASES)

    def compute(self, point, seed, device):
        x, y = self.task(device)
        step_size = shoal.certify(self.network("certified", device), x, y).step_size
        if step_size is None:
            raise ValueError("the network must have a certificate; more width would help")
        if point["case"] == "step":
            step_size *= self.step_factor
        net = self.network(str(point["case"]), device)
        certificate = shoal.certify(net, x, y, step_size=step_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shoal.ConvergenceWarning)  # what diverges is kept
            run = shoal.train(
                net, x, y, steps=self.steps, step_size=step_size, certificate=certificate, monitor=1
            )
        failure = certificate.first_failure
        travels = {g: run.bounds.get(f"distance.{g}") for g in run.distances}
        ratios = [run.distances[g] / limit for g, limit in travels.items() if limit is not None]
        return {
            **run_arrays(run, 1),
            "status": _STATUS[certificate.status],
            "failure": "" if failure is None else failure.name,
            "travel": [float(ratio.max()) for ratio in ratios],
            "broken": min(run.violations.values(), default=-1),
        }

    def task(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Points and labels."""
        points = on_sphere(self.samples, self.features, self.seed)[0]
        signs = 1 - 2 * (torch.arange(self.samples, dtype=torch.float64) % 2)
        return points.to(device), self.label * signs.to(device)

    def network(self, case: str, device: torch.device) -> EquilibriumNetwork[Any]:
        """The network of a case, before it is trained."""
        return shoal.build(
            shoal.DEQ.ling2023(self._variance(case), self.features),
            in_features=self.features,
            width=self.width,
            readout_scale=0.0,
            seed=self.seed,
            dtype=torch.float64,
            device=device,
            warm_start=True,
            on_failure="status",
        )

    def _variance(self, case: str) -> float:
        return self.weight_variances[{"gain": 1, "equilibrium": 2}.get(case, 0)]

    def summarize(self, results):
        """What the certificates say, and whether the runs keep it.

        ``status`` is 2 for proved and 0 for a refusal, ``broken`` the first step at which a promise
        was broken, or -1; ``slack`` the least ratio of the bound to the loss; ``travel`` the
        largest share of its allowed way that a group of weights went.
        """

        def numbers(result: Result) -> dict[str, float]:
            arrays = result.arrays
            found = {key: float(arrays[key]) for key in ("status", "broken", "step_size")}
            found["steps"] = float(len(arrays["loss"]) - 1)
            found["loss"] = float(arrays["loss"][-1])
            found["norm_upper"] = float(arrays["norm_upper"].max())
            found |= kept_promises(arrays)
            if len(arrays["travel"]):
                found["slack"] = float((arrays["bound"] / arrays["loss"]).min())
                found["travel"] = float(arrays["travel"].max())
            return found

        return by_point(results, numbers)

    def plot(self, results):
        figure = Figure(figsize=(3.3 * len(results) + 0.4, 7.2))
        panels: Any = figure.subplots(3, len(results), squeeze=False, sharex=True, sharey="row")
        for column, result in zip(panels.T, results, strict=True):
            column[0].set_title(self._title(result), fontsize=10)
            _draw(column, result.arrays)
        floor = min(float(r.arrays["loss"].min()) for r in results)
        panels[0, 0].set_ylim(0.1 * floor, 1e6 * self.label**2 * self.samples)
        panels[1, 0].set_yscale("log")
        panels[2, 0].set_ylim(0, 1.4)
        words = (r"loss $\Phi$", r"$\|W\|$", r"$\lambda_{\min}(G)\,/\,\lambda_0$")
        for axes, label in zip(panels[:, 0], words, strict=True):
            axes.set_ylabel(label)
        for axes in panels[-1]:
            axes.set_xlabel("step")
        panels[0, 0].legend(loc="lower left")
        return figure

    def _title(self, result: Result) -> str:
        arrays, case = result.arrays, str(result.point["case"])
        size = f"{float(arrays['step_size']):.1e}"
        setting = rf"$\eta$ = {size}, $\sigma_w^2$ = {self._variance(case):g}"
        proved = float(arrays["status"]) == _STATUS["proved"]
        return f"{setting}\n{'proved' if proved else 'refused: ' + str(arrays['failure'])}"


def _draw(column: Any, arrays: Arrays) -> None:
    r"""One run; a step beyond $2/\lambda_0$ has no bound that is not zero."""
    steps, least = arrays["steps"], arrays["least_eigenvalue"]
    bound = np.where(arrays["bound"] > 0, arrays["bound"], math.nan)
    column[0].plot(arrays["loss"], "o-", color=COLORS[0], markersize=2.5, label="loss")
    column[0].plot(bound, "--", color=GRAY, linewidth=1.2, label="bound")
    column[0].set_yscale("log")
    column[1].plot(steps, arrays["norm"], "o-", color=COLORS[0], markersize=2.5)
    draw_limit(column[1], 1)
    start = float(least[0])
    shown = least / start if start > 0 else np.full(len(least), math.nan)
    column[2].plot(steps, shown, "o-", color=COLORS[0], markersize=2.5)
    draw_limit(column[2], 0.5)


class _Setting(NamedTuple):
    """How a network starts, and what it is to learn."""

    readout_scale: float
    label: float
    words: str


_SETTINGS = {
    "small": _Setting(0.0, 0.1, r"readout 0, labels $\pm$0.1"),
    "paper": _Setting(1.0, 1.0, r"readout and labels as in the paper"),
}
_TITLES = {"deq": "DEQ (Ling 2023)", "implicit": "implicit network (Gao 2022)"}
_KEYS = {
    "flow": "theorem, gradient flow",
    "descent": "theorem, gradient descent",
    "certificate": "certificate",
    "experience": "experience",
}


@experiment("shoal", "required-width", "Widths that theorems, certificates and experience ask for")
class RequiredWidths(Experiment):
    r"""Widths from which gradient descent is known to train a network, and from which it does.

    Random points on the sphere, half of the labels positive. The theorems are those of the papers
    in their corrected forms, with probability 0.9.
    """

    networks: tuple[str, ...] = ("deq", "implicit")  # ``"deq"``, ``"implicit"`` or both
    settings: tuple[str, ...] = ("small", "paper")  # ``"small"``, ``"paper"`` or both
    samples: tuple[int, ...] = (2, 4, 8, 16)  # numbers $n$ of points, ascending
    features: int = 24  # $d$
    weight_variance: float = 0.001  # $\sigma_w^2$ of the DEQ
    gamma: float = 0.1  # $\gamma$ of the implicit network
    largest_width: int = 1024  # up to which width networks are tried
    seeds: int = 3  # how many networks of a width must all succeed
    seed: int = 0  # of the points

    small = dict(samples=(2,), largest_width=64, seeds=1)

    def points(self):
        axes = {"network": self.networks, "setting": self.settings}
        return grid("samples", **axes, samples=self.samples)

    def compute(self, point, seed, device):
        n, setting = int(point["samples"]), _SETTINGS[str(point["setting"])]
        x = on_sphere(n, self.features, self.seed)[0]
        architecture: Architecture = shoal.DEQ.ling2023(self.weight_variance, self.features)
        if point["network"] == "implicit":
            architecture, x = shoal.ImplicitNetwork(self.gamma), x / math.sqrt(self.features)
        found = shoal.required_width(
            architecture,
            x,
            setting.label * (1 - 2 * (torch.arange(n, dtype=torch.float64) % 2)),
            readout_scale=setting.readout_scale,
            largest_width=self.largest_width,
            seeds=self.seeds,
        )

        def theorem(dynamics: str) -> float:
            end = f"(corrected), gradient {dynamics}"
            return min((w for t, w in found.theorems.items() if t.endswith(end)), default=math.inf)

        tried = {"certificate": found.certified, "experience": found.empirical}
        widths = {kind: theorem(kind) for kind in ("flow", "descent")}
        return widths | {name: math.nan if w is None else float(w) for name, w in tried.items()}

    def summarize(self, results):
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in _KEYS})
        return {key: width for key, width in summary.items() if math.isfinite(width)}

    def plot(self, results):

        def panel(axes: Axes, network: str, setting: str) -> str:
            _draw_widths(axes, matching(results, {"network": network, "setting": setting}))
            return f"{_TITLES[network]}\n{_SETTINGS[setting].words}"

        return draw_panels(
            self.networks,
            self.settings,
            panel,
            (4.6 * len(self.settings) + 0.4, 3.1 * len(self.networks) + 0.5),
            x="samples $n$",
            y="width",
            title=10,
            sharex=True,
            sharey=True,
        )


def _draw_widths(axes: Axes, results: Sequence[Result]) -> None:
    for (key, label), color in zip(_KEYS.items(), COLORS, strict=False):
        samples, widths = curve(results, "samples", key)
        widths[np.isinf(widths)] = math.nan
        axes.plot(samples, widths, "o-", color=color, markersize=4, label=label)
    logarithmic_axes(axes, samples)
