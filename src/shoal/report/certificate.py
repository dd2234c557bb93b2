"""The section on the certificate: a checklist of what a proof of convergence needs."""

from typing import TYPE_CHECKING, Any

import torch

import shoal
from shoal import ImplicitArchitecture
from shoal.certificates import Condition
from shoal.experiments.figures import COLORS, GRAY
from shoal.report.bars import Bar, draw_bars
from shoal.report.section import Findings, Row, Section, Subject
from shoal.report.targets import learnable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["CERTIFICATE", "checklist"]

_SAMPLES, _WIDTH = 8, 1000
_ROOM = 0.9  # of the largest scale of targets that is hoped for


def checklist(certificate: shoal.Certificate) -> tuple[Row, ...]:
    """The conditions of the best conclusion for gradient descent, one row each.

    Args:
        certificate: What :func:`shoal.certify` said.
    """
    return tuple(_row(condition) for condition in certificate.conditions)


def _row(c: Condition) -> Row:
    relation = "≥" if c.relation == ">=" else "≤"
    words = f"{c.words}; margin {c.margin:.3g}" + ("" if c.holds else f"; helps: {c.remedy}")
    return Row(c.name, f"{c.value:.3g} {relation} {c.bound:.3g}", words, holds=c.holds)


def _find(subject: Subject) -> Findings:
    if not isinstance(subject.architecture, ImplicitArchitecture):
        return Findings((Row("certificate", "none", "no theorem is known for such networks"),))
    x = subject.x[:_SAMPLES].double().cpu()
    targets = learnable(subject.data)
    y = targets.values[:_SAMPLES].double().cpu()
    network = shoal.build(
        subject.architecture,
        in_features=x.shape[1],
        width=_WIDTH,
        out_features=y.shape[1],
        readout_scale=0.0,
        dtype=torch.float64,
        device="cpu",
        seed=0,
    )
    found, scale = shoal.certify(network, x, y), 1.0
    margin = found.gradient_descent.margin
    if not found.holds and 0 < margin < 1:
        scale = _ROOM * margin  # how far weights travel is proportional to the targets
        smaller = shoal.certify(network, x, scale * y)
        found, scale = (smaller, scale) if smaller.holds else (found, 1.0)
    return _findings(found, scale, f"the first {len(x)} samples, {targets.words}")


def _findings(found: shoal.Certificate, scale: float, words: str) -> Findings:
    best = found.gradient_descent
    size = "as they are" if scale == 1 else f"times {scale:.2g}"
    words += "" if scale == 1 else "; much larger ones are not certified"
    rows = [
        Row("trains to zero loss", best.status, best.theorem),
        Row("network", f"width {_WIDTH}", "seed 0, readout zero at the start"),
        Row("targets", size, words),
    ]
    if found.step_size is not None and found.rate is not None:
        rows.append(Row("step size", f"{found.step_size:.4g}", "for the loss ½Σ‖f(x) − y‖²"))
        rows.append(Row("rate", f"{found.rate:.6g}", "a step multiplies the loss by this or less"))
    numbers: dict[str, Any] = {"target_scale": scale, "width": _WIDTH, **found.to_dict()}
    return Findings(
        (*rows, *checklist(found)),
        numbers,
        lambda axes: _panel(axes, best.conditions),
        notes=(found.explanation,),
    )


def _panel(axes: "Axes", conditions: tuple[Condition, ...]) -> None:
    """The margins of the conditions, up to a factor of three."""
    bars = [
        Bar(c.name, c.margin, f"{c.margin:.3g}", COLORS[2] if c.holds else COLORS[1])
        for c in conditions
    ]
    draw_bars(axes, bars, 3.0)
    axes.axvline(1, color=GRAY, linewidth=1.2, zorder=0.5)
    axes.set_xlabel("margin; below 1 the condition fails")


CERTIFICATE = Section("certificate", "Certificate", _find)
