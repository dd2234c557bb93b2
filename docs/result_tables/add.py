"""Take a run into the documentation: ``python -m result_tables.add FOLDER ...``.

Its record goes to docs/results, without the times of single points and with numbers of five
digits, and its figure to docs/images.
"""

import json
import sys
from pathlib import Path
from typing import Any

from result_tables.results import RESULTS
from shoal.lab import collect, find

IMAGES = RESULTS.parent / "images"
KEPT = ("title", "identity", "wall_seconds", "summary", "sessions")


def add(folder: Path) -> None:
    """Write the two files of one run.

    Raises:
        ValueError: If the run is not one of the experiment at its full size.
    """
    record: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    paper, figure = record["identity"]["experiment"]
    experiment = find(paper, figure)[0]()
    results = collect(experiment, folder)
    summary = experiment.summarize(results)
    record["summary"] = {key: float(f"{value:.5g}") for key, value in summary.items()}
    kept = {key: record[key] for key in KEPT}
    text = json.dumps(kept, indent=1) + "\n"
    (RESULTS / f"{paper}-{figure}.json").write_text(text, encoding="utf-8")
    experiment.plot(results).savefig(IMAGES / f"{paper}_{figure}.png")


for place in sys.argv[1:]:
    add(Path(place))
