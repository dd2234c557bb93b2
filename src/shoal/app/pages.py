"""Pages for people: one HTML file that needs nothing else."""

import os
import platform
from base64 import b64encode
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from shoal import __version__
from shoal.app.figures import Figure, image_of, panel_figure
from shoal.app.sections.base import Findings
from shoal.diagnosis.words import Part

if TYPE_CHECKING:
    from jinja2 import Template


class Block(NamedTuple):
    """A part of a page: the name of its place, its title, and what is shown."""

    name: str
    title: str
    findings: Findings


def blocks(parts: Iterable[Part]) -> list[Block]:
    """The parts of a result of the library as parts of a page."""
    return [
        Block(one.name, one.title, Findings(one.rows, panel=one.panel, figure=one.figure,
                                            notes=one.notes))
        for one in parts
    ]  # fmt: skip


def template(name: str) -> "Template":
    """One of the templates beside this file."""
    if find_spec("jinja2") is None:
        raise ImportError("reports need Jinja2, which is not here: pip install 'shoal[plots]'")
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("shoal.app"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def render_page(
    title: str,
    lead: str,
    parts: Sequence[Block],
    *,
    device: torch.device,
    command: str,
    notes: Sequence[str] = (),
    verdict: Sequence[str] = (),
) -> str:
    """An HTML page that refers to nothing outside of itself."""
    return template("page.html").render(
        title=title,
        lead=lead,
        notes=notes,
        verdict=verdict,
        sections=[_shown(part) for part in parts],
        command=command,
        versions=versions(),
        machine=machine(device),
    )


def _shown(part: Block) -> dict[str, Any]:
    """What the template shows of a part."""
    findings = part.findings
    return vars(findings) | {
        "name": part.name,
        "title": part.title,
        "rows": [row for row in findings.rows if row.holds is None],
        "checks": [row for row in findings.rows if row.holds is not None],
        "troubles": [*filter(None, [findings.error]), *findings.warnings],
        "plot": None if findings.panel is None else _link(panel_figure(findings.panel)),
        "figure": None if findings.figure is None else _link(findings.figure),
    }


def _link(figure: Figure) -> str:
    """A figure as the address of an image, which holds all of it."""
    return f"data:image/svg+xml;base64,{b64encode(image_of(figure, 'svg')).decode()}"


def versions() -> dict[str, str]:
    """The versions of what the numbers depend on."""
    found = {"shoal": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy", "matplotlib"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine(device: torch.device) -> str:
    """The machine, in a few words."""
    words = [platform.system(), platform.machine(), f"{os.cpu_count()} cores"]
    if device.type == "cuda":
        words.append(torch.cuda.get_device_name(device))
    return ", ".join(words)
