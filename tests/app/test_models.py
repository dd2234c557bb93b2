"""Trained models in files: what is found, and that no code of a file is run."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import files, run

import shoal
from app.own_model import NET


def own() -> torch.nn.Module:
    """The model of net.py, whose state dictionary is in weights.pt."""
    Path("net.py").write_text(NET)
    space: dict[str, object] = {}
    exec(NET, space)
    torch.manual_seed(0)
    net = space["Net"]()
    torch.save({"epoch": 3, "state_dict": net.state_dict()}, "weights.pt")
    return net


@pytest.fixture(autouse=True)
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """Files of models and of samples."""
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
    np.save("x.npy", x)
    deq = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)
    shoal.save(shoal.build(deq, in_features=4, width=8, out_features=2), "net.safetensors")
    made = own()
    np.save("y.npy", made(torch.from_numpy(x)).argmax(1).numpy())
    return made


@pytest.mark.thorough
def test_a_network_of_shoal() -> None:
    result = run(
        "diagnose", "net.safetensors", "--data", "x.npy", "-n", "5", "--output", "found", "--json",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert len(document["samples"]) == 5
    assert document["equilibrium"]["contraction"] == "certified"
    assert files("found") == ["diagnosis.json", "diagnosis.png", "diagnosis.svg", "report.html"]
    assert json.loads(Path("found/diagnosis.json").read_text())["behavior"] == "converges"


def test_labels_of_a_table() -> None:
    rows = [f"{k % 5},{k % 3},1,{k},{'ab'[k % 2]}" for k in range(9)]
    Path("x.csv").write_text("\n".join(["p,q,r,s,kind", *rows]))
    found = run("diagnose", "net.safetensors", "--data", "x.csv", "--label", "kind")
    assert "converges: 9" in found.output
    assert "accuracy is" in found.output


LOOPED = """
import torch

class Looped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.cell = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 4)
        self.readout = torch.nn.Linear(4, 3)

    def forward(self, tokens):
        x = z = self.embed(tokens)
        for _ in range(6):
            z = torch.tanh(self.cell(z) + x)
        return self.readout(z)

def make_model():
    return Looped()
"""


def test_a_loop_in_plain_python_with_labels_per_token() -> None:
    Path("file.py").write_text(LOOPED)
    space: dict[str, object] = {}
    exec(LOOPED, space)
    net = space["make_model"]()
    torch.save(net.state_dict(), "model.pt")
    tokens = np.random.default_rng(0).integers(5, size=(20, 7))
    np.save("tokens.npy", tokens)
    np.save("labels.npy", net(torch.from_numpy(tokens)).argmax(-1).numpy())
    found = run("diagnose", "model.pt", "--code", "file.py:make_model", "--data", "tokens.npy",
                "--labels", "labels.npy", "--json")  # fmt: skip
    document = json.loads(found.stdout)
    assert document["trained"] == 6
    curve = document["curve"]
    assert curve["steps"][-1] == 96
    assert curve["accuracy"][curve["steps"].index(6)][0] == 1.0
    assert document["equilibrium"] is None


def test_the_weights_of_a_model_of_ones_own(net: torch.nn.Module) -> None:
    arguments = ("--data", "x.npy", "-n", "5", "--json")
    found = json.loads(run("diagnose", "weights.pt", "--code", "net.py:Net", *arguments).stdout)
    z = torch.zeros(5, 6)
    x = torch.from_numpy(np.load("x.npy")[:5]).float()
    for _ in range(100):
        z = net.step(z, x).detach()
    jacobian = torch.autograd.functional.jacobian(lambda s: net.step(s[None], x[:1])[0], z[0])
    norm = float(torch.linalg.matrix_norm(jacobian, 2))
    assert found["equilibrium"]["jacobian"]["norms"][0] == pytest.approx(norm, rel=1e-4)


def test_samples_and_labels_that_do_not_fit(net: torch.nn.Module) -> None:  # noqa: ARG001
    Path("file.py").write_text(LOOPED)
    space: dict[str, object] = {}
    exec(LOOPED, space)
    torch.save(space["make_model"]().state_dict(), "model.pt")
    np.save("tokens.npy", np.arange(40).reshape(8, 5) % 5)
    np.save("unknown.npy", np.arange(40).reshape(8, 5))
    np.save("more.npy", np.zeros((90, 5), dtype=int))
    np.save("classes.npy", np.full((8, 5), 3))
    np.save("number.npy", np.float32(3))
    for data, labels, words in (
        ("unknown.npy", None, "must have samples that Looped takes, got (4, 5) of int64"),
        ("x.npy", None, "must have samples that Looped takes"),
        ("number.npy", None, "must have samples in its first dimension"),
        ("tokens.npy", "number.npy", "must have samples in its first dimension"),
        ("tokens.npy", "more.npy", "must have one entry per sample, 8, got 90"),
        ("tokens.npy", "classes.npy", "must have classes from 0 to 2"),
    ):
        more = () if labels is None else ("--labels", labels)
        result = run("diagnose", "model.pt", "--code", "file.py:make_model", "--data", data, "-n",
                     "4", *more, code=2)  # fmt: skip
        assert words in result.output


class Evil:
    """Leaves a mark when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("open('ran', 'w').close()",))


def test_no_code_of_a_file_is_run() -> None:
    torch.save({"state_dict": Evil()}, "evil.pt")
    Path("evil.pickle").write_bytes(pickle.dumps(Evil(), protocol=2))
    for name in ("evil.pt", "evil.pickle"):
        run("diagnose", name, "--data", "x.npy", code=2)
        result = run("diagnose", name, "--code", "net.py:Net", "--data", "x.npy", code=2)
        assert "must hold a state dictionary" in result.output
    assert not Path("ran").exists()


def test_models_without_an_equilibrium_have_an_exit_code() -> None:
    drifting = NET.replace(
        "torch.tanh(self.recurrent(z) / 2 + self.input(x))", "z + self.input(x).square() + 1"
    )
    Path("drifting.py").write_text(drifting)
    arguments = ("--code", "drifting.py:Net", "--data", "x.npy", "-n", "20")
    result = run("diagnose", "weights.pt", *arguments, code=3)
    assert "drifts: 20" in result.output
    assert "No equilibrium was found for 20 of 20 samples" in result.output


@pytest.mark.thorough
def test_what_may_replace_a_model_is_answered() -> None:
    result = run(
        "analyze", "x.npy", "--label", "y.npy", "--model", "weights.pt", "--code", "net.py:Net",
        "--output", "found", "--json",
    )  # fmt: skip
    document = json.loads(result.stdout)
    assert document["diagnosis"]["behavior"] == "converges"
    assert document["distillation"]["original"]["scores"]["accuracy"] == 1.0
    assert document["distillation"]["samples"] == 30
    keep = document["distillation"]["keep"]
    assert document["answer"]["replace it?"] == ("no" if keep else "yes")
    kinds = ["diagnosis.png", "diagnosis.svg", "replacements.png", "replacements.svg"]
    assert files("found") == sorted(["analysis.json", "report.html", *kinds])
    page = Path("found/report.html").read_text()
    assert page.index("Do I need this loop?") < page.index("What may replace it")
