"""What a page shows: parts, each with rows, numbers and a panel of the figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.pages.figures import Axes, Figure

__all__ = ["Findings", "Part", "Row"]


class Row(NamedTuple):
    """A line of the table: a quantity, its value, and what it means.

    Attributes:
        quantity: What it is.
        value: As text.
        meaning: What it says.
        holds: For an entry of a checklist, whether it holds.
    """

    quantity: str
    value: str
    meaning: str = ""
    holds: bool | None = None


@dataclass(frozen=True)
class Findings:
    """What a section found.

    Attributes:
        rows: For the table.
        numbers: For machines: names and plain values.
        panel: Draws the section's part of the figure; ``None`` if it has none.
        error: Why there is nothing, if there is nothing.
        notes: Sentences that are too long for a table.
        warnings: What the data contradict, and which numbers do not carry far; sentences.
        figure: A whole figure for the page, where a panel is not enough.
    """

    rows: tuple[Row, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    panel: Callable[[Axes], None] | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    figure: Figure | None = None


class Part(NamedTuple):
    """A part of a page.

    Attributes:
        name: Of its place on the page.
        title: For people.
        findings: What is shown.
    """

    name: str
    title: str
    findings: Findings
