"""Benchmarks as a page: times and ratios, with bars."""

import itertools
from collections.abc import Sequence
from functools import partial

import torch

from shoal.pages.figures import COLORS, Axes
from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page
from shoal.report.bars import Bar, draw_bars
from shoal.report.benchmarks import BENCHMARKS, Measurement

__all__ = ["bench_page", "milliseconds"]


def milliseconds(seconds: float) -> str:
    """A time as text.

    Example:
        >>> milliseconds(0.012345)
        '12.3 ms'
    """
    return f"{1e3 * seconds:.3g} ms"


def bench_page(
    found: Sequence[tuple[str, Measurement]],
    *,
    device: torch.device,
    command: str | None = None,
    complete: bool = True,
) -> str:
    """Measurements as an HTML page.

    Args:
        found: Measurements, each with the name of its benchmark.
        device: Where they were taken.
        command: What takes them again.
        complete: Whether all that was asked for were taken.
    """
    parts = []
    for name, group in itertools.groupby(found, key=lambda one: one[0]):
        measured = [one for _, one in group]
        findings = Findings(tuple(map(_row, measured)), panel=partial(_panel, measured))
        parts.append(Part(name, BENCHMARKS[name].title, findings))
    threads = torch.get_num_threads()
    lead = (
        f"{device}, threads: {threads}. Ratios to what cannot be avoided; times are the shortest "
        "of five, taken in turns with those of the reference."
    )
    return render_page(
        "How long shoal takes", lead, parts, device=device, command=command, complete=complete
    )


def _row(one: Measurement) -> Row:
    words = f"{milliseconds(one.seconds)}; {one.reference}: {milliseconds(one.reference_seconds)}"
    return Row(one.case, f"{one.ratio:.3g}", words)


def _panel(measured: Sequence[Measurement], axes: Axes) -> None:
    """Ratios as bars."""
    bars = [
        Bar(one.case.replace(", ", "\n"), one.ratio, f"{one.ratio:.3g}", COLORS[0])
        for one in measured
    ]
    draw_bars(axes, bars, 1.1 * max(one.ratio for one in measured))
    axes.set_xlabel(f"time over that of: {measured[0].reference}")
