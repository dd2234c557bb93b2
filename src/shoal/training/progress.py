"""How far a training is, for those who wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple


class TrainingProgress(NamedTuple):
    """How far a training is.

    Attributes:
        step: The steps that are made.
        steps: The steps to make.
        loss: The loss now.
        violations: How many promises were broken so far.
    """

    step: int
    steps: int
    loss: float
    violations: int


Report = Callable[[TrainingProgress], object]


@contextmanager
def reporter(progress: bool | Report) -> Iterator[Report]:
    """What to call at each step: what was given, a bar on stderr, or nothing."""
    if callable(progress):
        yield progress
    elif progress is True:
        with _bar() as report:
            yield report
    elif progress is False:
        yield lambda _: None
    else:
        raise TypeError(f"progress must be a bool or a function, got {progress!r}")


@contextmanager
def _bar() -> Iterator[Report]:
    if find_spec("rich") is None:
        raise ImportError("progress=True needs rich, which is not here: pip install 'shoal[cli]'")
    from rich.console import Console
    from rich.progress import Progress

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("training")

        def report(now: TrainingProgress) -> None:
            broken = f"  {now.violations} promises broken" if now.violations else ""
            text = f"training  loss {now.loss:.3g}{broken}"
            bar.update(task, total=now.steps, completed=now.step, description=text)

        yield report
