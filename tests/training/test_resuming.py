"""Runs that were interrupted continue; checkpoints of other runs are refused."""

import os
import subprocess
import sys

import pytest
import torch

import shoal
from training import killing
from training.small import DU, GAO, LING, TANH, data, network


def same(first, second) -> None:
    """Compare all that two runs found."""
    for name in ("losses", "loss_bound", "batch_losses", "monitor_steps"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert mine is theirs is None or close(mine, theirs), name
    for name in ("monitors", "bounds", "distances"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert list(mine) == list(theirs)
        assert all(close(values, theirs[key]) for key, values in mine.items()), name
    for name in ("violations", "kept", "status", "message", "steps"):
        assert getattr(first, name) == getattr(second, name)


def close(first, second) -> bool:
    """Equal but for rounding: 1e-12 in float64."""
    rounding = 1e-5 if first.dtype == torch.float32 else 1e-12
    return torch.allclose(first, second, rtol=rounding, atol=rounding, equal_nan=True)


class InterruptionError(Exception):
    """Thrown out of the middle of a run."""


def interrupting(*steps):
    """A progress function that ends the run at certain steps, each once."""
    left = list(steps)

    def report(now) -> None:
        if left and now.step >= left[0]:
            left.pop(0)
            raise InterruptionError

    return report


CASES = [
    (TANH, "descent", 0.1, torch.float64),
    (LING, "descent", 5e-4, torch.float32),
    (GAO, "flow", 0.05, torch.float64),
    (DU, "descent", 0.2, torch.float64),
]


@pytest.mark.parametrize(("architecture", "method", "step_size", "dtype"), CASES)
def test_interrupted_runs_continue(tmp_path, architecture, method, step_size, dtype) -> None:
    x, y = data(architecture, dtype=dtype)

    def run(steps, **changes):
        net = network(architecture, 32, dtype=dtype)
        options = {"step_size": step_size, "steps": steps, "method": method, "monitor": 2}
        return shoal.train(net, x, y, **options | changes), net

    whole, straight = run(9)
    report = interrupting(3, 4, 8)
    kept = {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0, "progress": report}
    for _ in range(3):
        with pytest.raises(InterruptionError):
            run(9, **kept)
    again, net = run(9, **kept)
    same(again, whole)
    for mine, theirs in zip(net.parameters(), straight.parameters(), strict=True):
        assert close(mine, theirs)
    # a finished run is not made again, and can be made longer
    steps = []
    same(run(9, **kept | {"progress": lambda now: steps.append(now.step)})[0], whole)
    assert steps == [9]
    same(run(12, **kept)[0], run(12)[0])
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.thorough
def test_killed_runs_leave_a_whole_checkpoint(tmp_path) -> None:
    """Five kills at random moments; then the run continues as if there had been none."""
    path = tmp_path / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # a forked child cannot use what its parent has begun
    command = [sys.executable, killing.__file__, str(path), "5"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    counts = [int(line) for line in done.stdout.splitlines()]
    assert len(counts) == 5
    assert counts == sorted(set(counts))  # each life made steps
    steps = counts[-1] + 5
    (found, net), (whole, straight) = killing.run(steps, path), killing.run(steps)
    same(found, whole)
    for mine, theirs in zip(net.parameters(), straight.parameters(), strict=True):
        assert close(mine, theirs)


def test_checkpoints_of_other_runs_are_refused(tmp_path) -> None:
    x, y = data()
    path = tmp_path / "run"
    options = {"step_size": 0.1, "steps": 3, "checkpoint": path, "checkpoint_tag": "digits"}
    shoal.train(network(), x, y, **options)
    before = path.read_bytes()
    others = [
        ((network(width=20), x, y), {}, r"readout is \(1, 64\) torch.float64 in the file and"),
        ((network(), x[:-1], y[:-1]), {}, "samples is"),
        (
            (network(), x, y),
            {"checkpoint_tag": ""},
            "checkpoint_tag is 'digits' in the file",
        ),
        ((network(), x, y), {"monitor": 5}, "monitor is"),
        ((network(), x, y), {"method": "flow"}, "method is descent in the file and flow here"),
    ]
    for arguments, changes, message in others:
        with pytest.raises(ValueError, match=f"belongs to another run: {message}"):
            shoal.train(*arguments, **options | changes)
    with pytest.raises(ValueError, match="steps must be >= 3"):
        shoal.train(network(), x, y, **options | {"steps": 2})
    with pytest.raises(TypeError, match="checkpoint_tag must be"):
        shoal.train(network(), x, y, **options | {"checkpoint_tag": 3})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run"]


def test_damaged_checkpoints_are_refused(tmp_path) -> None:
    x, y = data()
    path = tmp_path / "run"
    options = {"step_size": 0.1, "steps": 3, "checkpoint": path}
    shoal.train(network(), x, y, **options)
    whole = path.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    for broken in (whole[:-100], b"", whole[:3000], flipped):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"run is damaged"):
            shoal.train(network(), x, y, **options)
    shoal.save(network(), path)
    with pytest.raises(ValueError, match="is not a checkpoint"):
        shoal.train(network(), x, y, **options)
