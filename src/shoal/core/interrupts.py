"""Ctrl-C while the command ``shoal`` is being loaded, for seconds: one line and no traceback."""

import os
import signal
import sys
from pathlib import PurePath
from types import FrameType


def loaded(*, once: bool) -> None:
    """Let Ctrl-C be an exception again, which the commands know what to do with.

    Args:
        once: Whether only the first one is: under torchrun one Ctrl-C comes twice, from the
            terminal and from torchrun, and the second must not disturb what the first has begun.
    """
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, _interrupt_once if once else signal.default_int_handler)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.default_int_handler(number, frame)


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
    # nothing is written yet; an exception here could get lost in what is being imported
    os.write(2, b"Interrupted\n")
    os._exit(130)


def _is_command() -> bool:
    """Whether this process is the command, and not a program of somebody's that imports shoal."""
    words = sys.orig_argv[1:3]
    return words == ["-m", "shoal"] or PurePath(*words[:1]).stem == "shoal"


# who started it in the background ignores Ctrl-C, and goes on to
if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _leave)
