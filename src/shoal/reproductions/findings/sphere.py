"""How exact the designs on the sphere are, up to the edge where kernels cease to exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.experiment import Arrays, Experiment, Point, Result
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, Axes, Figure, new_figure, styled

__all__ = ["SphereError"]

_OUTER = (0.99, 0.999, 1.0)
_ROUNDING = 1e-16  # what is below is shown here
_KINDS = {"ck": "CK design", "ntk": "NTK design"}


@register
@dataclass(frozen=True)
class SphereError(Experiment):
    r"""Differences of kernels of DEQs and of their designs on the sphere, over all angles.

    Each point is one design, for the CK or the NTK with all weights trained, of a DEQ that is not
    centered. Differences are relative to the diagonal. The kernel of the designed network is that
    of its finished activation: it knows nothing of the power series the design is made of.

    Args:
        activations: Of the DEQs.
        variances: Recurrent variances $\sigma_a^2$.
        gains: More of them, by $\sigma_a^2 L^2$, with $L$ the activation's Lipschitz constant; at
            one, kernels cease to exist.
        input_variance: $\sigma_b^2$.
        norm: Of the inputs.
        cosines: How many cosines from -0.95 to 0.95 are compared; besides, some up to ±1.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "sphere")
    title: ClassVar[str] = "Errors of designs on the sphere over all angles"

    activations: tuple[Activation, ...] = (
        shoal.ReLU(),
        shoal.Tanh(),
        shoal.Swish(),
        shoal.Softplus(),
        shoal.GELU(),
    )
    variances: tuple[float, ...] = (0.05, 0.2, 0.24)
    gains: tuple[float, ...] = (0.9, 0.99)
    input_variance: float = 0.8
    norm: float = 1.0
    cosines: int = 77

    @classmethod
    def quick(cls) -> Self:
        """Two activations, one variance, few angles."""
        return cls((shoal.ReLU(), shoal.Tanh()), variances=(0.2,), gains=(), cosines=9)

    def points(self) -> Sequence[Point]:
        """Each activation with each variance and each kernel."""
        return [
            {"activation": name, "variance": variance, "kind": kind}
            for name in self._activations()
            for variance in self._variances()
            for kind in _KINDS
        ]

    def _activations(self) -> dict[str, Activation]:
        return {type(phi).__name__.lower(): phi for phi in self.activations}

    def _variances(self) -> dict[str, tuple[float, bool]]:
        """The variances by name: their value, and whether it is that of the gain."""
        plain = {f"variance{value:g}": (value, False) for value in self.variances}
        return plain | {f"gain{value:g}": (value, True) for value in self.gains}

    def deq(self, activation: str, variance: str) -> DEQ:
        """The DEQ of a point."""
        phi = self._activations()[activation]
        value, is_gain = self._variances()[variance]
        recurrent = value / phi.lipschitz**2 if is_gain else value
        return DEQ(phi, recurrent_variance=recurrent, input_variance=self.input_variance)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Arrays:  # noqa: ARG002
        """Both kernels at all cosines, one after the other; nothing is random."""
        deq = self.deq(str(point["activation"]), str(point["variance"]))
        kind, square = str(point["kind"]), self.norm**2
        design = shoal.design(deq, tau0=self.norm, match=kind, method="sphere")
        inner = np.linspace(-0.95, 0.95, self.cosines)
        cosines = np.concatenate([-np.array(_OUTER[::-1]), inner, _OUTER])
        products = square * torch.from_numpy(cosines)
        target, obtained = (
            getattr(shoal.kernel_function(a)(square, square, products), kind).numpy()
            for a in (deq, design.architecture)
        )
        return {
            "cosines": cosines,
            "target": target,
            "obtained": obtained,
            "recurrent_variance": np.array(deq.recurrent_variance),
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The largest errors: for cosines up to 0.95 (``inner``), at ±1 (``ends``), anywhere."""
        summary: dict[str, float] = {}
        for result in results:
            error, cosines = _error(result.arrays), np.abs(result.arrays["cosines"])
            parts: Mapping[str, Any] = {
                "inner": cosines <= 0.95,
                "ends": cosines == 1,
                "anywhere": cosines <= 1,
            }
            name = "_".join(str(value) for value in result.point.values())
            summary |= {f"{name}_{key}": float(error[part].max()) for key, part in parts.items()}
        return summary

    @styled
    def plot(self, results: Sequence[Result]) -> Figure:
        """Errors against the cosine: activations side by side, the two kernels below each other."""
        columns = len(self.activations)
        figure = new_figure(2.5 * columns + 1.6, 5.4)
        panels: Any = figure.subplots(len(_KINDS), columns, squeeze=False, sharex=True, sharey=True)
        names, variances = list(self._activations()), list(self._variances())
        for result in results:
            row = list(_KINDS).index(str(result.point["kind"]))
            column = names.index(str(result.point["activation"]))
            place = variances.index(str(result.point["variance"]))
            _draw(panels[row, column], result.arrays, COLORS[place % len(COLORS)])
        for axes, phi in zip(panels[0], self.activations, strict=True):
            axes.set_title(type(phi).__name__)
        for axes, words in zip(panels[:, 0], _KINDS.values(), strict=True):
            axes.set_ylabel(f"{words}\nerror, relative to the diagonal")
        for axes in panels[-1]:
            axes.set_xlabel(r"cosine $\rho$")
        self._legend(figure, panels[0, 0])
        return figure

    def _legend(self, figure: Figure, axes: Axes) -> None:
        labels = [
            rf"$\sigma_a^2{' L^2' if is_gain else ''} = {value:g}$"
            for value, is_gain in self._variances().values()
        ]
        handles = axes.get_lines()[: len(labels)]
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))


def _error(arrays: Arrays) -> Any:
    """Relative to the diagonal, which stands last."""
    return np.abs(arrays["obtained"] - arrays["target"]) / arrays["target"][-1]


def _draw(axes: Axes, arrays: Arrays, color: str) -> None:
    shown = np.maximum(_error(arrays), _ROUNDING)
    axes.semilogy(arrays["cosines"], shown, ".-", color=color, markersize=3, linewidth=0.9)
