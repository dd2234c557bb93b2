"""Bad input to every command: one clear line, exit code 2, and nothing left behind."""

import gzip
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import files
from typer.testing import CliRunner

import shoal
from app.own_model import NET
from shoal.app.cli import app

CASES: dict[str, tuple[str, str]] = {  # what is typed, and words of the message
    "unknown command": ("whale", "whale"),
    "unknown option": ("analyze --whale", "--whale"),
    "unknown dataset": ("analyze whales", "'whales'"),
    "picture": ("analyze picture.png", "'picture.png'"),
    "absent file": ("analyze absent.npy", "'absent.npy'"),
    "folder": ("analyze folder.npy", "'folder.npy'"),
    "no data": ("analyze text.npy", "text.npy"),
    "cube": ("analyze cube.npy", "cube.npy"),
    "objects": ("analyze objects.npy", "objects.npy"),
    "pickle in an archive": ("analyze pickle.npz", "pickle.npz"),
    "NaN": ("analyze nan.npy", "nan.npy"),
    "cut off": ("analyze cut.npy", "cut.npy"),
    "cut off archive": ("analyze cut.npz", "cut.npz"),
    "cut off gzip": ("analyze cut.csv.gz", "cut.csv.gz"),
    "archive without inputs": ("analyze other.npz", "other.npz"),
    "ragged rows": ("analyze ragged.csv --no-header", "line 2"),
    "numbers that may be names": ("analyze years.csv", "say --header or --no-header"),
    "missing values": ("analyze holes.csv", "--drop-missing, the column with --drop b"),
    "dates": ("analyze dates.csv --label b", "leave it out with --drop 'the day'"),
    "header of an array": ("analyze x.npz --header", "--header must be left out"),
    "task of named data": ("analyze --task regression", "--task must be left out"),
    "unknown task": ("analyze x.npz --task whale", "whale"),
    "variances without an activation": ("analyze --input-variance 2", "must be left out without"),
    "empty file": ("analyze empty.csv", "empty.csv"),
    "one row": ("analyze one.csv --no-header", "at least two rows"),
    "unknown column": ("analyze kinds.csv --label whale", "'whale'"),
    "absent column": ("analyze kinds.csv --label 7", "index 7"),
    "label of an archive": ("analyze x.npz --label a", "--label"),
    "label of named data": ("analyze digits --label a", "--label"),
    "too many samples": ("analyze x.npy -n 5000", "-n must be between 2 and 6"),
    "half a sample": ("analyze x.npy -n 1.5", "valid integer"),
    "samples that are the same": ("analyze same.npy", "same.npy must have samples that differ"),
    "constant columns": ("analyze flat.csv", "flat.csv must have samples that differ"),
    "labels of one class": ("analyze flat.csv --label b", "choose another column with --label"),
    "unknown activation": ("analyze --activation blub", "'blub'"),
    "letters for numbers": ("analyze --activation elu:x", "numbers"),
    "constant activation": ("analyze --activation hermite:2", "must not be constant"),
    "negative variance": ("design --recurrent-variance -1", "--recurrent-variance must be >= 0"),
    "no input": ("design --input-variance 0", "--input-variance must be > 0"),
    "variance that is no number": ("analyze --input-variance much", "--input-variance"),
    "unknown section": ("analyze --only whale", "'whale'"),
    "no threads": ("analyze --threads 0", "--threads"),
    "negative seed": ("analyze --seed -1", "--seed"),
    "output that is a file": ("analyze x.npy --output x.npy", "x.npy"),
    "output in a forbidden place": ("analyze x.npy --output /proc/x/y", "/proc/x"),
    "code without a model": ("analyze --code net.py:Net", "--code must be left out"),
    "architecture with a model": ("analyze --model x.pt --only kernels", "--only must be left"),
    "no norm": ("design --input-norm 0", "--input-norm must be > 0"),
    "unknown method": ("design --method magic", "magic"),
    "unknown kernel": ("design --which nngp", "'nngp'"),
    "unknown weights": ("design --trainable weights", "'weights'"),
    "samples without data": ("design -n 5", "-n must be left out without --data"),
    "data of zeros": ("design --data same.npy", "must have samples that differ"),
    "no width": ("certify --width 0", "--width"),
    "variance without an activation": (
        "certify --recurrent-variance 0.2",
        "--recurrent-variance must be left out without --activation",
    ),
    "no labels": ("certify x.npy", "must have labels"),
    "no step": ("certify --step-size 0", "--step-size must be > 0"),
    "no network": ("certify --load x.npy", "x.npy"),
    "size of a loaded network": ("certify --load x --width 5", "--width must be left out"),
    "absent model": ("diagnose absent.pt", "absent.pt"),
    "no model": ("diagnose junk.pt", "PATH.py:FACTORY"),
    "weights of nothing": ("diagnose junk.pt --code net.py:Net", "must hold a state dictionary"),
    "other weights": ("diagnose other.pt --code net.py:Net", "must hold the weights of"),
    "no factory": ("diagnose junk.pt --code Net", "PATH.py:FACTORY"),
    "factory that fails": ("diagnose w.pt --code torn.py:Net", "does not run: SyntaxError"),
    "factory of a number": ("diagnose w.pt --code net.py:number", "does not run: TypeError"),
    "samples of another size": ("diagnose w.pt --code net.py:Net --data wide.npy", "shape"),
    "no samples": ("diagnose w.pt --code net.py:Net -n 0", "-n"),
    "tolerance": ("diagnose w.pt --code net.py:Net --data x.npy --tolerance 2", "tolerance must"),
    "page in a file": ("explore --output x.npy", "x.npy"),
    "label without data": ("explore --label y", "--label must be left out without DATA"),
    "activation without a table": ("explore --activation blub", "'blub'"),
}


@pytest.fixture
def things() -> list[str]:
    """Bad files of all kinds, in the current folder."""
    x = np.random.default_rng(0).normal(size=(6, 4))
    np.save("x.npy", x.astype(np.float32))
    np.savez("x.npz", X=x)
    np.save("wide.npy", np.ones((5, 7), np.float32))
    np.save("same.npy", np.zeros((6, 4)))
    np.save("cube.npy", np.ones((3, 4, 5, 2, 2)))
    np.save("objects.npy", np.array([{}, {}]), allow_pickle=True)
    np.savez("pickle.npz", X=np.array([{}, {}], dtype=object))
    np.save("nan.npy", np.array([[1.0, 2.0], [np.nan, 1.0]]))
    np.savez("other.npz", z=x)
    for name in ("x.npy", "x.npz"):
        Path(f"cut{name[1:]}").write_bytes(Path(name).read_bytes()[:-20])
    Path("cut.csv.gz").write_bytes(gzip.compress(b"1,2\n3,4\n" * 50)[:-9])
    Path("text.npy").write_text("no array")
    Path("picture.png").write_bytes(b"PNG")
    Path("folder.npy").mkdir()
    Path("ragged.csv").write_text("1,2\n3\n")
    Path("kinds.csv").write_text("length,width,kind\n5.1,3.5,iris\n4.9,3.0,rose\n")
    Path("empty.csv").write_text("")
    Path("years.csv").write_text("2019,2020\n1,2\n3,4\n")
    Path("holes.csv").write_text("a,b\n1,2\n3,\n")
    Path("dates.csv").write_text("the day,b\n2020-01-02,2\n2020-01-03,3\n")
    Path("one.csv").write_text("1,2\n")
    Path("flat.csv").write_text("a,b\n" + "1,7\n" * 60)
    Path("net.py").write_text(NET)
    Path("torn.py").write_text("def Net(:\n")
    space: dict[str, object] = {}
    exec(NET, space)
    torch.save(space["Net"]().state_dict(), "w.pt")
    torch.save({"other.weight": torch.ones(2)}, "other.pt")
    Path("junk.pt").write_bytes(b"junk")
    return files()


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_line(name: str, things: list[str]) -> None:
    typed, words = CASES[name]
    result = CliRunner().invoke(app, shlex.split(typed))
    assert result.exit_code == 2, result.output
    lines = [line for line in result.stderr.splitlines() if not line.endswith(" s)")]  # progress
    assert len(lines) == 1
    assert lines[0].startswith("Error: ")
    assert words in lines[0]
    assert result.stdout == ""
    assert [name for name in files() if "__pycache__" not in name] == things


def test_a_bug_is_not_called_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("it is ours")

    monkeypatch.setattr("shoal.app.options.make_architecture", fail)
    assert isinstance(CliRunner().invoke(app, ["design"]).exception, KeyError)


@pytest.mark.thorough
def test_a_reader_that_has_read_enough_ends_it_quietly() -> None:
    command = f"{sys.executable} -m shoal design --help | head -n 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert shoal.__version__ not in done.stdout


def test_interrupts_have_their_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.app.options.make_architecture", interrupt)
    result = CliRunner().invoke(app, ["design"])
    assert result.exit_code == 130
    assert result.stderr.startswith("Interrupted")


def test_warnings_of_the_library_are_one_line() -> None:
    code = (
        "import sys, warnings, shoal.app.options as o, shoal.app\n"
        "o.make_architecture = lambda *_: warnings.warn('mind\\nthis') or sys.exit(0)\n"
        "sys.argv = ['shoal', 'design']\nshoal.app.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "Warning: mind this\n"
