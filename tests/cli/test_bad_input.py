"""Bad input to every command: one helpful line, an exit code, and nothing left behind."""

import gzip
import os
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from typer.testing import CliRunner

import shoal
from shoal.cli.app import app
from shoal.report import SECTIONS

Case = tuple[str, str]  # what is typed, and what the message says

# What is bad about data is the same for all commands that take some.
DATA: dict[str, Case] = {
    "unknown dataset": ("whales", r"must be one of digits, .*mnist.*ends in \.csv, .*'whales'"),
    "endless name": (f"{'x' * 300}.npy", "must be a file that exists, got 'xxx"),
    "absent file": ("whales.npy", "must be a file that exists, got 'whales.npy'"),
    "folder": ("folder.npy", "must be a file that exists, got the folder 'folder.npy'"),
    "picture": ("picture.png", "or a file that ends in .csv.*got 'picture.png'"),
    "file that is not data": (
        "file.npy",
        "must be a .npy file of numbers: file.npy: expected",
    ),
    "cube": ("cube.npy", r"expected samples \(n, d\),.*got shape \(3, 4, 5, 2, 2\)"),
    "vector": ("vector.npy", r"expected samples \(n, d\),.*got shape \(5,\)"),
    "complex numbers": ("complex.npy", "samples that are real numbers, got dtype complex128"),
    "objects": ("objects.npy", "must be a .npy file of numbers: objects.npy: expected"),
    "no features": ("thin.npy", r"expected samples.*got shape \(3, 0\)"),
    "NaN": ("nan.npy", r"nan.npy: expected finite samples, got nan at \(1, 0\)"),
    "shape that is not there": ("claim.npy", "must be a .npy file.*in a file of"),
    "truncated .npy": ("cut.npy", "must be a .npy file of numbers: cut.npy: expected"),
    "truncated .npz": ("cut.npz", "must be a .npz file of numbers: cut.npz: expected"),
    "truncated .gz": ("cut.csv.gz", "expected a complete gzip file, got one that is cut off$"),
    "archive without inputs": (
        "other.npz",
        "other.npz: expected an array named X, x or features, got",
    ),
    "rows of different lengths": ("ragged.csv", "2 cells in each row, got 1 in line 2"),
    "text in a column": (
        "kinds.csv",
        "got 'iris' in line 2, column 2; --label COLUMN says where the labels are",
    ),
    "another separator": ("semicolons.csv", "separated by ',', got a single one, not of numbers"),
    "decimal commas": ("commas.csv", "expected 1 cell in each row, got 3 in line 2"),
    "no array in an archive": ("text.npz", "text.npz: expected samples that are .*, got bytes$"),
    "no name": ("''", "(DATA|--data) must be a path without NUL and not empty, got ''$"),
    "empty file": ("empty.csv", "expected data, got an empty file"),
    "one sample": ("one.csv", r"at least two rows, got one.csv of shape \(1, 2\)"),
    "unknown column": ("kinds.csv --label whale", "named 'whale', got the columns length, width"),
    "a target too large": ("targets.csv --label 1", "numbers, got '1e400' in line 2, column 1$"),
    "absent column": ("kinds.csv --label 7", "a column 7, got 3 columns"),
    "label without columns": ("d.npz --label a", "--label must name a column of a CSV.*'a'"),
    "absent labels": ("x.npy --label whale.npy", "--label must be a file.*'whale.npy'"),
    "truncated labels": (
        "x.npy --label cut.npy",
        "--label must be a .npy .*: cut.npy: expected",
    ),
    "too few labels": ("short.npz", r"expected 6 labels, one per sample, got shape \(5,\)"),
    "too many samples": ("x.npy -n 5000", "-n must be between 2 and 6 for x.npy, got 5000"),
    "half a sample": ("x.npy -n 1.5", "'--n' / '-n'.*1.5"),
    "truncated download": ("mnist", "train-images.*expected a complete gzip file.*cut off"),
}

OUTPUT: dict[str, Case] = {
    "output that is a file": ("--output file.npy", "--output.*got 'file.npy'.*is a file"),
    "output below a file": ("--output file.npy/b", "--output.*'file.npy/b'.*is a file"),
    "output with an endless name": (f"--output {'x' * 300}", "--output.*File name too long"),
    "output of a path too deep": (f"--output {'x/' * 3000}", "--output.*File name too long"),
    "output that is a link to nothing": ("--output lost", "--output.*'lost'.*No such file"),
    "output without a name": ("--output ''", "--output.*must name a folder, got ''"),
    "output that cannot be made": (
        "--output /proc/x/y",
        "--output.*'/proc/x/y': '/proc' cannot be written to",
    ),
}

DEVICE: dict[str, Case] = {
    "unknown device": ("--device abacus", "--device must be auto, cpu, cuda.*'abacus'"),
    "absent device": ("--device cuda:77", "--device must be one that this machine has.*'cuda:77'"),
}

THEORY: dict[str, Case] = {
    "unknown activation": ("--activation blub", "--activation must be one of cosine, .*'blub'"),
    "letters for numbers": ("--activation elu:x", "--activation must have numbers after"),
    "too many numbers": ("--activation tanh:1", "takes no numbers, got 'tanh:1'"),
    "constant activation": ("--activation hermite:2", "--activation must not be constant"),
    "negative variance": ("--recurrent-variance -1", "--recurrent-variance must be >= 0, got -1"),
    "infinite variance": ("--input-variance inf", "--input-variance must be finite, got inf"),
    "no input": ("--input-variance 0", "--input-variance must be > 0, got 0"),
    "variance that is no number": ("--input-variance much", "--input-variance.*much"),
}

SKIP_ALL = ",".join(section.name for section in SECTIONS)
ANALYZE: dict[str, Case] = {
    "unknown option": ("--whale", "--whale"),
    "extra argument": ("digits mnist", "mnist"),
    "unknown section": ("--only whale", "--only must be one of .*'whale'"),
    "section without a name": ("--skip ''", "--skip must be one of .*got ''"),
    "two choices": ("--only timing --skip timing", "--only and --skip must not both be given"),
    "no section left": (f"--skip {SKIP_ALL}", "--skip must leave a section"),
    "unknown dtype": ("--dtype float16", "--dtype.*float16"),
    "no threads": ("--threads 0", "--threads must be >= 1, got 0"),
    "data without differences": ("same.npy", "same.npy must have samples that differ"),
}

DESIGN: dict[str, Case] = {
    "no norm": ("--tau0 0", "--tau0 must be > 0, got 0"),
    "absurd norm": ("--tau0 1e300", "--tau0 must be <= 1e.08, got 1e.300"),
    "unknown kernel": ("--match nngp", "--match must be one of 'ck', 'ntk', got 'nngp'"),
    "unknown method": ("--method magic", "--method must be one of .*'magic'"),
    "unknown family": ("--family relu", "--family must be .*'relu'"),
    "family on the sphere": ("--method sphere --family sinusoid", "--family must be left out"),
    "gate by moments": ("--norm-gated", "--norm-gated must be left out"),
    "gate that is not there": ("--method sphere --norm-gated", "--norm-gated must be False"),
    "unknown weights": ("--trainable weights", "--trainable must be chosen from.*'weights'"),
    "nothing to train": ("--trainable ''", "--trainable must be"),
    "samples without data": ("-n 5", "-n must be left out without --data"),
    "labels without data": ("--label y", "--label must be left out without --data"),
    "zero data": ("--data zero.npy", "--data must not be zero everywhere, got zero.npy"),
    "width without a network": ("--width 5", "--width must be left out without --export"),
    "export of another kind": ("--export net.pt --in-features 3", "--export must end in .py or"),
    "export into no folder": ("--export no/net.py --in-features 3", "--export must be in a folder"),
    "export into a foreign place": (
        "--export /proc/net.py --in-features 3",
        "--export.*'/proc' cannot be written",
    ),
    "export without inputs": ("--export net.py", "--in-features must be given"),
    "export of no inputs": ("--export net.py --in-features 0", "--in-features must be >= 1"),
    "export of endless inputs": (
        f"--export net.py --in-features {10**22}",
        "--in-features must be < 2.*63, got 1000",
    ),
    "export over a program": ("--export mine.py --in-features 3", "--export must not replace"),
    "tiny data": ("--data tiny.npy", "--data must have a norm from 1e-06 to 1e.08, got 3e-290"),
    "export under a number": ("--export 2x.py --in-features 3", "--export must have the name of"),
    "export under a known name": ("--export torch.py --in-features 3", "a name of its own"),
    "negative seed": ("--export net.py --in-features 3 --seed -1", "--seed must be >= 0, got -1"),
    "no tolerance": ("--method sphere --tolerance 0", "--tolerance must be > 0, got 0"),
}

CERTIFY: dict[str, Case] = {
    "unknown network": ("--network whale", "--network must be one of 'ling2023'.*'whale'"),
    "no width": ("--width 0", "--width must be >= 1, got 0"),
    "negative seed": ("--seed -1", "--seed must be >= 0, got -1"),
    "absurd width": ("--width 1000000000000", "--width .*must be smaller: .* this machine has"),
    "absurd seed": ("-n 2 --width 5 --seed 99999999999999999999", r"--seed must be < 2\*\*64"),
    "negative variance": ("--weight-variance -1", "--weight-variance must be >= 0, got -1"),
    "infinite variance": ("--weight-variance inf", "--weight-variance must be finite, got inf"),
    "option of another network": ("--gamma 0.1", "--gamma must be left out unless.*implicit"),
    "activation of another network": ("--activation relu", "unless --network is deq"),
    "unknown activation": ("--network deq --activation blub", "--activation must be one of"),
    "constant activation": (
        "--network deq --activation hermite:2",
        "--activation must not be constant",
    ),
    "no input": ("--network deq --input-variance 0", "--input-variance must be > 0, got 0"),
    "endless width": (f"--width {10**22}", "--width must be < 2.*63, got 1000"),
    "no step": ("--step-size 0", "--step-size must be > 0, got 0"),
    "targets that are no numbers": ("--target-scale nan", "--target-scale must be finite"),
    "readout that is infinite": ("--readout-scale inf", "--readout-scale must be finite"),
    "too many threads": ("--threads 99999", "--threads must be <= .*99999"),
    "two scales": (
        "d.npz --raw --no-standardize",
        "--standardize must be left out with --raw, which takes inputs as they are$",
    ),
    "no labels": ("x.npy", "x.npy must have labels: --label"),
    "absent network": ("--load whale.safetensors", "--load must be a network saved"),
    "folder for a network": ("--load folder.npy", "--load must be .*got 'folder.npy'"),
    "file that is no network": ("--load x.npy", "--load must be a network saved"),
    "truncated network": ("--load cut.safetensors", "--load must be .*damaged"),
    "network for other inputs": ("d.npz --load net.safetensors", "5.*12|12.*5"),
    "network for other labels": (
        "d.npz --load outputs.safetensors",
        "must have 1 outputs for the labels of d.npz, got 7",
    ),
    "two networks": ("--load net.safetensors --width 9", "--width must be left out with --load"),
    "two kinds": ("--load net.safetensors --network deq", "--network must be left out"),
}

REPRODUCE: dict[str, Case] = {
    "unknown paper": ("whale2024", "PAPER must be one of .*shoal.*got 'whale2024'"),
    "unknown figure": ("shoal tides", "FIGURE of shoal must be one of .*width, got 'tides'"),
    "paper without a name": ("''", "PAPER must be one of .*got ''"),
    "extra argument": ("shoal width depth", "depth"),
    "no jobs": ("shoal width --jobs 0", "--jobs must be >= 1, got 0"),
    "negative jobs": ("shoal width --jobs -3", "--jobs must be >= 1, got -3"),
    "absurd jobs": ("shoal --jobs 1000000", "--jobs must be <= .*1000000"),
    "absurd threads": ("shoal --threads 99999", "--threads must be <= .*99999"),
    "half a thread": ("shoal --threads 0.5", "--threads.*0.5"),
    "truncated download": (
        "ling2024 mnist-figure5",
        "train-images.*expected a complete gzip file.*cut off",
    ),
}

DIAGNOSE: dict[str, Case] = {
    "module without a loop": (
        "linear.pt --trust --data x.npy",
        "FILE must have an equilibrium inside, .*got a Linear without",
    ),
    "program that ends": (
        "linear.pt --model ends.py:Net --data x.npy",
        "--model must run, and ends.py:Net does not: SystemExit: 0",
    ),
    "a number for data": ("net.safetensors --data number.npy", r"must have numbers, .*shape \(\)"),
    "a pipe for data": ("net.safetensors --data pipe.npy", "must be a file that exists.*pipe.npy"),
    "links in a circle": (
        "net.safetensors --data circle.npy",
        "must be a file that exists.*circle",
    ),
    "no weights": ("list.pt --model ends.py:Net --data x.npy", "--model must run"),
}

EXPLORE: dict[str, Case] = {
    "page of another kind": ("--out x.npy", "--out must be a file that ends in .html, got 'x.npy'"),
    "page that is a device": ("--out /dev/null", "--out must be a file that ends in .html"),
    "page without a name": ("--out .html", "--out must be a file that ends in .html"),
    "page below a file": ("--out x.npy/a.html", "--out.*'x.npy'.* is a file"),
    "unknown activation": ("--activation blub", "--activation must be one of 'tanh'.*'blub'"),
}

BENCH: dict[str, Case] = {
    "unknown benchmark": ("whales", "NAME must be one of kernel.*got 'whales'"),
    "benchmark without a name": ("''", "NAME must be one of kernel.*got ''"),
    "letters of another size": ("KERNEL", "NAME must be one of kernel.*got 'KERNEL'"),
    "two benchmarks": ("kernel dual", "dual"),
    "unknown option": ("--jobs 3", "--jobs"),
    "value for a flag": ("--quick=3", "--quick"),
}


def named(command: str, prefix: str, *tables: dict[str, Case]) -> Iterator[object]:
    """Cases for pytest: a command before each."""
    for table in tables:
        for name, (typed, message) in table.items():
            words = f"{command} {prefix}{typed}" if typed else command
            yield pytest.param(words, message, id=f"{command}: {name}")


CASES = [
    *named("analyze", "", DATA, OUTPUT, DEVICE, THEORY, ANALYZE),
    *named("design", "--data ", DATA),
    *named("design", "", OUTPUT, THEORY, DESIGN),
    *named("certify", "", DATA, OUTPUT, CERTIFY),
    *named("reproduce", "", REPRODUCE),
    *named("reproduce", "shoal width ", OUTPUT, DEVICE),
    *named("diagnose", "", DIAGNOSE),
    *named("explore", "", EXPLORE),
    *named("bench", "", OUTPUT, DEVICE, BENCH),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files with something wrong in each."""
    folder = tmp_path_factory.mktemp("bad")
    x = np.random.default_rng(0).normal(size=(6, 12))
    arrays = {
        "x": x, "cube": np.ones((3, 4, 5, 2, 2)), "vector": np.ones(5), "complex": x + 1j,
        "thin": np.zeros((3, 0)), "nan": np.array([[1.0, 2], [np.nan, 1], [3, 4]]),
        "same": np.ones((4, 3)), "zero": np.zeros((4, 3)),
        "tiny": np.full((4, 9), 1e-290), "number": np.array(3.0),
    }  # fmt: skip
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    np.save(folder / "objects.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with (folder / "claim.npy").open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**6)}
        np.lib.format.write_array_header_1_0(file, header)
    np.savez(folder / "d.npz", X=x, y=np.arange(6) % 2)
    np.savez(folder / "short.npz", X=x, y=np.arange(5))
    np.savez(folder / "other.npz", a=np.eye(3), b=np.eye(3))
    (folder / "file.npy").write_text("no data")
    (folder / "folder.npy").mkdir()
    (folder / "lost").symlink_to("nowhere")
    (folder / "circle.npy").symlink_to("circle.npy")
    os.mkfifo(folder / "pipe.npy")
    (folder / "mine.py").write_text("print('mine')\n")
    (folder / "ends.py").write_text("raise SystemExit(0)\n")
    torch.save(torch.nn.Linear(12, 12).double(), folder / "linear.pt")
    torch.save([1, 2], folder / "list.pt")
    (folder / "picture.png").write_bytes(b"\x89PNG")
    (folder / "kinds.csv").write_text("length,width,kind\n5.1,3.5,iris\n4.9,3.0,rose\n")
    (folder / "targets.csv").write_text("1,2.5\n3,1e400\n")
    (folder / "ragged.csv").write_text("1,2\n3\n4,5\n")
    (folder / "empty.csv").write_text("")
    (folder / "semicolons.csv").write_text("length;width\n5.1;3.5\n4.9;3.0\n")
    (folder / "commas.csv").write_text("length;width\n5,1;3,5\n4,9;3,0\n")
    with zipfile.ZipFile(folder / "text.npz", "w") as archive:
        archive.writestr("X.npy", "no array")
    (folder / "one.csv").write_text("5.1,3.5\n")
    (folder / "cut.csv.gz").write_bytes(gzip.compress(b"1,2\n3,4\n" * 50)[:-9])
    deq = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)
    shoal.save(shoal.build(deq, in_features=5, width=8), folder / "net.safetensors")
    network = shoal.build(deq, in_features=12, width=8, out_features=7)
    shoal.save(network, folder / "outputs.safetensors")
    wholes = {"cut.npy": "x.npy", "cut.npz": "d.npz", "cut.safetensors": "net.safetensors"}
    for name, whole in wholes.items():
        (folder / name).write_bytes((folder / whole).read_bytes()[:-100])
    download = folder / "downloads" / "mnist"
    download.mkdir(parents=True)
    images = gzip.compress(struct.pack(">4I", 2051, 60000, 28, 28) + bytes(60000 * 784), 1)
    (download / "train-images-idx3-ubyte.gz").write_bytes(images[: len(images) // 2])
    labels = gzip.compress(struct.pack(">2I", 2049, 60000) + bytes(60000))
    (download / "train-labels-idx1-ubyte.gz").write_bytes(labels)
    return folder


def state(folder: Path) -> dict[Path, tuple[int, int]]:
    """All there is in a folder; of files, when they were changed."""
    found = {p: p.lstat() for p in folder.rglob("*")}
    return {p: (s.st_size, p.is_file() * s.st_mtime_ns) for p, s in found.items()}


def refused(words: str, message: str, code: int) -> None:
    """See that a command says in one line what is wrong, perhaps with one on where help is."""
    result = CliRunner().invoke(app, split(words))
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("Error: ")
    assert re.search(message, first), first
    assert "a bug" not in first
    assert len(rest) <= 1
    assert all(line.startswith("Try 'shoal ") for line in rest)


def split(words: str) -> list[str]:
    return ["" if word == "''" else word for word in words.split()]


@pytest.mark.thorough(
    "bench: output of a path too deep",
    "certify: output of a path too deep",
    "design: output of a path too deep",
    "reproduce: output of a path too deep",
)
@pytest.mark.parametrize(("words", "message"), CASES)
def test_bad_input(words: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "/proc" in words and not Path("/proc/self").exists():
        pytest.skip("there is no such place")
    monkeypatch.chdir(place)
    monkeypatch.setenv("SHOAL_DATA", str(place / "downloads"))
    before = state(place)
    refused(words, message, 2)
    if "--out" not in words:
        refused(f"{words} --json --output out", message, 2)
    assert state(place) == before


FAILURES = {
    "analyze svhn": "SVHN was not found: put train_32x32.mat",
    "design --data svhn": "SVHN was not found: put train_32x32.mat",
    "certify svhn": "SVHN was not found: put train_32x32.mat",
    "reproduce ling2024 mnist-figure5": "MNIST was not found: put train-images",
    "design --activation relu --recurrent-variance 2.1": "kernel",
    "design --match ck --method sphere --tolerance 1e-30": "above the tolerance 1e-30",
}


@pytest.mark.thorough("recurrent-variance 2.1", "1e-30")
@pytest.mark.parametrize(("words", "message"), FAILURES.items())
def test_failures_that_no_option_is_to_blame_for(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    refused(f"{words} --output out", message, 1)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_command() -> None:
    refused("swim", "swim", 2)


NASTY = "\x1b]0;title\x07\x1b[2J\x9b31m\x08\u202egnp"


@pytest.mark.thorough
def test_names_from_files_do_nothing_to_the_terminal(tmp_path: Path) -> None:
    """Array names, headers, labels and names of files, in errors, tables and JSON."""
    x = np.random.default_rng(0).normal(size=(8, 3))
    (tmp_path / "header.csv").write_text(f"{NASTY},b\n1,2\n3,4\n")
    np.save(tmp_path / f"{NASTY}.npy", x)
    np.savez(tmp_path / "arrays.npz", **{NASTY: x})
    commands = {
        ("analyze", "header.csv", "--label", "c"): 2,
        ("analyze", "header.csv", "--label", "b", "--only", NASTY): 2,
        ("analyze", "arrays.npz"): 2,
        ("analyze", f"{NASTY}.npy", "--only", "well_posedness"): 0,
        ("analyze", f"{NASTY}.npy", "--only", "well_posedness", "--json"): 0,
        ("analyze", f"absent{NASTY}.npy", "--only", "well_posedness"): 2,
    }
    for words, code in commands.items():
        output = run(*words, code=code).output
        assert re.findall("[\0-\x08\x0b-\x1f\x7f-\x9f\u202e]", output) == [], words
        assert "31m" in output or "\\u009b" in output  # it is shown as it is written
    with pytest.raises(ValueError, match=r"\\x1b\[2J") as error:
        shoal.data.read_numpy(tmp_path / "arrays.npz")
    assert "\x1b" not in str(error.value)
