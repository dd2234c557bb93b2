"""``shoal analyze --model FILE``: do I need the loop of this model, and what could replace it?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import shoal
from shoal.app import terminal
from shoal.app.models import model_in, samples_for, weights_in
from shoal.app.pages import Block, blocks, render_page
from shoal.app.sections import Findings
from shoal.diagnosis import Diagnosis
from shoal.diagnosis.words import Row, sections_of
from shoal.distillation import Distillation
from shoal.distillation.page import distillation_part

NO_EQUILIBRIUM = 3
_DIAGNOSED, _DISTILLED = 64, 4000  # samples; some tens say as much as all
_LAZY = 0.1  # change of the tangent kernel up to which training was nearly linear


def analyze_model(
    file: Path,
    code: str | None,
    reference: Path | None,
    data: str,
    label: str | None,
    n: int | None,
    seed: int,
    *,
    output: Path | None,
    json: bool,
) -> None:
    """Diagnose a trained model of a file, look for what may replace it, and report both."""
    net = model_in(file, code)
    before = None if reference is None else weights_in(reference)
    x, y = samples_for(net, data, _DISTILLED if n is None else n, label)
    terminal.prepare(output)
    with terminal.working("Diagnosing") as show:
        found = shoal.diagnose(net, None, x[:_DIAGNOSED], reference=before)
        show("Looking for a replacement")
        twin = shoal.distill(net, x, y, seed=seed)
    record = {"shoal": shoal.__version__, "file": str(file), "data": data}
    record |= model_document(found, twin)
    files = []
    if output is not None:
        contents = {
            "report.html": model_page(found, twin, terminal.command_line()),
            "analysis.json": record,
            "diagnosis": found.plot(),
            "replacements": twin.plot(),
        }
        files = terminal.save(output, contents)

    def tell() -> None:
        terminal.show_rows(f"{found.model}: do I need this loop?", answer(found, twin))
        terminal.say(str(twin))
        for remedy in found.remedies:
            terminal.say(f"{remedy.what[:1].upper()}{remedy.what[1:]}: {remedy.why}.")
        terminal.note(
            "Held-out samples are a quarter of those given: if the model was trained on them, it "
            "remembers them, and what may replace it does not. Give samples that it has not seen."
        )

    terminal.conclude(record, tell, files, json=json)
    require_equilibria(found)


def require_equilibria(found: Diagnosis) -> None:
    """Say of how many samples no equilibrium was found, if there are some, and exit."""
    if missing := found.samples - found.solved:
        terminal.note(f"No equilibrium was found for {missing} of {found.samples} samples.")
        raise typer.Exit(NO_EQUILIBRIUM)


def answer(found: Diagnosis, twin: Distillation) -> tuple[Row, ...]:
    """What a practitioner asks, in the order in which it is asked."""
    return tuple(_answers(found, twin))


def _answers(found: Diagnosis, twin: Distillation) -> Iterator[Row]:
    yield Row("replace it?", "no" if twin.keep else "yes", twin.verdict)
    named = {one.name: one for one in twin.candidates}
    plain = named.get("plain layer, on labels") or named["plain layer, on outputs"]
    near = plain.loss <= twin.tolerance
    yield Row(
        "does a plain layer do?", "yes" if near else "no", f"{plain.name}: {twin.lost(plain)}"
    )
    yield Row(
        "does it settle?",
        ", ".join(f"{name}: {count}" for name, count in found.behaviors.items()),
        f"of {found.samples} samples {found.solved} have an equilibrium that a solver finds",
    )
    if found.depth is not None:
        half, every = found.depth.quantile(0.5), found.depth.quantile(1.0)
        within = f"within {found.depth.tolerance:.0%} of the limit"
        words = f"applications for half of the samples, and for all that settle, {within}"
        yield Row("how deep is it?", f"{half}, {every}", words)
    change = found.kernel_change
    if change is None:
        yield Row("kernel regime", "", "not known: --reference gives the weights before training")
    else:
        lazy = change.relative <= _LAZY
        words = "nearly linear: a design learns the same" if lazy else "far from its kernel"
        yield Row("kernel regime", f"{change.relative:.0%}", f"change of the NTK: {words}")


def model_page(found: Diagnosis, twin: Distillation, command: str) -> str:
    """The answer, what may replace the model, and its diagnosis, as one HTML page."""
    parts = [
        Block("answer", "Do I need this loop?", Findings(answer(found, twin))),
        *blocks([distillation_part(twin), *sections_of(found)]),
    ]
    lead = f"{twin.verdict} Diagnosed on {found.samples} samples, distilled on {twin.trained_on}."
    device = found.iterations[0].state.device
    return render_page(f"Analysis of {found.model}", lead, parts, device=device, command=command)


def model_document(found: Diagnosis, twin: Distillation) -> dict[str, Any]:
    """The section on a trained model as plain values."""
    rows = {row.quantity: row.value for row in answer(found, twin)}
    return {"answer": rows, "diagnosis": found.document(), "distillation": twin.document()}
