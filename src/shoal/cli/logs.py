"""Logging for the command line, and what its global options say."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.logging import RichHandler
from rich.segment import Segment

from shoal.core.files import printable


class PlainConsole(Console):
    """A console that shows names from files and headers, and does not do what they say."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What is shown, piece by piece."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


@dataclass
class State:
    """What ``-v``, ``--debug`` and ``--json`` say, and the command; one for each process.

    Attributes:
        verbose: How many ``-v`` there are.
        debug: Whether errors show tracebacks.
        json: Whether there is to be one document on stdout, and no progress.
        typed: The values of those arguments of the command that were typed.
        options: What the command calls the arguments of the library.
    """

    verbose: int = 0
    debug: bool = False
    json: bool = False
    typed: dict[str, object] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget what an earlier command said."""
        self.verbose, self.debug, self.json, self.typed, self.options = 0, False, False, {}, {}
        self.apply()

    def apply(self) -> None:
        """Let the library's messages through to stderr."""
        logger = logging.getLogger("shoal")
        for handler in [h for h in logger.handlers if isinstance(h, RichHandler)]:
            logger.removeHandler(handler)
        handler = RichHandler(
            console=PlainConsole(stderr=True), show_path=False, rich_tracebacks=False, markup=False
        )
        logger.addHandler(handler)
        levels = (logging.WARNING, logging.INFO, logging.DEBUG)
        level = levels[min(self.verbose, 2)]
        logger.setLevel(min(level, logging.DEBUG) if self.debug else level)


state = State()
