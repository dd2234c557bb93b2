"""The summary of all reproductions: claims, verdicts, and what they rest on."""

from collections.abc import Iterator

from experiments.claims import Claim, short
from experiments.experiment import registered
from result_tables.results import Row, committed, summary, table

__all__ = ["claims"]

PAPERS = ("Ling 2024", "Ling 2023", "Gao 2022", "Du 2018")


def claims() -> list[Claim]:
    """The claims of papers that recorded runs say something to, paper by paper."""
    found = [
        claim
        for name, kind in registered().items()
        if name in committed()
        for claim in kind().claims(summary("-".join(name)))
        if claim.section.partition(",")[0] in PAPERS
    ]
    return sorted(found, key=lambda c: (PAPERS.index(c.section.partition(",")[0]), c.section))


@table
def verdicts() -> Iterator[Row]:
    """Claim, printed, ours, verdict and section."""
    yield "claim", "printed", "ours", "verdict", ""
    for claim in claims():
        words = f"{claim.verdict}: {claim.remark}" if claim.remark else claim.verdict
        anchor = claim.section.lower().replace(",", "").replace(".", "").replace(" ", "-")
        yield claim.statement, claim.printed, claim.ours, words, f"[{claim.section}](#{anchor})"


@table
def criteria() -> Iterator[Row]:
    """What each verdict rests on: thresholds, and what was measured."""
    yield "claim", "asked", "measured", "holds"
    for claim in claims():
        for index, one in enumerate(claim.criteria):
            statement = claim.statement if index == 0 else ""
            yield statement, one.asked, short(one.value, 3), "yes" if one.holds else "no"
