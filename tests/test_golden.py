"""The values of golden.json: whatever is changed inside, these calls return the same."""

import json

import pytest

import golden


@pytest.mark.thorough("design_", "exported_network")
@pytest.mark.parametrize("name", golden.CALLS)
def test_values_are_those_that_were_stored(name: str) -> None:
    call = golden.CALLS[name]
    for package in call.needs:
        pytest.importorskip(package)
    stored = json.loads(golden.FILE.read_text())[name]
    found = golden.plain(call.run())
    assert not list(golden.differences(stored, found, call.tolerance))


def test_every_stored_call_is_made() -> None:
    assert json.loads(golden.FILE.read_text()).keys() == golden.CALLS.keys()
