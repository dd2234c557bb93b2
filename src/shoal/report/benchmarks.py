"""Benchmarks: what shoal does, over what cannot be avoided, and how that looks on a page."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

import shoal
from shoal.core import checks
from shoal.core.timing import best_times
from shoal.pages.figures import COLORS, Axes, Bar, draw_bars
from shoal.pages.findings import Findings, Part, Row
from shoal.pages.html import render_page


@dataclass(frozen=True)
class Measurement:
    """A time beside that of a reference.

    Attributes:
        case: What was timed.
        seconds: How long it took, after a first call.
        reference: What it is compared to.
        reference_seconds: How long that took.
    """

    case: str
    seconds: float
    reference: str
    reference_seconds: float

    @property
    def ratio(self) -> float:
        """The one over the other."""
        return self.seconds / self.reference_seconds


class Benchmark(NamedTuple):
    """Some cases that are timed.

    Attributes:
        title: What is measured, in one line.
        cases: Their names.
        time: Times one of them; with ``quick``, in a size that takes seconds.
    """

    title: str
    cases: tuple[str, ...]
    time: Callable[[str, torch.device, bool], Measurement]


_ACTIVATIONS = {
    "ReLU": shoal.ReLU(),
    "Tanh": shoal.Tanh(),
    "GELU": shoal.GELU(),
    "HardTanh": shoal.HardTanh(),
}


def measure(name: str, case: str, *, device: torch.device, quick: bool = False) -> Measurement:
    """Time a case of a benchmark.

    Args:
        name: One of ``BENCHMARKS``.
        case: One of its cases.
        device: Where to compute.
        quick: Whether to take a small size.

    Raises:
        ValueError: If there is no such benchmark or case.
    """
    checks.one_of("name", name, BENCHMARKS)
    checks.one_of("case", case, BENCHMARKS[name].cases)
    return BENCHMARKS[name].time(case, device, quick)


def _kernel(case: str, device: torch.device, quick: bool) -> Measurement:
    count, features = (512, 256) if quick else (4096, 784)
    deq = shoal.DEQ(_ACTIVATIONS[case], recurrent_variance=0.2, input_variance=0.8)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, dtype=torch.float64, generator=generator)
    x = torch.nn.functional.normalize(x).to(device)
    found = best_times({"product": lambda: x @ x.T, "kernel": lambda: shoal.kernel(deq, x)}, device)
    return Measurement(
        f"CK and NTK, {case}, n = {count}", found["kernel"], "x @ x.T", found["product"]
    )


def _dual(case: str, device: torch.device, quick: bool) -> Measurement:
    count, activation = (10_000 if quick else 1_000_000), _ACTIVATIONS[case]
    generator = torch.Generator().manual_seed(0)
    unit = torch.rand(3, count, dtype=torch.float64, generator=generator).to(device)
    a, b = 0.5 + unit[0], 0.5 + unit[1]
    c = (2 * unit[2] - 1) * (a * b).sqrt()
    found = best_times(
        {
            "tanh": lambda: torch.tanh(a),
            "dual": lambda: shoal.gaussian.dual(activation, a, b, c),
        },
        device,
    )
    return Measurement(f"{count} duals, {case}", found["dual"], "as many tanh", found["tanh"])


def _network(case: str, device: torch.device, quick: bool) -> Measurement:
    width, batch, features = (256, 64, 64) if quick else (1024, 512, 784)
    deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
    net = shoal.build(deq, in_features=features, width=width, dtype=torch.float32, device=device)
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(batch, features, generator=generator)).to(device)
    z, weight = torch.zeros(batch, width, device=device), torch.zeros(width, width, device=device)

    def forward() -> object:
        with torch.no_grad():
            return net(x)

    def both() -> None:
        net.zero_grad()
        net(x).sum().backward()

    run = {"forward": forward, "forward and backward": both}[case]
    found = best_times({"product": lambda: z @ weight, "network": run}, device)
    return Measurement(
        f"DEQ of width {width}, {case}", found["network"], "one step's product", found["product"]
    )


BENCHMARKS: dict[str, Benchmark] = {
    "kernel": Benchmark("Kernel matrices", tuple(_ACTIVATIONS), _kernel),
    "dual": Benchmark("Duals of activations", tuple(_ACTIVATIONS), _dual),
    "network": Benchmark(
        "Finite networks in float32", ("forward", "forward and backward"), _network
    ),
}


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
