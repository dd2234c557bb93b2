r"""How the least eigenvalue of the last layer's Gram matrix falls with the depth."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from shoal.activations import Activation, Softplus
from shoal.lab import Claim, Experiment, Point, Result, grid, matching, register
from shoal.lab.claims import each
from shoal.lab.figures import logarithmic_axes, new_row
from shoal.lab.fits import curve, power_law
from shoal.lab.formatting import interval, signed
from shoal.pages.figures import COLORS, GRAY, Figure
from shoal.reproductions.du2018.setting import KINDS, TITLES, Data

_RESOLVED = 1e-12  # eigenvalues that rounding does not hide


@register
@dataclass(frozen=True)
class DepthEigenvalue(Experiment):
    r"""$\lambda_0 = \lambda_{\min}(K^{(H)})$ of infinitely wide networks against their depth $H$.

    Du 2018 has $\lambda_0 \sim 1/H^2$ for the ResNet, by a constant that does not depend on $H$
    (Section D.1), and widths that are exponential in $H$ for the fully connected network.

    Args:
        activation: Of all layers.
        depths: $H$, ascending.
        samples: How many inputs.
        features: Their size, a multiple of four.
        constant: $c_\lambda$.
        seed: Of the inputs.
    """

    name: ClassVar[tuple[str, str]] = ("du2018", "depth")
    title: ClassVar[str] = "The least eigenvalue of the limit Gram matrix against the depth"

    activation: Activation = Softplus()  # noqa: RUF009  (a value)
    depths: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16, 24, 32)
    samples: int = 10
    features: int = 24
    constant: float = 0.5
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Fewer depths and inputs."""
        return cls(depths=(2, 3, 4, 6), samples=4, features=8)

    def points(self) -> Sequence[Point]:
        """Every architecture at every depth."""
        return grid(network=KINDS, depth=self.depths)

    def cost(self, point: Point) -> float:
        """The cost of a point, in proportion to the depth."""
        return float(point["depth"]) * (4 if point["network"] == "convolutional" else 1)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, float]:  # noqa: ARG002
        """The least eigenvalue of $K^{(H)}$."""
        kind, depth = str(point["network"]), int(point["depth"])
        data = Data(kind, self.samples, self.features, self.seed)
        return {"least": data.limit(data.architecture(self.activation, depth, self.constant))}

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        r"""Powers of $H$ for the residual networks, the factor of each layer for the other."""
        depths, least = _resolved(results, "fully-connected")
        # by what a layer multiplies the eigenvalue, between the two largest depths
        factor = (least[-1] / least[-2]) ** (1 / (depths[-1] - depths[-2]))
        summary = {"fully_connected_factor": float(factor)}
        for kind in KINDS[1:]:
            summary |= power_law(*_resolved(results, kind)).numbers(kind)
        return summary

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """The power of the depth, for both residual networks."""
        slopes = {name: summary[f"{name.lower()}_slope"] for name in ("ResNet", "convolutional")}
        claim = Claim(
            "λ_0 falls like H^(−2) in ResNets",
            "−2",
            f"{interval(summary, 'resnet_slope')}; convolutional "
            f"{interval(summary, 'convolutional_slope')}",
            "Du 2018, Theorems 3.1, 4.1 and 5.1",
            each("{}: slope within 0.05 of −2", slopes, -2.05, -1.95),
        )
        return (claim,)

    def plot(self, results: Sequence[Result]) -> Figure:
        """All eigenvalues against the depth, with the powers that fit them."""
        figure, (axes,) = new_row(5.6, 4.2, 1)
        for kind, color in zip(KINDS, COLORS, strict=False):
            depths, least = _resolved(results, kind)
            label = TITLES[kind].split(" (")[0]
            if kind != "fully-connected":
                label += f": slope {signed(power_law(depths, least).slope)}"
            axes.plot(depths, least, "o-", color=color, markersize=5, label=label)
            if kind == "resnet":
                square = 0.6 * least[0] * (depths[0] / depths) ** 2
                axes.plot(depths, square, "--", color=GRAY, linewidth=1.2, label="slope $-2$")
        logarithmic_axes(axes, self.depths, "depth $H$")
        axes.set_ylabel(r"$\lambda_0 = \lambda_{\min}(K^{(H)})$")
        axes.set_title(f"{type(self.activation).__name__}, {self.samples} inputs of norm one")
        axes.legend()
        return figure


def _resolved(results: Sequence[Result], kind: str) -> tuple[Any, Any]:
    """Depths and eigenvalues of an architecture, where rounding does not hide them."""
    depths, least = curve(matching(results, {"network": kind}), "depth", "least")
    return depths[least > _RESOLVED], least[least > _RESOLVED]
