"""The result of a run, out of its books."""

import math
from typing import Any

import torch

from shoal.training.result import TrainingRun
from shoal.training.session import Outcome, Session

__all__ = ["collect"]

_BOUNDED = ("gain", "least_eigenvalue", "pl_ratio", "drift")


def collect(session: Session, outcome: Outcome, *, arrays: bool) -> TrainingRun:
    """Make the result; NumPy arrays if ``arrays``, else tensors."""
    method, step_size = session.plan.method, session.plan.step_size
    ledger, bounds, watch = session.ledger, session.ledger.bounds, session.watch

    def values(numbers: list[float]) -> Any:
        tensor = torch.tensor(numbers, dtype=torch.float64)
        return tensor.numpy() if arrays else tensor

    steps: Any = torch.tensor(ledger.looks, dtype=torch.int64)
    limits: dict[str, Any] = {}
    loss_bound = None
    if bounds is not None:
        loss_bound = values([bounds.loss(k) for k in range(len(ledger.losses))])
        limits = {
            name: values([bounds.at(name, k) for k in ledger.looks])
            for name in (*_BOUNDED, *sorted(set(bounds.limits) - set(_BOUNDED)))
            if name in ledger.records
        }
    least = math.nan if bounds is None else bounds.least_eigenvalue
    seen = [name for name in (*_BOUNDED, "gain_upper") if name in ledger.records]
    groups = [g for g in session.objective.weights if f"distance.{g}" in ledger.records]
    return TrainingRun(
        method=method,
        step_size=step_size,
        steps=max(ledger.step, 0),
        times=values([step_size * k for k in range(len(ledger.losses))]),
        losses=values(ledger.losses),
        loss_bound=loss_bound,
        initial_eigenvalue=None if math.isnan(least) else least,
        gram_group=None if watch is None else watch.group,
        monitor_steps=steps.numpy() if arrays else steps,
        monitors={name: values(ledger.records[name]) for name in seen},
        bounds=limits,
        distances={g: values(ledger.records[f"distance.{g}"]) for g in groups},
        kept=ledger.kept,
        violations=dict(ledger.violations),
        status=outcome.status,
        message=outcome.message,
        seconds=session.seconds,
        monitor_seconds=session.monitor_seconds,
    )
