"""Results that people save: as a page, as numbers or as a picture."""

import os
from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from shoal.core.checks import as_path
from shoal.core.files import finite, json_text, write_whole
from shoal.pages.figures import Figure, figure_writers
from shoal.pages.findings import Part
from shoal.pages.html import render_page


class Shown(NamedTuple):
    """What a page shows of a result; see ``render_page``."""

    title: str
    lead: str
    parts: list[Part]
    device: torch.device


class SavedResult(ABC):
    """A result that has a page for people, plain values for machines, and a picture."""

    @abstractmethod
    def _shown(self) -> Shown:
        """What its page shows."""

    def page(self, *, command: str | None = None) -> str:
        """An HTML page that refers to nothing outside of itself.

        Args:
            command: What makes the page again, if it was made by a command.

        Raises:
            ImportError: If Jinja2 or matplotlib is not installed.
        """
        title, lead, parts, device = self._shown()
        return render_page(title, lead, parts, device=device, command=command)

    @abstractmethod
    def plot(self) -> Figure:
        """The picture.

        Raises:
            ImportError: If matplotlib is not installed.
        """

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """All of it, as values that JSON knows but for numbers that are not finite."""

    def document(self) -> dict[str, Any]:
        """All of it as plain values."""
        found: dict[str, Any] = finite(self._values())
        return found

    def to_json(self) -> str:
        """The result as JSON text."""
        return json_text(self.document())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save it as a page (``.html``), as numbers (``.json``) or as a picture.

        Args:
            path: Where to; ends in ``.html``, ``.json``, ``.png`` or ``.svg``.

        Raises:
            ValueError: If it ends otherwise.
        """
        target = as_path("path", path)
        ending = target.suffix
        if ending not in (".html", ".json", ".png", ".svg"):
            raise ValueError(f"path must end in .html, .json, .png or .svg, got {str(target)!r}")
        if ending in (".html", ".json"):
            text = self.page() if ending == ".html" else self.to_json()
            write_whole(target, partial(Path.write_text, data=text, encoding="utf-8"))
        else:
            write_whole(target, figure_writers(self.plot(), "figure")[f"figure{ending}"])
