r"""How fast the kernels of finite networks approach those of infinitely wide ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import shoal
from shoal.lab.experiment import Point, Result, grid, matching, named
from shoal.lab.figures import draw_panels, new_row
from shoal.lab.registry import register
from shoal.pages.figures import Axes, Figure
from shoal.reproductions.width_errors import KernelErrors, draw_errors

_DEQ = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
_LABELS = {"ck": "conjugate kernel", "ntk": "neural tangent kernel"}


@register
@dataclass(frozen=True)
class WidthError(KernelErrors):
    r"""Monte Carlo error of the kernels of a DEQ of width $m$, which falls like $m^{-1/2}$.

    Args:
        architecture: The DEQ.
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs, random points on the unit sphere.
        features: Their dimension.
        seed: Of inputs and networks.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "width")
    title: ClassVar[str] = "Monte Carlo error of a finite DEQ's kernels against its width"
    groups: ClassVar[bool] = False

    architecture: shoal.DEQ = _DEQ
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096)
    draws: int = 16
    samples: int = 64
    features: int = 64
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(32, 64, 128, 256), draws=6, samples=16, features=32)

    def wide(self, point: Point) -> shoal.DEQ:  # noqa: ARG002
        """The DEQ."""
        return self.architecture

    def plot(self, results: Sequence[Result]) -> Figure:
        """All errors, their mean at each width, and the fitted power laws."""
        figure, (axes,) = new_row(5.6, 4.2, 1)
        draw_errors(axes, results, _LABELS)
        axes.set_title(f"Kernels of a {type(self.architecture.activation).__name__} DEQ")
        return figure


@register
@dataclass(frozen=True)
class GroupError(KernelErrors):
    r"""Monte Carlo error of networks of width $m$, which falls like $m^{-1/2}$ for every group.

    Args:
        architectures: The architectures, whose kernels at infinite width are known.
        widths: The widths $m$.
        draws: How many networks are drawn for each.
        samples: The number of inputs, random points on the unit sphere.
        features: Their dimension.
        seed: Of inputs and networks.
    """

    name: ClassVar[tuple[str, str]] = ("shoal", "groups")
    title: ClassVar[str] = "Monte Carlo error of every architecture's kernels against the width"

    architectures: tuple[shoal.Architecture, ...] = (
        _DEQ,
        shoal.ImplicitNetwork(gamma=0.4),
        shoal.FullyConnected.du2018(shoal.Softplus(), depth=3),
        shoal.ResNet(shoal.Softplus(), depth=3, residual_scale=1.0),
    )
    widths: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    draws: int = 16
    samples: int = 32
    features: int = 32
    seed: int = 0

    @classmethod
    def quick(cls) -> Self:
        """Narrow networks, few inputs."""
        return cls(widths=(32, 64, 128, 256), draws=6, samples=12, features=16)

    def points(self) -> Sequence[Point]:
        """Everything, then everything again: an interrupted run has something of each."""
        networks = range(len(self.architectures))
        draws = range(self.draws)
        return grid("draw", "width", network=networks, width=self.widths, draw=draws)

    def wide(self, point: Point) -> shoal.Architecture:
        """One of the architectures."""
        return self.architectures[int(point["network"])]

    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The slopes in the logarithms, with 95% confidence intervals, by network and kernel."""
        summary: dict[str, float] = {}
        for index, label in enumerate(self._labels()):
            summary |= named(label, super().summarize(matching(results, {"network": index})))
        return summary

    def plot(self, results: Sequence[Result]) -> Figure:
        """A panel for each architecture: all errors, their means and the fitted power laws."""
        labels = self._labels()
        columns = min(len(labels), 2)
        rows = -(-len(labels) // columns)

        def panel(axes: Axes, row: int, column: int) -> str:
            index = row * columns + column
            if index >= len(labels):
                axes.set_axis_off()
                return ""
            draw_errors(axes, matching(results, {"network": index}))
            return labels[index]

        size = 5.6 * columns, 4.6 * rows
        return draw_panels(range(rows), range(columns), panel, size, legend=None)

    def _labels(self) -> list[str]:
        """The names of the classes, numbered where one occurs again."""
        names = [type(architecture).__name__ for architecture in self.architectures]
        return [
            name if names.count(name) == 1 else f"{name}{names[:index].count(name) + 1}"
            for index, name in enumerate(names)
        ]
