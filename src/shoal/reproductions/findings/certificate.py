"""A certificate that says yes, three that say no, and what the runs show."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

import shoal
from shoal import data
from shoal.core.exceptions import ConvergenceWarning
from shoal.lab.experiment import Arrays, Experiment, Point, Result, by_point, grid
from shoal.lab.figures import draw_limit
from shoal.lab.registry import register
from shoal.networks import EquilibriumNetwork
from shoal.pages.figures import COLORS, GRAY, Figure, new_figure
from shoal.reproductions.monitored import kept_promises, run_arrays

_STATUS = {"not established": 0.0, "holds at the measured values": 1.0, "proved": 2.0}
_CASES = ("certified", "step", "gain", "equilibrium")


@register
@dataclass(frozen=True)
class CertifiedTraining(Experiment):
    r"""Training with a proved certificate, and the same where the certificate refuses.

    The DEQ of Ling 2023 with a readout of zero, on random points of the sphere with small labels.
    ``certified``: as certified, with the certificate's promises watched at every step. ``step``: a
    step size ten times as large. ``gain``: a $\sigma_w^2$ with $\|W\| > 1$, so that nothing is
    proved, though the equilibria are there. ``equilibrium``: a $\sigma_w^2$ so large that they are
    not. The last two keep the certified step size, and all three are watched for what Theorem 1 of
    Ling 2023 concludes.

    Args:
        width: $m$.
        samples: $n$, half of them with the label ``label``, half with its negative.
        features: $d$.
        label: The size of the labels.
        weight_variances: $\sigma_w^2$, as certified, for ``gain`` and for ``equilibrium``.
        step_factor: How much too large the step size is.
        steps: How many steps of gradient descent.
        seed: Of points and weights.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "certificate")
    title: ClassVar[str] = "A proved certificate and its run, and refusals with theirs"

    width: int = 1000
    samples: int = 4
    features: int = 100
    label: float = 0.1
    weight_variances: tuple[float, float, float] = (0.001, 0.2, 0.9)
    step_factor: float = 10.0
    steps: int = 40
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """A narrow network, few steps."""
        return cls(width=256, steps=15)

    def points(self) -> Sequence[Point]:
        """The four cases."""
        return grid(case=_CASES)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:  # noqa: ARG002
        """The certificate's answer, and the run."""
        x, y = self.task(device)
        step_size = shoal.certify(self.network("certified", device), x, y).step_size
        if step_size is None:
            raise ValueError("the network must have a certificate; more width would help")
        if point["case"] == "step":
            step_size *= self.step_factor
        net = self.network(str(point["case"]), device)
        certificate = shoal.certify(net, x, y, step_size=step_size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # what diverges is kept
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
        points = data.sphere(self.samples, self.features, seed=self.seed, dtype=torch.float64)
        signs = 1 - 2 * (torch.arange(self.samples, dtype=torch.float64) % 2)
        return points.x.to(device), self.label * signs.to(device)

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

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
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

    def plot(self, results: Sequence[Result]) -> Figure:
        """Cases side by side; losses, norms and eigenvalues below each other."""
        figure = new_figure(3.3 * len(results) + 0.4, 7.2)
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
