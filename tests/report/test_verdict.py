"""The top of a report: two sentences, three numbers, what is fine, what is not and what to do."""

from typing import Any

import pytest
import torch

import shoal
from shoal.data import Dataset
from shoal.pages.figures import legend_below, new_figure, style
from shoal.report import SECTIONS, Findings, Row, Section, Subject, document, render
from shoal.report.verdict import verdict
from shoal.report.well_posedness import WELL_POSEDNESS

NAMED = {section.name: section for section in SECTIONS}
X = torch.eye(6, dtype=torch.float64) - 1 / 6
SUBJECT = Subject(shoal.DEQ(shoal.Tanh(), 0.2, 0.8), Dataset(X, name="points"))


def found(**numbers: dict[str, Any]) -> dict[Section, Findings]:
    return {NAMED[name]: Findings(numbers=values) for name, values in numbers.items()}


def settled(gain: float) -> dict[str, Any]:
    certain = {"contraction": gain < 1, "kernel_guaranteed": gain < 2}
    return {"gain_upper": gain, "width": 1024, **certain}


def accuracy(deq: float, naive: float, tested: int, measure: str = "accuracy") -> dict[str, Any]:
    scores = {"deq": deq, "naive": naive}
    return {"infinite": scores, "constant": 0.1, "tested": tested, "measure": measure}


NEW = {"accuracy": 0.992, "classes": True, "samples": 1000, "loo": 0.007}
SPHERE = {"ntk_sphere": {"gap": 2e-12, "feasible": True}}


def test_two_sentences_and_three_numbers() -> None:
    numbers = found(
        well_posedness=settled(0.886), prediction=NEW, accuracy=accuracy(0.988, 0.988, 250)
    )
    told = verdict(numbers)
    assert told is not None
    first, second = told.sentences
    assert first == (
        "The network settles to one equilibrium for every input, and gets 99.2% of new samples "
        "right."
    )
    assert second.startswith("Nothing shows that these data need its loop")
    assert [row.value for row in told.figures] == ["0.886", "99.2%", "+0.0 points"]
    assert [row.holds for row in told.figures] == [True, True, None]
    page = render(SUBJECT, numbers)
    place = [page.index(words) for words in (first, second, "+0.0 points", "<nav", "<section")]
    assert place == sorted(place)
    assert document(SUBJECT, numbers)["verdict"] == [first, second]


@pytest.mark.parametrize(
    ("naive", "tested", "words"),
    [
        (0.90, 40, "Nothing shows"),  # eight points of 40 samples are chance
        (0.90, 4000, "The loop can be replaced: one hidden layer"),
        (0.99, 4000, "Nothing shows"),
    ],
)
def test_a_loop_is_worth_what_chance_does_not_explain(
    naive: float, tested: int, words: str
) -> None:
    told = verdict(found(accuracy=accuracy(0.98, naive, tested), design=SPHERE))
    assert told is not None
    assert told.sentences[-1].startswith(words)
    (row,) = told.figures
    assert row.value == f"{100 * (0.98 - naive):+.1f} points"


def test_a_loop_that_nothing_replaces_is_kept() -> None:
    infeasible = {"ntk_sphere": {"gap": 0.3, "feasible": False}}
    told = verdict(found(accuracy=accuracy(0.98, 0.9, 4000), design=infeasible))
    assert told is not None
    assert told.sentences[-1].startswith("These data gain by its loop")


def test_real_targets_have_errors_and_no_classes() -> None:
    told = verdict(found(prediction={**NEW, "classes": False, "loo": 1.3}))
    assert told is not None
    assert told.sentences == ("The network misses 1.3 of the target's variance on new samples.",)
    assert told.figures[0].holds is False  # no better than the mean


@pytest.mark.parametrize(
    ("gain", "words"), [(1.5, "no guarantee that it settles"), (2.5, "nor that its kernel exists")]
)
def test_missing_guarantees_are_said(gain: float, words: str) -> None:
    told = verdict(found(well_posedness=settled(gain)))
    assert told is not None
    assert words in told.sentences[0]
    assert told.figures[0].holds is False


def test_without_its_sections_there_is_no_verdict() -> None:
    assert verdict(found(timing={"ratio": 3.0})) is None
    assert 'class="answer"' not in render(SUBJECT, found(timing={"ratio": 3.0}))


def test_what_is_not_fine_says_what_to_do() -> None:
    findings = Findings(
        (Row("error", "0.3 (CK), 0.1 (NTK)", contradicted=True), Row("other", "1")),
        warnings=("It is otherwise.",),
        fine=("This is as it should be.",),
        remedy="Do something else.",
    )
    page = render(SUBJECT, {NAMED["kernels"]: findings})
    head = page[: page.index("<nav") if "<nav" in page else page.index("<main")]
    place = [head.index(w) for w in ("This is as", "It is otherwise.", "Do something else.")]
    assert place == sorted(place)
    assert page.count('class="contradicted"') == 1
    assert page.count('aria-label="contradicted by the data"') == 1
    assert "Do something else." not in render(
        SUBJECT, {NAMED["kernels"]: Findings(remedy="Do something else.")}
    )


@pytest.mark.parametrize("variance", [0.2, 0.9])
def test_guarantees_are_fine_or_lacking(variance: float) -> None:
    subject = Subject(shoal.DEQ(shoal.Tanh(), variance, 0.8), SUBJECT.data)
    findings = WELL_POSEDNESS.find(subject)
    assert bool(findings.fine) == (variance < 0.25)
    assert bool(findings.lacking) == (variance > 0.25)
    assert "1/4" in findings.remedy


@pytest.mark.parametrize(
    "names", [["a"], ["short"] * 5, ["a name that is much longer than a line is"] * 3]
)
def test_legends_cover_nothing(names: list[str]) -> None:
    with style():
        figure = new_figure(4.7, 3.4)
        axes = figure.subplots()
        for name in names:
            axes.plot([0, 1], [1, 0], label=name)
        axes.set_xlabel("what it is of")
        legend_below(axes)
        figure.draw_without_rendering()
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent())
        assert not legend.overlaps(axes.xaxis.label.get_window_extent())
        assert legend.ymin >= 0
