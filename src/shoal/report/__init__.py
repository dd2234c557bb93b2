"""Reports: what is known of an architecture on data, in sections, and how fast it is known."""

from shoal.pages.findings import Findings, Row
from shoal.report.analysis import SECTIONS, analyze, document, draw, render, save
from shoal.report.benchmarks import BENCHMARKS, Benchmark, Measurement, measure
from shoal.report.section import Section, Subject

__all__ = [
    "BENCHMARKS",
    "SECTIONS",
    "Benchmark",
    "Findings",
    "Measurement",
    "Row",
    "Section",
    "Subject",
    "analyze",
    "document",
    "draw",
    "measure",
    "render",
    "save",
]
