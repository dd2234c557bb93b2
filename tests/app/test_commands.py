"""The commands: what they print and write, and that the numbers are those of the library."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import files, run
from typer.testing import CliRunner

import shoal
from shoal.app.cli import app

COMMANDS = ("analyze", "explore", "design", "diagnose", "certify")
RELU = ["--activation", "relu", "--only", "well_posedness,kernels"]


def points(n: int = 6, p: int = 12) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n, p)).round(6)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_terminal(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    for word in ("--json",) if name else COMMANDS:
        assert word in shown


def test_help_does_not_wait_for_torch() -> None:
    code = "import sys, shoal.app.cli; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_a_command_there_is_help() -> None:
    assert "analyze" in run().stdout
    assert run("--version").stdout == f"shoal {shoal.__version__}\n"


def test_analyze_prints_a_table() -> None:
    result = run("analyze", *RELU, "-n", "40")
    for words in ("Well-posedness", "Kernels", "effective rank", "digits, 40 samples"):
        assert words in result.stdout
    assert "--output" in result.stderr
    assert files() == []


def test_analyze_computes_what_the_library_computes() -> None:
    np.save("x.npy", points(30, 5) + 3)
    document = json.loads(run("analyze", "x.npy", *RELU, "--json").stdout)
    x = np.load("x.npy") - np.load("x.npy").mean(0)
    x /= np.sqrt((x**2).sum(1).mean())
    ck = shoal.kernel(shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8), x).ck
    values = np.linalg.eigvalsh(ck)
    shares = values / values.sum()
    found = document["sections"]["kernels"]["ck"]
    assert found["trace"] == pytest.approx(np.trace(ck), rel=1e-10)
    assert found["condition"] == pytest.approx(values[-1] / values[0], rel=1e-6)
    rank = np.exp(-(shares * np.log(shares)).sum())
    assert found["effective_rank"] == pytest.approx(rank, rel=1e-8)


def test_sections_are_chosen_and_files_are_written() -> None:
    options = ["-n", "20", "--activation", "relu", "--output", "a/b"]
    result = run("analyze", *options, "--only", "kernels, well_posedness", "--json")
    document = json.loads(result.stdout)
    assert list(document["sections"]) == ["well_posedness", "kernels"]  # in their order
    names = ["analysis.json", "analysis.png", "analysis.svg", "report.html"]
    assert files() == [f"a/b/{name}" for name in names]
    assert json.loads(Path("a/b/analysis.json").read_text()) == document


def test_what_has_no_kernel_fails_and_says_so() -> None:
    options = ["--activation", "relu", "--only", "well_posedness,kernels", "-n", "20"]
    result = run("analyze", *options, "--recurrent-variance", "2.5", "--json", code=1)
    document = json.loads(result.stdout)
    assert document["sections"]["well_posedness"]["kernel_guaranteed"] is False
    assert document["sections"]["kernels"]["error"]
    assert result.stderr.startswith("Error: Kernels at infinite width: ")


def test_what_is_infinite_is_null() -> None:
    options = ["--activation", "hermite:0,1,0.5", "-n", "10", "--only", "well_posedness", "--json"]
    document = json.loads(run("analyze", *options).stdout)
    assert document["sections"]["well_posedness"]["recurrent_gain"] is None  # not Lipschitz


def test_design_is_that_of_the_library() -> None:
    document = json.loads(
        run("design", "--activation", "relu", "--which", "ck", "--json", "--output", "o").stdout
    )
    d = shoal.design(shoal.DEQ(shoal.activations.ReLU(), 0.2, 0.8), input_norm=1.0, which="ck")
    assert document["target"] == dict(d.target)
    assert document["residual"] == d.residual < 1e-12
    assert document["feasible"]
    assert document["explanation"] == d.explanation
    assert len(document["alternatives"]) == len(d.alternatives) == 1
    names = ["activations.png", "activations.svg", "design.json", "report.html"]
    assert files("o") == names
    assert f"wanted {d.target['gamma2']:.8g}" in Path("o/report.html").read_text()


def test_designs_on_the_sphere_are_not_compared_on_other_norms() -> None:
    np.save("x.npy", points(30, 5))
    command = ["design", "--data", "x.npy", "--method", "sphere"]
    assert json.loads(run(*command, "--json").stdout)["gap"] is None
    assert "norms of the data" in run(*command).stdout


def test_design_compares_kernels_on_prepared_data() -> None:
    x = points(40, 10) * np.logspace(0, 3, 10) + 7
    np.save("x.npy", x)
    command = ["design", "--data", "x.npy", "--which", "ck", "--activation", "relu", "--json"]
    document = json.loads(run(*command, "--input-norm", "2").stdout)
    x = (x - x.mean(0)) / x.std(0)  # columns on very different scales are standardized
    x *= 2 / np.sqrt((x**2).sum(1).mean())
    d = shoal.design(shoal.DEQ("relu", 0.2, 0.8), input_norm=2.0, which="ck")
    original = shoal.kernel(d.original, x).ck
    difference = original - shoal.kernel(d.architecture, x).ck
    expected = np.linalg.norm(difference, 2) / np.linalg.norm(original, 2)
    assert document["gap"]["relative"] == pytest.approx(expected, rel=1e-6)
    assert document["input_norm"] == 2.0


SMALL = ["-n", "2", "--width", "300"]


def test_training_the_certified_network_keeps_the_promise() -> None:
    np.savez("d.npz", X=points(), y=[False, True, False, True, True, False])
    result = run("certify", "d.npz", *SMALL, "--json", "--output", "a/b")
    document = json.loads(result.stdout)
    names = ["certificate.json", "network.safetensors", "report.html"]
    assert files("a/b") == names
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
    again = run("certify", "d.npz", "-n", "2", "--load", "a/b/network.safetensors", "--json")
    assert json.loads(again.stdout) == document


@pytest.mark.parametrize("activation", ["tanh", None])
def test_certificates_are_those_of_the_library(activation: str | None) -> None:
    np.savez("d.npz", X=points(), y=[0.5, -0.5, 0.25, 1, 2, 3])
    options = ["--raw", "-n", "3", "--width", "200", "--seed", "4"]
    options += ["--activation", activation] if activation else []
    result = CliRunner().invoke(app, ["certify", "d.npz", *options, "--json"])
    architecture = shoal.DEQ(activation, 0.2, 0.8) if activation else shoal.DEQ.ling2023(0.001, 12)
    net = shoal.build(
        architecture, in_features=12, width=200, readout_scale=0.0, seed=4, dtype=torch.float64
    )
    document = json.loads(result.stdout)
    rows = document["data"]["rows"]
    found = shoal.certify(net, points()[rows], 0.1 * np.load("d.npz")["y"][rows])
    assert document["explanation"] == found.explanation
    assert document["holds"] == found.holds == (result.exit_code == 0)
    bounds = [c["bound"] for c in document["conclusions"][1]["conditions"]]
    expected = [c.bound for c in found.conclusions[1].conditions]
    assert bounds == pytest.approx(expected, rel=1e-12)


def test_a_refusal_has_its_own_exit_code_and_names_a_remedy() -> None:
    result = run("certify", *SMALL, "--readout-scale", "1", "--output", "o", code=3)
    assert "✗ " in result.stdout
    assert "What would help: " in result.stdout
    assert "Not established" in result.stderr
    document = json.loads(Path("o/certificate.json").read_text())
    assert not document["holds"]
    assert document["step_size"] is None
