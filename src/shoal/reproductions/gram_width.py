"""Gram matrices of wide networks: how near they are to their limit, and its least eigenvalue."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from shoal.lab.claims import Claim, Criterion
from shoal.lab.experiment import Point, Result, matching, named
from shoal.lab.figures import draw_limit, new_row
from shoal.lab.fits import curve, power_law
from shoal.pages.figures import COLORS, GRAY, Figure
from shoal.reproductions.width_errors import WidthDraws

__all__ = ["GramWidth"]


@dataclass(frozen=True)
class GramWidth(WidthDraws):
    r"""$\|G_m - K\|$ and $\lambda_{\min}(G_m)$ for random networks of width $m$ with the limit $K$.

    Theorems ask that the error be at most a share of $\lambda = \lambda_{\min}(K)$. By Weyl's
    inequality $\lambda_{\min}(G_m)$ then has the rest of it.

    Args:
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs.
        features: Their dimension.
        seed: Of the inputs.
    """

    share: ClassVar[float]
    symbols: ClassVar[tuple[str, str, str]]  # of the Gram matrix, its limit, the least eigenvalue
    claimed: ClassVar[tuple[str, str, str]]  # in words, as printed, and where

    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 8
    samples: int = 32
    features: int = 64
    seed: int = 0

    @abstractmethod
    def gram(self, x: Tensor, width: int, seed: int) -> Tensor:
        """The Gram matrix of a random network."""

    @abstractmethod
    def limit(self, x: Tensor) -> Tensor:
        """The Gram matrix at infinite width."""

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Tensor]:
        """The error in spectral norm, and both least eigenvalues."""
        x = self.inputs().to(device)
        found, limit = self.gram(x, int(point["width"]), seed), self.limit(x)
        return {
            "error": torch.linalg.matrix_norm(found - limit, 2),
            "least": torch.linalg.eigvalsh(found)[0],
            "limit": torch.linalg.eigvalsh(limit)[0],
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        r"""The slope of the error, and how often the theorem's claims hold at each width.

        ``near`` is the share of networks whose error is small enough, ``large`` that of networks
        whose least eigenvalue is what follows from it; ``width_near`` is the width at which the
        fitted error is just small enough.
        """
        limit = float(results[0].arrays["limit"])
        law = power_law(*curve(results, "width", "error"))
        summary = {"limit": limit, **law.numbers("error")}
        allowed = self.share * limit
        summary["width_near"] = float((allowed / np.exp(law.offset)) ** (1 / law.slope))
        for width in self.widths:
            found = matching(results, {"width": width})
            errors, least = (curve(found, "width", key)[1] for key in ("error", "least"))
            numbers = {
                "error": errors.mean() / limit,
                "least": least.mean() / limit,
                "near": (errors <= allowed).mean(),
                "large": (least >= limit - allowed).mean(),
            }
            summary |= named(str(width), numbers)
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """All networks from some width on have the theorem's least eigenvalue."""
        large = {width: summary[f"{width}_large"] for width in self.widths}
        some = [width for width, share in large.items() if share < 1]
        rest = [width for width in self.widths if width > max(some, default=0)]
        found = f"all networks from width {rest[0]} on" if rest else "not all networks of any width"
        widest = large[self.widths[-1]]
        asked = Criterion("share of the widest networks at least 1", widest, least=1)
        statement, printed, section = self.claimed
        return (Claim(statement, printed, f"{found}, n = {self.samples}", section, (asked,)),)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Least eigenvalues on the left, errors on the right."""
        figure, (left, right) = new_row(9.2, 3.9)
        limit = float(results[0].arrays["limit"])
        allowed = self.share * limit
        gram, population, least = self.symbols
        titles = {"least": rf"$\lambda_{{\min}}({gram})$", "error": rf"$\|{gram} - {population}\|$"}
        for axes, key in ((left, "least"), (right, "error")):
            look: dict[str, Any] = {"color": COLORS[0], "markersize": 4, "alpha": 0.4, "mew": 0}
            axes.plot(*curve(results, "width", key), "o", label="networks", **look)
            axes.set_xscale("log", base=2)
            axes.set_xlabel("width $m$")
            axes.set_title(titles[key])
        left.axhline(limit, color=GRAY, linewidth=1.2, label=f"${least}$")
        draw_limit(left, (1 - self.share) * limit, f"${1 - self.share:g}\\,{least}$")
        law, widths = power_law(*curve(results, "width", "error")), np.array(self.widths)
        right.plot(widths, law(widths), color=COLORS[0], label=f"slope {law.slope:.2f}")
        draw_limit(right, allowed, f"${self.share:g}\\,{least}$")
        right.set_yscale("log")
        left.legend(loc="lower right")
        right.legend(loc="upper right")
        return figure
