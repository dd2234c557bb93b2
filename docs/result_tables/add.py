"""Take a run into the documentation: ``python -m result_tables.add FOLDER ...``.

Its record goes to docs/results, with numbers of five digits, and its figure to docs/images.
"""

import json
import shutil
import sys
from pathlib import Path

from experiments.experiment import find, plain
from result_tables.results import RESULTS

IMAGES = RESULTS.parent / "images"


def add(folder: Path) -> None:
    """Write the two files of one run, which must be of the experiment at its full size."""
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    paper, figure = record["identity"]["experiment"]
    if record["identity"]["configuration"] != json.loads(
        json.dumps(plain(find(paper, figure)[0]()))
    ):
        raise ValueError(f"{folder} must hold a run at full size")
    record["summary"] = {key: float(f"{value:.5g}") for key, value in record["summary"].items()}
    text = json.dumps(record, indent=1) + "\n"
    (RESULTS / f"{paper}-{figure}.json").write_text(text, encoding="utf-8")
    shutil.copy(folder / "figure.png", IMAGES / f"{paper}_{figure}.png")


for place in sys.argv[1:]:
    add(Path(place))
