"""The experiments that are known by name: those of ``shoal.reproductions``, and one's own."""

from importlib import import_module
from pkgutil import walk_packages
from typing import TypeVar

from shoal.core.checks import shown
from shoal.lab.experiment import Experiment

E = TypeVar("E", bound=type[Experiment])

_PACKAGE = "shoal.reproductions"  # imported by this name alone, and by nothing else
_KNOWN: dict[tuple[str, str], type[Experiment]] = {}


def register(experiment: E) -> E:
    """Make an experiment known by its ``name``; a decorator of classes.

    Raises:
        ValueError: If another experiment has the name.
    """
    if not isinstance(experiment, type) or not issubclass(experiment, Experiment):
        raise TypeError(f"experiment must be a class of experiments, got {shown(experiment)}")
    known = _KNOWN.setdefault(experiment.name, experiment)
    if known is not experiment and known.__qualname__ != experiment.__qualname__:
        raise ValueError(f"the name {experiment.name} is that of {known.__name__} already")
    _KNOWN[experiment.name] = experiment
    return experiment


def registered() -> dict[tuple[str, str], type[Experiment]]:
    """All experiments of shoal and those registered besides, in the order of their names."""
    for module in walk_packages(import_module(_PACKAGE).__path__, f"{_PACKAGE}."):
        import_module(module.name)
    return dict(sorted(_KNOWN.items()))


def find(paper: str, figure: str | None = None) -> list[type[Experiment]]:
    """The experiments of a paper, or the one of a figure.

    Raises:
        ValueError: If there is none; the message lists those that there are.

    Example:
        >>> from shoal.lab import find
        >>> [experiment.__name__ for experiment in find("shoal", "width")]
        ['WidthError']
    """
    known = registered()
    papers = sorted({name for name, _ in known})
    if paper not in papers:
        raise ValueError(f"PAPER must be one of {', '.join(papers)}, got {shown(paper)}")
    if figure is None:
        return [experiment for name, experiment in known.items() if name[0] == paper]
    figures = [name[1] for name in known if name[0] == paper]
    if figure not in figures:
        raise ValueError(f"FIGURE of {paper} must be one of {', '.join(figures)}, got {figure!r}")
    return [known[paper, figure]]
