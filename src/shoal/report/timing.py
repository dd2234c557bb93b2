"""Times, always beside the time of something that everybody knows."""

import time
from collections.abc import Callable, Mapping

import torch

import shoal
from shoal.lab.figures import COLORS, GRAY, Axes
from shoal.report.bars import Bar, draw_bars
from shoal.report.section import Findings, Row, Section, Subject

__all__ = ["TIMING", "best_times"]


def best_times(
    functions: Mapping[str, Callable[[], object]], device: torch.device, *, repeats: int = 5
) -> dict[str, float]:
    """The shortest of several times of each function, in seconds.

    The functions take turns, so that all see the same machine; each runs once before.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for attempt in range(repeats + 1):
        for name, function in functions.items():
            _finish(device)
            start = time.perf_counter()
            result = function()
            _finish(device)
            if attempt:
                times[name].append(time.perf_counter() - start)
            del result
    return {name: min(each) for name, each in times.items()}


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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
    return Findings(rows, numbers, lambda axes: _panel(axes, found))


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
