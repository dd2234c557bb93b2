"""What an analysis is made of: a subject, and sections with rows, numbers and a panel each."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from shoal import DEQ, Architecture
from shoal.data import Dataset
from shoal.pages.findings import Findings, Row


@dataclass(frozen=True)
class Subject:
    """What is analyzed.

    Attributes:
        architecture: The architecture.
        data: The data.
    """

    architecture: Architecture
    data: Dataset

    @property
    def x(self) -> Tensor:
        """The inputs."""
        return self.data.x

    @property
    def deq(self) -> DEQ:
        """The architecture, if it is a DEQ.

        Raises:
            NothingToSayError: If it is none.
        """
        if not isinstance(self.architecture, DEQ):
            raise NothingToSayError("it is about deep equilibrium models")
        return self.architecture


def of_each(values: Mapping[str, str]) -> str:
    """Values with what they are of.

    Example:
        >>> of_each({"CK": "1.1", "NTK": "1.3"})
        '1.1 (CK), 1.3 (NTK)'
    """
    return ", ".join(f"{value} ({name})" for name, value in values.items())


def of_kernels(ck: float | None, ntk: float | None, form: str = ".4g", none: str = "none") -> str:
    """Two numbers with the kernels that they are of; ``none`` stands for one that is not there.

    Example:
        >>> of_kernels(1.1, None)
        '1.1 (CK), none (NTK)'
    """
    values = {"CK": ck, "NTK": ntk}
    return of_each({k: none if v is None else f"{v:{form}}" for k, v in values.items()})


class NothingToSayError(Exception):
    """A section has nothing to say of a subject; the message says why."""


class Section(NamedTuple):
    """A part of the analysis.

    Attributes:
        name: For machines.
        title: For people.
        compute: Computes the findings.
    """

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


class Targets(NamedTuple):
    """Targets of shape (n, outputs), and what they are in words."""

    values: Tensor
    words: str


def learnable(data: Dataset) -> Targets:
    """Classes; real targets without their mean and size; or, without labels, the main direction.

    Args:
        data: The data.
    """
    if data.y is not None and data.classes:
        return Targets(data.targets(), f"{len(data.classes)} classes")
    if data.y is not None:
        return Targets(_standard(data.targets()), "real targets, standardized")
    direction = torch.linalg.svd(data.x, full_matrices=False).Vh[0]
    direction = direction * direction[direction.abs().argmax()].sign()  # SVD leaves it open
    return Targets(_standard(data.x @ direction[:, None]), "no labels: the first principal axis")


def on_sphere(data: Dataset, most: int, least: int = 1) -> tuple[Tensor, Targets]:
    """Drawn samples, scaled to norm one, with targets; without direction they are left out.

    Args:
        data: The data.
        most: How many samples at most.
        least: How many at least.

    Raises:
        NothingToSayError: If there are fewer, or their targets are constant.
    """
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
