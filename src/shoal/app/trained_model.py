"""The report on a trained model: do I need this loop, and what could replace it?"""

from collections.abc import Iterator
from typing import Any

import shoal
from shoal.app.pages import Block, blocks, render_page
from shoal.app.sections import Findings
from shoal.diagnosis.words import Row, sections_of
from shoal.distillation.page import distillation_part

_LAZY = 0.1  # change of the tangent kernel up to which training was nearly linear


def answer(found: shoal.Diagnosis, twin: shoal.Twin) -> tuple[Row, ...]:
    """What a practitioner asks, in the order in which it is asked."""
    return tuple(_answers(found, twin))


def _answers(found: shoal.Diagnosis, twin: shoal.Twin) -> Iterator[Row]:
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


def model_page(found: shoal.Diagnosis, twin: shoal.Twin, command: str) -> str:
    """The answer, what may replace the model, and its diagnosis, as one HTML page."""
    parts = [
        Block("answer", "Do I need this loop?", Findings(answer(found, twin))),
        *blocks([distillation_part(twin), *sections_of(found)]),
    ]
    lead = f"{twin.verdict} Diagnosed on {found.samples} samples, distilled on {twin.trained_on}."
    device = found.iterations[0].state.device
    return render_page(f"Analysis of {found.model}", lead, parts, device=device, command=command)


def model_document(found: shoal.Diagnosis, twin: shoal.Twin) -> dict[str, Any]:
    """The section on a trained model as plain values."""
    rows = {row.quantity: row.value for row in answer(found, twin)}
    return {"answer": rows, "diagnosis": found.document(), "distillation": twin.document()}
