"""``shoal analyze --model``: the report on a trained model, no code of the file run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import files, run

import shoal
from cli.own_model import NET


@pytest.fixture
def trained() -> None:
    """A model in a file, samples that it has not seen, and what it says of them as labels."""
    Path("net.py").write_text(NET)
    space: dict[str, object] = {}
    exec(NET, space)
    torch.manual_seed(0)
    net = space["Net"]()
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, "weights.pt")
    x = np.random.default_rng(0).standard_normal((120, 4)).astype(np.float32)
    np.save("x.npy", x)
    np.save("y.npy", net(torch.from_numpy(x)).argmax(1).numpy())
    np.save("wide.npy", np.ones((5, 7), np.float32))
    np.save("names.npy", np.array(["a", "b"] * 60))
    Path("junk.pt").write_bytes(b"junk")
    Path("empty.npy").write_bytes(b"")
    np.save("gaps.npy", np.where(x > 1, np.nan, x))
    Path("torn.py").write_text("def Net(:\n")
    Path("failing.py").write_text("def net():\n    raise KeyError('width')\n")


CODE = ("--model", "weights.pt", "--code", "net.py:Net")
MODEL = ("analyze", "x.npy", "--label", "y.npy", "--model", "weights.pt")


@pytest.mark.thorough
@pytest.mark.usefixtures("trained")
def test_a_model_of_ones_own_is_answered() -> None:
    pytest.importorskip("jinja2")
    result = run(
        *MODEL, "--code", "net.py:Net", "--reference", "weights.pt", "--output", "found", "--json"
    )
    document = json.loads(result.stdout)
    assert document["diagnosis"]["behavior"] == "settles"
    assert document["diagnosis"]["kernel_change"]["relative"] == pytest.approx(0, abs=1e-6)
    assert document["distillation"]["original"]["scores"]["accuracy"] == 1.0
    assert document["distillation"]["samples"] == 30
    assert document["answer"]["replace it?"] == "no" if document["distillation"]["keep"] else "yes"
    kinds = ["diagnosis.png", "diagnosis.svg", "replacements.png", "replacements.svg"]
    assert files("found") == sorted(["analysis.json", "report.html", *kinds])
    page = Path("found/report.html").read_text()
    assert page.index("Do I need this loop?") < page.index("What may replace it")
    assert page.index("What may replace it") < page.index("Does the plain iteration settle?")


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (MODEL, "--code PATH.py:FACTORY"),
        ((*MODEL, "--code", "net.py:Net", "--trust"), "--trust must be left out with --code"),
        (("analyze", "x.npy", "--model", "absent.pt"), "--model must be a file"),
        (("analyze", "--code", "net.py:Net"), "--code must be left out without --model"),
        ((*MODEL, "--code", "net.py:Net", "-n", "0"), "-n must be"),
        ((*MODEL, "--code", "net.py:Net", "--standardize"), "--standardize must be left out"),
        ((*MODEL, "--code", "net.py:Net", "--only", "kernels"), "--only must be left out"),
        (("analyze", "x.npy", "--model", "junk.pt", "--code", "net.py:Net"), "--model must hold"),
        (("analyze", "empty.npy", *CODE), "DATA must be an intact .npy file"),
        (("analyze", "names.npy", *CODE), "DATA must have numbers"),
        (("analyze", "wide.npy", *CODE), "DATA must have samples that the model takes, got"),
        (("analyze", "digits", *CODE), "got 'digits' of shape (64,): mat1 and mat2"),
        (("analyze", "x.npy", "--label", "names.npy", *CODE), "--label must have numbers"),
        (("analyze", "gaps.npy", *CODE), "DATA must have finite numbers, got NaN"),
        (("analyze", "absent.npy", *CODE), "DATA must be a file that exists, got 'absent.npy'"),
        ((*MODEL, "--code", "torn.py:Net"), "--code must run, and torn.py:Net does not: Syntax"),
        ((*MODEL, "--code", "failing.py:net"), "failing.py:net does not: KeyError: 'width'"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], words: str) -> None:
    assert words in " ".join(run(*arguments, code=2).output.split())


def test_more_samples_than_there_are_threads_may_be_diagnosed() -> None:
    deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
    shoal.save(shoal.build(deq, in_features=64, width=4, out_features=2), "net.safetensors")
    result = run("diagnose", "net.safetensors", "-n", "100", "--starts", "1", "--steps", "40")
    assert "100 samples" in result.output
