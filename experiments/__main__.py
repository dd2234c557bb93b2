"""``python -m experiments``: list the experiments, and run them."""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryFile

import torch

from experiments.claims import short
from experiments.experiment import Experiment, find, registered
from experiments.runner import Run


def main(arguments: list[str] | None = None) -> int:
    """List the experiments, or run those of a paper, or one of its figures.

    Finished points are not computed again, so that an interrupted run can be resumed.
    """
    parser = argparse.ArgumentParser("python -m experiments", description=main.__doc__)
    parser.add_argument("paper", nargs="?", help="without it, experiments are listed")
    parser.add_argument("figure", nargs="?", help="such as figure1; without it, all of the paper")
    parser.add_argument("--quick", action="store_true", help="a size that takes seconds")
    parser.add_argument("--output", type=Path, default=Path("results"), metavar="FOLDER")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes compute points")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(arguments)
    if options.paper is None:
        for (paper, figure), kind in registered().items():
            print(f"{paper + ' ' + figure:26}{len(kind().points()):5} points   {kind.title}")
        return 0
    if min(options.jobs, options.threads) < 1:
        numbers = f"{options.jobs}, {options.threads}"
        parser.exit(2, f"Error: --jobs and --threads must be at least 1, got {numbers}\n")
    try:
        kinds = find(options.paper, options.figure)
        torch.empty(0, device=options.device)
        options.output.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=options.output).close()
    except OSError as error:
        parser.exit(2, f"Error: --output must be a folder to write to: {error}\n")
    except (ValueError, RuntimeError, AssertionError) as error:
        parser.exit(2, f"Error: {error}".partition("\n")[0] + "\n")
    failed = 0
    for kind in kinds:
        chosen = kind.quick() if options.quick else kind()
        run = Run(chosen, options.output, options.device, options.threads)
        try:
            run.execute(options.jobs, _show_progress)
        except Exception as error:  # the others may still work
            if options.figure is not None and not isinstance(error, OSError | ValueError):
                raise
            print(
                f"Error: {' '.join(chosen.name)}: {type(error).__name__}: {error}", file=sys.stderr
            )
            failed = 1
        else:
            _show(chosen, run)
    return failed


def _show_progress(finished: int, count: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if finished == count else ""
        print(f"\r{finished} of {count} points", end=end, file=sys.stderr)


def _show(chosen: Experiment, run: Run) -> None:
    """Print the numbers, the claims if the run has the full size, and the files."""
    print(f"{' '.join(chosen.name)}: {chosen.title}")
    summary = run.record["summary"]
    for name, value in summary.items():
        print(f"  {name:50} {value:.5g}")
    for claim in chosen.claims(summary) if chosen == type(chosen)() else ():
        print(
            f"  {claim.statement}\n    printed {claim.printed}; here {claim.ours}: {claim.verdict}"
        )
        for asked in claim.criteria:
            print(f"    {asked.asked}: {short(asked.value, 3)}, {'yes' if asked.holds else 'no'}")
    print(f"  {run.folder / 'run.json'}, figure.png")


if __name__ == "__main__":
    sys.exit(main())
