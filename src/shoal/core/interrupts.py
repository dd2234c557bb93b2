"""Ctrl-C while the command ``shoal`` is being loaded, for seconds: one line and no traceback."""

import os
import signal
import sys
from pathlib import PurePath
from types import FrameType

__all__ = ["loaded"]


def loaded() -> None:
    """Let Ctrl-C be an exception again, which the commands know what to do with."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
