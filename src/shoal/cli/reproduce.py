"""``shoal reproduce``: list and run experiments."""

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from shoal.cli.command import Command, Example
from shoal.cli.errors import FAILED, INTERRUPTED, note
from shoal.cli.logs import state
from shoal.cli.options import check_output
from shoal.cli.output import command_line, console, emit, progress
from shoal.core.processes import processes
from shoal.lab import Progress, Run, execute, find, registered
from shoal.lab.records import read_json
from shoal.report.reproduction import Finished, paper_page, run_page
from shoal.report.saving import save_results

_logger = logging.getLogger(__name__)

_STEPS = 10_000  # of the progress bar
_PAPERS = ", ".join(sorted({paper for paper, _ in registered()}))


@Command(
    "List and run the papers' figures, tables and theorems.",
    place=4,
    shared=True,
    writes="for each run a folder with report.html (the page for people), "
    "run.json, figure.png and .svg, points/*.npz; for a whole paper PAPER.html",
    examples=(
        Example("the list", "shoal reproduce"),
        Example("one figure, small", "shoal reproduce ling2024 figure1 --quick"),
        Example(
            "all of a paper, at full size, in 4 processes",
            "shoal reproduce ling2023 --jobs 4 --output results",
        ),
    ),
)
def reproduce(
    paper: Annotated[
        str | None,
        typer.Argument(metavar="PAPER", help=f"{_PAPERS}; without it, experiments are listed."),
    ] = None,
    figure: str | None = None,
    /,
    quick: bool = False,
    jobs: int = 1,
    threads: int = 1,
    device: str = "auto",
    output: Path = Path("results"),
) -> None:
    """List the experiments, or run those of a paper, or one figure.

    Every run has a folder of its own in the output folder, named by a hash of its configuration.
    What is finished there is not computed again: a run that was interrupted goes on, with the same
    results to the last bit. Of a whole paper, what fails or has no data here is left out and named.
    Under torchrun, processes share the points.

    Options:
        figure (FIGURE): Such as figure1; without it, all of the paper.
        quick: A size that takes seconds.
        threads: How many threads each process uses.
        output (FOLDER): The folder to write into; it is made.
    """
    if paper is None:
        _list()
        return
    kinds = find(paper, figure)
    check_output(output)
    experiments = [kind.quick() if quick else kind() for kind in kinds]
    runs = [Run(one, output, device, threads) for one in experiments]
    if not processes().first:
        _assist(runs, jobs=jobs, all_of_them=figure is None)
        return
    if figure is None:
        document = _run_all(paper, runs, jobs=jobs, quick=quick)
    else:
        document = {"runs": [_run(runs[0], jobs=jobs, quick=quick)[1]]}
    if state.json:
        emit(document)
    absent = document.get("left_out", {})
    for name, reason in absent.items():
        note(f"Error: {name} is left out: {reason}")
    if absent:
        raise typer.Exit(FAILED)


def _run_all(paper: str, runs: Sequence[Run], *, jobs: int, quick: bool) -> dict[str, Any]:
    """Run what a paper has, but for what has no data here or fails, and put it on one page."""
    done: list[tuple[Finished, dict[str, Any]]] = []
    absent: dict[str, str] = {}
    for one in runs:
        try:
            done.append(_run(one, jobs=jobs, quick=quick))
        except typer.Exit:
            raise
        except Exception as error:  # whatever it is, the others' results are not lost
            _logger.debug("%s", one.experiment.name, exc_info=True)
            kind = "" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: "
            absent[one.experiment.name[1]] = f"{kind}{error}"
    document: dict[str, Any] = {"runs": [described for _, described in done], "left_out": absent}
    if done:
        page = paper_page(paper, [finished for finished, _ in done], command=command_line())
        name = f"{paper}-quick.html" if quick else f"{paper}.html"
        (file,) = save_results(runs[0].output, pages={name: page})
        document["report"] = str(file)
        if not state.json:
            console().print(f"All together: {file}", soft_wrap=True)
    return document


def _assist(runs: Sequence[Run], *, jobs: int, all_of_them: bool) -> None:
    """Compute points for the first of several processes, which writes and tells."""
    for one in runs:
        try:
            execute(one, jobs=jobs)
        except Exception:  # the first has it too, and names it
            if not all_of_them:
                raise typer.Exit(FAILED) from None
            _logger.debug("%s", one.experiment.name, exc_info=True)


def _list() -> None:
    """What can be run."""
    rows = [(name, kind.title, len(kind().points())) for name, kind in registered().items()]
    if state.json:
        keys = ("paper", "figure", "title", "points")
        emit({"experiments": [dict(zip(keys, (*n, t, p), strict=True)) for n, t, p in rows]})
        return
    table = Table(title="Experiments: shoal reproduce PAPER FIGURE", title_justify="left")
    for column in ("paper", "figure", "shows", "points"):
        table.add_column(column, justify="right" if column == "points" else "left")
    for name, title, points in rows:
        table.add_row(*name, title, str(points))
    console().print(table)


def _run(one: Run, *, jobs: int, quick: bool) -> tuple[Finished, dict[str, Any]]:
    """Run one experiment; its results, and what is known of it afterwards."""
    resumed = one.finished
    try:
        with progress() as bar:
            task = bar.add_task(" ".join(one.experiment.name), total=_STEPS)

            def report(now: Progress) -> None:
                text = f"{' '.join(one.experiment.name)}  {now.finished} of {now.total} points"
                steps = round(_STEPS * now.share)
                bar.update(task, completed=steps, description=text)
                if now.finished == now.resumed:  # what was there says nothing of the speed
                    bar.reset(task, total=_STEPS, completed=steps)

            results = execute(one, jobs=jobs, on_progress=report)
    except KeyboardInterrupt:
        note(_interrupted(one))
        raise typer.Exit(INTERRUPTED) from None
    record: dict[str, Any] = read_json(one.folder / "run.json")
    finished = Finished(one, record, one.experiment.plot(results))
    page = run_page(finished, command=_command(one, quick=quick))
    (file,) = save_results(one.folder, pages={"report.html": page})
    if not state.json:
        _show(finished, resumed, file)
    verdicts = {claim.statement: claim.verdict for claim in finished.claims}
    places = {"folder": str(one.folder), "figures": _figures(one), "report": str(file)}
    return finished, {**places, "resumed": resumed, "verdicts": verdicts, **record}


def _command(one: Run, *, quick: bool) -> str:
    """What makes the numbers of a run again, to the last bit."""
    options = {"--device": one.device, "--threads": str(one.threads), "--output": str(one.output)}
    words = [word for option in options.items() for word in option]
    return shlex.join(
        ["shoal", "reproduce", *one.experiment.name, *(["--quick"] if quick else []), *words]
    )


def _interrupted(one: Run) -> str:
    finished = one.finished
    kept = f"finished and kept in {one.folder}" if finished else "finished, nothing is written"
    return (
        f"Interrupted: {finished} of {len(one.files)} points are {kept}. "
        f"To go on, run the same command again: {command_line()}"
    )


def _figures(one: Run) -> list[str]:
    return [str(one.folder / f"figure.{ending}") for ending in ("png", "svg")]


def _show(finished: Finished, resumed: int, report: Path) -> None:
    one, record = finished.run, finished.record
    console().print(f"{finished.name}: {one.experiment.title}", soft_wrap=True)
    table = Table(show_header=False)
    for name, value in record["summary"].items():
        table.add_row(name.replace("_", " "), f"{value:.4g}")
    table.add_section()
    table.add_row("points", f"{len(one.files)}, of which {resumed} were there")
    table.add_row("seconds", f"{record['wall_seconds']:.3g}")
    console().print(table)
    for claim in finished.claims:
        console().print(f"{claim.statement}: {claim.verdict}", soft_wrap=True)
    console().print(f"Figure: {_figures(one)[0]}", soft_wrap=True)
    console().print(f"Report: {report}", soft_wrap=True)
