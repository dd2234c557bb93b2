"""The claims of the papers, with their verdicts."""

from collections.abc import Iterator

from experiments.claims import Claim
from experiments.experiment import registered
from result_tables.results import Row, committed, summary, table

__all__ = ["claims"]

PAPERS = ("Ling 2024", "Ling 2023", "Gao 2022", "Du 2018")


def claims() -> list[Claim]:
    """The claims of papers that were tested by a recorded run, paper by paper."""
    found = [
        claim
        for name, kind in registered().items()
        if name in committed()
        for claim in kind().claims(summary("-".join(name)))
        if claim.section.partition(",")[0] in PAPERS
    ]
    return sorted(found, key=lambda c: (PAPERS.index(c.section.partition(",")[0]), c.section))


@table
def verdicts(*paper: str) -> Iterator[Row]:
    """The claims of one paper, such as ``verdicts Ling 2024``."""
    yield "claim", "printed", "shoal", "verdict"
    for claim in (claim for claim in claims() if claim.section.startswith(" ".join(paper))):
        words = f"{claim.verdict}: {claim.remark}" if claim.remark else claim.verdict
        anchor = claim.section.lower().replace(",", "").replace(".", "").replace(" ", "-")
        yield f"[{claim.statement}](#{anchor})", claim.printed, claim.ours, words
