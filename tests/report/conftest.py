"""The analysis of a DEQ on handwritten digits, made once for all tests of reports."""

from collections.abc import Mapping

import pytest
import torch

import shoal
from shoal.data import load_data
from shoal.report import Findings, Section, Subject, analyze


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave whole analyses to ``make test-thorough``."""
    if "analysis" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def digits() -> Subject:
    data = load_data("digits", n=60, dtype=torch.float64, device=torch.device("cpu"))
    return Subject(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), data)


@pytest.fixture(scope="session")
def analysis(digits: Subject) -> Mapping[Section, Findings]:
    return dict(analyze(digits))
