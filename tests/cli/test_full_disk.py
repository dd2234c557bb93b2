"""Commands on a disk that is full: one line, and nothing lost or left behind."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import files, run


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """No file may have more bytes: the next one is cut off, as on a disk that is full."""
    import matplotlib.font_manager  # noqa: F401  which may write a cache

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FULL = {
    "analyze --activation relu --only kernels -n 10 --output out": "out/report.html",
    "design --activation relu --match ck --output out": "out/report.html",
    "design --activation relu --match ck --export net.py --in-features 9": "net_weights",
    "certify -n 2 --width 100 --output out": "out/report.html",
    "reproduce shoal width --quick --output out": "run.json",
    "bench network --quick --output out": "out/report.html",
}


@pytest.mark.thorough("design")
@pytest.mark.parametrize(("words", "file"), FULL.items())
def test_a_full_disk(words: str, file: str, tmp_path: Path) -> None:
    with full_disk(1500):
        result = run(*words.split(), "--json", code=1)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert re.fullmatch(f"Error: .*{file}.*(File too large).*", line), line
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_keeps_what_was_there(tmp_path: Path) -> None:
    command = ["certify", "-n", "2", "--width", "200", "--output", "out"]
    run(*command)
    before = {name: (tmp_path / name).read_bytes() for name in files()}
    network = len(before["out/network.safetensors"])
    with full_disk(network - 1):  # enough for the page, not for the network
        told = run(*command, "--seed", "1", code=1).stderr
    assert re.fullmatch(r"Error: out/network\.safetensors: was not written: .*", told.strip())
    assert {name: (tmp_path / name).read_bytes() for name in files()} == before


@pytest.mark.thorough
def test_points_of_a_disk_that_is_full_are_kept() -> None:
    command = ["reproduce", "shoal", "width", "--quick", "--device", "cpu", "--output", "out"]
    with full_disk(20_000):  # enough for points, not for the figure
        assert "figure.png: File too large" in run(*command, code=1).stderr
    assert len([name for name in files() if name.endswith(".npz")]) == 24
    assert not [name for name in files() if "figure" in name or "tmp" in name]
    assert "24, of which 24 were there" in run(*command).stdout
