"""Runs that were interrupted go on to the last bit; checkpoints of others are refused."""

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

import shoal
from training import killing
from training.small import DU, GAO, LING, SHALLOW, TANH, data, network


def same(first, second) -> None:
    """Compare all that two runs found, bit by bit."""
    assert torch.equal(first.losses, second.losses)
    assert torch.equal(first.monitor_steps, second.monitor_steps)
    for name in ("monitors", "bounds", "distances"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert list(mine) == list(theirs)
        for key, values in mine.items():
            assert torch.equal(values, theirs[key]), key
    for name in ("loss_bound", "batch_losses"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert mine is theirs is None or torch.equal(mine, theirs)
    for name in ("violations", "kept", "status", "message", "steps", "initial_eigenvalue"):
        assert getattr(first, name) == getattr(second, name)


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
    (SHALLOW, "flow", 0.2, torch.float32),
]


@pytest.mark.parametrize(("architecture", "method", "step_size", "dtype"), CASES)
def test_interrupted_runs_go_on_bit_by_bit(
    tmp_path, architecture, method, step_size, dtype
) -> None:
    x, y = data(architecture, dtype=dtype)
    options = {"step_size": step_size, "steps": 9, "method": method, "monitor": 2}
    straight = network(architecture, 32, dtype=dtype)
    whole = shoal.train(straight, x, y, **options)
    report = interrupting(3, 4, 8)
    options |= {"checkpoint": tmp_path / "run", "checkpoint_seconds": 0.0, "progress": report}
    for _ in range(3):
        with pytest.raises(InterruptionError):
            shoal.train(network(architecture, 32, dtype=dtype), x, y, **options)
    net = network(architecture, 32, dtype=dtype)
    run = shoal.train(net, x, y, **options)
    same(run, whole)
    for mine, theirs in zip(net.parameters(), straight.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    # a finished run is not made again, and can be made longer
    steps = []
    again = network(architecture, 32, dtype=dtype)
    options |= {"progress": lambda now: steps.append(now.step)}
    same(shoal.train(again, x, y, **options), whole)
    assert steps == [9]
    longer = shoal.train(network(architecture, 32, dtype=dtype), x, y, **options | {"steps": 12})
    del options["checkpoint"]
    options |= {"steps": 12, "progress": False}
    same(longer, shoal.train(network(architecture, 32, dtype=dtype), x, y, **options))


@pytest.mark.thorough
@pytest.mark.parametrize(("kind", "kills"), [("descent", 10), ("adam", 110)])
def test_killed_processes_leave_runs_that_go_on(tmp_path, kind, kills) -> None:
    """Two processes write to one folder, and each is killed at random moments of its steps."""
    for number, counts in killed(tmp_path, kind, kills).items():
        assert counts == sorted(set(counts)), number  # each life made steps
    paths = [killing.checkpoint_of(tmp_path, number) for number in killing.NUMBERS]
    steps = max(map(killing.finished, paths)) + 5
    (tmp_path / "straight").mkdir()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for number, path in enumerate(paths):
            run, net = killing.run(kind, number, path, steps=steps)
            kept = tmp_path / "straight" / path.name
            whole, straight = killing.run(kind, number, kept, steps=steps)
            same(run, whole)
            same_tensors(net.state_dict(), straight.state_dict())
            same_tensors(load_file(path), load_file(kept))  # with the state of the optimizer
    finally:
        torch.set_num_threads(threads)
    left = sorted(os.listdir(tmp_path))
    assert left == ["0.safetensors", "1.safetensors", "straight"]  # nothing half-written


def killed(folder, kind, kills) -> dict[int, list[int]]:
    """Kill two processes, so many times in all; for each, the steps it had made after each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["CUDA_VISIBLE_DEVICES"] = ""  # a forked child cannot use what its parent has begun
    command = [sys.executable, killing.__file__, str(folder), str(kills), "5", kind]
    done = subprocess.run(  # a child that hangs is no reason to wait for ever
        command, capture_output=True, text=True, env=environment, check=False, timeout=600
    )
    assert done.returncode == 0, done.stderr
    counts: dict[int, list[int]] = {number: [] for number in killing.NUMBERS}
    for line in done.stdout.splitlines():
        number, made = map(int, line.split())
        counts[number].append(made)
    assert sum(map(len, counts.values())) == kills
    return counts


def same_tensors(first, second) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def test_checkpoints_of_other_runs_are_refused(tmp_path) -> None:
    x, y = data()
    path = tmp_path / "run"
    options = {"step_size": 0.1, "steps": 3, "checkpoint": path}
    shoal.train(network(), x, y, **options)
    before = path.read_bytes()
    others = [
        ((network(seed=1), x, y), {}, "net"),
        ((network(), x + 1, y), {}, "x"),
        ((network(), x, y + 1), {}, "y"),
        ((network(), x, y), {"step_size": 0.2}, "step_size"),
        ((network(), x, y), {"monitor": 5}, "monitor"),
        ((network(solver=shoal.Anderson()), x, y), {}, "net"),
        ((network(), x, y), {"method": "flow"}, "method"),
    ]
    for arguments, changes, name in others:
        with pytest.raises(ValueError, match=f"another training: {name} differ"):
            shoal.train(*arguments, **options | changes)
    with pytest.raises(ValueError, match="steps must be >= 3"):
        shoal.train(network(), x, y, **options | {"steps": 2})
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["run"]


class Scaled(shoal.Activation):
    """A plain class, the repr of which is ``Scaled()`` whatever the factors are."""

    slope = 1.0

    def __init__(self, factor: float) -> None:
        object.__setattr__(self, "factor", factor)

    def function(self, x):
        return self.factor * torch.tanh(self.slope * x)


def test_checkpoints_and_certificates_of_another_activation_are_refused(
    tmp_path, monkeypatch
) -> None:
    def scaled(factor):
        return network(shoal.DEQ(Scaled(factor), 0.1, 0.8), 16, trainable={"readout"})

    x, y = data()
    options = {"step_size": 0.1, "steps": 2, "checkpoint": tmp_path / "run"}
    shoal.train(scaled(0.5), x, y, **options)
    shoal.train(scaled(0.5), x, y, **options)
    certificate = shoal.certify(scaled(0.5), x, y)
    certified = {"step_size": 0.1, "steps": 1, "certificate": certificate}
    shoal.train(scaled(0.5), x, y, **certified)
    others = [0.6, 0.5]
    for factor in others:
        with pytest.raises(ValueError, match="another training: net differ"):
            shoal.train(scaled(factor), x, y, **options)
        with pytest.raises(ValueError, match="got one of which architecture differ"):
            shoal.train(scaled(factor), x, y, **certified)
        monkeypatch.setattr(Scaled, "slope", 0.9)


def test_checkpoints_of_other_solves_and_parametrizations_are_refused(tmp_path) -> None:
    x, y = data()
    options = {"step_size": 0.1, "steps": 1, "monitor": False}

    def normed(power_iterations):
        net = network()
        torch.nn.utils.parametrizations.spectral_norm(
            net, "recurrent", n_power_iterations=power_iterations
        )
        for p in net.parametrizations["recurrent"][0].buffers():
            p.copy_(torch.ones_like(p) / len(p) ** 0.5)
        return net

    pairs = [(network(), network(on_failure="status")), (normed(1), normed(5))]
    for number, (mine, other) in enumerate(pairs):
        path = tmp_path / f"run{number}"
        shoal.train(mine, x, y, checkpoint=path, **options)
        with pytest.raises(ValueError, match="another training: net differ"):
            shoal.train(other, x, y, checkpoint=path, **options)


def test_damaged_checkpoints_are_refused(tmp_path) -> None:
    x, y = data()
    path = tmp_path / "run"
    options = {"step_size": 0.1, "steps": 3, "checkpoint": path}
    shoal.train(network(), x, y, **options)
    whole = path.read_bytes()
    for broken in (whole[:-100], b"", whole[:-8] + bytes(8), whole[:3000] + b"\1" + whole[3001:]):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"run is damaged|run is no checkpoint"):
            shoal.train(network(), x, y, **options)
    shoal.save(network(), path)
    with pytest.raises(ValueError, match="is no checkpoint"):
        shoal.train(network(), x, y, **options)
