"""``shoal design``: what it prints, what it writes, how it fails."""

import json
import logging
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.cli.design import INFEASIBLE

INFEASIBLE_DEQ = ["--activation", "softplus", "--match", "ntk", "--family", "sinusoid"]


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands run in an empty folder; logging is as before afterwards."""
    monkeypatch.chdir(tmp_path)
    logger = logging.getLogger("shoal")
    before = (list(logger.handlers), logger.level)
    yield
    logger.handlers[:], logger.level = before[0], before[1]


def run(*arguments: str, code: int = 0):
    result = CliRunner().invoke(app, ["design", *arguments])
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def files() -> list[str]:
    return sorted(p.as_posix() for p in Path().rglob("*") if p.is_file())


def test_a_table_and_the_reason() -> None:
    result = run("--trainable", "readout")
    for words in ("HardTanh", "gamma2", "0.36992464", "Matched is the CK", "wanted"):
        assert words in result.stdout
    assert "--export" in result.stderr
    assert files() == []


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


def test_data_gives_the_norm_and_the_gap() -> None:
    x = shoal.data.two_gaussians(40, 100, seed=0).x.double().numpy()
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


def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = ["--in-features", "5", "--out-features", "2", "--width", "30", "--seed", "7"]
    result = run("--method", "sphere", "--output", "a/b", "--export", "net.py", *sizes)
    assert "Written: net.py, a/b/design.json" in result.stdout
    assert files() == [
        "a/b/activations.png",
        "a/b/activations.svg",
        "a/b/design.json",
        "net.py",
        "net_weights.safetensors",
    ]
    document = json.loads(Path("a/b/design.json").read_text())
    assert document["method"] == "sphere"
    d = shoal.design(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), tau0=1.0, method="sphere")
    net = shoal.build(d.architecture, in_features=5, width=30, out_features=2, seed=7)
    monkeypatch.syspath_prepend(str(Path().absolute()))
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--activation", "blub"], "--activation must be one of"),
        (["--recurrent-variance", "-1"], "--recurrent-variance must be"),
        (["--activation", "relu", "--recurrent-variance", "2.1"], "kernel"),
        (["--tau0", "0"], "--tau0 must be"),
        (["--tau0", "nan"], "--tau0 must be"),
        (["--match", "nngp"], "match must be"),
        (["--method", "magic"], "method must be"),
        (["--family", "relu"], "family must be"),
        (["--method", "sphere", "--family", "sinusoid"], "family must be left out"),
        (["--norm-gated"], "norm_gated"),
        (["--method", "sphere", "--norm-gated"], "norm_gated must be False"),
        (["--trainable", "weights"], "weights"),
        (["--trainable", ""], "trainable"),
        (["--data", "nowhere.npy"], "must be a file that exists"),
        (["-n", "5"], "--data"),
        (["--export", "net.pt", "--in-features", "3"], r"must end in .py or .onnx"),
        (["--export", "no/net.py", "--in-features", "3"], "folder that exists"),
        (["--export", "net.py"], "--in-features must be given"),
        (["--export", "net.py", "--in-features", "0"], "--in-features must be"),
        (["--export", "2x.py", "--in-features", "3"], "--export must have the name of a Python"),
        (["--export", "torch.py", "--in-features", "3"], "--export must have a name of its own"),
        (["--export", "net.py", "--in-features", "3", "--seed", "-1"], "--seed must be >= 0"),
        (["--width", "5"], "--width must be left out without --export"),
        (["--method", "sphere", "--tolerance", "1e-30"], "tolerance"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments: list[str], words: str) -> None:
    result = run(*arguments, "--output", "out", code=1)
    assert words in result.stderr
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert files() == []


def test_damaged_data() -> None:
    np.save("bad.npy", np.full((4, 2), np.nan))
    assert "finite" in run("--data", "bad.npy", code=1).stderr
    np.save("zero.npy", np.zeros((4, 2)))
    assert "zero" in run("--data", "zero.npy", code=1).stderr


def test_what_will_not_be_trained_is_exported_frozen() -> None:
    for trainable, frozen in (("readout", True), ("readout,input", False)):
        name = f"net_{frozen}.py"
        run("--trainable", trainable, "--export", name, "--in-features", "3", "--width", "5")
        assert ("requires_grad_(False)" in Path(name).read_text()) == frozen


@pytest.mark.skipif(find_spec("onnx") is not None, reason="onnx is installed")
def test_without_onnx_nothing_is_written() -> None:
    result = run("--export", "n.onnx", "--in-features", "3", "--output", "out", code=1)
    assert "onnx" in result.stderr
    assert files() == []
