"""The parts of an analysis: a subject, and sections with rows, numbers and a panel each."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from torch import Tensor

from shoal import DEQ
from shoal.app.comparison import LOOP, Contest, compare
from shoal.app.inputs import PreparedData
from shoal.core.figures import Axes, Figure
from shoal.core.words import Row

FAR = 0.25
"""Share of a measured value by which a prediction may be off."""
_LEAST = 20  # samples for five folds


@dataclass(frozen=True)
class Findings:
    """The result of a section.

    Attributes:
        rows: The rows of the table.
        numbers: Names and plain values, for machines.
        panel: Draws the section's part of the figure; ``None`` if it has none.
        error: The reason if there is no result.
        notes: Sentences that are too long for a table.
        check: Sentence on what the section was checked against; empty without a check.
        holds: Whether the check passed. A section whose check failed shows nothing but it.
        figure: A whole figure for the page, where a panel is not enough.
    """

    rows: tuple[Row, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    panel: Callable[[Axes], None] | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    check: str = ""
    holds: bool | None = None
    figure: Figure | None = None


class SectionNotApplicable(Exception):  # noqa: N818
    """A section does not apply to a subject; the message says why."""


@dataclass(frozen=True)
class Subject:
    """Data, and the architecture to analyze if it is given."""

    data: PreparedData
    architecture: DEQ | None = None

    @property
    def x(self) -> Tensor:
        """The inputs."""
        return self.data.x

    @cached_property
    def contest(self) -> Contest:
        """All methods on the same folds."""
        if self.data.y is None:
            raise SectionNotApplicable("there is no target: name it with --label COLUMN")
        if len(self.data) < _LEAST:
            raise SectionNotApplicable(f"needs {_LEAST} samples or more")
        if bool((self.data.targets() == self.data.targets()[:1]).all()):
            raise SectionNotApplicable("the target is constant")
        return compare(self.data, self.architecture)

    @property
    def chosen(self) -> bool:
        """Whether the data chose the architecture."""
        return self.architecture is None and "contest" in vars(self)

    @property
    def deq(self) -> DEQ:
        """The given architecture, or the one that leave-one-out chose, or a usual one."""
        if self.chosen:
            chosen = self.contest.fits[LOOP][-1].candidate.architecture
            assert chosen is not None
            return chosen
        return self.architecture or DEQ("tanh", 0.2, 0.8)


class ReportSection(NamedTuple):
    """A part of the analysis: a name for machines, a title for people, and its function."""

    name: str
    title: str
    compute: Callable[[Subject], Findings]
    theory: bool = False

    def find(self, subject: Subject) -> Findings:
        """The findings; without a check on the data, a warning of the library fails the section."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                findings = self.compute(subject)
            except SectionNotApplicable as reason:
                return Findings((Row("result", "none", str(reason)),))
        texts = [str(one.message) for one in caught]
        doubts = [f"{text[:1].upper()}{text[1:]}." for text in dict.fromkeys(texts)]
        if doubts and not findings.holds:
            findings = replace(
                findings, check=" ".join([findings.check, *doubts]).strip(), holds=False
            )
        elif doubts:
            findings = replace(findings, notes=(*findings.notes, *doubts))
        if findings.holds is False:
            findings = replace(findings, rows=(), panel=None, notes=())
        return findings


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
