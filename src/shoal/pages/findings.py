"""What a page shows: parts, each with rows, numbers and a panel of the figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shoal.pages.figures import Axes, Figure


class Row(NamedTuple):
    """A line of the table: a quantity, its value, and what it means.

    Attributes:
        quantity: What it is.
        value: As text.
        meaning: What it says.
        holds: For an entry of a checklist, whether it holds.
        contradicted: Whether it was predicted, and the data are otherwise.
    """

    quantity: str
    value: str
    meaning: str = ""
    holds: bool | None = None
    contradicted: bool = False


@dataclass(frozen=True)
class Findings:
    """What a section found.

    Attributes:
        rows: For the table.
        numbers: For machines: names and plain values.
        panel: Draws the section's part of the figure; ``None`` if it has none. It must survive
            pickling: another process may draw it.
        error: Why there is nothing, if there is nothing.
        notes: Sentences that are too long for a table.
        warnings: What the data contradict, and which numbers do not carry far; sentences.
        fine: What is as it should be, in sentences.
        lacking: What nothing contradicts and nothing guarantees, in sentences.
        remedy: What to do about warnings and about what is lacking, in a sentence.
        figure: A whole figure for the page, where a panel is not enough.
    """

    rows: tuple[Row, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    panel: Callable[[Axes], None] | None = None
    error: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    fine: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    remedy: str = ""
    figure: Figure | None = None


class Verdict(NamedTuple):
    """What a page begins with.

    Attributes:
        sentences: What was found, in two sentences.
        figures: The numbers behind them, at most three; good or bad if they hold or not.
    """

    sentences: tuple[str, ...]
    figures: tuple[Row, ...]


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
