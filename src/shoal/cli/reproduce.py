"""``shoal reproduce``: list and run experiments."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from shoal.cli.errors import INTERRUPTED, note
from shoal.cli.options import Debug, Device, Json, Output, Verbose, check_count, check_folder
from shoal.cli.output import command_line, console, emit, progress
from shoal.experiments import Experiment, Progress, Run, execute, find, registered
from shoal.experiments.storage import read_json

__all__ = ["reproduce"]

_STEPS = 10_000  # of the progress bar


def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(metavar="PAPER", help="The paper; without it, experiments are listed."),
    ] = None,
    figure: Annotated[
        str | None,
        typer.Argument(metavar="FIGURE", help="The figure; without it, all of the paper."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A size that takes seconds.")] = False,
    jobs: Annotated[int, typer.Option(help="How many processes compute points.")] = 1,
    threads: Annotated[int, typer.Option(help="How many threads each process uses.")] = 1,
    device: Device = "auto",
    output: Output = Path("results"),
    json: Json = False,
    verbose: Verbose = 0,  # noqa: ARG001
    debug: Debug = False,  # noqa: ARG001
) -> None:
    """List the experiments, or run those of a paper, or one figure.

    Every run has a folder of its own in the output folder, named by a hash of its configuration.
    What is finished there is not computed again: a run that was interrupted goes on, with the same
    results to the last bit.
    """
    for option, value in (("--jobs", jobs), ("--threads", threads)):
        check_count(option, value)
    if paper is None:
        _list(json=json)
        return
    kinds = find(paper, figure)
    check_folder(output)
    experiments = [kind.quick() if quick else kind() for kind in kinds]
    runs = [Run(one, output, device, threads) for one in experiments]
    documents = [_run(one, jobs=jobs, quiet=json) for one in runs]
    if json:
        emit({"runs": documents})


def _list(*, json: bool) -> None:
    """What can be run."""
    rows = [(name, kind.title, len(kind().points())) for name, kind in registered().items()]
    if json:
        keys = ("paper", "figure", "title", "points")
        emit({"experiments": [dict(zip(keys, (*n, t, p), strict=True)) for n, t, p in rows]})
        return
    table = Table(title="Experiments: shoal reproduce PAPER FIGURE", title_justify="left")
    for column in ("paper", "figure", "shows", "points"):
        table.add_column(column, justify="right" if column == "points" else "left")
    for name, title, points in rows:
        table.add_row(*name, title, str(points))
    console().print(table)


def _run(one: Run, *, jobs: int, quiet: bool) -> dict[str, Any]:
    """Run one experiment; what is known of it afterwards."""
    resumed = one.finished
    try:
        with progress(quiet=quiet) as bar:
            task = bar.add_task(" ".join(one.experiment.name), total=_STEPS)

            def report(now: Progress) -> None:
                text = f"{' '.join(one.experiment.name)}  {now.finished} of {now.total} points"
                steps = round(_STEPS * now.share)
                bar.update(task, completed=steps, description=text)
                if now.finished == now.resumed:  # what was there says nothing of the speed
                    bar.reset(task, total=_STEPS, completed=steps)

            execute(one, jobs=jobs, on_progress=report)
    except KeyboardInterrupt:
        note(_interrupted(one))
        raise typer.Exit(INTERRUPTED) from None
    record: dict[str, Any] = read_json(one.folder / "run.json")
    if not quiet:
        _show(one, record, resumed)
    return {"folder": str(one.folder), "figures": _figures(one), "resumed": resumed, **record}


def _interrupted(one: Run) -> str:
    total = len(one.files)
    return (
        f"Interrupted: {one.finished} of {total} points are finished and kept in {one.folder}. "
        f"To go on, run the same command again: {command_line()}"
    )


def _figures(one: Run) -> list[str]:
    return [str(one.folder / f"figure.{ending}") for ending in ("png", "svg")]


def _show(one: Run, record: dict[str, Any], resumed: int) -> None:
    experiment: Experiment = one.experiment
    console().print(f"{' '.join(experiment.name)}: {experiment.title}", soft_wrap=True)
    table = Table(show_header=False)
    for name, value in record["summary"].items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    table.add_section()
    table.add_row("points", f"{len(one.files)}, of which {resumed} were there")
    table.add_row("seconds", f"{record['wall_seconds']:.3g}")
    console().print(table)
    console().print(f"Figure: {_figures(one)[0]}", soft_wrap=True)
