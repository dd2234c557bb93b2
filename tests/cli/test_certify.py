"""``shoal certify``: what it prints, what it writes, how it fails."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.cli.certify import NOT_ESTABLISHED

SMALL = ["-n", "2", "--width", "300"]


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands run in an empty folder; logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("shoal")
    before = (list(logger.handlers), logger.level)
    yield
    logger.handlers[:], logger.level = before[0], before[1]


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, ["certify", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def files() -> list[str]:
    return sorted(p.as_posix() for p in Path().rglob("*") if p.is_file())


def points(n: int = 6, p: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, p)).round(6)


def test_a_checklist() -> None:
    result = run(*SMALL)
    for words in ("contraction", "travel", "margin", "proved", "Each step multiplies the loss"):
        assert words in result.stdout
    assert "--output" in result.stderr
    assert files() == []


def test_a_refusal_has_its_own_exit_code_and_names_a_remedy() -> None:
    result = run(*SMALL, "--readout-scale", "1", "--output", "o", code=NOT_ESTABLISHED)
    assert "FAILS" in result.stdout
    assert "What would help: " in result.stdout
    assert result.stderr.startswith("Not established")
    document = json.loads(Path("o/certificate.json").read_text())
    assert not document["holds"]
    assert document["step_size"] is None


def test_training_the_saved_network_keeps_the_promise() -> None:
    np.savez("d.npz", X=points(), y=[0, 1, 0, 1, 1, 0])
    result = run("d.npz", *SMALL, "--json", "--output", "a/b")
    assert result.stderr == ""
    document = json.loads(result.stdout)
    names = ["certificate.json", "network.safetensors", "report.html"]
    assert files() == [*(f"a/b/{name}" for name in names), "d.npz"]
    assert Path("a/b/report.html").read_text().count('class="holds"') == 6
    assert json.loads(Path("a/b/certificate.json").read_text()) == document
    net = shoal.load("a/b/network.safetensors")
    x = points()[:2] - points()[:2].mean(0)
    x *= np.sqrt(12 / (x**2).sum(1).mean())
    x, y = torch.as_tensor(x), 0.1 * torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    losses = []
    for _ in range(20):
        loss = 0.5 * (net(x) - y).square().sum()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= document["step_size"] * gradient
    promised = losses[0] * document["rate"] ** np.arange(20)
    assert (np.array(losses) <= promised * (1 + 1e-12)).all()


@pytest.mark.parametrize("network", ["deq", "implicit", "ling2023"])
def test_the_numbers_are_those_of_the_library(network: str) -> None:
    np.savez("d.npz", X=points(), y=[0.5, -0.5, 0.25, 1, 2, 3])
    options = ["--raw", "--network", network, "-n", "3", "--width", "200", "--seed", "4"]
    result = CliRunner().invoke(app, ["certify", "d.npz", *options, "--json"])
    architecture = {
        "deq": shoal.DEQ(shoal.Tanh(), 0.2, 0.8),
        "implicit": shoal.ImplicitNetwork(0.1),
        "ling2023": shoal.DEQ.ling2023(0.001, 12),
    }[network]
    net = shoal.build(
        architecture, in_features=12, width=200, readout_scale=0.0, seed=4, dtype=torch.float64
    )
    found = shoal.certify(net, points()[:3], 0.1 * np.array([0.5, -0.5, 0.25]))
    document = json.loads(result.stdout)
    assert document["explanation"] == found.explanation
    assert document["holds"] == found.holds == (result.exit_code == 0)
    bounds = [c["bound"] for c in document["conclusions"][1]["conditions"]]
    assert bounds == [c.bound for c in found.conclusions[1].conditions]


def test_a_loaded_network_is_the_one_that_was_saved() -> None:
    first = json.loads(run(*SMALL, "--json", "--output", "o").stdout)
    again = json.loads(run("-n", "2", "--load", "o/network.safetensors", "--json").stdout)
    assert again == first
    smaller = json.loads(
        run("-n", "2", "--load", "o/network.safetensors", "--step-size", "1e-6", "--json").stdout
    )
    assert smaller["step_size"] == 1e-6
    large = ["--load", "o/network.safetensors", "-n", "2", "--step-size", "1"]
    assert "step size" in run(*large, code=NOT_ESTABLISHED).stdout


def test_explicit_networks_are_loaded_too() -> None:
    np.savez("d.npz", X=points(), y=np.arange(6) % 2)
    network = shoal.build(shoal.FullyConnected([shoal.Tanh()]), in_features=12, width=8)
    shoal.save(network, "explicit.safetensors")
    result = run("d.npz", "--load", "explicit.safetensors", code=NOT_ESTABLISHED)
    assert "explicit networks" in result.stdout


def test_labels_of_all_kinds() -> None:
    x = points()
    names = ["a", "b", "a", "b", "b", "a"]
    np.save("x.npy", x)
    np.save("y.npy", np.array(names))
    np.savez("d.npz", features=x, labels=names)
    rows = [",".join(map(str, [*row, k])) for row, k in zip(x.tolist(), names, strict=True)]
    Path("d.csv").write_text("\n".join(rows))
    commands = [["x.npy", "--label", "y.npy"], ["d.npz"], ["d.csv", "--label", "-1"]]
    found = [json.loads(run(*command, *SMALL, "--json").stdout) for command in commands]
    assert len({json.dumps(d["conclusions"]) for d in found}) == 1
    assert found[0]["network"]["out_features"] == 1


BAD = {
    "unknown network": (["--network", "whale"], "--network must be one of 'ling2023'.*'whale'"),
    "no width": (["--width", "0"], "--width must be >= 1, got 0"),
    "a width that no machine has": (["--width", "1000000000000"], "memory"),
    "negative seed": (["--seed", "-1"], "--seed must be >= 0"),
    "negative variance": (["--weight-variance", "-1"], "--weight-variance must be >= 0, got -1"),
    "infinite variance": (["--weight-variance", "inf"], "--weight-variance must be finite"),
    "variance of another network": (["--gamma", "0.1"], "--gamma must be left out, unless.*implic"),
    "activation of another network": (["--activation", "relu"], "unless --network is deq"),
    "unknown activation": (["--network", "deq", "--activation", "blub"], "--activation must be"),
    "no step": (["--step-size", "0"], "--step-size must be > 0"),
    "targets that are no numbers": (["--target-scale", "nan"], "--target-scale must be finite"),
    "readout that is infinite": (["--readout-scale", "inf"], "--readout-scale must be finite"),
    "too many samples": (["-n", "9999"], "-n must be between 2 and 1797"),
    "no labels": (["x.npy"], "x.npy must have labels: --label"),
    "too few labels": (["short.npz"], "labels must be 6 .*got shape"),
    "labels in another place": (["x.npy", "--label", "kind"], "--label must name a column"),
    "absent labels": (["x.npy", "--label", "whale.npy"], "whale.npy"),
    "absent data": (["whale.csv"], "must be a file that exists"),
    "absent network": (["--load", "whale.safetensors"], "--load must be a network saved"),
    "file that is no network": (["--load", "x.npy"], "--load must be a network saved"),
    "truncated network": (["--load", "cut.safetensors"], "--load must be .*damaged"),
    "network for other inputs": (["d.npz", "--load", "net.safetensors"], r"5.*12|12.*5"),
    "network for other labels": (
        ["d.npz", "--load", "outputs.safetensors"],
        "must have 1 outputs for the labels of d.npz, got 7",
    ),
    "two networks": (["--load", "net.safetensors", "--width", "9"], "--width must be left out"),
    "two kinds": (["--load", "net.safetensors", "--network", "deq"], "--network must be left out"),
}


@pytest.fixture
def _files() -> None:
    np.save("x.npy", points())
    np.savez("d.npz", X=points(), y=np.arange(6) % 2)
    np.savez("short.npz", X=points(), y=np.arange(5))
    deq = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)
    shoal.save(shoal.build(deq, in_features=5, width=8), "net.safetensors")
    shoal.save(shoal.build(deq, in_features=12, width=8, out_features=7), "outputs.safetensors")
    Path("cut.safetensors").write_bytes(Path("net.safetensors").read_bytes()[:-100])


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_invocations(arguments: list[str], message: str) -> None:
    there = files()
    result = run(*arguments, "--output", "out", code=1)
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert re.search(message, line), line
    assert files() == there
    assert not Path("out").exists()
