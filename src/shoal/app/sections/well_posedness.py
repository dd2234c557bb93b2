"""The section that says whether the network has an equilibrium, and its kernel a limit."""

import math
from functools import partial

import torch

import shoal
from shoal.app.figures import COLORS, GRAY, Axes, Bar, draw_bars
from shoal.app.sections.base import Findings, Section, Subject
from shoal.diagnosis.words import Row
from shoal.networks import WellPosedness

_WIDTH = 1024  # of the network that is drawn and measured


def _find(subject: Subject) -> Findings:
    architecture = subject.deq
    gain = architecture.recurrent_gain
    measured = shoal.build(
        architecture,
        in_features=subject.x.shape[1],
        width=_WIDTH,
        seed=0,
        dtype=torch.float64,
        device=subject.x.device,
    ).well_posedness()
    rows = (
        Row("recurrent gain σ_a²L²", f"{gain:.4g}", "L: Lipschitz constant of the activation"),
        Row("kernel exists", _word(architecture.kernel_guaranteed), "guaranteed if σ_a²L² < 1"),
        Row(
            "wide networks contract",
            _word(architecture.contraction_guaranteed),
            "guaranteed if σ_a²L² < 1/4",
        ),
        Row(
            f"gain at width {_WIDTH}",
            f"{measured.gain_upper:.4g}",
            "σ_a L‖A‖/√m at most, certified; seed 0",
        ),
        Row(
            f"equilibrium at width {_WIDTH}",
            "unique" if measured.contraction else "not certified",
            "unique if that gain is below 1",
        ),
    )
    numbers = {
        "recurrent_gain": gain,
        "kernel_guaranteed": architecture.kernel_guaranteed,
        "contraction_guaranteed": architecture.contraction_guaranteed,
        "width": _WIDTH,
        "gain_lower": measured.gain_lower,
        "gain_upper": measured.gain_upper,
        "contraction": measured.contraction,
    }
    told: tuple[str, ...] = ()
    if architecture.contraction_guaranteed and not measured.contraction:
        told = (
            f"Wide networks contract, but of the one of width {_WIDTH} this is not certified: its "
            f"gain is between {measured.gain_lower:.4g} and {measured.gain_upper:.4g}.",
        )
    return Findings(
        rows,
        numbers,
        partial(_panel, gain=gain, measured=measured),
        warnings=told,
    )


def _word(holds: bool) -> str:
    return "yes" if holds else "no guarantee"


def _panel(axes: Axes, gain: float, measured: WellPosedness) -> None:
    """The gain of the theory and of a network, on a line from zero to beyond one."""
    finite = [g for g in (2 * math.sqrt(gain), measured.gain_upper) if math.isfinite(g)]
    end = max(1.5, *(1.2 * g for g in finite)) if finite else 1.5
    axes.axvspan(0, 1, color="#e6f3ec", zorder=0)
    axes.axvspan(1, end, color="#fbe9e1", zorder=0)
    axes.axvline(1, color=GRAY, linewidth=1.2, zorder=0.5)
    theory, wide = math.sqrt(gain), 2 * math.sqrt(gain)
    norm = f"width {_WIDTH}:\n$\\sigma_a L \\|A\\| / \\sqrt{{m}}$"
    bars = [
        Bar("infinite width:\n$\\sigma_a L$", theory, f"{theory:.3g}", COLORS[0]),
        Bar("wide network:\n$2\\sigma_a L$", wide, f"{wide:.3g}", COLORS[1]),
        Bar(norm, measured.gain_upper, f"{measured.gain_upper:.3g}", COLORS[2]),
    ]
    draw_bars(axes, bars, end)
    axes.set_xlabel("gain; below 1 it contracts")


WELL_POSEDNESS = Section("well_posedness", "Well-posedness", _find)
