"""Tables of runs: what was computed, where, and how long it took."""

import re
from collections.abc import Iterator

from experiments.experiment import registered
from result_tables.results import EXPERIMENTS_NOT_RUN, RESULTS, Row, committed, record, table

__all__: list[str] = []


PLACE = re.compile(r"^#+ (.+)$|<!-- table: run ([^>]+) -->", re.MULTILINE)


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _machine(name: str) -> str:
    """The GPUs, or how many threads of a CPU, of all sessions of a run."""
    threads = record(name)["identity"]["threads"]
    found = " and ".join(
        dict.fromkeys(
            session["hardware"].get("gpu") or f"CPU, {session['jobs'] * threads} threads"
            for session in record(name)["sessions"]
        )
    )
    return found.removeprefix("NVIDIA ").replace("CPU, 1 threads", "CPU, 1 thread")


@table
def run(*names: str) -> Iterator[Row]:
    """The runs of a section, by the names of their files."""
    yield "command", "computed", "on", "in", "numbers"
    for name in names:
        found = record(name)
        command = " ".join(found["identity"]["experiment"])
        points = sum(session["computed"] for session in found["sessions"])
        yield (
            f"`python -m experiments {command}`",
            f"{points} points",
            _machine(name),
            _time(found["wall_seconds"]),
            f"[json](results/{name}.json)",
        )


@table
def experiments() -> Iterator[Row]:
    """All experiments that are known by name, and where their results stand."""
    yield "command", "title", "full run"
    files, sections = committed(), _sections()
    for name, experiment in registered().items():
        if name in files:
            stem = files[name].stem
            time = _time(record(stem)["wall_seconds"])
            full = f"[{time}, {_machine(stem)}]({sections[stem]})"
        else:
            full = EXPERIMENTS_NOT_RUN[name]
        yield f"`python -m experiments {' '.join(name)}`", experiment.title, full


def _sections() -> dict[str, str]:
    """The link to the section with the run of each file."""
    found: dict[str, str] = {}
    for page in sorted(RESULTS.parent.glob("*.md")):
        anchor = ""
        for heading, names in PLACE.findall(page.read_text(encoding="utf-8")):
            if heading:
                anchor = re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
            found |= dict.fromkeys(names.split(), f"{page.name}#{anchor}")
    return found
