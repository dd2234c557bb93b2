"""Pages and pictures for people: how they look, and where the numbers in them come from."""

from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page

__all__ = ["Findings", "Part", "Row", "render_page"]
