"""What the tests of all suites note for the table."""

from collections.abc import Callable
from importlib.metadata import version

import pytest


@pytest.fixture(autouse=True)
def noted(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> None:
    """The suite that a test is of, with its version."""
    module = request.module
    record_property("suite", f"{module.SUITE} | {version(module.PACKAGE)}")
