"""Runs: from the command line, killed and resumed, in several processes; what they import."""

import ast
import importlib
import json
import math
import os
import pkgutil
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import experiments
import shoal
from experiments.__main__ import main
from experiments.experiment import Experiment, find, plain, point_seed, registered
from experiments.findings.widths import GroupError, WidthError
from experiments.runner import Run

ROOT = Path(__file__).parents[2]
SMALL = WidthError(widths=(8, 16), draws=3, samples=4, features=4)


def start(*words: str) -> subprocess.Popen[str]:
    """The command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    command = [sys.executable, "-m", "experiments", *words, "--device", "cpu"]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def same(first: Path, second: Path) -> None:
    """Two records, which say the same but for their times."""
    one, other = (json.loads((place / "run.json").read_text()) for place in (first, second))
    assert one.pop("wall_seconds") > 0 < other.pop("wall_seconds")
    one["sessions"], other["sessions"] = [], []
    assert one == other
    assert (first / "figure.png").read_bytes() == (second / "figure.png").read_bytes()


@pytest.mark.parametrize("kind", registered().values(), ids=map("-".join, registered()))
@pytest.mark.thorough
def test_every_quick_run_ends_with_a_record_and_a_figure(
    kind: type[Experiment], tmp_path: Path
) -> None:
    run = Run(kind.quick(), tmp_path)
    run.execute()
    assert [r.point for r in run.results()[0]] == run.experiment.points()
    assert run.record["summary"]
    assert all(math.isfinite(value) for value in run.record["summary"].values())
    assert (run.folder / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_experiments_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(registered()) >= 33
    assert any(line.startswith("ling2024 figure3") and "1680 points" in line for line in lines)


def test_a_figure_is_run_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["du2018", "depth", "--quick", "--output", str(tmp_path / "new")]) == 0
    told = capsys.readouterr().out
    assert "resnet_slope" in told
    assert "reproduced" not in told  # claims are for the full size
    (folder,) = (tmp_path / "new").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["figure.png", "points", "run.json"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["whale"], "PAPER must be one of du2018, gao2022, ling2023, ling2024, shoal, got 'whale'"),
        (["du2018", "whale"], "FIGURE of du2018 must be one of convergence, depth, got 'whale'"),
        (["du2018", "--jobs", "0"], "--jobs and --threads must be at least 1"),
        (["du2018", "--device", "abacus"], "abacus"),
        (["du2018", "--output", "/proc/whale"], "/proc/whale"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--quick"] if "--output" in words else [*words, "--output", "/proc/x"])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_missing_images_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SHOAL_DATA", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert main(["ling2024", "mnist-figure5", "--output", str(tmp_path / "new")]) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "train-images-idx3-ubyte" in told
    assert list((tmp_path / "new").rglob("*.*")) == []


@pytest.mark.thorough
def test_killed_at_random_moments_and_resumed(tmp_path: Path) -> None:
    words = ("shoal", "width", "--quick", "--output")
    whole, killed = Run(WidthError.quick(), tmp_path / "a"), Run(WidthError.quick(), tmp_path / "b")
    moments, counts = random.Random(1), []
    for _ in range(5):
        child, before = start(*words, str(tmp_path / "b")), len(list(killed.folder.glob("*/*.npz")))
        while child.poll() is None and len(list(killed.folder.glob("*/*.npz"))) <= before:
            time.sleep(0.001)  # until it has made some progress
        time.sleep(moments.uniform(0, 0.05))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        counts.append(len(list(killed.folder.glob("*/*.npz"))))
    assert counts == sorted(counts)
    assert any(0 < count < 24 for count in counts)
    whole.execute()
    killed.execute()
    same(whole.folder, killed.folder)
    assert not list(tmp_path.rglob(".*"))


def test_what_is_there_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, again = Run(SMALL, tmp_path / "a"), Run(SMALL, tmp_path / "b")
    run.execute()
    (again.folder / "points").mkdir(parents=True)
    for file in sorted(run.folder.glob("points/*"))[:4]:
        os.link(file, again.folder / "points" / file.name)
    computed = []
    work = WidthError.compute
    monkeypatch.setattr(
        WidthError, "compute", lambda self, p, *rest: computed.append(p) or work(self, p, *rest)
    )
    again.execute()
    assert len(computed) == 2
    same(run.folder, again.folder)


@pytest.mark.thorough
def test_several_processes_find_the_same(tmp_path: Path) -> None:
    for name, jobs in (("a", 1), ("b", 2)):
        Run(SMALL, tmp_path / name).execute(jobs)
    same(*(Run(SMALL, tmp_path / name).folder for name in ("a", "b")))


def test_seeds_and_folders_belong_to_configurations(tmp_path: Path) -> None:
    point = {"width": 64, "draw": 0}
    assert point_seed(WidthError(), point) == 575329438620099351  # everywhere, always
    assert point_seed(WidthError(draws=5), point) != 575329438620099351
    assert Run(WidthError(), tmp_path).folder != Run(SMALL, tmp_path).folder
    assert Run(SMALL, tmp_path, threads=2).folder != Run(SMALL, tmp_path).folder
    assert plain(GroupError())["architectures"][1] == {"class": "ImplicitNetwork", "gamma": 0.4}
    assert find("shoal", "width") == [WidthError]


def public(package: str) -> set[str]:
    """The names that a package of shoal exports."""
    return {*importlib.import_module(package).__all__, "__version__"}


def test_experiments_import_public_names_alone() -> None:
    packages = {f"shoal.{found.name}" for found in pkgutil.iter_modules(shoal.__path__)} | {"shoal"}
    for file in sorted(Path(experiments.__path__[0]).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in (alias.name for alias in node.names):
                    assert not name.startswith("shoal."), (file.name, name)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal"):
                assert node.module in packages, (file.name, node.module)
                names = {alias.name for alias in node.names}
                assert names <= public(node.module), (file.name, names - public(node.module))
            elif isinstance(node, ast.Attribute):
                package, _, name = ast.unparse(node).rpartition(".")
                if package in packages and f"{package}.{name}" not in packages:
                    assert name in public(package), (file.name, package, name)
