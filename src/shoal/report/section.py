"""What an analysis is made of: sections, each with rows, numbers and a panel of the figure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from shoal import Architecture
from shoal.data import Dataset
from shoal.pages.findings import Findings

__all__ = ["Section", "Subject", "as_sentence", "of_each"]


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


def as_sentence(message: object) -> str:
    """A message of the library as a sentence.

    Args:
        message: Text that begins with a small letter and has no full stop.
    """
    text = str(message)
    return f"{text[:1].upper()}{text[1:]}."


def of_each(values: Mapping[str, str]) -> str:
    """Values with what they are of.

    Example:
        >>> of_each({"CK": "1.1", "NTK": "1.3"})
        '1.1 (CK), 1.3 (NTK)'
    """
    return ", ".join(f"{value} ({name})" for name, value in values.items())


class Section(NamedTuple):
    """A part of the analysis.

    Attributes:
        name: For machines.
        title: For people.
        find: Computes the findings.
    """

    name: str
    title: str
    find: Callable[[Subject], Findings]
