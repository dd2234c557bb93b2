"""The command line as a process: streams, signals, exit codes, and what is imported."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run

import shoal
import shoal.cli

SHOAL = [sys.executable, "-m", "shoal"]
LONG = [*SHOAL, "reproduce", "shoal", "width", "--device", "cpu", "--output", "out"]
QUICK = [*LONG, "--quick"]


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process that is ended and waited for, whatever becomes of the test."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()


def finished_points(folder: Path) -> list[Path]:
    """Files of a run's points; folders beside them, which come and go, are not looked into."""
    return list(folder.glob("out/*/points/*.npz"))


def wait_for_a_point(process: subprocess.Popen[str], folder: Path) -> None:
    while not finished_points(folder):
        assert process.poll() is None
        time.sleep(0.005)


def wait_for_the_end(group: int) -> None:
    """Processes that were told to end have ended, however busy the machine is."""
    end = time.monotonic() + 60
    while group_exists(group):
        assert time.monotonic() < end
        time.sleep(0.1)


def group_exists(group: int) -> bool:
    """Whether anybody of a group of processes is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Commands hear Ctrl-C also if the tests run in the background, where shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def environment() -> dict[str, str]:
    source = str(Path(shoal.__file__).parents[1])
    return os.environ | {"PYTHONPATH": source, "PYTHONIOENCODING": "utf-8"}


def test_importing_shoal_imports_no_application_and_commands_nothing_slow(
    environment: dict[str, str],
) -> None:
    code = (
        "import sys, shoal, shoal.cli\n"
        "heavy = {'typer', 'rich', 'matplotlib', 'sklearn', 'shoal.lab', 'shoal.report',\n"
        "         'shoal.reproductions', 'torch._dynamo'}\n"
        "early = heavy & set(sys.modules)\n"
        "import shoal.cli.app\n"
        "slow = {'matplotlib', 'sklearn', 'scipy.stats', 'scipy.optimize', 'torch._dynamo'}\n"
        "sys.exit(' '.join([*early, *(slow & set(sys.modules))]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert found.stderr.strip() == ""


@pytest.mark.thorough
def test_ctrl_c_keeps_what_is_finished(tmp_path: Path, environment: dict[str, str]) -> None:
    """The run would take minutes, so that Ctrl-C comes in the middle on a busy machine too."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(LONG, cwd=tmp_path, env=environment, **streams) as process:
        wait_for_a_point(process, tmp_path)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert stdout == ""
    finished = len(finished_points(tmp_path))
    assert 0 < finished < 112
    assert f"{finished} of 112 points are finished and kept in out" in stderr
    assert "run the same command again: shoal reproduce shoal width" in stderr
    assert "Traceback" not in stderr
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}


@pytest.mark.slow
def test_ctrl_c_while_analyzing(tmp_path: Path, environment: dict[str, str]) -> None:
    """The analysis says on stderr which section it computes; Ctrl-C comes in the last one."""
    sections = ["well_posedness", "kernels", "equivalents", "timing"]
    options = ["--only", ",".join(sections), "--device", "cpu", "--output", "o", "--json"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*SHOAL, "analyze", "-v", *options]
    with started(command, cwd=tmp_path, env=environment, **streams) as process:
        assert process.stderr is not None
        while "section timing" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Interrupted: 3 of 4 sections are finished, kept in o" in stderr
    assert "Traceback" not in stderr
    names = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert names == ["partial.html", "partial.json", "partial.png", "partial.svg"]
    document = json.loads(stdout)
    assert document == json.loads((tmp_path / "o" / "partial.json").read_text())
    assert list(document["sections"]) == sections[:-1]
    assert not document["complete"]


@pytest.mark.slow
def test_killed_while_computing_and_resumed(tmp_path: Path, environment: dict[str, str]) -> None:
    def points() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in finished_points(tmp_path)}

    subprocess.run(QUICK, cwd=tmp_path, env=environment, check=True, capture_output=True)
    whole = points()
    shutil.rmtree(tmp_path / "out")
    moments, killed = random.Random(0), 0
    for _ in range(4):
        before = len(points())
        with started(QUICK, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as process:
            while len(points()) == before and process.poll() is None:
                time.sleep(0.002)
            time.sleep(moments.uniform(0, 0.05))
        killed += process.wait() == -signal.SIGKILL and len(points()) < len(whole)
    assert killed >= 2  # in the middle, with points of this attempt before and points missing
    subprocess.run(QUICK, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert points() == whole
    assert {path.name for path in tmp_path.rglob(".*")} <= {".lock"}


@pytest.mark.slow
def test_processes_give_one_document(tmp_path: Path, environment: dict[str, str]) -> None:
    found = subprocess.run(
        [*QUICK, "--jobs", "2", "--json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    (document,) = json.loads(found.stdout)["runs"]
    assert document["complete"]
    assert document["sessions"][0]["jobs"] == 2
    assert found.stderr == ""


@pytest.mark.slow
def test_ctrl_c_ends_the_processes_too(tmp_path: Path, environment: dict[str, str]) -> None:
    options = {"cwd": tmp_path, "env": environment, "start_new_session": True}
    with started([*LONG, "--jobs", "2"], stderr=subprocess.PIPE, **options) as process:
        wait_for_a_point(process, tmp_path)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        _, stderr = process.communicate()
    assert process.returncode == 130
    assert stderr.startswith("Interrupted: ")
    assert "Traceback" not in stderr
    wait_for_the_end(process.pid)


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    options = {"cwd": tmp_path, "env": environment, "start_new_session": True}
    with started([*LONG, "--jobs", "2"], **options) as process:
        wait_for_a_point(process, tmp_path)
    wait_for_the_end(process.pid)


def test_without_its_packages_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shoal.cli.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"needs typer and rich.*pip install 'shoal\[cli\]'"):
        shoal.cli.main()


def test_ctrl_c_while_the_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupting:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == "shoal.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "shoal.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        shoal.cli.main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == "Interrupted\n"


@pytest.mark.parametrize("way", ["module", "script", "library"])
def test_ctrl_c_while_torch_is_imported(
    tmp_path: Path, environment: dict[str, str], way: str
) -> None:
    """A line for the command, however it is started; programs that import shoal do as they like."""
    interrupting = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n"
    (tmp_path / "torch.py").write_text(interrupting)
    (tmp_path / "shoal").write_text("import sys\nfrom shoal.cli import main\nsys.exit(main())\n")
    words = {"module": ["-m", "shoal"], "script": [str(tmp_path / "shoal")]}
    found = subprocess.run(
        [sys.executable, *words.get(way, ["-c", "import shoal"])],
        env=environment | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if way == "library":
        assert "KeyboardInterrupt" in found.stderr
    else:
        assert (found.returncode, found.stderr) == (130, "Interrupted\n")


def _launched(
    words: list[str], folders: list[Path], environment: dict[str, str], codes: list[int]
) -> list[tuple[str, str]]:
    """What commands say that know of each other, as under torchrun, which keeps the store."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    environment = environment | launched | {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                started([*SHOAL, *words], cwd=folder, env=environment | {"RANK": str(k)}, **streams)
            )
            for k, folder in enumerate(folders)
        ]
        told = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == codes
    return told


@pytest.mark.thorough
def test_processes_launched_together_share_the_sections(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """As under torchrun: each section is found once, and the first process has them all."""
    sections = ["well_posedness", "kernels", "equivalents", "spectrum"]
    options = ["-v", "-n", "30", "--only", ",".join(sections), "--device", "cpu", "--json"]
    words = ["analyze", *options, "--output", "o"]
    (told, first), (nothing, second) = _launched(words, [tmp_path] * 2, environment, [0, 0])
    assert nothing == ""
    found = re.findall(r"section (\w+)", first + second)
    assert sorted(found) == sorted(sections)
    alone = subprocess.run(
        [*SHOAL, "analyze", *options], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(told) == json.loads(alone.stdout)
    assert json.loads((tmp_path / "o" / "analysis.json").read_text()) == json.loads(told)


def test_an_error_is_a_line_and_a_code(tmp_path: Path, environment: dict[str, str]) -> None:
    found = subprocess.run(
        [*SHOAL, "analyze", "--activation", "leakyrelu:0.1", "--n", "1"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert found.stderr == "Error: -n must be between 2 and 1797 for digits, got 1\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
def test_bytes_that_are_no_text(tmp_path: Path, environment: dict[str, str]) -> None:
    command = [*map(os.fsencode, SHOAL), b"analyze", b"--output", b"caf\xe9"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False)
    assert found.returncode == 2
    assert found.stderr == b"Error: all arguments must be text, got 'caf\\udce9'\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no such device")
def test_stdout_that_takes_nothing(environment: dict[str, str]) -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [*SHOAL, "reproduce"], env=environment, stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert (found.returncode, found.stderr) == (1, "Error: No space left on device\n")
    with subprocess.Popen(
        [*SHOAL, "reproduce"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()  # as head does when it has seen enough
        assert process.stderr.read() == b""
    assert process.returncode == 1


@pytest.mark.thorough
def test_a_terminal_without_greek_letters(tmp_path: Path, environment: dict[str, str]) -> None:
    found = subprocess.run(
        [*SHOAL, "analyze", "-n", "20", "--device", "cpu", "--only", "well_posedness"],
        cwd=tmp_path,
        env=environment | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "recurrent gain ?_a" in found.stdout


@pytest.mark.thorough
def test_a_file_that_one_process_does_not_see(tmp_path: Path, environment: dict[str, str]) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        folder.mkdir()
    (folders[0] / "x.csv").write_text("1,2\n3,4\n5,7\n")
    (_, first), _ = _launched(["analyze", "x.csv"], folders, environment, [2, 2])
    lines = [line for line in first.splitlines() if line.startswith("Error")]
    assert lines == ["Error: DATA must be a file that exists, got 'x.csv' (in process 1 of 2)"]


def test_an_error_is_told_even_if_the_first_process_does_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who launched them ends all when one has ended, so that the first would have no time to."""
    launched = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    for words in (["--activation", "blub"], ["--blub"]):
        found = run("analyze", *words, code=2)
        assert found.stderr.startswith("Process 1: Error: ")
        assert "blub" in found.stderr
    assert len(waited) == 2
    assert min(waited) >= 1


def test_ctrl_c_that_comes_twice_is_one(environment: dict[str, str]) -> None:
    """Under torchrun the terminal and torchrun send it; the second must not stop the writing."""
    code = (
        "import os, signal, sys\n"
        "sys.orig_argv[1:3] = ['-m', 'shoal']\n"
        "from shoal.core.interrupts import loaded\n"
        "loaded(once=True)\n"
        "for again in range(3):\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    except KeyboardInterrupt:\n"
        "        print(again)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == "0\n"
