"""``shoal analyze --model FILE``: the report on a trained model."""

from functools import partial
from pathlib import Path

from torch.nn import Module

import shoal
from shoal.cli.diagnose import require_equilibria
from shoal.cli.errors import note
from shoal.cli.model_files import samples_for, weights_in
from shoal.cli.output import command_line, conclude, console, meaning_table, working
from shoal.core.threads import limited_threads
from shoal.report.saving import save_results
from shoal.report.trained_model import answer, model_document, model_page

_DIAGNOSED = 64  # samples; some tens say as much as all
_SAMPLES = 4000


def analyze_model(
    net: Module,
    file: Path,
    data: str,
    *,
    reference: Path | None,
    label: str | None,
    n: int | None,
    seed: int,
    threads: int,
    output: Path | None,
) -> None:
    """Diagnose a trained model of a file, look for what may replace it, and report both."""
    before = None if reference is None else weights_in("--reference", reference)
    x, y = samples_for(net, data, _SAMPLES if n is None else n, label)
    with limited_threads(threads), working("Diagnosing"):
        found = shoal.diagnose(net, None, x[:_DIAGNOSED], reference=before)
    with limited_threads(threads), working("Looking for a replacement"):
        twin = shoal.distill(net, x, y, seed=seed)
    record = {"shoal": shoal.__version__, "file": str(file), "data": data}
    record |= model_document(found, twin)
    conclude(
        record,
        partial(_show, found, twin),
        output,
        lambda folder: save_results(
            folder,
            pages={"report.html": model_page(found, twin, command=command_line())},
            documents={"analysis.json": record},
            figures={"diagnosis": found.plot(), "replacements": twin.plot()},
        ),
        saves="--output FOLDER saves the report, the figures and the numbers.",
    )
    require_equilibria(found)


def _show(found: shoal.Diagnosis, twin: shoal.Twin) -> None:
    table = meaning_table(f"{found.model}: do I need this loop?")
    for row in answer(found, twin):
        table.add_row(row.quantity, row.value, row.meaning)
    console().print(table)
    console().print(str(twin), soft_wrap=True, highlight=False)
    for remedy in found.remedies:
        console().print(
            f"{remedy.what[:1].upper()}{remedy.what[1:]}: {remedy.why}.", soft_wrap=True
        )
    note(
        "Held-out samples are a quarter of those given: if the model was trained on them, it "
        "remembers them, and what may replace it does not. Give samples that it has not seen."
    )
