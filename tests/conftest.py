"""What all tests share."""

import pytest
from hypothesis import settings

# The same examples on every run and every machine; how long one takes says nothing about it.
settings.register_profile("shoal", max_examples=30, derandomize=True, deadline=None, database=None)
settings.load_profile("shoal")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Take ``thorough`` from the cases that its mark does not name, if it names some."""
    case = item.name.partition("[")[2]  # with its closing bracket
    for mark in [mark for mark in item.own_markers if mark.name == "thorough"]:
        if mark.args and not any(part in case for part in mark.args):
            item.own_markers.remove(mark)
