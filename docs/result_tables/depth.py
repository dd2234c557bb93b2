"""Tables of the study of depth."""

from collections.abc import Iterator

from experiments.depth.study import NETWORKS, TASKS
from result_tables.results import Row, signed, summary, table

__all__: list[str] = []

RUNS = ("shoal-depth", "shoal-depth-images", "shoal-depth-convolutions")
_ALWAYS = ("deq", "free", "unrolled10", "unrolled3", "plain3", "plain2", "longer", "plain1")


@table
def depth_pays() -> Iterator[Row]:
    """Accuracies of all networks on all tasks, and differences from the DEQ."""
    yield "", *(NETWORKS[name] for name in _ALWAYS), "NTK design"
    for run in RUNS:
        found = summary(run)
        tasks = dict.fromkeys(k.partition("_")[0] for k in found if k.endswith("_deq_mean"))
        for task in tasks:
            cells = [_cell(found, f"{task}_{network}") for network in (*_ALWAYS, "ntk-design")]
            yield TASKS[task], *cells


def _cell(found: dict[str, float], name: str) -> str:
    if f"{name}_mean" not in found:
        return "–"
    mean = f"{100 * found[f'{name}_mean']:.1f}%"
    if f"{name}_gap_mean" not in found:
        return mean
    ends = [signed(100 * found[f"{name}_gap_{end}"], 1) for end in ("low", "high")]
    return f"{mean} [{ends[0]}, {ends[1]}]"
