"""The pages on experiments say what the records of the runs in docs/results say."""

import json
import re
from pathlib import Path

import pytest

from experiments.experiment import plain, registered
from result_tables import EXPERIMENTS_NOT_RUN, PAGES, committed, rendered

# Records of runs that are smaller than the experiment's full size, as their section says.
SMALLER = {  # options that differ in the runs that are recorded
    ("shoal", "training"): {"trials": [5, 3, 2]},
    ("shoal", "regression"): {
        "solvers": ["cholesky", "none", "diagonal", "equivalent", "combined", "nystrom"]
    },
}

DOCS = Path(__file__).parents[1] / "docs"
TEXTS = {page.name: page.read_text(encoding="utf-8") for page in PAGES}


def shown(text: str) -> list[str]:
    """The records that a page has the run of."""
    found = re.findall(r"<!-- table: run ([^>]+) -->", text)
    return [name for names in found for name in names.split()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_records(page: Path) -> None:
    text = TEXTS[page.name]
    assert rendered(text) == text, f"{page.name} is not what `make tables` writes"
    assert text.count("<!-- table:") == text.count("<!-- end -->")


def test_a_changed_number_is_found_and_put_right() -> None:
    text = TEXTS["when-depth-pays.md"]
    table = text[text.index("<!-- table: spectrum -->") :]
    number = re.search(r"0\.\d{4}", table)
    assert number
    changed = text.replace(table, table.replace(number[0], "0.9999", 1))
    assert changed != text
    assert rendered(changed) == text


def test_every_experiment_was_run_or_it_is_said_why_not() -> None:
    known, run = set(registered()), set(committed())
    assert run <= known
    assert set(EXPERIMENTS_NOT_RUN) == known - run
    assert all(EXPERIMENTS_NOT_RUN.values())


def test_every_record_is_shown_in_exactly_one_section() -> None:
    found = sorted(name for text in TEXTS.values() for name in shown(text))
    assert found == sorted(file.stem for file in committed().values())


def test_experiments_of_papers_have_a_section_of_the_reproductions() -> None:
    papers = {"-".join(name) for name in registered() if name[0] != "shoal"}
    assert set(shown(TEXTS["reproductions.md"])) == papers - {
        "-".join(name) for name in EXPERIMENTS_NOT_RUN
    }


@pytest.mark.parametrize("name", committed(), ids="-".join)
def test_records_are_of_full_runs_and_have_their_figure(name: tuple[str, str]) -> None:
    record = json.loads(committed()[name].read_text(encoding="utf-8"))
    assert record["identity"]["experiment"] == list(name)
    assert record["title"] == registered()[name].title
    assert record["summary"]
    full = json.loads(json.dumps(plain(registered()[name]())))
    assert record["identity"]["configuration"] == full | SMALLER.get(name, {})
    figure = f"images/{'_'.join(name)}.png"
    assert (DOCS / figure).exists()
    assert any(f"]({figure})" in text for text in TEXTS.values())


def test_links_between_pages_lead_somewhere() -> None:
    for name, text in TEXTS.items():
        for page, anchor in re.findall(r"\]\(([\w./-]*\.md)?(?:#([\w-]+))?\)", text):
            target = TEXTS.get(page or name)
            if target is None or not anchor:
                assert (DOCS / (page or name)).exists(), (name, page)
                continue
            headings = re.findall(r"^#+ (.+)$", target, re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in headings}
            assert anchor in slugs, (name, page, anchor)
