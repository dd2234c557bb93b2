"""What an analysis is made of: sections, each with rows, numbers and a panel of the figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from shoal import Architecture
from shoal.data import Dataset
from shoal.lab.figures import Axes, Figure

__all__ = ["Findings", "Part", "Row", "Section", "Subject", "as_sentence", "of_each"]


@dataclass(frozen=True)
class Subject:
    """What is analyzed.

    Attributes:
        architecture: The architecture.
        data: The data.
    """

    architecture: Architecture
    data: Dataset

    @property
    def x(self) -> Tensor:
        """The inputs."""
        return self.data.x


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


def as_sentence(message: object) -> str:
    """A message of the library as a sentence.

    Args:
        message: Text that begins with a small letter and has no full stop.
    """
    text = str(message)
    return f"{text[:1].upper()}{text[1:]}."


def of_each(values: Mapping[str, str]) -> str:
    """Values with what they are of.

    Example:
        >>> of_each({"CK": "1.1", "NTK": "1.3"})
        '1.1 (CK), 1.3 (NTK)'
    """
    return ", ".join(f"{value} ({name})" for name, value in values.items())


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


class Section(NamedTuple):
    """A part of the analysis.

    Attributes:
        name: For machines.
        title: For people.
        find: Computes the findings.
    """

    name: str
    title: str
    find: Callable[[Subject], Findings]
