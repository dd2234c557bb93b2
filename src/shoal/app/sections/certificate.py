"""The section on the certificate: a checklist of what a proof of convergence needs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.app.figures import COLORS, GRAY, Axes, Bar, draw_bars, legend_below
from shoal.app.sections.base import Findings, Section, Subject, learnable
from shoal.certificates import Condition
from shoal.diagnosis.words import Row
from shoal.learning import LinearTraining
from shoal.networks import Network

_SAMPLES, _WIDTH = 8, 1000
_STEPS = 60  # of the certified training
_FAR = 0.25  # of the predicted loss: training was not as predicted
_ROUNDING = 1e-9  # of losses and their bound
_ROOM = 0.9  # of the largest scale of targets that is hoped for


def _row(c: Condition) -> Row:
    words = f"{c.words}; margin {c.margin:.3g}" + ("" if c.holds else f"; helps: {c.remedy}")
    verb = "" if c.holds else "not "
    return Row(c.name, f"{c.value:.3g} {verb}{c.needed}", words, holds=c.holds)


def _find(subject: Subject) -> Findings:
    drawn, targets = subject.data.drawn(_SAMPLES), learnable(subject.data)
    x, y = (values[drawn].double().cpu() for values in (subject.x, targets.values))
    network = shoal.build(
        subject.deq,
        in_features=x.shape[1],
        width=_WIDTH,
        out_features=y.shape[1],
        readout_scale=0.0,
        dtype=torch.float64,
        device="cpu",
        seed=0,
    )
    found, scale = _certified(network, x, y)
    size = "as they are" if scale == 1 else f"times {scale:.2g}"
    seed = subject.data.seed
    which = f"the first {len(x)} samples" if seed is None else f"{len(x)} samples, seed {seed}"
    words = f"{which}, {targets.words}"
    words += "" if scale == 1 else "; much larger ones are not certified"
    rows = [
        Row("network", f"width {_WIDTH}", "seed 0, readout zero at the start"),
        Row("targets", size, words),
    ]
    numbers: dict[str, Any] = {"target_scale": scale, "width": _WIDTH}
    one = bool(subject.data.classes) and bool((y == y[0]).all())
    told = [f"All {len(x)} samples are of one class."] if one else []
    panel = None
    if found.holds:
        curves = _curves(network, x, scale * y, found)
        last = {name: float(losses[-1]) for name, losses in curves.items()}
        wrong = list(_contradicted(curves))
        words = (
            f"at most {last['bound']:.3g} by the certificate; {last['predicted']:.3g} predicted at "
            f"infinite width; {float(curves['bound'][0]):.3g} before"
        )
        trace = f"loss after {_STEPS} steps"
        rows.append(Row(trace, f"{last['measured']:.3g}", words, contradicted=bool(wrong)))
        numbers |= {"losses": {name: losses.tolist() for name, losses in curves.items()}}
        panel, told = partial(_draw_curves, curves=curves), told + wrong
    section = certificate_findings(found, tuple(rows), numbers)
    return replace(section, panel=panel or section.panel, warnings=tuple(told))


def _contradicted(curves: Mapping[str, Tensor]) -> Iterator[str]:
    """A warning if the certified network did not train as it was said to."""
    measured, bound, predicted = (curves[name] for name in ("measured", "bound", "predicted"))
    above = (~(measured <= bound * (1 + _ROUNDING))).nonzero()
    if len(above):
        step = int(above[0])
        yield (
            f"The loss after {step} steps is {float(measured[step]):.3g}, above the bound of the "
            f"certificate, {float(bound[step]):.3g}."
        )
    if not abs(float(measured[-1] - predicted[-1])) <= _FAR * float(predicted[-1]):
        yield (
            f"The loss after {_STEPS} steps is {float(measured[-1]):.3g} at width {_WIDTH}, and "
            f"{float(predicted[-1]):.3g} was predicted for infinite width."
        )


def _certified(
    network: Network[Any], x: Tensor, y: Tensor
) -> tuple[shoal.certificates.Certificate, float]:
    """A certificate for the targets, or else for the largest multiple of them that has one."""
    found = shoal.certify(network, x, y)
    margin = found.gradient_descent.margin
    if not found.holds and 0 < margin < 1:
        scale = _ROOM * margin  # how far weights travel is proportional to the targets
        smaller = shoal.certify(network, x, scale * y)
        if smaller.holds:
            return smaller, scale
    return found, 1.0


def _curves(
    network: Network[Any], x: Tensor, y: Tensor, found: shoal.certificates.Certificate
) -> dict[str, Tensor]:
    """Losses of the certified network, which is trained for it; their bound; their prediction."""
    assert found.step_size is not None
    assert found.rate is not None
    steps = torch.arange(_STEPS + 1, dtype=torch.float64)
    # a readout of zero hides all other weights from the gradient
    kernels = shoal.kernel(network.architecture, x, trainable={"readout"})
    wide = LinearTraining(kernels, y, initial="zero", reduction="sum").run(
        steps=list(range(_STEPS + 1)), step_size=found.step_size
    )
    run = shoal.train(network, x, y, step_size=found.step_size, steps=_STEPS, monitor=False)
    return {
        "measured": run.losses,
        "bound": run.losses[0] * found.rate**steps,
        "predicted": wide.loss,
    }


def _draw_curves(axes: Axes, curves: Mapping[str, Tensor]) -> None:
    """Losses against steps, below their bound."""
    labels = {
        "bound": ("--", GRAY, "bound by the certificate"),
        "predicted": ("-", COLORS[0], "predicted, infinite width"),
        "measured": (".", COLORS[1], f"measured, width {_WIDTH}"),
    }
    for name, (line, color, label) in labels.items():
        axes.plot(curves[name], line, color=color, label=label, markersize=4, linewidth=1.5)
    axes.set(yscale="log", xlabel="step of gradient descent", ylabel="training loss")
    legend_below(axes)


def certificate_findings(
    found: shoal.certificates.Certificate, rows: tuple[Row, ...], numbers: Mapping[str, Any]
) -> Findings:
    """A certificate as a section: the answer, and the conditions as a checklist.

    Args:
        found: What :func:`shoal.certify` said.
        rows: What else there is to say of the network and the data.
        numbers: The same for machines.
    """
    best = found.gradient_descent
    answer = [Row("trains to zero loss", best.status, best.theorem), *rows]
    if found.step_size is not None and found.rate is not None:
        answer += [
            Row("step size", f"{found.step_size:.4g}", "for the loss ½Σ‖f(x) − y‖²"),
            Row("rate", f"{found.rate:.6g}", "a step multiplies the loss by this or less"),
        ]
    return Findings(
        (*answer, *map(_row, best.conditions)),
        {**numbers, **found.to_dict()},
        partial(_panel, conditions=best.conditions),
        notes=(found.explanation,),
    )


def _panel(axes: Axes, conditions: tuple[Condition, ...]) -> None:
    """The margins of the conditions, up to a factor of three."""
    bars = [
        Bar(c.name, c.margin, f"{c.margin:.3g}", COLORS[2] if c.holds else COLORS[1])
        for c in conditions
    ]
    draw_bars(axes, bars, 3.0)
    axes.axvline(1, color=GRAY, linewidth=1.2, zorder=0.5)
    axes.set_xlabel("margin; below 1 the condition fails")


CERTIFICATE = Section("certificate", "Certificate", _find)
