"""Runs are resumed, parallel and reproducible, to the last bit."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from lab.small import Small
from shoal.core.files import write_whole
from shoal.lab import Run, collect, execute, results, run
from shoal.lab.experiment import seed_of
from shoal.lab.records import locked, packed, read_arrays
from shoal.pages.provenance import versions
from shoal.reproductions.findings.width import WidthError


def stored(one: Run) -> dict[str, bytes]:
    """All that a run computed, byte by byte."""
    return {file.name: file.read_bytes() for file in one.files if file.exists()}


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob(".*") if path.name != ".lock"]


def test_a_run_leaves_arrays_a_record_and_figures(tmp_path: Path) -> None:
    one = Run(Small(), tmp_path, "cpu")
    found = execute(one)
    assert [r.point["k"] for r in found] == list(range(5))
    record = json.loads((one.folder / "run.json").read_text())
    assert record["complete"]
    assert record["identity"]["configuration"]["count"] == 5
    assert set(record["identity"]["versions"]) == {"shoal", "torch", "numpy"}
    (session,) = record["sessions"]
    assert session["versions"]["python"]
    assert session["hardware"]["cores"]
    assert record["wall_seconds"] > 0
    assert [row["seed"] for row in record["points"]] == [
        seed_of(Small(), point) for point in Small().points()
    ]
    assert record["summary"] == Small().summarize(found)
    assert (one.folder / "figure.png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in (one.folder / "figure.svg").read_bytes()
    assert leftovers(tmp_path) == []


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = Run(Small(), tmp_path / "whole", "cpu")
    execute(whole)
    broken = Run(Small(), tmp_path / "broken", "cpu")
    for _, (place, _) in zip(range(2), results(broken), strict=False):
        assert broken.files[place].exists()  # kept before it is yielded
    before = {file: file.stat().st_mtime_ns for file in broken.files if file.exists()}
    assert len(before) == 2
    execute(broken)
    assert all(file.stat().st_mtime_ns == when for file, when in before.items())
    assert stored(broken) == stored(whole)
    for ending in ("png", "svg"):
        names = [one.folder / f"figure.{ending}" for one in (whole, broken)]
        assert names[0].read_bytes() == names[1].read_bytes()
    record = json.loads((broken.folder / "run.json").read_text())
    assert [session["computed"] for session in record["sessions"]] == [2, 3]


def test_seeds_belong_to_configuration_and_point() -> None:
    points = Small(count=50).points()
    seeds = {seed_of(Small(count=50), p) for p in points} | {seed_of(Small(), p) for p in points}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**60 for seed in seeds)
    assert (
        seed_of(WidthError(), {"width": 64, "draw": 0}) == 575329438620099351
    )  # everywhere, always


def test_another_configuration_has_another_folder(tmp_path: Path) -> None:
    folders = {
        Run(e, tmp_path, "cpu", threads).folder
        for e in (Small(), Small(count=4), Small(scale=2.0))
        for threads in (1, 2)
    }
    assert len(folders) == 6


def test_another_version_has_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = versions()["shoal"]
    assert own.startswith(shoal.__version__)
    assert ("+" in own) == ("dev" in shoal.__version__)
    before = Run(Small(), tmp_path, "cpu").folder
    monkeypatch.setattr("shoal.lab.runner.versions", lambda: {"shoal": "9.9"})
    assert Run(Small(), tmp_path, "cpu").folder != before


def test_a_folder_with_something_else_is_refused(tmp_path: Path) -> None:
    one = Run(Small(), tmp_path, "cpu")
    execute(one)
    record = json.loads((one.folder / "run.json").read_text())
    record["identity"]["configuration"]["scale"] = 3.0
    (one.folder / "run.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="must hold this configuration"):
        execute(one)
    record["identity"]["configuration"]["scale"] = 1.0
    shapes = [[], 3, "text", {**record, "points": 3}, {**record, "sessions": [1]}]
    shapes += [{**record, "complete": 1}, {**record, "summary": None}, {**record, "points": []}]
    shapes += [{"identity": record["identity"]}]
    for shape in shapes:
        (one.folder / "run.json").write_text(json.dumps(shape))
        for read in (execute, lambda run: collect(run.experiment, run.folder)):
            with pytest.raises(ValueError, match=r"run\.json must be the record of a run with 5"):
                read(one)
    (one.folder / "run.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="must be a JSON document"):
        execute(one)
    (one.folder / "run.json").write_text("{")
    with pytest.raises(ValueError, match="must be a JSON document"):
        execute(one)
    (one.folder / "run.json").unlink()
    with pytest.raises(ValueError, match=r"must have a run\.json"):
        execute(one)


def test_a_damaged_point_is_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Run(Small(), tmp_path, "cpu")
    execute(one)
    before = stored(one)
    one.files[1].write_bytes(one.files[1].read_bytes()[:100])
    one.files[3].unlink()
    execute(one)
    assert stored(one) == before
    assert "is damaged" in caplog.text


def test_a_point_that_is_another_is_computed_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Run(Small(), tmp_path, "cpu")
    execute(one)
    before = stored(one)
    first, second = one.files[1].read_bytes(), one.files[2].read_bytes()
    one.files[1].write_bytes(second)
    one.files[2].write_bytes(first)
    with pytest.raises(ValueError, match="k1 is missing or damaged"):
        collect(Small(), one.folder)
    execute(one)
    assert stored(one) == before
    assert "it is not the file that the record knows" in caplog.text


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    one = Run(Small(), tmp_path, "cpu")
    (one.folder / "points").mkdir(parents=True)
    for folder in (one.folder, one.folder / "points"):
        place = folder / f".shoal-{'0' * 32}.part"
        (place / "new").mkdir(parents=True)
        (place / "new" / "k0.npz").write_bytes(b"half")
    execute(one)
    assert leftovers(tmp_path) == []


def test_a_lock_that_is_a_link_leaves_its_target(tmp_path: Path) -> None:
    one = Run(Small(), tmp_path / "out", "cpu")
    one.folder.mkdir(parents=True)
    target = tmp_path / "precious"
    target.write_text("precious")
    (one.folder / ".lock").symlink_to(target)
    with pytest.raises(ValueError, match=r"\.lock must be a file of its own, got a link"):
        execute(one)
    assert target.read_text() == "precious"


def test_two_runs_do_not_write_to_one_folder(tmp_path: Path) -> None:
    one = Run(Small(), tmp_path, "cpu")
    one.folder.mkdir()
    with locked(one.folder), pytest.raises(RuntimeError, match="another run is writing"):
        execute(one)


def test_a_point_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=r"No space left on device: .*points\.npz"):
        write_whole(tmp_path / "points.npz", full)
    assert list(tmp_path.iterdir()) == []
    assert read_arrays(tmp_path / "points.npz", None) is None


def test_any_damage_of_a_point_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "k.npz"
    whole = packed({"a": np.arange(5.0)})
    damaged = 0
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        found = read_arrays(path, None)
        damaged += found is None
        assert found is None or (found["a"] == np.arange(5.0)).all()
    assert damaged > len(whole) // 2


def test_an_error_in_a_point_keeps_the_others(tmp_path: Path) -> None:
    one = Run(Small(fail_at=3), tmp_path, "cpu")
    with pytest.raises(ValueError, match="k must not be 3"):
        execute(one)
    assert one.finished == 3
    assert leftovers(tmp_path) == []


def test_progress_counts_cost(tmp_path: Path) -> None:
    seen = []
    run(Small(), tmp_path, device="cpu", on_progress=seen.append)
    assert [p.finished for p in seen] == [0, 1, 2, 3, 4, 5]
    assert seen[-1].share == pytest.approx(1.0)
    run(Small(), tmp_path, device="cpu", on_progress=seen.append)
    assert seen[-1] == (5, 5, pytest.approx(1.0), 5)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"experiment": 3}, TypeError, "experiment must be an Experiment"),
        ({"device": "abacus"}, ValueError, "device must be auto, cpu, cuda"),
        ({"device": "meta"}, ValueError, "device must be auto, cpu, cuda"),
        ({"device": "cuda:99"}, ValueError, "device must be one that this machine has"),
        ({"threads": 0}, ValueError, "threads must be >= 1"),
        ({"experiment": Small(scale=torch.ones(()))}, TypeError, "configuration must be made of"),
    ],
)
def test_bad_arguments_of_a_run(
    tmp_path: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        execute(Run(**{"experiment": Small(), "output": tmp_path, "device": "cpu"} | arguments))
    assert list(tmp_path.iterdir()) == []


def test_jobs_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="jobs must be >= 1, got 0"):
        run(Small(), tmp_path, jobs=0)
    assert list(tmp_path.iterdir()) == []


def kill_and_resume(tmp_path: Path, kills: int) -> None:
    relu = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    experiment = replace(WidthError.quick(), architecture=relu)
    whole = Run(experiment, tmp_path / "whole", "cpu")
    execute(whole)
    script = Path(__file__).with_name("killing.py")
    command = [sys.executable, str(script), str(tmp_path / "killed"), str(kills), "1"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    counts = [int(word) for word in output.stdout.split()]
    killed = Run(experiment, tmp_path / "killed", "cpu")
    assert len(counts) == kills
    assert counts[-1] > 0
    assert counts == sorted(counts)  # nothing is lost
    assert any(0 < count < len(whole.files) for count in counts)
    found = execute(killed)
    assert stored(killed) == stored(whole)
    assert (
        whole.experiment.summarize(found)
        == json.loads((whole.folder / "run.json").read_text())["summary"]
    )
    assert (killed.folder / "figure.svg").read_bytes() == (whole.folder / "figure.svg").read_bytes()
    assert leftovers(tmp_path) == []


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the script forks")
def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 4)


@pytest.mark.thorough
def test_parallel_is_serial(tmp_path: Path) -> None:
    serial, parallel = (Run(Small(), tmp_path / name, "cpu") for name in ("serial", "parallel"))
    execute(serial)
    execute(parallel, jobs=2)
    assert stored(parallel) == stored(serial)
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_an_error_in_a_worker_is_that_of_the_run(tmp_path: Path) -> None:
    failing = Run(Small(fail_at=3), tmp_path, "cpu")
    with pytest.raises(ValueError, match="k must not be 3"):
        execute(failing, jobs=2)
    assert 0 < failing.finished < 5
    assert leftovers(tmp_path) == []
    with pytest.raises(RuntimeError, match="a worker process ended with exit code -9"):
        execute(Run(Small(fail_at=-1), tmp_path, "cpu"), jobs=2)


@pytest.mark.slow
def test_parallel_is_serial_for_networks(tmp_path: Path) -> None:
    serial, parallel = (
        Run(WidthError.quick(), tmp_path / name, "cpu") for name in ("serial", "parallel")
    )
    execute(serial)
    execute(parallel, jobs=3)
    assert stored(parallel) == stored(serial)


def test_serial_runs_leave_the_threads_as_they_were(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    run(Small(), tmp_path, device="cpu", threads=before + 1)
    assert torch.get_num_threads() == before


def test_arrays_come_back_as_they_were(tmp_path: Path) -> None:
    first, again = (run(Small(), tmp_path, device="cpu") for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert one.point == other.point
        assert np.array_equal(one.arrays["spectrum"], other.arrays["spectrum"])
