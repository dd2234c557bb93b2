"""A design as a page: what was wanted and obtained, the activations, and the reason in words."""

import torch

from shoal.designs import Design, Gap
from shoal.designs.result import layer_activations
from shoal.pages.figures import Figure
from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page


def design_page(
    found: Design, figure: Figure, *, gap: Gap | None = None, command: str | None = None
) -> str:
    """A design as an HTML page.

    Args:
        found: The design.
        figure: That of its activations.
        gap: How far the kernel matrices are from each other on data, if they were compared.
        command: What makes the page again.
    """
    kernel = found.match.upper()
    wanted = "kernel, exactly" if found.method == "sphere" else "high-dimensional coefficients"
    answer = [
        Row(
            "feasible",
            "yes" if found.feasible else "no",
            f"a network of this kind has the {wanted}"
            if found.feasible
            else "no network of this kind has the kernel; this is the nearest",
            holds=found.feasible,
        ),
        Row("matched", kernel, f"by {found.method}; trained: {', '.join(sorted(found.trainable))}"),
        Row("norm of the inputs", f"{found.tau0:.6g}", "τ0"),
        Row("residual", f"{found.residual:.1e}", "largest difference from what was wanted"),
    ]
    if gap is not None:
        words = f"of the {kernel} matrices on the data, in spectral norm, relative to the DEQ's"
        answer.append(Row("difference", f"{gap.relative:.1e}", words))
    layers = [Row(name, "", repr(phi)) for name, phi in layer_activations(found.architecture)]
    numbers = [
        Row(name, f"{value:.8g}", f"wanted {found.target[name]:.8g}")
        for name, value in found.obtained.items()
    ]
    parts = [
        Part("answer", "Design", Findings(tuple(answer), notes=(found.explanation,))),
        Part("layers", "Activations", Findings(tuple(layers), figure=figure)),
        Part("numbers", "Obtained and wanted", Findings(tuple(numbers))),
    ]
    title = "The shallow network inside a deep equilibrium model"
    lead = f"{found.original}"
    return render_page(title, lead, parts, device=torch.device("cpu"), command=command)
