"""What an experiment is: a frozen configuration, points with seeds, a figure of their results."""

import dataclasses
import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, Self

import numpy as np
import torch

from shoal.core.fields import plain
from shoal.lab.claims import Claim
from shoal.pages.figures import Figure, styled

Point = Mapping[str, int | float | str]
Arrays = Mapping[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class Result:
    """What one point of an experiment gave.

    Attributes:
        point: The point.
        arrays: Its arrays, by name.
    """

    point: Point
    arrays: Arrays


@dataclass(frozen=True)
class Experiment(ABC):
    """A question with a figure for an answer.

    Subclasses are frozen dataclasses. Their fields are the configuration: all that the results
    depend on, besides the seed that the runner hands out.

    Attributes:
        name: The paper (or ``"shoal"``) and the figure, such as ``("ling2024", "figure1")``.
        title: What is shown, in one line.
    """

    name: ClassVar[tuple[str, str]]
    title: ClassVar[str]

    def __init_subclass__(cls) -> None:
        """Let ``plot`` draw in the style of shoal's figures."""
        super().__init_subclass__()
        if "plot" in vars(cls):
            cls.plot = styled(cls.plot)  # type: ignore[method-assign]

    @classmethod
    @abstractmethod
    def quick(cls) -> Self:
        """The same experiment in a size that takes seconds."""

    @abstractmethod
    def points(self) -> Sequence[Point]:
        """What there is to compute; the points do not depend on each other."""

    @abstractmethod
    def compute(self, point: Point, *, seed: int, device: torch.device) -> Mapping[str, Any]:
        """The results of one point by name: numbers, arrays or tensors.

        Args:
            point: One of ``points()``.
            seed: Where all randomness of the point comes from.
            device: Where to compute.
        """

    @abstractmethod
    def summarize(self, results: Sequence[Result]) -> dict[str, float]:
        """The numbers that the figure is about; a function of the results alone."""

    @abstractmethod
    def plot(self, results: Sequence[Result]) -> Figure:
        """The figure; a function of the results alone, which writes nothing."""

    def claims(self, summary: Mapping[str, float]) -> Sequence[Claim]:  # noqa: ARG002
        """What the numbers of a run in full size say to the claims of a paper, if it makes any.

        Args:
            summary: What ``summarize`` gave.
        """
        return ()

    def cost(self, point: Point) -> float:  # noqa: ARG002
        """How long a point takes, in any unit: the progress bar counts by it."""
        return 1.0


def as_arrays(found: Mapping[str, Any]) -> Arrays:
    """What a point gave, as it is kept: tensors of any device, and numbers, become arrays."""
    plain = {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in found.items()}
    return {name: np.asarray(value) for name, value in plain.items()}


def grid(*slowest: str, **axes: Iterable[int | float | str]) -> list[Point]:
    """All combinations of values; axes named first change slowest, of the others the last fastest.

    >>> grid("draw", width=(8, 16), draw=range(2))[1]
    {'width': 16, 'draw': 0}
    """
    order = [*slowest, *(axis for axis in axes if axis not in slowest)]
    found = [dict(zip(order, v, strict=True)) for v in product(*(axes[axis] for axis in order))]
    return [{axis: point[axis] for axis in axes} for point in found]


def matching(results: Sequence[Result], wanted: Point) -> list[Result]:
    """The results of the points that have all the wanted values."""
    return [r for r in results if all(r.point[key] == value for key, value in wanted.items())]


def named(name: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers for a summary, ``NAME_`` before their own names."""
    return {f"{name}_{key}": float(value) for key, value in numbers.items()}


def by_point(
    results: Sequence[Result], numbers: Callable[[Result], Mapping[str, float]]
) -> dict[str, float]:
    """Numbers of every result for a summary, the values of its point before their own names."""
    found: dict[str, float] = {}
    for result in results:
        found |= named("_".join(map(str, result.point.values())), numbers(result))
    return found


def point_names(experiment: Experiment) -> list[str]:
    """Names of an experiment's points that files can have, such as ``width64-draw3``.

    Raises:
        ValueError: If two points have one name, or a name does not suit a file.
    """
    names = ["-".join(f"{key}{value}" for key, value in p.items()) for p in experiment.points()]
    for name in names:
        if re.fullmatch(r"[\w.+-]+", name) is None:
            raise ValueError(f"points must have values of letters, digits and .+-, got {name!r}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"points must differ, got {twice!r} twice")
    return names


def check_experiment(value: object) -> Experiment:
    """Return ``value`` if it is an experiment that can be run, or say why not."""
    if not isinstance(value, Experiment):
        raise TypeError(f"experiment must be an Experiment, got {value!r}")
    kind = type(value)
    if "__dataclass_params__" not in vars(kind) or not vars(kind)["__dataclass_params__"].frozen:
        raise TypeError(f"experiment must be a frozen dataclass, got {kind.__name__}")
    if not dataclasses.fields(value):
        raise TypeError(f"experiment must have a field for its configuration, got {kind.__name__}")
    return value


def digest(value: Any) -> str:
    """A hash of a plain value, in hexadecimal, the same on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def seed_of(experiment: Experiment, point: Point) -> int:
    """The seed of a point: of the experiment's name and configuration and the point, no more."""
    whole = {
        "experiment": list(experiment.name),
        "configuration": plain(experiment),
        "point": dict(point),
    }
    return int(digest(whole)[:15], 16)  # 60 bits: a seed for every generator
