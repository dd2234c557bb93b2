"""Runs of experiments as a page: figures, numbers, configurations, and where they were computed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shoal.lab import Claim, Run
from shoal.lab.formatting import short
from shoal.pages.figures import Figure
from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page


@dataclass(frozen=True)
class Finished:
    """A run that is finished.

    Attributes:
        run: The run.
        record: Its ``run.json``.
        figure: Its figure.
    """

    run: Run
    record: dict[str, Any]
    figure: Figure

    @property
    def name(self) -> str:
        """The paper and the figure."""
        return " ".join(self.run.experiment.name)

    @property
    def claims(self) -> Sequence[Claim]:
        """What the paper claims, with verdicts; they are for runs in full size."""
        experiment = self.run.experiment
        full = experiment == type(experiment)()
        return experiment.claims(self.record["summary"]) if full else ()


def run_page(one: Finished, *, command: str | None = None) -> str:
    """A run as an HTML page.

    Args:
        one: The run.
        command: What runs it again.
    """
    parts = [
        *([Part("verdict", "Verdict", Findings(_verdicts(one)))] if one.claims else []),
        Part("result", "Result", Findings(_summary(one), figure=one.figure)),
        Part("configuration", "Configuration", Findings(_configuration(one))),
        Part("provenance", "Where it comes from", Findings(_provenance(one))),
    ]
    device = torch.device(one.run.device)
    return render_page(f"{one.name}: {one.record['title']}", _size(one), parts, device=device,
                       command=command)  # fmt: skip


def paper_page(paper: str, runs: Sequence[Finished], *, command: str | None = None) -> str:
    """All runs of a paper as one HTML page.

    Args:
        paper: The paper's name.
        runs: The runs, all on one device.
        command: What runs them again.
    """
    parts = []
    for one in runs:
        figure = one.run.experiment.name[1]
        words = [
            f"{row.quantity}: {row.value}" for row in (*_configuration(one), *_provenance(one))
        ]
        findings = Findings(
            (Row("size", _size(one)), *_verdicts(one), *_summary(one)),
            notes=tuple(words),
            figure=one.figure,
        )
        parts.append(Part(figure, f"{figure}: {one.record['title']}", findings))
    seconds = sum(one.record["wall_seconds"] for one in runs)
    lead = f"{len(runs)} experiments, computed in {seconds:.3g} s"
    device = torch.device(runs[0].run.device)
    return render_page(f"Reproductions: {paper}", lead, parts, device=device, command=command)


def _size(one: Finished) -> str:
    points = len(one.record["points"])
    return f"points: {points}, computed in {one.record['wall_seconds']:.3g} s on {one.run.device}"


def _verdicts(one: Finished) -> tuple[Row, ...]:
    """Each claim, what was found, and which criteria the verdict rests on."""
    return tuple(
        Row(
            claim.statement,
            claim.verdict,
            f"printed: {claim.printed}; here: {claim.ours}; "
            + "; ".join(
                f"{c.asked}: {short(c.value, 3)}, {'yes' if c.holds else 'no'}"
                for c in claim.criteria
            ),
        )
        for claim in one.claims
    )


def _summary(one: Finished) -> tuple[Row, ...]:
    numbers = one.record["summary"].items()
    return tuple(Row(name.replace("_", " "), f"{value:.4g}") for name, value in numbers)


def _configuration(one: Finished) -> tuple[Row, ...]:
    fields = one.record["identity"]["configuration"].items()
    return tuple(
        Row(name.replace("_", " "), _words(value)) for name, value in fields if name != "class"
    )


def _provenance(one: Finished) -> tuple[Row, ...]:
    """Versions and machines, of every session that computed a part."""
    identity = one.record["identity"]
    rows = [Row(name, version) for name, version in identity["versions"].items()]
    rows += [Row("device", identity["device"]), Row("threads", str(identity["threads"]))]
    for session in one.record["sessions"]:
        machine = ", ".join(str(value) for value in session["hardware"].values() if value)
        rows.append(
            Row(
                f"started {session['started']}",
                f"points: {session['computed']}",
                f"{machine}; {session['seconds']:.3g} s, processes: {session['jobs']}",
            )
        )
    return tuple(rows)


def _words(value: Any) -> str:
    """Plain values as a person writes them: classes by their names, with what they are made of."""
    if isinstance(value, dict):
        inside = ", ".join(f"{name}={_words(v)}" for name, v in value.items() if name != "class")
        return f"{value['class']}({inside})" if "class" in value else inside
    if isinstance(value, list):
        return ", ".join(map(_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
