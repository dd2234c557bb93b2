"""Regression with exact kernels on whole datasets: accuracies, times, and conjugate gradients."""

import time
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import shoal
from experiments.drawing import COLORS, Axes, draw_panels, legend_outside
from experiments.experiment import Experiment, Point, by_point, experiment, grid, matching
from experiments.samples import Samples, image_samples
from shoal.architectures import DEQ

_TITLES = {
    "none": "no preconditioner",
    "nystrom": "Nyström",
}
_WARM = 512  # samples of a first regression, by which nothing is set up while time is measured


@experiment("shoal", "regression")
class Regression(Experiment):
    """Regression with exact kernels on whole datasets.

    One-hot classes of images of norm 1 and of a mixture. Each system is solved by Cholesky, and
    that of the NTK also by conjugate gradients with and without a preconditioner.
    """

    architecture: DEQ = DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    datasets: tuple[str, ...] = ("mnist", "fashion-mnist", "mixture")
    samples: int | None = None  # images to train with, from the beginning; all
    mixture: tuple[int, int] = (20000, 2000)  # samples to train with, and their dimension
    ridges: tuple[float, ...] = (1.0, 0.1, 0.01)
    solvers: tuple[str, ...] = ("cholesky", *_TITLES)
    rank: int = 2000  # of the preconditioners that have one
    tolerance: float = 1e-6  # largest relative residual of each class
    max_steps: int = 1000  # of conjugate gradients
    small = dict(
        datasets=("digits", "mixture"), samples=300, mixture=(300, 200), ridges=(0.5, 0.05), rank=60
    )

    def points(self):
        """Factorizations of both kernels, then the iterations for the NTK."""
        axes = {"kernel": ("ntk", "ck"), "solver": self.solvers, "ridge": self.ridges}
        every = grid("dataset", "solver", dataset=self.datasets, **axes)
        return [p for p in every if p["kernel"] == "ntk" or p["solver"] == "cholesky"]

    def compute(self, point, seed, device):
        train, test = self._samples(point["dataset"], device)
        self._fit(point, Samples(*(part[:_WARM] for part in train)), seed)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        fit = self._fit(point, train, seed)
        begin = time.perf_counter()
        right = fit.predict(test.x).argmax(1) == test.labels
        report = fit.report
        arrays: dict[str, Any] = {
            "accuracy": float(right.double().mean()),
            "residual": float(report.residual.max()),
            "converged": report.converged,
            "predict_seconds": time.perf_counter() - begin,
            "steps": int(report.iterations.max()),
            "history": report.history.max(1).values,
        }
        for part in ("form_seconds", "prepare_seconds", "solve_seconds"):
            arrays[part] = getattr(report, part)
        if point["solver"] == "cholesky":
            arrays["likelihood"] = fit.log_marginal_likelihood / train.y.numel()
        if device.type == "cuda":
            arrays["peak_bytes"] = torch.cuda.max_memory_allocated(device)
        return arrays

    def _samples(self, dataset: str, device: torch.device) -> tuple[Samples, Samples]:
        """Samples to train and to test with."""
        if dataset != "mixture":
            train = image_samples(dataset, "train", self.samples, torch.float64, device)
            return train, image_samples(dataset, "test", None, torch.float64, device)
        return _mixture(*self.mixture, 0, device), _mixture(*self.mixture, 1, device)

    def _fit(self, point: Point, samples: Samples, seed: int) -> shoal.learning.KernelRegression:
        if point["solver"] == "cholesky":
            method = shoal.learning.Cholesky(tolerance=self.tolerance)
        else:
            preconditioner = {
                "none": None,
                "nystrom": shoal.learning.Nystrom(self.rank, seed=seed),
            }[point["solver"]]
            options = {"tolerance": self.tolerance, "max_steps": self.max_steps}
            method = shoal.learning.ConjugateGradients(preconditioner, **options)
        options = {"ridge": point["ridge"], "which": point["kernel"], "method": method}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", shoal.ConvergenceWarning)  # it is recorded
            return shoal.kernel_regression(
                self.architecture, samples.x, samples.y, on_failure="warn", **options
            )

    def summarize(self, results):
        return by_point(results)

    def plot(self, results):
        def panel(axes: Axes, dataset: str, ridge: float) -> str:
            runs = matching(results, {"dataset": dataset, "ridge": ridge, "kernel": "ntk"})
            for (solver, title), color in zip(_TITLES.items(), COLORS, strict=False):
                for result in matching(runs, {"solver": solver}):
                    history = result.arrays["history"]
                    steps = np.arange(1, len(history) + 1)
                    axes.loglog(steps, history, color=color, linewidth=1.4, label=title)
            return rf"{dataset}, $\lambda = {ridge:g}$"

        size = 3.4 * len(self.ridges) + 0.6, 2.8 * len(self.datasets) + 0.6
        labels = {"x": "step", "y": "largest relative residual", "legend": None}
        figure = draw_panels(self.datasets, self.ridges, panel, size, sharey=True, **labels)
        legend_outside(figure, figure.axes[0], columns=3)
        return figure


@lru_cache(maxsize=2)
def _mixture(count: int, dimension: int, seed: int, device: torch.device) -> Samples:
    """Samples of the mixture of Ling 2024."""
    x, labels = shoal.GaussianMixture.ling2024(dimension).sample(count, seed, shuffle=True)
    targets = torch.nn.functional.one_hot(labels).to(x)
    return Samples(x.to(device), targets.to(device), labels.to(device))
