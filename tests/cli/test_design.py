"""``shoal design``: what it prints, what it writes, how it fails."""

import json
import sys
from functools import partial
from pathlib import Path

import commands
import numpy as np
import pytest
import torch
from commands import files
from safetensors.torch import load_file

import shoal
from shoal.cli.design import INFEASIBLE

INFEASIBLE_DEQ = ["--activation", "softplus", "--match", "ntk", "--family", "sinusoid"]


run = partial(commands.run, "design")


def test_a_table_and_the_reason() -> None:
    result = run("--trainable", "readout")
    for words in ("HardTanh", "gamma2", "0.36992464", "Matched is the CK", "wanted"):
        assert words in result.stdout
    assert "--export" in result.stderr
    assert files() == []


@pytest.mark.thorough
def test_the_numbers_are_those_of_the_library() -> None:
    document = json.loads(run("--activation", "relu", "--match", "ck", "--json").stdout)
    deq = shoal.DEQ(shoal.ReLU(), 0.2, 0.8)
    d = shoal.design(deq, tau0=1.0, match="ck")
    assert document["target"] == dict(d.target)
    assert document["residual"] == d.residual < 1e-12
    assert document["feasible"]
    assert document["gap"] is None
    assert document["explanation"] == d.explanation
    assert len(document["alternatives"]) == len(d.alternatives) == 1


@pytest.mark.thorough
def test_data_gives_the_norm_and_the_gap() -> None:
    x = shoal.GaussianMixture.ling2024(100).sample(40, seed=0)[0].numpy()
    np.save("x.npy", 3 * x)
    document = json.loads(run("--data", "x.npy", "--match", "ck", "--json").stdout)
    norm = float(np.sqrt((9 * x**2).sum(1).mean()))
    assert document["tau0"] == pytest.approx(norm, rel=1e-12)
    d = shoal.design(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), tau0=norm, match="ck")
    original = shoal.kernel(d.original, 3 * x).ck
    difference = original - shoal.kernel(d.architecture, 3 * x).ck
    expected = np.linalg.norm(difference, 2) / np.linalg.norm(original, 2)
    assert document["gap"]["relative"] == pytest.approx(expected, rel=1e-6)
    other = json.loads(run("--data", "x.npy", "--tau0", "2", "-n", "10", "--json").stdout)
    assert other["tau0"] == 2.0


@pytest.mark.thorough
@pytest.mark.parametrize(("classes", "outputs"), [(1, 1), (2, 1), (5, 5)])
def test_as_many_outputs_as_the_labels_need(classes: int, outputs: int) -> None:
    x = np.random.default_rng(0).standard_normal((12, 3))
    labels = {"y": np.arange(12) % classes} if classes > 1 else {}
    np.savez("data.npz", x=x, **labels)
    run("--data", "data.npz", "--export", "net.py", "--width", "4")
    weights = load_file("net_weights.safetensors").values()
    assert (outputs, 4) in {tuple(weight.shape) for weight in weights}


@pytest.mark.thorough
def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["--in-features", "5", "--out-features", "2", "--width", "30", "--seed", "7"]
    result = run("--method", "sphere", "--output", "a/b", "--export", "net.py", *sizes)
    assert "Written: net.py, net_weights.safetensors, a/b/report.html, a/b/d" in result.stdout
    assert files() == [
        "a/b/activations.png",
        "a/b/activations.svg",
        "a/b/design.json",
        "a/b/report.html",
        "net.py",
        "net_weights.safetensors",
    ]
    document = json.loads(Path("a/b/design.json").read_text())
    assert document["method"] == "sphere"
    d = shoal.design(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), tau0=1.0, method="sphere")
    net = shoal.build(d.architecture, in_features=5, width=30, out_features=2, seed=7)
    monkeypatch.syspath_prepend(str(Path().absolute()))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    import net as exported

    sys.modules.pop("net")
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(exported.load()(x), net(x), rtol=1e-5, atol=1e-6)


def test_what_is_infeasible_has_its_own_exit_code() -> None:
    result = run(*INFEASIBLE_DEQ, "--output", "here", code=INFEASIBLE)
    assert "Not feasible" in result.stderr
    assert "have kappa2 at least" in result.stdout
    document = json.loads(Path("here/design.json").read_text())
    assert not document["feasible"]
    assert 0 < document["errors"]["predicted"] < 1e-3


def test_what_will_not_be_trained_is_exported_frozen() -> None:
    for trainable, frozen in (("readout", True), ("readout,input", False)):
        name = f"net_{frozen}.py"
        run("--trainable", trainable, "--export", name, "--in-features", "3", "--width", "5")
        assert ("requires_grad_(False)" in Path(name).read_text()) == frozen


def test_without_onnx_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.networks.programs.exporting.find_spec", lambda _: None)
    result = run("--export", "n.onnx", "--in-features", "3", "--output", "out", code=1)
    assert "onnx" in result.stderr
    assert files() == []
