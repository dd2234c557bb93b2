"""How exact the designs on the sphere are, up to the edge where kernels cease to exist."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar, Self

import numpy as np
import torch

import shoal
from shoal.activations import Activation
from shoal.architectures import DEQ
from shoal.lab.experiment import Arrays, Experiment, Point, Result, by_point, grid, matching
from shoal.lab.figures import draw_panels
from shoal.lab.registry import register
from shoal.pages.figures import COLORS, Axes, Figure
from shoal.reproductions.deqs import by_name

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
        names = by_name(self.activations)
        return grid(activation=names, variance=self._variances(), kind=_KINDS)

    def _variances(self) -> dict[str, tuple[float, bool]]:
        """The variances by name: their value, and whether it is that of the gain."""
        plain = {f"variance{value:g}": (value, False) for value in self.variances}
        return plain | {f"gain{value:g}": (value, True) for value in self.gains}

    def deq(self, activation: str, variance: str) -> DEQ:
        """The DEQ of a point."""
        phi = by_name(self.activations)[activation]
        value, is_gain = self._variances()[variance]
        recurrent = value / phi.lipschitz**2 if is_gain else value
        return DEQ(phi, recurrent_variance=recurrent, input_variance=self.input_variance)

    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:  # noqa: ARG002
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
            "recurrent_variance": deq.recurrent_variance,
        }

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The largest errors: for cosines up to 0.95 (``inner``), at ±1 (``ends``), anywhere."""

        def largest(result: Result) -> dict[str, float]:
            error, cosines = _error(result.arrays), np.abs(result.arrays["cosines"])
            parts = {"inner": cosines <= 0.95, "ends": cosines == 1, "anywhere": cosines <= 1}
            return {key: float(error[part].max()) for key, part in parts.items()}

        return by_point(results, largest)

    def plot(self, results: Sequence[Result]) -> Figure:
        """Errors against the cosine: activations side by side, the two kernels below each other."""
        names = by_name(self.activations)

        def panel(axes: Axes, kind: str, name: str) -> str:
            found = matching(results, {"activation": name, "kind": kind})
            for result, color in zip(found, cycle(COLORS), strict=False):
                shown = np.maximum(_error(result.arrays), _ROUNDING)
                x = result.arrays["cosines"]
                axes.semilogy(x, shown, ".-", color=color, markersize=3, linewidth=0.9)
            if name == next(iter(names)):
                axes.set_ylabel(f"{_KINDS[kind]}\nerror, relative to the diagonal")
            return type(names[name]).__name__ if kind == "ck" else ""

        size, x = (2.5 * len(names) + 1.6, 5.4), r"cosine $\rho$"
        figure = draw_panels(_KINDS, names, panel, size, x=x, legend=None, sharex=True, sharey=True)
        labels = [
            rf"$\sigma_a^2{' L^2' if is_gain else ''} = {value:g}$"
            for value, is_gain in self._variances().values()
        ]
        handles = figure.axes[0].get_lines()[: len(labels)]
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return figure


def _error(arrays: Arrays) -> Any:
    """Relative to the diagonal, which stands last."""
    return np.abs(arrays["obtained"] - arrays["target"]) / arrays["target"][-1]
