"""``shoal diagnose``: files of all kinds, no code of them run unless it is asked for."""

import json
import pickle
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import files, run

import shoal
from cli.own_model import NET


@pytest.fixture
def inputs() -> None:
    np.save("x.npy", np.random.default_rng(0).standard_normal((20, 4)))


def saved(variance: float = 0.2, path: str = "net.safetensors") -> None:
    deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=variance, input_variance=0.8)
    shoal.save(shoal.build(deq, in_features=4, width=8, out_features=2), path)


@pytest.mark.usefixtures("inputs")
def test_a_network_of_shoal() -> None:
    saved()
    result = run("diagnose", "net.safetensors", "--data", "x.npy", "-n", "5")
    assert "Does the plain iteration settle?" in result.output
    assert "settles: 5" in result.output


def test_labels_beside_the_inputs_are_left_out() -> None:
    saved()
    rows = [f"{k % 5},{k % 3},1,{k},{'ab'[k % 2]}" for k in range(9)]
    Path("x.csv").write_text("\n".join(["p,q,r,s,kind", *rows]))
    refused = run("diagnose", "net.safetensors", "--data", "x.csv", code=2)
    assert "--label COLUMN says where the labels are" in refused.output
    found = run("diagnose", "net.safetensors", "--data", "x.csv", "--label", "kind")
    assert "settles: 9" in found.output


@pytest.mark.thorough
@pytest.mark.usefixtures("inputs")
def test_a_report_and_numbers_are_written() -> None:
    pytest.importorskip("jinja2")
    saved()
    result = run(
        "diagnose", "net.safetensors", "--data", "x.npy", "--output", "found", "--json",
        "--reference", "net.safetensors",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert document["samples"] == 20
    assert document["kernel_change"]["relative"] == pytest.approx(0, abs=1e-6)
    assert files("found") == ["diagnosis.json", "diagnosis.png", "diagnosis.svg", "report.html"]
    assert json.loads(Path("found/diagnosis.json").read_text())["behavior"] == "settles"


@pytest.mark.usefixtures("inputs")
def test_the_weights_of_a_model_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine.py").write_text(NET)
    space: dict[str, object] = {}
    exec(NET, space)
    torch.manual_seed(0)
    net = space["Net"]()
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, "weights.pt")
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    arguments = ("--data", "x.npy", "-n", "5", "--json")
    result = run("diagnose", "weights.pt", "--model", "mine.py:Net", *arguments)
    found = json.loads(result.stdout)
    z = torch.zeros(5, 6)
    x = torch.from_numpy(np.load("x.npy")[:5]).float()
    for _ in range(100):
        z = net.step(z, x).detach()
    jacobian = torch.autograd.functional.jacobian(lambda s: net.step(s[None], x[:1])[0], z[0])
    norm = float(torch.linalg.matrix_norm(jacobian, 2))
    assert found["jacobian"]["norms"][0] == pytest.approx(norm, rel=1e-4)
    wrong = run("diagnose", "weights.pt", "--model", "mine.py:number", *arguments, code=2)
    assert "--model must name a function or class" in wrong.output


class Evil:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w').close()",))


@pytest.mark.usefixtures("inputs")
def test_no_code_of_a_file_is_run_unless_asked_for() -> None:
    torch.save({"state_dict": Evil()}, "evil.pt")
    Path("evil.pickle").write_bytes(pickle.dumps(Evil(), protocol=2))
    Path("mine.py").write_text(NET)
    for name in ("evil.pt", "evil.pickle"):
        assert "--trust" in run("diagnose", name, "--data", "x.npy", code=2).output
        result = run("diagnose", name, "--model", "mine.py:Net", "--data", "x.npy", code=2)
        assert "FILE must hold a state dictionary" in result.output
        assert not Path("ran").exists()
    run("diagnose", "evil.pt", "--trust", "--data", "x.npy", code=2)
    assert Path("ran").exists()


@pytest.mark.usefixtures("inputs")
def test_models_without_an_equilibrium_have_an_exit_code() -> None:
    drifting = NET.replace("torch.tanh(self.recurrent(z) / 2 + self.input(x))", "z + 1")
    Path("drifting.py").write_text(drifting)
    space: dict[str, object] = {}
    exec(NET, space)
    torch.save(space["Net"]().state_dict(), "weights.pt")
    arguments = ("--model", "drifting.py:Net", "--data", "x.npy", "--steps", "60")
    result = run("diagnose", "weights.pt", *arguments, code=3)
    assert "drifts: 20" in result.output
    assert "No equilibrium was found for 20 of 20 samples" in result.output


@pytest.mark.usefixtures("inputs")
def test_files_of_something_else_are_named() -> None:
    Path("junk.pt").write_bytes(b"hello")
    Path("mine.py").write_text(NET)
    space: dict[str, object] = {"__name__": "gone"}  # a class of a script that is not at hand
    exec(NET, space)
    sys.modules["gone"] = types.SimpleNamespace(**space)  # type: ignore[assignment]
    torch.save(space["Net"](), "whole.pt")
    del sys.modules["gone"]
    torch.save({"other.weight": torch.ones(2)}, "other.pt")
    data = ("--data", "x.npy")
    for name, words in (("junk.pt", "junk.pt"), ("whole.pt", "give --model PATH.py:FACTORY")):
        result = run("diagnose", name, "--trust", *data, code=2)
        assert "FILE must hold a whole module" in result.output
        assert words in " ".join(result.output.split())
    result = run("diagnose", "junk.pt", "--model", "mine.py:Net", *data, code=2)
    assert "FILE must hold a state dictionary" in result.output
    result = run("diagnose", "other.pt", "--model", "mine.py:Net", *data, code=2)
    assert "FILE must hold the weights of mine.py:Net" in result.output


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("FILE must be a file", ("nothing.pt",)),
        ("--model must be PATH.py:FACTORY", ("x.npy", "--model", "Net")),
        ("--trust must be left out", ("x.npy", "--model", "a.py:Net", "--trust")),
        ("-n", ("net.safetensors", "-n", "0", "--data", "x.npy")),
        ("--tolerance must be", ("net.safetensors", "--tolerance", "2", "--data", "x.npy")),
        ("--reference must be a file", ("net.safetensors", "--reference", "no.pt")),
    ],
)
@pytest.mark.usefixtures("inputs")
def test_bad_input_is_named(words: str, arguments: tuple[str, ...]) -> None:
    saved()
    assert words in run("diagnose", *arguments, code=2).output
