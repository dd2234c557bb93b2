"""Experiments: a frozen configuration, points with seeds, a figure of their results."""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from importlib import import_module
from itertools import product
from pkgutil import walk_packages
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from matplotlib.figure import Figure

import experiments
from experiments.claims import Claim

Point = Mapping[str, int | float | str]
Arrays = Mapping[str, np.ndarray]

# Fields that came after seeds had been given: at these values they are no part of a seed.
_LATER = {"bias_variance": 0.0, "hidden_variances": (), "dataset": "mnist"}


class Result(NamedTuple):
    """The arrays of one point of an experiment, by name."""

    point: Point
    arrays: Arrays


class Experiment(ABC):
    """A question with a figure for an answer; its subclasses are frozen dataclasses.

    The fields are the configuration: all that the results depend on, besides the seed of a point.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    name: ClassVar[tuple[str, str]]  # the paper and the figure
    title: ClassVar[str]  # the content of the figure, in one line
    small: ClassVar[Mapping[str, Any]] = {}  # fields of --quick

    @classmethod
    def quick(cls) -> Self:
        """The same experiment in a size that takes seconds."""
        return cls(**cls.small)

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """The points to compute, which do not depend on each other."""

    @abstractmethod
    def compute(self, point: Point, seed: int, device: torch.device) -> Mapping[str, Any]:
        """Numbers, arrays or tensors of one point, whose randomness all comes from ``seed``."""

    @abstractmethod
    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The numbers that the figure is about; a function of the results alone."""

    @abstractmethod
    def plot(self, results: Sequence[Result]) -> Figure:
        """The figure; a function of the results alone, which writes nothing."""

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:
        """Claims of the paper, if any, beside the numbers of a run in full size."""
        return ()


_REGISTRY: dict[tuple[str, str], type[Experiment]] = {}


def experiment(paper: str, figure: str) -> Callable[[type], type]:
    """Register an experiment by name; its title is the first line of its docstring."""

    def register(kind: type) -> type:
        kind.name, kind.title = (paper, figure), kind.__doc__.partition("\n")[0].removesuffix(".")
        return _REGISTRY.setdefault((paper, figure), kind)

    return register


def registered() -> dict[tuple[str, str], type[Experiment]]:
    """All experiments, in the order of their names."""
    for module in walk_packages(experiments.__path__, "experiments."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    return dict(sorted(_REGISTRY.items()))


def find(paper: str, figure: str | None = None) -> list[type[Experiment]]:
    """The experiments of a paper, or the one of a figure."""
    kinds = registered()
    papers = sorted({name for name, _ in kinds})
    if paper not in papers:
        raise ValueError(f"PAPER must be one of {', '.join(papers)}, got {paper!r}")
    figures = [name for other, name in kinds if other == paper]
    if figure not in (None, *figures):
        raise ValueError(f"FIGURE of {paper} must be one of {', '.join(figures)}, got {figure!r}")
    return [kinds[paper, name] for name in figures if figure in (None, name)]


def plain(value: Any) -> Any:
    """A configuration as JSON values: dataclasses by the names of their classes and fields."""
    if is_dataclass(value):
        stated = {f.name: getattr(value, f.name) for f in fields(value)}
        stated = {k: plain(v) for k, v in stated.items() if k not in _LATER or v != _LATER[k]}
        return {"class": type(value).__qualname__, **stated}
    return [plain(entry) for entry in value] if isinstance(value, tuple | list) else value


def digest(value: Any) -> str:
    """A hash of a plain value, in hexadecimal, the same on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def point_seed(one: Experiment, point: Point) -> int:
    """The seed of a point, which depends on the experiment's name, configuration and the point."""
    whole = {"experiment": list(one.name), "configuration": plain(one), "point": dict(point)}
    return int(digest(whole)[:15], 16)  # 60 bits: a seed for every generator


def computed(one: Experiment, point: Point, device: torch.device) -> Arrays:
    """The arrays of a point, computed with its seed; tensors and numbers become arrays."""
    values = one.compute(point, point_seed(one, point), device)
    values = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    return {name: np.asarray(value) for name, value in values.items()}


def grid(*slowest: str, **axes: Iterable[int | float | str]) -> list[Point]:
    """All combinations of values; axes named first change slowest, and the last axis fastest.

    >>> grid("draw", width=(8, 16), draw=range(2))[1]
    {'width': 16, 'draw': 0}
    """
    order = [*slowest, *(axis for axis in axes if axis not in slowest)]
    points = [dict(zip(order, v, strict=True)) for v in product(*(axes[axis] for axis in order))]
    return [{axis: point[axis] for axis in axes} for point in points]


def matching(results: Sequence[Result], values: Point) -> list[Result]:
    """The results of the points that have all the values."""
    return [r for r in results if all(r.point[key] == value for key, value in values.items())]


def named(name: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers for a summary, ``NAME_`` before their own names."""
    return {f"{name}_{key}": float(value) for key, value in numbers.items()}


def single(result: Result) -> dict[str, float]:
    """The arrays of a result that are single numbers."""
    return {name: value for name, value in result.arrays.items() if value.ndim == 0}


def by_point(
    results: Sequence[Result], numbers: Callable[[Result], Mapping[str, float]] = single
) -> dict[str, float]:
    """Numbers of every result for a summary, the values of its point before their own names."""
    summary: dict[str, float] = {}
    for result in results:
        summary |= named("_".join(map(str, result.point.values())), numbers(result))
    return summary
