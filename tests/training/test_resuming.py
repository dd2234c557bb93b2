"""Interrupted runs continue; checkpoints of other runs, and damaged ones, are refused."""

import os

import pytest
import torch

import shoal
from training import modules
from training.small import DU, GAO, LING, TANH, data, network


def same(first, second) -> None:
    """Compare all records of two runs."""
    for name in ("losses", "loss_bound", "batch_losses", "monitor_steps"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert mine is theirs is None or close(mine, theirs), name
    for name in ("monitors", "bounds", "distances"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert list(mine) == list(theirs)
        for key, values in mine.items():  # the certified bound begins anew
            assert close(values, theirs[key]) or key == "gain_upper", key
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


def small(architecture, step_size, dtype=torch.float64):
    cold = {} if architecture is DU else {"warm_start": False}
    options = {"step_size": step_size, "monitor": 2}
    return (
        lambda: network(architecture, 32, dtype=dtype, **cold),
        data(architecture, dtype=dtype),
        options,
    )


def on_batches(make):
    adam = lambda parameters: torch.optim.Adam(parameters, lr=0.02)  # noqa: E731
    return make, modules.data(), {"optimizer": adam, "batch_size": 4, "monitor": 4}


CASES = {
    "tanh": small(TANH, 0.1),
    "relu, float32": small(LING, 5e-4, torch.float32),
    "implicit network": small(GAO, 0.05),
    "explicit": small(DU, 0.2),
    "batches, an equilibrium inside": on_batches(modules.residual),
    "batches, a custom cell": on_batches(modules.layered),
}


@pytest.mark.parametrize("case", CASES)
def test_interrupted_runs_continue(tmp_path, case) -> None:
    make, (x, y), options = CASES[case]

    def run(steps, **changes):
        net = make()
        return shoal.train(net, x, y, steps=steps, **options | changes), net

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


def test_checkpoints_of_other_runs_are_refused(tmp_path) -> None:
    x, y = data()
    path = tmp_path / "run"
    options = {"step_size": 0.1, "steps": 3, "checkpoint": path, "checkpoint_tag": "digits"}
    shoal.train(network(), x, y, **options)
    before = path.read_bytes()
    adam = {"step_size": None, "optimizer": torch.optim.Adam}
    for net, changes, message in (
        (network(width=20), {}, r"readout is \(1, 64\) torch.float64 in the file and \(1, 20\)"),
        (network(), {"checkpoint_tag": ""}, "checkpoint_tag is 'digits' in the file"),
        (network(), adam, "optimizer is SGD in the file and Adam here"),
    ):
        with pytest.raises(ValueError, match=f"belongs to another run: {message}"):
            shoal.train(net, x, y, **options | changes)
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
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    for broken in (whole[:-100], b"", whole[:3000], flipped):
        path.write_bytes(broken)
        with pytest.raises(ValueError, match=r"run is damaged"):
            shoal.train(network(), x, y, **options)
    shoal.save(network(), path)
    with pytest.raises(ValueError, match="not a checkpoint"):
        shoal.train(network(), x, y, **options)


def test_a_certified_run_goes_on_after_an_interruption(tmp_path) -> None:
    """The certificate is of the network that the run began with, as it is given again."""
    x, y = data()
    certificate = shoal.certify(network(trainable={"readout"}), x, y)
    assert certificate.holds
    options = {"certificate": certificate, "checkpoint": tmp_path / "run"}
    shoal.train(network(trainable={"readout"}), x, y, steps=3, **options)
    run = shoal.train(network(trainable={"readout"}), x, y, steps=6, **options)
    del options["checkpoint"]
    whole = shoal.train(network(trainable={"readout"}), x, y, steps=6, **options)
    torch.testing.assert_close(run.losses, whole.losses, rtol=1e-12, atol=0)
    assert all(run.kept.values())
