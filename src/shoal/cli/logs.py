"""Logging for the command line, and what its global options say."""

import logging
from dataclasses import dataclass, field

from rich.logging import RichHandler

from shoal.cli.output import PlainConsole

__all__ = ["State", "state"]


@dataclass
class State:
    """What ``-v`` and ``--debug`` say, and the command; one for each process.

    Attributes:
        verbose: How many ``-v`` there are.
        debug: Whether errors show tracebacks.
        options: What the command calls the arguments of the library.
    """

    verbose: int = 0
    debug: bool = False
    options: dict[str, str] = field(default_factory=dict)

    def reset(self) -> None:
        """Forget what an earlier command said."""
        self.verbose, self.debug, self.options = 0, False, {}
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
