"""What an analysis is made of: a subject, and sections with rows, numbers and a panel each."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal import DEQ, Architecture
from shoal.app.inputs import Inputs
from shoal.core.figures import Axes, Figure
from shoal.diagnosis.words import Row


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


class NothingToSayError(Exception):
    """A section has nothing to say of a subject; the message says why."""


@dataclass(frozen=True)
class Subject:
    """An architecture and data."""

    architecture: Architecture
    data: Inputs

    @property
    def x(self) -> Tensor:
        """The inputs."""
        return self.data.x

    @property
    def deq(self) -> DEQ:
        """The architecture, if it is a DEQ."""
        if not isinstance(self.architecture, DEQ):
            raise NothingToSayError("it is about deep equilibrium models")
        return self.architecture


class Section(NamedTuple):
    """A part of the analysis: a name for machines, a title for people, and what computes it."""

    name: str
    title: str
    compute: Callable[[Subject], Findings]

    def find(self, subject: Subject) -> Findings:
        """The findings, with what the library warns of, or why there are none."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                found = self.compute(subject)
            except NothingToSayError as reason:
                return Findings((Row("result", "none", str(reason)),))
        texts = [str(one.message) for one in caught]
        told = [*found.warnings, *(f"{text[:1].upper()}{text[1:]}." for text in texts)]
        return replace(found, warnings=tuple(dict.fromkeys(told)))


def of_each(values: Mapping[str, str]) -> str:
    """Values with what they are of.

    Example:
        >>> of_each({"CK": "1.1", "NTK": "1.3"})
        '1.1 (CK), 1.3 (NTK)'
    """
    return ", ".join(f"{value} ({name})" for name, value in values.items())


def of_kernels(ck: float | None, ntk: float | None, form: str = ".4g", none: str = "none") -> str:
    """Two numbers with the kernels that they are of; ``none`` stands for one that is not there."""
    values = {"CK": ck, "NTK": ntk}
    return of_each({k: none if v is None else f"{v:{form}}" for k, v in values.items()})


class Targets(NamedTuple):
    """Targets of shape (n, outputs), and what they are in words."""

    values: Tensor
    words: str


def learnable(data: Inputs) -> Targets:
    """Classes; real targets without their mean and size; or, without labels, the main direction."""
    if data.y is not None and data.classes:
        return Targets(data.targets(), f"{len(data.classes)} classes")
    if data.y is not None:
        return Targets(_standard(data.targets()), "real targets, standardized")
    direction = torch.linalg.svd(data.x, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # SVD leaves it open
    return Targets(_standard(data.x @ direction[:, None]), "no labels: the first principal axis")


def on_sphere(data: Inputs, most: int, least: int = 1) -> tuple[Tensor, Targets]:
    """At most so many drawn samples, scaled to norm one, with targets; zeros are left out."""
    values, words = learnable(data)
    order = data.drawn()
    there = order[data.x[order].norm(dim=1) > 0][:most]
    if len(there) < least:
        raise NothingToSayError(f"needs {least} samples or more")
    if not bool(values[there].any()):
        raise NothingToSayError("the targets are constant")
    x = torch.nn.functional.normalize(data.x[there].double())
    return x, Targets(values[there].double(), words)


def _standard(values: Tensor) -> Tensor:
    centered = values - values.mean()
    size = centered.square().mean().sqrt()
    return centered / size if size > 0 else centered
