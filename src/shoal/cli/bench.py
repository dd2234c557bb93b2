"""``shoal bench``: how long things take, as ratios to what cannot be avoided."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from shoal import __version__
from shoal.cli.command import Command, Example
from shoal.cli.errors import INTERRUPTED, note
from shoal.cli.logs import state
from shoal.cli.options import check_output
from shoal.cli.output import command_line, console, emit, progress
from shoal.pages.provenance import hardware, resolve_device
from shoal.report import BENCHMARKS, Measurement, measure
from shoal.report.benchmarks import bench_page, milliseconds
from shoal.report.saving import forget_parts, save_results


@Command(
    "How long shoal takes, as ratios to what cannot be avoided.",
    place=5,
    writes="report.html (the page for people), bench.json",
    examples=(
        Example("all, small", "shoal bench --quick"),
        Example("one, with a page", "shoal bench kernel --output times"),
    ),
)
def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all of them by default."),
    ] = None,
    /,
    quick: bool = False,
    device: str = "auto",
    output: Path | None = None,
) -> None:
    """Time shoal, and show ratios to matrix products and elementary functions.

    Times are the shortest of five, taken in turns with those of the reference. After Ctrl-C the
    finished cases are shown; the next call starts over.

    Options:
        quick: Sizes that take seconds.
    """
    if name is not None and name not in BENCHMARKS:
        raise ValueError(f"NAME must be one of {', '.join(BENCHMARKS)}, got {name!r}")
    place = resolve_device(device)
    check_output(output)
    cases = [(b, case) for b in ([name] if name else BENCHMARKS) for case in BENCHMARKS[b].cases]
    found: list[tuple[str, Measurement]] = []
    interrupted = False
    try:
        with progress() as bar:
            task = bar.add_task("", total=len(cases))
            for benchmark, case in cases:
                bar.update(task, description=f"{BENCHMARKS[benchmark].title}: {case}")
                found.append((benchmark, measure(benchmark, case, device=place, quick=quick)))
                bar.update(task, advance=1)
    except KeyboardInterrupt:
        interrupted = True
    record = _document(found, place, complete=not interrupted)
    files: list[Path] = []
    if found and output is not None:
        page = bench_page(found, device=place, command=command_line(), complete=not interrupted)
        names = ("partial.html", "partial.json") if interrupted else ("report.html", "bench.json")
        files = save_results(output, pages={names[0]: page}, documents={names[1]: record})
        forget_parts(files)
    if state.json and found:
        emit(record)
    elif found:
        _show(found, place, files)
    if interrupted:
        kept = f", kept in {files[0]}" if files else ""
        note(
            f"Interrupted: {len(found)} of {len(cases)} cases are finished{kept}. Run the command "
            "again; it starts over, or name one benchmark."
        )
        raise typer.Exit(INTERRUPTED)


def _document(
    found: list[tuple[str, Measurement]], device: torch.device, *, complete: bool
) -> dict[str, Any]:
    return {
        "shoal": __version__,
        "complete": complete,
        "torch": str(torch.__version__),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "hardware": hardware(device),
        "measurements": [{"benchmark": n, **asdict(m), "ratio": m.ratio} for n, m in found],
    }


def _show(found: list[tuple[str, Measurement]], device: torch.device, files: list[Path]) -> None:
    threads = torch.get_num_threads()
    title = f"shoal {__version__}, torch {torch.__version__}, {device}, threads: {threads}"
    table = Table(title=title, title_justify="left")
    for column in ("case", "time", "reference", "its time", "ratio"):
        table.add_column(column, justify="left" if column in ("case", "reference") else "right")
    before = None
    for name, one in found:
        if before not in (None, name):
            table.add_section()
        before = name
        times = [milliseconds(seconds) for seconds in (one.seconds, one.reference_seconds)]
        table.add_row(one.case, times[0], one.reference, times[1], f"{one.ratio:.3g}")
    console().print(table)
    if files:
        console().print(f"Written: {', '.join(map(str, files))}", soft_wrap=True)
