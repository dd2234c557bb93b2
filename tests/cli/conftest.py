"""What tests of the command line share."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands run in an empty folder; logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("shoal")
    before = (list(logger.handlers), logger.level)
    yield
    logger.handlers[:], logger.level = before[0], before[1]
