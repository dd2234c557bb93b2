"""Lists of runs: where they were computed, and how long it took."""

from collections.abc import Iterator

from result_tables.results import record, table

__all__: list[str] = []


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
def run(*names: str) -> Iterator[str]:
    """A list of the runs of a section, by the names of their files."""
    for name in names:
        found = record(name)
        command = " ".join(found["identity"]["experiment"])
        time = f"{_time(found['wall_seconds'])}, {_machine(name)}"
        yield f"- `python -m experiments {command}`: {time}, [numbers](results/{name}.json)"
