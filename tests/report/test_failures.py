"""A section that fails: what the others found is kept, and the failure is named."""

import json
from pathlib import Path

import pytest
import torch
from commands import files, run

import shoal
from shoal.data import Dataset
from shoal.report import Findings, Row, Section, Subject, analyze

SUBJECT = Subject(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), Dataset(torch.eye(4).double()))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (shoal.AccuracyError("no digits"), "no digits"),
        (ValueError("x must be\n small"), "x must be small"),
        (torch.linalg.LinAlgError("it is singular"), "LinAlgError: it is singular"),
        (MemoryError(), "MemoryError: "),
        (KeyError("y"), "KeyError: 'y'"),
        (ZeroDivisionError("division by zero"), "ZeroDivisionError: division by zero"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sections_around_one_that_fails_are_found(error: Exception, words: str) -> None:
    def fail(_: Subject) -> Findings:
        raise error

    def find(_: Subject) -> Findings:
        return Findings((Row("one", "1"),), {"one": 1})

    sections = [Section("a", "A", find), Section("b", "B", fail), Section("c", "C", find)]
    found = list(analyze(SUBJECT, sections))
    assert [section.name for section, _ in found] == ["a", "b", "c"]
    assert [findings.error for _, findings in found] == [None, words, None]


def test_numbers_that_cannot_be_written_spoil_their_section_only() -> None:
    good = Section("a", "A", lambda _: Findings(numbers={"one": [1.0, float("nan")]}))
    bad = Section("b", "B", lambda _: Findings(numbers={"one": torch.ones(1)}))
    (_, first), (_, second) = analyze(SUBJECT, [good, bad])
    assert first.error is None
    assert second.error is not None
    assert "TypeError: Object of type Tensor is not JSON serializable" in second.error


def test_a_late_failure_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] can't allocate")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.report.timing.best_times", fail)
    command = ["analyze", "-n", "12", "--activation", "relu", "--only", "kernels,timing"]
    result = run(*command, "--json", "--output", "o", code=1)
    assert result.stderr == "Error: Timing: RuntimeError: [enforce fail] can't allocate\n"
    document = json.loads(result.stdout)
    assert document["sections"]["kernels"]["ck"]["trace"] > 0
    assert "can't allocate" in document["sections"]["timing"]["error"]
    assert files("o") == ["analysis.json", "analysis.png", "analysis.svg", "report.html"]
    assert "effective rank" in (tmp_path / "o" / "report.html").read_text()
    assert "effective rank" in run(*command, code=1).stdout


def test_a_plot_that_fails_leaves_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("Axis limits cannot be NaN or Inf")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.report.kernels.draw_eigenvalues", fail)
    command = ["analyze", "-n", "12", "--activation", "relu", "--only", "kernels,timing"]
    result = run(*command, "--json", "--output", "o", code=1)
    reason = "its figure cannot be drawn: Axis limits cannot be NaN or Inf"
    assert result.stderr == f"Error: Kernels at infinite width: {reason}\n"
    document = json.loads(result.stdout)
    assert document == json.loads((tmp_path / "o" / "analysis.json").read_text())
    assert document["sections"]["kernels"]["ck"]["trace"] > 0
    assert document["sections"]["kernels"]["error"] == reason
    page = (tmp_path / "o" / "report.html").read_text()
    assert "effective rank" in page
    assert reason in page
    assert page.count("<svg") == 1
