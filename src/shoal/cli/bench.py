"""``shoal bench``: how long things take, as ratios to what cannot be avoided."""

from dataclasses import asdict
from typing import Annotated, Any

import torch
import typer
from rich.table import Table

from shoal import __version__
from shoal.cli.errors import INTERRUPTED, note
from shoal.cli.options import Debug, Device, Json, Verbose
from shoal.cli.output import console, emit, progress
from shoal.experiments.provenance import hardware, resolve_device
from shoal.report import BENCHMARKS, Measurement, measure

__all__ = ["bench"]


def bench(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"{', '.join(BENCHMARKS)}; all of them by default."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes that take seconds.")] = False,
    device: Device = "auto",
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """Time shoal, and show ratios to matrix products and elementary functions.

    Times are the shortest of five, taken in turns with those of the reference.
    """
    if name is not None and name not in BENCHMARKS:
        raise ValueError(f"NAME must be one of {', '.join(BENCHMARKS)}, got {name!r}")
    place = resolve_device(device)
    cases = [(b, case) for b in ([name] if name else BENCHMARKS) for case in BENCHMARKS[b].cases]
    found: list[tuple[str, Measurement]] = []
    interrupted = False
    try:
        with progress(quiet=json) as bar:
            task = bar.add_task("", total=len(cases))
            for benchmark, case in cases:
                bar.update(task, description=f"{BENCHMARKS[benchmark].title}: {case}")
                found.append((benchmark, measure(benchmark, case, device=place, quick=quick)))
                bar.update(task, advance=1)
    except KeyboardInterrupt:
        interrupted = True
    if json and found:
        emit({**_document(found, place), "complete": not interrupted})
    elif found:
        _show(found, place)
    if interrupted:
        note(
            f"Interrupted: {len(found)} of {len(cases)} cases are finished. Run the command again; "
            "it starts over, or name one benchmark."
        )
        raise typer.Exit(INTERRUPTED)


def _document(found: list[tuple[str, Measurement]], device: torch.device) -> dict[str, Any]:
    return {
        "shoal": __version__,
        "torch": str(torch.__version__),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "hardware": hardware(device),
        "measurements": [{"benchmark": n, **asdict(m), "ratio": m.ratio} for n, m in found],
    }


def _show(found: list[tuple[str, Measurement]], device: torch.device) -> None:
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
        times = [f"{1e3 * seconds:.3g} ms" for seconds in (one.seconds, one.reference_seconds)]
        table.add_row(one.case, times[0], one.reference, times[1], f"{one.ratio:.3g}")
    console().print(table)
