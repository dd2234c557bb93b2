"""What tests of the application share."""

from pathlib import Path

import pytest

import shoal
from shoal.app.inputs import load_inputs
from shoal.app.report import SECTIONS, Analysis, find
from shoal.app.sections import Subject


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in an empty folder."""
    monkeypatch.chdir(tmp_path)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave whole analyses to ``make test-thorough``."""
    if "analysis" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(scope="session")
def digits() -> Subject:
    return Subject(load_inputs("digits", n=60), shoal.DEQ("relu", 0.2, 0.8))


@pytest.fixture(scope="session")
def analysis(digits: Subject) -> Analysis:
    """Of a DEQ on handwritten digits, made once for all tests of reports."""
    return {section: find(section, digits) for section in SECTIONS}
