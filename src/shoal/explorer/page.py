"""The page: scripts, styles, tables and data, in one file."""

import json
from importlib.resources import files
from typing import Any

from shoal.explorer.population import Population
from shoal.explorer.tables import stored_tables
from shoal.pages.html import template
from shoal.pages.provenance import all_versions

TESTED = 1e-6
"""How far kernels of the page may be from those of shoal, relative to the diagonal."""

NUMERICS = ("series.js", "activations.js", "kernel.js", "twin.js", "spectrum.js")
"""The scripts that compute, in the order in which they stand on the page."""
SCRIPTS = (*NUMERICS, "state.js", "plot.js", "panels.js", "phase.js", "controls.js")
"""All scripts."""


def script(name: str) -> str:
    """The text of a script."""
    return (files("shoal.explorer") / "scripts" / name).read_text(encoding="utf-8")


def explorer_page(
    population: Population,
    *,
    activation: str = "tanh",
    recurrent_variance: float = 0.2,
    input_variance: float = 0.8,
    command: str | None = None,
) -> str:
    """The explorer as an HTML page that refers to nothing outside of itself.

    Args:
        population: What the inputs are like: of data, or two classes.
        activation: That of the start, by a name in the tables.
        recurrent_variance: That of the start.
        input_variance: That of the start.
        command: What makes the page again.

    Raises:
        ImportError: If Jinja2 is not installed.
        ValueError: If there is no table of the activation.
    """
    page = template("shoal.explorer", "explorer.html")
    from markupsafe import Markup

    tables = stored_tables()
    if activation not in tables["activations"]:
        known = ", ".join(tables["activations"])
        raise ValueError(f"activation must be one of {known}, got {activation!r}")
    start = {"activation": activation, "recurrent": recurrent_variance, "input": input_variance}
    document = {"tables": tables, "population": population.document(), "start": start}
    return page.render(
        population=population,
        command=command,
        versions=all_versions(),
        activations=list(tables["activations"]),
        error=f"{max(table['error'] for table in tables['activations'].values()):.0e}",
        tested=f"{TESTED:.0e}",
        numbers=Markup(_embedded(document)),
        scripts=[Markup(script(name)) for name in SCRIPTS],
    )


def _embedded(document: Any) -> str:
    """JSON inside a script element, which nothing in it can end."""
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")
