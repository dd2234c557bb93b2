"""Random networks of several widths, and how far their kernels are from those of infinite width."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

import shoal
from experiments.claims import Claim, Criterion
from experiments.drawing import COLORS, GRAY, Axes, draw_laws, draw_limit, new_row
from experiments.experiment import Experiment, Point, Result, grid, matching, named
from experiments.networks import network_for
from experiments.samples import unit_inputs
from experiments.statistics import curve, power_law
from shoal.architectures import Architecture


class WidthDraws(Experiment):
    """Random networks of several widths with the same inputs, random points on the sphere."""

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 8  # networks of each width
    samples: int = 32
    seed: int = 0  # of the inputs

    def inputs(self) -> Tensor:
        return unit_inputs(self.samples, self.features, self.seed)

    def points(self):
        return grid("draw", width=self.widths, draw=range(self.draws))


class KernelErrors(WidthDraws):
    r"""Monte Carlo errors of networks of width $m$, which fall like $m^{-1/2}$.

    Each point is one network of the architecture ``wide(point)``. The error of its kernels and,
    where groups are separate, of each group's share is $\|\hat K - K\|_F / \|K\|_F$.
    """

    groups = True  # whether each group's share is compared

    def wide(self, point: Point) -> Architecture:
        return self.architecture

    def compute(self, point, seed, device):
        wide, x = self.wide(point), self.inputs().to(device)
        network = network_for(wide, x, width=point["width"], seed=seed)
        shares = self.shares(wide, lambda some: shoal.empirical_kernel(network, x, trainable=some))
        limits = limit_kernels(self, wide, device)
        return {
            name: (shares[name] - limit).norm() / limit.norm() for name, limit in limits.items()
        }

    def shares(self, wide: Architecture, kernels: Callable) -> dict[str, Tensor]:
        """Both kernels and each group's share, from the kernels for groups that are trained."""
        if not self.groups:
            return kernels(None)._asdict()
        by_group = {group: kernels({group}) for group in wide.parameter_groups}
        shares = {group: pair.ntk for group, pair in by_group.items()}
        ck = next(iter(by_group.values())).ck
        return {"ck": ck, "ntk": torch.stack([*shares.values()]).sum(0), **shares}

    def plot(self, results):
        figure, (axes,) = new_row(5.6, 4.6, 1)
        draw_errors(axes, results)
        axes.set_title(f"Kernels of {self.heading}")
        return figure

    def summarize(self, results):
        laws = {kind: power_law(*curve(results, "width", kind)) for kind in results[0].arrays}
        return {key: v for kind, law in laws.items() for key, v in law.numbers(kind).items()}


@lru_cache(maxsize=16)
def limit_kernels(one: KernelErrors, wide: Architecture, device: torch.device) -> dict[str, Tensor]:
    """The kernels of an infinitely wide network, the same for all finite ones."""
    x = one.inputs().to(device)
    return one.shares(wide, lambda some: shoal.kernel(wide, x, trainable=some))


def draw_errors(axes: Axes, results: Sequence[Result]) -> None:
    """All errors of each kernel, the fitted power laws, and the slope of theory."""
    labels = {kind: {"ck": "CK", "ntk": "NTK"}.get(kind, kind) for kind in results[0].arrays}
    curves = {label: curve(results, "width", kind) for kind, label in labels.items()}
    draw_laws(axes, curves, "width $m$")
    axes.set_ylabel(r"relative error $\|\hat K - K\|_F \, / \, \|K\|_F$")


class GramWidth(WidthDraws):
    r"""$\|G_m - K\|$ and $\lambda_{\min}(G_m)$ for random networks of width $m$ with the limit $K$.

    Theorems ask that the error be at most a ``share`` of $\lambda = \lambda_{\min}(K)$. By Weyl's
    inequality $\lambda_{\min}(G_m)$ then has the rest of it. Subclasses have the matrices ``gram``
    and ``limit``, ``symbols`` of them and of $\lambda$, and what is ``claimed``, printed, where.
    """

    features: int = 64

    def compute(self, point, seed, device):
        x = self.inputs().to(device)
        gram, limit = self.gram(x, point["width"], seed), self.limit(x)
        return {
            "error": torch.linalg.matrix_norm(gram - limit, 2),
            "least": torch.linalg.eigvalsh(gram)[0],
            "limit": torch.linalg.eigvalsh(limit)[0],
        }

    def summarize(self, results):
        """The slope of the error, and the width ``width_near`` at which it is small enough.

        At each width the shares of networks whose error is small enough, ``near``, and whose least
        eigenvalue is what follows from it, ``large``.
        """
        limit = float(results[0].arrays["limit"])
        law = power_law(*curve(results, "width", "error"))
        summary = {"limit": limit, **law.numbers("error")}
        allowed = self.share * limit
        summary["width_near"] = float((allowed / np.exp(law.offset)) ** (1 / law.slope))
        for width in self.widths:
            runs = matching(results, {"width": width})
            errors, least = (curve(runs, "width", key)[1] for key in ("error", "least"))
            numbers = {
                "error": errors.mean() / limit,
                "least": least.mean() / limit,
                "near": (errors <= allowed).mean(),
                "large": (least >= limit - allowed).mean(),
            }
            summary |= named(str(width), numbers)
        return summary

    def claims(self, summary):
        large = {width: summary[f"{width}_large"] for width in self.widths}
        failing = [width for width, share in large.items() if share < 1]
        passing = [width for width in self.widths if width > max(failing, default=0)]
        result = (
            f"all networks from width {passing[0]} on"
            if passing
            else "not all networks of any width"
        )
        widest = large[self.widths[-1]]
        asked = Criterion("share of the widest networks at least 1", widest, least=1)
        statement, printed, section = self.claimed
        return (Claim(statement, printed, f"{result}, n = {self.samples}", section, (asked,)),)

    def plot(self, results):
        figure, (left, right) = new_row(9.2, 3.9)
        limit = float(results[0].arrays["limit"])
        gram, population, least = self.symbols
        look = {"color": COLORS[0], "markersize": 4, "alpha": 0.4, "mew": 0}
        left.plot(*curve(results, "width", "least"), "o", label="networks", **look)
        left.axhline(limit, color=GRAY, linewidth=1.2, label=f"${least}$")
        draw_limit(left, (1 - self.share) * limit, f"${1 - self.share:g}\\,{least}$")
        left.set_xscale("log", base=2)
        left.set(xlabel="width $m$", title=rf"$\lambda_{{\min}}({gram})$")
        left.legend(loc="lower right")
        draw_laws(right, {"networks": curve(results, "width", "error")}, "width $m$")
        draw_limit(right, self.share * limit, f"${self.share:g}\\,{least}$")
        right.set_title(rf"$\|{gram} - {population}\|$")
        right.legend(loc="upper right")
        return figure
