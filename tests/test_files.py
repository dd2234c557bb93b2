"""Files that are written together: all of them, or none."""

from pathlib import Path

import pytest

from shoal.files import write_together, write_whole


def test_all_are_written(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    names = {"x.txt": "1", "y.txt": "2"}
    found = write_together(folder, {n: _writer(text) for n, text in names.items()})
    assert found == [folder / "x.txt", folder / "y.txt"]
    assert {p.name: p.read_text() for p in folder.iterdir()} == names


@pytest.mark.parametrize("error", [OSError(28, "full"), ValueError("bad"), KeyboardInterrupt()])
def test_none_are_written_if_one_fails(tmp_path: Path, error: BaseException) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise error

    with pytest.raises(type(error)):
        write_together(tmp_path / "a" / "b", {"x.txt": _writer("1"), "y.txt": fail})
    assert list(tmp_path.iterdir()) == []
    write_whole(tmp_path / "x.txt", _writer("old"))
    with pytest.raises(type(error)):
        write_together(tmp_path, {"x.txt": _writer("new"), "y.txt": fail})
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]
    assert (tmp_path / "x.txt").read_text() == "old"


def test_errors_name_the_file_that_was_wanted(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match=r"No space left on device: '.*/y\.txt'"):
        write_together(tmp_path, {"y.txt": fail})
    with pytest.raises(FileNotFoundError, match=r"/no/y\.txt"):
        write_whole(tmp_path / "no" / "y.txt", _writer("1"))  # it makes no folder


def _writer(text: str):
    return lambda path: path.write_text(text)
