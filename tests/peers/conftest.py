"""What the tests of all suites note for the table."""

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave the tests of others to ``make test-thorough`` and ``make peers``."""
    if Path(__file__).parent in item.path.parents:
        item.add_marker(pytest.mark.thorough)


@pytest.fixture(autouse=True)
def noted(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """The suite that a test is of, with its version."""
    module = request.module
    record_property("suite", f"{module.SUITE} | {version(module.PACKAGE)}")
