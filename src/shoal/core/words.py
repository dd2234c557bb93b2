"""Numbers in sentences, and tables for readers."""

from collections.abc import Callable
from typing import NamedTuple

from shoal.core.figures import Axes, Figure


def counted(count: int, word: str) -> str:
    """A number of things, with a plural s unless it is one.

    Example:
        >>> counted(1, "sample"), counted(3, "sample")
        ('1 sample', '3 samples')
    """
    return f"{count} {word}{'s' * (count != 1)}"


def memory_words(count: float) -> str:
    """Bytes in words.

    Example:
        >>> memory_words(1010), memory_words(2048)
        ('1010 B', '2 KiB')
    """
    units = iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while count >= 1024 and unit != "GiB":
        count, unit = count / 1024, next(units)
    return f"{count:.0f} {unit}" if count >= 1000 else f"{count:.3g} {unit}"


class Row(NamedTuple):
    """A line of a table.

    Attributes:
        quantity: Name of the quantity.
        value: Its value, as text.
        meaning: Meaning of the value.
        holds: For an entry of a checklist, whether it holds.
        contradicted: Whether the data contradict it as a prediction.
    """

    quantity: str
    value: str
    meaning: str = ""
    holds: bool | None = None
    contradicted: bool = False


class Part(NamedTuple):
    """A part of the page about a result.

    Attributes:
        name: Name of its place on the page.
        title: Title for readers.
        rows: Its table.
        panel: Function that draws its panel of the figure, if it has one.
        figure: A whole figure, where a panel is not enough.
        notes: Sentences that are too long for the table.
    """

    name: str
    title: str
    rows: tuple[Row, ...]
    panel: Callable[[Axes], None] | None = None
    figure: Figure | None = None
    notes: tuple[str, ...] = ()
