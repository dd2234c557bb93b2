"""What an analysis is made of: sections, each with rows, numbers and a panel of the figure."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from shoal import DEQ, Architecture
from shoal.data import Dataset
from shoal.pages.findings import Findings, Row

__all__ = ["NothingToSayError", "Section", "Subject", "of_each", "of_kernels"]


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
