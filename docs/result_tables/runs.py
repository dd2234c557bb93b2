"""Tables of runs: what was computed, where, and how long it took."""

from collections.abc import Iterator

from result_tables.results import EXPERIMENTS_NOT_RUN, committed, record
from shoal.experiments import registered

__all__ = ["TABLES"]

Row = tuple[str, ...]


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _machine(name: str) -> str:
    (found,) = {
        session["hardware"].get("gpu") or f"CPU, {session['jobs'] * record(name)['identity']['threads']} threads"
        for session in record(name)["sessions"]
    }
    return found


def run(*names: str) -> Iterator[Row]:
    """The runs of a section, by the names of their files."""
    yield "command", "computed", "on", "in", "numbers"
    for name in names:
        found = record(name)
        command = " ".join(found["identity"]["experiment"])
        points = sum(session["computed"] for session in found["sessions"])
        yield (
            f"`shoal reproduce {command}`",
            f"{points} points",
            _machine(name),
            _time(found["wall_seconds"]),
            f"[json](results/{name}.json)",
        )


def experiments() -> Iterator[Row]:
    """All experiments that are known by name."""
    yield "command", "title", "full run"
    files = committed()
    for name, experiment in registered().items():
        page = "findings" if name[0] == "shoal" else "reproductions"
        full = EXPERIMENTS_NOT_RUN.get(name)
        if name in files:
            stem = files[name].stem
            full = f"{_time(record(stem)['wall_seconds'])}, {_machine(stem)}; [results]({page}.md)"
        yield f"`shoal reproduce {' '.join(name)}`", experiment.title, full or ""


TABLES = {"run": run, "experiments": experiments}
