"""Results that were computed elsewhere."""

from os import PathLike

from shoal.core.checks import as_path
from shoal.experiments.experiment import Experiment, Result, check_experiment, point_names
from shoal.experiments.identity import plain
from shoal.experiments.records import check_record
from shoal.experiments.storage import read_arrays, read_json

__all__ = ["collect"]


def collect(experiment: Experiment, folder: str | PathLike[str]) -> list[Result]:
    """The results in the folder of a run, on whatever machine it was made.

    ``experiment.plot`` draws them where the run could not, for lack of matplotlib.

    Args:
        experiment: The experiment.
        folder: The run's own folder, which holds ``run.json``.

    Raises:
        FileNotFoundError: If there is no ``run.json``.
        ValueError: If the folder holds another configuration, or points are missing or damaged.
    """
    check_experiment(experiment)
    place = as_path("folder", folder)
    record = read_json(place / "run.json")
    if record is None:
        raise FileNotFoundError(f"{place} must be the folder of a run, with a run.json")
    identity = record.get("identity") if isinstance(record, dict) else None
    if isinstance(identity, dict) and identity.get("configuration") != plain(experiment):
        raise ValueError(f"{place} must hold this configuration, and holds another")
    names = point_names(experiment)
    rows = check_record(place / "run.json", record, names)["points"]
    found = []
    for point, name, row in zip(experiment.points(), names, rows, strict=True):
        arrays = read_arrays(place / "points" / f"{name}.npz", row.get("sha256"))
        if arrays is None:
            raise ValueError(f"{place} must hold all points, and {name} is missing or damaged")
        found.append(Result(point, arrays))
    return found
