"""Times, always beside the time of something that everybody knows."""

from collections.abc import Mapping
from functools import partial

import shoal
from shoal.core.timing import best_times
from shoal.pages.figures import COLORS, GRAY, Axes, Bar, draw_bars
from shoal.pages.findings import Findings, Row
from shoal.report.section import Section, Subject


def _find(subject: Subject) -> Findings:
    x, architecture = subject.x, subject.architecture
    found = best_times(
        {"product": lambda: x @ x.T, "kernels": lambda: shoal.kernel(architecture, x)}, x.device
    )
    ratio = found["kernels"] / found["product"]
    rows = (
        Row("matrix product", f"{1e3 * found['product']:.3g} ms", "x @ x.T alone"),
        Row("CK and NTK", f"{1e3 * found['kernels']:.3g} ms", "after the first call"),
        Row("ratio", f"{ratio:.3g}", f"of both to the product, which has {x.shape[1]} features"),
    )
    numbers = {
        "matrix_product_seconds": found["product"],
        "kernels_seconds": found["kernels"],
        "ratio": ratio,
    }
    return Findings(rows, numbers, partial(_panel, found=found))


def _panel(axes: Axes, found: Mapping[str, float]) -> None:
    """Two bars, in the unit of the product."""
    ratio = found["kernels"] / found["product"]
    bars = [
        Bar("matrix product\n$x x^\\top$", 1.0, f"1 ({1e3 * found['product']:.3g} ms)", GRAY),
        Bar("CK and NTK", ratio, f"{ratio:.3g} ({1e3 * found['kernels']:.3g} ms)", COLORS[0]),
    ]
    draw_bars(axes, bars, 1.1 * max(1.0, ratio))
    axes.set_xlabel("time, in matrix products")


TIMING = Section("timing", "Timing", _find)
