"""The parts of an analysis: a subject, and sections with rows, numbers and a panel each."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal import DEQ, Architecture
from shoal.app.inputs import Inputs
from shoal.core.figures import Axes, Figure
from shoal.diagnosis.words import Row


@dataclass(frozen=True)
class Findings:
    """The result of a section.

    Attributes:
        rows: The rows of the table.
        numbers: Names and plain values, for machines.
        panel: Draws the section's part of the figure; ``None`` if it has none.
        error: The reason if there is no result.
        notes: Sentences that are too long for a table.
        warnings: Sentences on predictions that the data contradict, and on unreliable numbers.
        figure: A whole figure for the page, where a panel is not enough.
    """

    rows: tuple[Row, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    panel: Callable[[Axes], None] | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    figure: Figure | None = None


class SectionNotApplicable(Exception):  # noqa: N818
    """A section does not apply to a subject; the message says why."""


@dataclass(frozen=True)
class Subject:
    """An architecture and data."""

    architecture: Architecture
    data: Inputs

    @property
    def x(self) -> Tensor:
        """The inputs."""
        return self.data.x

    @property
    def deq(self) -> DEQ:
        """The architecture, if it is a DEQ."""
        if not isinstance(self.architecture, DEQ):
            raise SectionNotApplicable("it is about deep equilibrium models")
        return self.architecture


class Section(NamedTuple):
    """A part of the analysis: a name for machines, a title for people, and its function."""

    name: str
    title: str
    compute: Callable[[Subject], Findings]

    def find(self, subject: Subject) -> Findings:
        """The findings, with the warnings of the library, or why there are none."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                found = self.compute(subject)
            except SectionNotApplicable as reason:
                return Findings((Row("result", "none", str(reason)),))
        texts = [str(one.message) for one in caught]
        told = [*found.warnings, *(f"{text[:1].upper()}{text[1:]}." for text in texts)]
        return replace(found, warnings=tuple(dict.fromkeys(told)))


def legend_below(axes: Axes) -> None:
    """Draw a legend below the axes, where it covers nothing; layouts make room for it."""
    names = axes.get_legend_handles_labels()[1]
    columns = 1 if max(map(len, names)) > 40 else 2
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, fontsize=8)


def draw_bars(axes: Axes, bars: Mapping[str, tuple[float, str]], end: float) -> None:
    """Draw bars, values and colors by name, from above to below; longer ones are cut."""
    values = [value for value, _ in bars.values()]
    lengths = [min(value, end) for value in values]
    drawn = axes.barh(list(bars), lengths, height=0.55, color=[color for _, color in bars.values()])
    axes.bar_label(drawn, [f"{value:.3g}" for value in values], padding=4, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15 * end)
    axes.grid(visible=False)


def by_name(values: Mapping[str, str]) -> str:
    """Values with their names.

    Example:
        >>> by_name({"CK": "1.1", "NTK": "1.3"})
        '1.1 (CK), 1.3 (NTK)'
    """
    return ", ".join(f"{value} ({name})" for name, value in values.items())


def by_kernel(ck: float | None, ntk: float | None, form: str = ".4g", none: str = "none") -> str:
    """Two numbers with the names of their kernels; ``none`` stands for one that is missing."""
    values = {"CK": ck, "NTK": ntk}
    return by_name({k: none if v is None else f"{v:{form}}" for k, v in values.items()})


class Targets(NamedTuple):
    """Targets of shape (n, outputs), and a description."""

    values: Tensor
    words: str


def learnable(data: Inputs) -> Targets:
    """Classes; standardized real targets; or, without labels, the main direction."""
    if data.y is not None and data.classes:
        return Targets(data.targets(), f"{len(data.classes)} classes")
    if data.y is not None:
        return Targets(_standard(data.targets()), "real targets, standardized")
    direction = torch.linalg.svd(data.x, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # SVD leaves it open
    return Targets(_standard(data.x @ direction[:, None]), "no labels: the first principal axis")


def on_sphere(data: Inputs, most: int, least: int = 1) -> tuple[Tensor, Targets]:
    """At most so many drawn samples, scaled to norm one, with targets; zeros are left out."""
    values, words = learnable(data)
    order = data.drawn()
    there = order[data.x[order].norm(dim=1) > 0][:most]
    if len(there) < least:
        raise SectionNotApplicable(f"needs {least} samples or more")
    if not bool(values[there].any()):
        raise SectionNotApplicable("the targets are constant")
    x = torch.nn.functional.normalize(data.x[there].double())
    return x, Targets(values[there].double(), words)


def _standard(values: Tensor) -> Tensor:
    centered = values - values.mean()
    size = centered.square().mean().sqrt()
    return centered / size if size > 0 else centered
