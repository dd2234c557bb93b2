"""Files that are written together: all of them, or none; and what killed processes leave."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import shoal
from shoal.core import files
from shoal.core.checkpoints import Checkpoint, Snapshot
from shoal.core.files import checksum, remove_leftovers, write_together, write_whole


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


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    """A pipe, and so a device, which a user who may do all would lose; a folder."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match="and is no regular file") as error:
            write_together(tmp_path, {"a": _writer("1"), name: _writer("2")})
        assert error.value.filename == str(tmp_path / name)
        with pytest.raises(OSError, match="and is no regular file"):
            write_whole(tmp_path / name, _writer("1"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "link", "pipe"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    write_whole(tmp_path / "link", _writer("1"))
    assert (tmp_path / "link").read_text() == "1"


def test_errors_name_the_file_that_was_wanted(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match=r"No space left on device: '.*/y\.txt'"):
        write_together(tmp_path, {"y.txt": fail})
    with pytest.raises(FileNotFoundError, match=r"/no/y\.txt"):
        write_whole(tmp_path / "no" / "y.txt", _writer("1"))  # it makes no folder


@pytest.mark.parametrize("error", [PermissionError(13, "no"), KeyboardInterrupt()])
@pytest.mark.parametrize("late", [False, True])
def test_a_move_that_fails_is_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, late: bool
) -> None:
    """Also if Ctrl-C comes when a file has been moved already."""
    write_together(tmp_path, {"a": _writer("old a"), "c": _writer("old c")})
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        fails = target == tmp_path / "b" and self.read_text() == "new b"
        if fails and not late:
            raise error
        moved = replace(self, target)
        if fails:
            raise error
        return moved

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(type(error)):
        write_together(tmp_path, {name: _writer(f"new {name}") for name in "abc"})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old a", "c": "old c"}


def interrupted(work: Callable[[], object], at: int) -> bool:
    """Whether Ctrl-C came, after so many lines of the module that writes files."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != files.__file__:
            return None
        lines += event == "line"
        if lines > at:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # it is closed a moment later
@pytest.mark.parametrize("names", ["a", "ab"])
def test_ctrl_c_at_any_moment_leaves_all_or_none(tmp_path: Path, names: str) -> None:
    moments, came = 0, True
    while came:
        for name in names:
            (tmp_path / name).write_text("old")
        writers = {name: _writer("new") for name in names}
        came = interrupted(partial(write_together, tmp_path, writers), moments)
        found = {path.name: path.read_text() for path in tmp_path.iterdir()}
        assert found in (dict.fromkeys(names, text) for text in ("old", "new")), moments
        moments += 1
    assert moments > 50
    assert set(found.values()) == {"new"}


@pytest.mark.parametrize("stage", range(4))
def test_a_folder_that_vanishes_is_an_error_at_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: int
) -> None:
    """Before the first file, before the second, when both are written, and between the moves."""
    folder, replace, written = tmp_path / "folder", Path.replace, []
    folder.mkdir()

    def vanish(now: int) -> None:
        if now == stage:
            shutil.rmtree(folder)

    def write(path: Path) -> None:
        vanish(len(written))
        written.append(path.write_text("1"))
        if len(written) == 2:
            vanish(2)

    def moved(self: Path, target: Path) -> Path:
        result = replace(self, target)
        vanish(3)
        return result

    monkeypatch.setattr(Path, "replace", moved)
    with pytest.raises(OSError, match="folder"):
        write_together(folder, {"a": write, "b": write})
    assert list(tmp_path.rglob("*")) == []


def test_a_folder_in_the_way_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match=r"irectory.*/b'"):
        write_together(tmp_path, {"a": _writer("new"), "b": _writer("new")})
    assert (tmp_path / "a").read_text() == "old"
    assert (tmp_path / "b" / "mine").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b"]


def test_files_are_on_the_disk_before_they_have_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, int]] = []
    fsync, replace = os.fsync, Path.replace

    def recorded(handle: int) -> None:
        events.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def moved(self: Path, target: Path) -> Path:
        events.append(("move", self.stat().st_ino))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "replace", moved)
    write_together(tmp_path, {"a": _writer("1"), "b": _writer("2")})
    shoal.save(
        shoal.build(shoal.ImplicitNetwork(gamma=0.4), in_features=2, width=4), tmp_path / "n"
    )
    shoal.kernel(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), torch.eye(2), out=tmp_path / "k")
    for name in ("a", "b", "n", "k/ck.npy", "k/ntk.npy"):
        file = (tmp_path / name).stat().st_ino
        assert events.index(("fsync", file)) < events.index(("move", file))
    assert events.count(("fsync", tmp_path.stat().st_ino)) == 2  # the names too


def test_files_can_be_read_by_those_who_may_read_others(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("1")
    write_whole(tmp_path / "x", lambda path: path.touch(mode=0o600))
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "x")}
    assert len(modes) == 1


LIVE = """
import sys, time
from pathlib import Path
from shoal.core.files import staged

with staged(Path(sys.argv[1])) as place:
    (place / "run.2").write_text("half")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.mark.thorough
def test_leftovers_are_removed_and_live_files_are_not(tmp_path: Path) -> None:
    notes = tmp_path / ".run.notes.txt"
    notes.write_text("mine")
    checkpoint = Checkpoint(tmp_path / "run", "training", {"a": "1"}, 0.0)
    with subprocess.Popen(
        [sys.executable, "-c", LIVE, str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        (live,) = tmp_path.glob(".shoal-*.part")
        assert checkpoint.read(torch.device("cpu")) is None
        checkpoint.write(Snapshot({}, {"x": torch.ones(2)}))
        remove_leftovers(tmp_path)
        assert (live / "new" / "run.2").read_text() == "half"
        other.send_signal(signal.SIGKILL)
    assert live.exists()
    found = checkpoint.read(torch.device("cpu"))
    assert found is not None
    assert sorted(p.name for p in tmp_path.iterdir()) == [".run.notes.txt", "run"]
    assert notes.read_text() == "mine"


@pytest.mark.parametrize("facts", ["", "3", "[]", "[" * 100_000, None])
def test_checkpoints_of_another_shape_are_refused(tmp_path: Path, facts: str | None) -> None:
    """Also if their checksum is right."""
    metadata = {"format": "shoal training 1", "identity": "{}", "facts": facts or ""}
    if facts is None:
        del metadata["identity"]
    tensors = {"x": torch.ones(2)}
    metadata["sha256"] = checksum(metadata, tensors)
    save_file(tensors, tmp_path / "run", metadata=metadata)
    with pytest.raises(ValueError, match="run is no checkpoint of a training"):
        Checkpoint(tmp_path / "run", "training", {}, 0.0).read(torch.device("cpu"))


def test_what_only_looks_like_a_leftover_stays(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    name = f".shoal-{'0' * 32}.part"
    (tmp_path / name).symlink_to(target)
    (tmp_path / ".shoal-mine.part").mkdir()
    (tmp_path / name.replace("0", "1")).write_text("a file")
    before = sorted(tmp_path.iterdir())
    write_whole(tmp_path / "x", _writer("1"))
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "x"])
    assert list(target.iterdir()) == []


@pytest.mark.thorough
def test_a_killed_kernel_leaves_nothing_for_ever(tmp_path: Path) -> None:
    """The matrices of the process that is killed are removed by the next."""
    code = (
        "import os, sys, torch, shoal\n"
        "def report(share): os.kill(os.getpid(), 9)\n"
        "deq = shoal.DEQ(shoal.ReLU(), 0.2, 0.8)\n"
        "shoal.kernel(deq, torch.eye(64), out=sys.argv[1], on_progress=report)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    shoal.kernel(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), torch.eye(3), out=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ck.npy", "ntk.npy"]
    assert np.load(tmp_path / "ck.npy").shape == (3, 3)


def _writer(text: str):
    return lambda path: path.write_text(text)
