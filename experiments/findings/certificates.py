"""A certificate that says yes, three that say no, and the widths that theorems ask for."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments import drawing
from experiments.experiment import Experiment, Result, by_point, experiment, grid, matching
from experiments.monitored import kept, run_arrays
from experiments.samples import on_sphere
from experiments.statistics import curve
from experiments.theorem_widths import theorem_widths
from shoal.networks import EquilibriumNetwork

_STATUS = {"not established": 0.0, "holds at the measured values": 1.0, "proved": 2.0}


def _signs(count: int) -> Tensor:
    return 1 - 2 * (torch.arange(count, dtype=torch.float64) % 2)


@experiment("shoal", "certificate")
class CertifiedTraining(Experiment):
    r"""A proved certificate and its run, and refusals with theirs.

    ``certified``: as certified, with the promises watched at every step. ``step``: a step size ten
    times as large. ``gain``: a $\sigma_w^2$ with $\|W\| > 1$, so that nothing is proved, though the
    equilibria are there. ``equilibrium``: a $\sigma_w^2$ so large that they are not. All but the
    first are watched for the conclusions of Theorem 1 of Ling 2023.
    """

    width: int = 1000
    samples: int = 4
    features: int = 100
    label: float = 0.1  # the size of the labels, half of which are negative
    weight_variances: tuple[float, float, float] = (0.001, 0.2, 0.9)  # certified, gain, equilibrium
    step_factor: float = 10.0
    steps: int = 40
    seed: int = 0  # of points and weights
    small = dict(width=256, steps=15)

    def points(self):
        return grid(case=("certified", "step", "gain", "equilibrium"))

    def compute(self, point, seed, device):
        x, y = self.task(device)
        step_size = shoal.certify(self.network("certified", device), x, y).step_size
        if step_size is None:
            raise ValueError("the network must have a certificate; more width would help")
        if point["case"] == "step":
            step_size *= self.step_factor
        net = self.network(point["case"], device)
        certificate = shoal.certify(net, x, y, step_size=step_size)
        options = {"step_size": step_size, "certificate": certificate, "monitor": 1}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shoal.ConvergenceWarning)  # diverging runs are kept
            run = shoal.train(net, x, y, steps=self.steps, **options)
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
        points = on_sphere(self.samples, self.features, self.seed)[0]
        return points.to(device), self.label * _signs(self.samples).to(device)

    def network(self, case: str, device: torch.device) -> EquilibriumNetwork:
        variance = self.weight_variances[{"gain": 1, "equilibrium": 2}.get(case, 0)]
        architecture = shoal.DEQ.ling2023(variance, self.features)
        return shoal.build(
            architecture, in_features=self.features, width=self.width, readout_scale=0.0,
            seed=self.seed, dtype=torch.float64, device=device, warm_start=True,
            on_failure="status",
        )  # fmt: skip

    def summarize(self, results):
        """Statements of the certificates, and whether the runs agree.

        ``broken`` is the first step at which a promise was broken, or -1; ``slack`` the least ratio
        of the bound to the loss; ``travel`` the largest share of its way that a group went.
        """

        def numbers(result: Result) -> dict[str, float]:
            arrays = result.arrays
            row = {key: arrays[key] for key in ("status", "broken", "step_size")}
            row["steps"], row["loss"] = len(arrays["loss"]) - 1, arrays["loss"][-1]
            row["norm_upper"] = arrays["norm_upper"].max()
            row |= kept(arrays)
            if len(arrays["travel"]):
                row["slack"] = (arrays["bound"] / arrays["loss"]).min()
                row["travel"] = arrays["travel"].max()
            return row

        return by_point(results, numbers)

    def plot(self, results):
        words = {
            "loss": r"loss $\Phi$",
            "norm": r"$\|W\|$",
            "least_eigenvalue": r"$\lambda_{\min}(G)\,/\,\lambda_0$",
        }
        look = {"color": drawing.COLORS[0], "markersize": 2.5}
        floor = 0.1 * min(float(r.arrays["loss"].min()) for r in results)
        ends = {"loss": (floor, 1e6 * self.label**2 * self.samples), "least_eigenvalue": (0, 1.4)}

        def panel(axes: drawing.Axes, key: str, result: Result) -> str:
            arrays = result.arrays
            values, steps = arrays[key], arrays["steps"]
            if key == "loss":  # a step beyond 2/λ_0 has no bound that is not zero
                bound = np.where(arrays["bound"] > 0, arrays["bound"], math.nan)
                axes.plot(bound, "--", color=drawing.GRAY, linewidth=1.2, label="bound")
                steps = np.arange(len(values))
            else:
                drawing.draw_limit(axes, 1 if key == "norm" else 0.5)
            if key == "least_eigenvalue":
                values = values / (values[0] if values[0] > 0 else math.nan)
            else:
                axes.set_yscale("log")
            axes.plot(steps, values, "o-", label="loss", **look)
            if result is results[0]:
                axes.set(ylabel=words[key], **({"ylim": ends[key]} if key in ends else {}))
            outcome = f"refused: {arrays['failure']}" if str(arrays["failure"]) else "proved"
            size = rf"{result.point['case']}, $\eta$ = {float(arrays['step_size']):.1e}"
            return f"{size}\n{outcome}" if key == "loss" else ""

        shared = {"sharex": True, "sharey": "row"}
        size = 3.3 * len(results) + 0.4, 7.2
        return drawing.draw_panels(words, results, panel, size, x="step", title=10, **shared)


_SETTINGS = {  # the scale of the readout, the size of labels, and that in words
    "small": (0.0, 0.1, r"readout 0, labels $\pm$0.1"),
    "paper": (1.0, 1.0, r"readout and labels as in the paper"),
}
_TITLES = {"deq": "DEQ (Ling 2023)", "implicit": "implicit network (Gao 2022)"}
_KEYS = {
    "flow": "theorem, gradient flow",
    "descent": "theorem, gradient descent",
    "certificate": "certificate",
    "experience": "experience",
}


@experiment("shoal", "required-width")
class RequiredWidths(Experiment):
    """Widths that theorems, certificates and experience ask for.

    Random points on the sphere, half of the labels positive. The theorems are those of the papers
    in their corrected forms, with probability 0.9.
    """

    networks: tuple[str, ...] = tuple(_TITLES)
    settings: tuple[str, ...] = tuple(_SETTINGS)
    samples: tuple[int, ...] = (2, 4, 8, 16)
    features: int = 24
    weight_variance: float = 0.001  # σ_w² of the DEQ
    gamma: float = 0.1  # of the implicit network
    largest_width: int = 1024  # up to which networks are tried
    seeds: int = 3  # how many networks of a width must all succeed
    seed: int = 0  # of the points
    small = dict(samples=(2,), largest_width=64, seeds=1)

    def points(self):
        axes = {"network": self.networks, "setting": self.settings}
        return grid("samples", **axes, samples=self.samples)

    def compute(self, point, seed, device):
        """The widths; infinite where no width will do, NaN where none was found."""
        n, (readout_scale, label, _) = point["samples"], _SETTINGS[point["setting"]]
        x = on_sphere(n, self.features, self.seed)[0]
        architecture = shoal.DEQ.ling2023(self.weight_variance, self.features)
        if point["network"] == "implicit":
            architecture, x = shoal.ImplicitNetwork(self.gamma), x / math.sqrt(self.features)
        options = {"largest_width": self.largest_width, "seeds": self.seeds}
        y = label * _signs(n)
        widths = shoal.certificates.required_width(
            architecture, x, y, readout_scale=readout_scale, **options
        )
        tried = {"certificate": widths.certified, "experience": widths.empirical}
        return theorem_widths(architecture, x, y, readout_scale) | {
            name: math.nan if w is None else float(w) for name, w in tried.items()
        }

    def summarize(self, results):
        """The widths that exist, by network, setting and number of points."""
        summary = by_point(results, lambda r: {key: float(r.arrays[key]) for key in _KEYS})
        return {key: width for key, width in summary.items() if math.isfinite(width)}

    def plot(self, results):
        def panel(axes: drawing.Axes, network: str, setting: str) -> str:
            runs = matching(results, {"network": network, "setting": setting})
            rows = {label: curve(runs, "samples", key)[1] for key, label in _KEYS.items()}
            rows = {label: np.where(np.isinf(row), np.nan, row) for label, row in rows.items()}
            drawing.draw_lines(axes, self.samples, rows)
            drawing.logarithmic_axes(axes, self.samples)
            return f"{_TITLES[network]}\n{_SETTINGS[setting][2]}"

        size = 4.6 * len(self.settings) + 0.4, 3.1 * len(self.networks) + 0.5
        options = {"x": "samples $n$", "y": "width", "title": 10, "sharex": True, "sharey": True}
        return drawing.draw_panels(self.networks, self.settings, panel, size, **options)
