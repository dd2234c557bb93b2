"""The commands: what they print, what they write, how they fail."""

import gzip
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from commands import files, run
from typer.testing import CliRunner

import shoal
from shoal.activations.names import known_activations, parse_activation
from shoal.cli.app import app
from shoal.cli.command import commands
from shoal.cli.options import check_folder
from shoal.lab import find
from shoal.report import Measurement

FAST = ["well_posedness", "kernels", "equivalents", "timing"]
RELU = ["--activation", "relu", "--only", ",".join(FAST)]
SMALL = [*RELU, "-n", "40", "--device", "cpu"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], ["analyze", "reproduce", "bench", "--version"]),
        (["analyze"], ["--activation", "--recurrent-variance", "--dtype", "--only", "--skip"]),
        (["reproduce"], ["PAPER", "FIGURE", "--quick", "--jobs", "--output"]),
        (["bench"], ["NAME", "--quick", "--device"]),
    ],
)
def test_help(command: list[str], words: list[str]) -> None:
    output = run(*command, "--help").stdout
    for word in words:
        assert word in output
    if command:
        for option in ("--json", "--debug", "--device", "--verbose"):
            assert option in output


@pytest.mark.parametrize("name", commands())
def test_examples_of_the_help_can_be_typed(name: str) -> None:
    group = typer.main.get_command(app)
    command = group.get_command(typer.Context(group), name)
    shown = run(name, "--help").stdout
    for example in commands()[name].examples:
        assert example.command in shown
        shoal, first, *arguments = shlex.split(example.command)
        assert (shoal, first) == ("shoal", name)
        command.make_context(name, arguments)  # reads the options, and runs nothing


@pytest.mark.parametrize("name", ["", *commands()])
def test_help_fits_a_terminal(name: str) -> None:
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "80"}).stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "[[" not in shown


def test_without_a_command_there_is_help() -> None:
    assert "analyze" in run().stdout


def test_version() -> None:
    assert run("--version").stdout == f"shoal {shoal.__version__}\n"


def test_analyze_prints_a_table() -> None:
    result = run("analyze", *SMALL)
    for words in ("Well-posedness", "Kernels", "Timing", "effective rank", "digits, n = 40"):
        assert words in result.stdout
    assert "--output" in result.stderr
    assert files() == []


def test_threads_are_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    options = ["--activation", "relu", "--only", "kernels", "--threads", str(before + 1)]
    run("analyze", "-n", "20", *options)
    assert torch.get_num_threads() == before


@pytest.mark.thorough
def test_sections_are_chosen() -> None:
    options = ["analyze", "-n", "20", "--json"]
    only = json.loads(run(*options, "--only", "timing, kernels").stdout)
    assert list(only["sections"]) == ["kernels", "timing"]  # in their order
    rest = "spectrum,design,training,accuracy,prediction,images,certificate,equivalents,timing"
    skip = json.loads(run(*options, "--skip", rest).stdout)
    assert list(skip["sections"]) == ["well_posedness", "kernels"]
    twice = json.loads(run(*options, "--only", "kernels", "--only", "well_posedness").stdout)
    assert list(twice["sections"]) == ["well_posedness", "kernels"]


@pytest.mark.thorough
def test_analyze_for_machines(tmp_path: Path) -> None:
    result = run("analyze", *SMALL, "--dtype", "float64", "--json", "--output", "a/b")
    document = json.loads(result.stdout)
    assert result.stderr == ""
    assert list(document["sections"]) == FAST
    assert document["architecture"]["activation"] == {"class": "ReLU"}
    assert document["data"]["samples"] == 40
    names = ["analysis.json", "analysis.png", "analysis.svg", "report.html"]
    assert files(tmp_path) == [f"a/b/{name}" for name in names]
    assert json.loads(Path("a/b/analysis.json").read_text()) == document


def test_the_numbers_are_those_of_the_library() -> None:
    generator = np.random.default_rng(0)
    np.save("x.npy", generator.normal(size=(30, 5)) + 3)
    document = json.loads(run("analyze", "x.npy", *RELU, "--json").stdout)
    x = np.load("x.npy") - np.load("x.npy").mean(0)
    x /= np.sqrt((x**2).sum(1).mean())
    ck = shoal.kernel(shoal.DEQ(shoal.ReLU(), 0.2, 0.8), x).ck
    values = np.linalg.eigvalsh(ck)
    shares = values / values.sum()
    found = document["sections"]["kernels"]["ck"]
    assert found["trace"] == pytest.approx(np.trace(ck), rel=1e-10)
    assert found["condition"] == pytest.approx(values[-1] / values[0], rel=1e-6)
    rank = np.exp(-(shares * np.log(shares)).sum())
    assert found["effective_rank"] == pytest.approx(rank, rel=1e-8)


@pytest.mark.thorough
def test_files_of_all_kinds_are_the_same_data() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3)).round(6)
    np.save("x.npy", x)
    np.savez("x.npz", X=x, y=np.arange(12))
    rows = [",".join(map(str, row)) for row in x.tolist()]
    text = "\n".join(["a,b,c", *rows])
    labeled = "\n".join(["a,b,c,kind", *(f"{row},k{i % 2}" for i, row in enumerate(rows))])
    Path("x.csv").write_text(text)
    Path("x.csv.gz").write_bytes(gzip.compress(text.encode()))
    Path("labeled.csv").write_text(labeled)
    Path("bare.csv").write_text("\n".join(rows))
    commands = [["x.npy"], ["x.npz"], ["x.csv"], ["x.csv.gz"], ["bare.csv"]]
    commands += [["labeled.csv", "--label", column] for column in ("kind", "3", "-1")]
    found = [json.loads(run("analyze", *command, *RELU, "--json").stdout) for command in commands]
    assert [d["data"]["name"] for d in found] == [command[0] for command in commands]
    assert all(d["data"]["samples"] == 12 and d["data"]["features"] == 3 for d in found)
    assert len({json.dumps(d["sections"]["kernels"]) for d in found}) == 1
    Path("column.csv").write_text("\n".join(["a", *map(str, x[:, 0].tolist())]))
    column = json.loads(run("analyze", "column.csv", *RELU, "--json").stdout)
    assert (column["data"]["samples"], column["data"]["features"]) == (12, 1)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no such place")
@pytest.mark.parametrize("command", [["analyze"], ["reproduce", "shoal", "width", "--quick"]])
def test_a_folder_that_cannot_be_made_is_found_before_the_work(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for work in ("shoal.cli.analyze.load_data", "shoal.cli.reproduce.execute"):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("it computes"))
    result = run(*command, "--output", "/proc/x/y", code=2)
    assert re.match(r"Error: .*--output.*'/proc/x/y': '/proc' cannot be written", result.stderr)


def test_looking_whether_a_folder_can_be_made_leaves_nothing(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b")
    check_folder(Path("c"))
    (tmp_path / "there").mkdir()
    check_folder(tmp_path / "there")
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]


def test_a_list_needs_no_folder() -> None:
    Path("results").write_text("a file")
    assert "width" in run("reproduce").stdout


@pytest.mark.thorough
def test_what_has_no_kernel_fails_and_says_so() -> None:
    result = run("analyze", *SMALL, "--recurrent-variance", "2.5", "--json", code=1)
    document = json.loads(result.stdout)
    assert document["sections"]["well_posedness"]["kernel_guaranteed"] is False
    assert document["sections"]["kernels"]["error"]
    assert result.stderr.startswith("Error: Kernels at infinite width, Timing: ")
    assert "High-dimensional equivalents: " in result.stderr  # of the centered DEQ: another reason
    assert len(result.stderr.splitlines()) == 2  # each reason is told once
    shown = run("analyze", *SMALL, "--recurrent-variance", "2.5", code=1)
    assert shown.stdout.count("for the same reason") == 1


@pytest.mark.thorough
def test_what_is_infinite_is_null() -> None:
    options = ["--activation", "hermite:0,1,0.5", "-n", "10", "--json", "--output", "o", *RELU[2:]]
    document = json.loads(run("analyze", *options).stdout)
    assert document["sections"]["well_posedness"]["recurrent_gain"] is None  # not Lipschitz
    assert document["sections"]["kernels"]["ck"]["trace"] > 0


@pytest.mark.thorough
def test_the_scale_of_the_data_does_not_matter() -> None:
    x = np.random.default_rng(0).normal(size=(12, 3))
    np.save("x.npy", x)
    np.save("large.npy", 2.0**600 * x)
    traces = [
        json.loads(run("analyze", name, *RELU, "--json").stdout)["sections"]["kernels"]["ck"][
            "trace"
        ]
        for name in ("x.npy", "large.npy")
    ]
    assert traces[0] == pytest.approx(traces[1], rel=1e-12)


@pytest.mark.thorough("float32")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtypes(dtype: str) -> None:
    document = json.loads(run("analyze", *SMALL, "--dtype", dtype, "--json").stdout)
    assert document["data"]["dtype"] == dtype


def test_reproduce_lists_what_there_is() -> None:
    assert "width" in run("reproduce").stdout
    (one,) = (
        e
        for e in json.loads(run("reproduce", "--json").stdout)["experiments"]
        if e["figure"] == "width"
    )
    assert one["paper"] == "shoal"
    assert one["points"] == 112


def test_reproduce_runs_resumes_and_reports() -> None:
    options = ["--quick", "--device", "cpu", "--output", "out"]
    shown = run("reproduce", "shoal", "width", *options).stdout
    assert re.search(r"24, of which 0 were there", shown)
    again = run("reproduce", "shoal", "width", *options, "--json")
    assert again.stderr == ""
    (document,) = json.loads(again.stdout)["runs"]
    assert document["resumed"] == 24
    assert document["complete"]
    assert -0.7 < document["summary"]["ck_slope"] < -0.3
    for path in document["figures"]:
        assert Path(path).is_file()
    page = Path(document["report"]).read_text()
    assert "<code>shoal reproduce shoal width --quick --device cpu --threads 1" in page
    assert f"{document['summary']['ck_slope']:.4g}" in page


def test_a_whole_paper_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = find("shoal", "width")
    monkeypatch.setattr("shoal.cli.reproduce.find", lambda *_: kinds)
    document = json.loads(run("reproduce", "shoal", "--quick", "--json").stdout)
    assert document["report"] == "results/shoal-quick.html"
    page = Path("results/shoal-quick.html").read_text()
    assert '<section id="width">' in page
    assert page.count("<svg") == 1
    assert "<code>shoal" in page


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (FileNotFoundError("MNIST was not found"), "MNIST was not found"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
)
def test_experiments_without_data_and_failures_are_left_out_of_a_paper(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object, **__: object) -> None:
        raise error

    kinds = [*find("ling2024", "mnist-figure5"), *find("shoal", "width")]
    monkeypatch.setattr(kinds[0], "compute", absent)
    monkeypatch.setattr("shoal.cli.reproduce.find", lambda *_: kinds)
    result = run("reproduce", "ling2024", "--quick", "--json", code=1)
    document = json.loads(result.stdout)
    assert [one["identity"]["experiment"] for one in document["runs"]] == [["shoal", "width"]]
    assert list(document["left_out"]) == ["mnist-figure5"]
    assert result.stderr == f"Error: mnist-figure5 is left out: {words}\n"
    assert '<section id="width">' in Path(document["report"]).read_text()


def test_bench_prints_ratios() -> None:
    result = run("bench", "network", "--quick", "--device", "cpu", "--json")
    rows = json.loads(result.stdout)["measurements"]
    assert [row["benchmark"] for row in rows] == ["network"] * 2
    assert all(row["ratio"] == row["seconds"] / row["reference_seconds"] > 0 for row in rows)
    shown = run("bench", "network", "--quick", "--output", "o").stdout
    assert "ratio" in shown
    assert "Written: o/report.html, o/bench.json" in shown
    assert files() == ["o/bench.json", "o/report.html"]


@pytest.mark.parametrize("place", [0, 1])
def test_debug_shows_the_traceback(place: int) -> None:
    arguments = ["analyze", "whales"]
    arguments.insert(place, "--debug")
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "load_data" in result.stderr


def test_a_bug_is_called_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("x")

    monkeypatch.setattr("shoal.cli.analyze.load_data", broken)
    result = run("analyze", code=1)
    assert result.stderr == "Error: a bug: KeyError: 'x' (--debug shows where)\n"


@pytest.mark.thorough
def test_messages_of_the_library_come_with_verbose() -> None:
    assert "section kernels" in run("analyze", *SMALL, "-v").stderr
    assert "section kernels" not in run("analyze", *SMALL).stderr


@pytest.mark.parametrize(
    ("target", "arguments", "words"),
    [
        ("shoal.report.kernels.shoal.kernel", ["analyze", *SMALL], "1 of 4"),
        ("shoal.cli.analyze.sections_of", ["analyze", *SMALL, "--output", "o"], "0 of 4"),
        ("shoal.cli.bench.measure", ["bench", "--quick"], "0 of 10 cases"),
        ("shoal.cli.analyze.load_data", ["analyze", "--output", "o"], "no file is half-written"),
        ("shoal.cli.design.shoal.design", ["design", "--output", "o"], "no file is half-written"),
        ("shoal.cli.certify.load_data", ["certify", "--output", "o"], "no file is half-written"),
    ],
)
def test_interrupts(
    target: str, arguments: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(target, interrupt)
    result = run(*arguments, code=130)
    assert words in result.stderr
    assert "Run the command again" in result.stderr
    assert list(Path().iterdir()) == []


def test_a_run_without_a_finished_point_leaves_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("shoal.reproductions.findings.width.WidthError.compute", interrupt)
    result = run("reproduce", "shoal", "width", "--quick", "--output", "a/b", code=130)
    assert "0 of 24 points are finished, nothing is written" in result.stderr
    assert list(Path().iterdir()) == []


@pytest.mark.thorough
def test_interrupted_analyses_keep_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    command = ["analyze", *SMALL, "--output", "o"]
    names = ["analysis.json", "analysis.png", "analysis.svg", "report.html"]
    partial = ["partial.html", "partial.json", "partial.png", "partial.svg"]
    with monkeypatch.context() as patch:
        patch.setattr("shoal.report.kernels.shoal.kernel", interrupt)
        result = run(*command, code=130)
        assert "Well-posedness" in result.stdout
        assert "1 of 4 sections are finished, kept in o/partial.html" in result.stderr
        document = json.loads(run(*command, "--json", code=130).stdout)
        assert document == json.loads(Path("o/partial.json").read_text())
        assert not document["complete"]
        assert list(document["sections"]) == ["well_posedness"]
        assert files("o") == partial
    run(*command)
    assert files("o") == names  # what is complete takes the place of the part
    complete = Path("o/analysis.json").read_bytes()
    assert json.loads(complete)["complete"]
    with monkeypatch.context() as patch:
        patch.setattr("shoal.report.kernels.shoal.kernel", interrupt)
        run(*command, code=130)
    assert files("o") == sorted(names + partial)
    assert Path("o/analysis.json").read_bytes() == complete


def test_interrupted_benchmarks_print_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(benchmark: str, case: str, **_: object) -> Measurement:
        if benchmark != "kernel":
            raise KeyboardInterrupt
        return Measurement(case, 2.0, "x @ x.T", 1.0)

    monkeypatch.setattr("shoal.cli.bench.measure", measure)
    document = json.loads(run("bench", "--quick", "--json", "--output", "o", code=130).stdout)
    assert files() == ["o/partial.html", "o/partial.json"]
    assert not document["complete"]
    assert {row["benchmark"] for row in document["measurements"]} == {"kernel"}
    assert "x @ x.T" in run("bench", "--quick", code=130).stdout


@pytest.mark.parametrize("name", sorted(known_activations()))
def test_every_activation_has_a_name(name: str) -> None:
    text = "hermite:0,1" if name == "hermite" else name
    assert type(parse_activation(text)).__name__.lower() == name
    assert parse_activation(text.upper()) == parse_activation(text)


def test_the_help_names_all_that_is_taken() -> None:
    with pytest.raises(ValueError, match="must be one of") as error:
        parse_activation("blub")
    names = str(error.value).split("one of ")[1].split(", got")[0].split(", ")
    assert {"selu", "silu", "swish"} < set(names)
    assert set(names) <= set(re.findall(r"\w+", run("analyze", "--help").stdout))


def test_arguments_of_activations() -> None:
    assert parse_activation("leakyrelu:0.1") == shoal.LeakyReLU(0.1)
    assert parse_activation("ELU:0.5") == shoal.ELU(0.5)
    with pytest.raises(ValueError, match="takes coefficients, scale"):
        parse_activation("hermite")


@pytest.mark.thorough
def test_names_of_files_are_shown_as_they_are() -> None:
    """Brackets and colons mean something to what draws the tables."""
    np.save("[red]:fish:.npy", np.random.default_rng(0).normal(size=(6, 3)))
    for folder in ("[", ":fish:"):
        shown = run(
            "analyze",
            "[red]:fish:.npy",
            "--activation",
            "relu",
            "--only",
            "kernels",
            "--output",
            f"{folder}/b]",
        ).stdout
        assert "[red]:fish:.npy, n = 6" in shown
        assert f"Written: {folder}/b]/report.html" in shown
    assert "[red]:fish:.npy, 6 samples" in Path("[/b]/report.html").read_text()
