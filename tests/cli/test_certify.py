"""``shoal certify``: what it prints, what it writes, how it fails."""

import json
from functools import partial
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from commands import files
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.cli.certify import NOT_ESTABLISHED

SMALL = ["-n", "2", "--width", "300"]


run = partial(commands.run, "certify")


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
    rows = document["data"]["rows"]
    x = points()[rows] - points()[rows].mean(0)
    x *= np.sqrt(12 / (x**2).sum(1).mean())
    signs = np.load("d.npz")["y"][rows, None] * 2.0 - 1
    assert signs.sum() == 0  # one of each class
    x, y = torch.as_tensor(x), 0.1 * torch.as_tensor(signs)
    losses = []
    for _ in range(14):  # later losses are rounding
        loss = 0.5 * (net(x) - y).square().sum()
        losses.append(loss.item())
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= document["step_size"] * gradient
    promised = losses[0] * document["rate"] ** np.arange(14)
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
    document = json.loads(result.stdout)
    rows = document["data"]["rows"]
    assert len(set(rows)) == 3
    found = shoal.certify(net, points()[rows], 0.1 * np.load("d.npz")["y"][rows])
    assert document["explanation"] == found.explanation
    assert document["holds"] == found.holds == (result.exit_code == 0)
    bounds = [c["bound"] for c in document["conclusions"][1]["conditions"]]
    expected = [c.bound for c in found.conclusions[1].conditions]
    assert bounds == pytest.approx(expected, rel=1e-12)


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
