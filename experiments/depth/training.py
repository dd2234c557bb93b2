"""Training networks side by side, each seed at several step sizes; their measurements."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional

from experiments.depth.networks import Stack
from experiments.depth.tasks import Task
from experiments.experiment import Result, named
from experiments.networks import synchronize

_BLOCK = 200  # samples that are evaluated at once
_MOMENTS = (0.9, 0.99)
_MOMENTUM = 0.9


def _rows(of: Tensor, rows: Tensor, rates: int) -> Tensor:
    """Samples (count, seeds) as (count, networks, ...): each seed once for every step size."""
    chosen = of[rows].unsqueeze(1)
    return chosen.expand(-1, rates, *chosen.shape[2:]).flatten(1, 2)


def trained(
    stack: Stack, task: Task, optimizer: str, step_sizes: Sequence[float], steps: int, batch: int,
    seed: int,
) -> float:  # fmt: skip
    """Train all seeds at each step size, which falls to zero like a cosine; the seconds it took."""
    rates = torch.tensor(step_sizes, device=task.x.device)
    seeds, samples = task.train.shape
    each = rates.repeat_interleave(seeds)[:, None, None]
    weights, moments = list(stack.parameters()), {}
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, seeds, dtype=torch.long)
    synchronize(task.x)
    start = time.perf_counter()
    for step in range(steps):
        if len(order) < min(batch, samples):
            orders = [torch.randperm(samples, generator=generator) for _ in range(seeds)]
            order = torch.stack(orders, 1).to(task.x.device)
        chosen, order = order[:batch], order[batch:]
        rows = task.train.T.gather(0, chosen)
        scores = stack(_rows(task.x, rows, len(rates)))
        labels = _rows(task.y, rows, len(rates))
        loss = functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss = loss * len(each)  # the mean of each network's samples, summed over networks
        gradients = torch.autograd.grad(loss, weights, allow_unused=True)
        current = each * (1 + math.cos(math.pi * step / steps)) / 2
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:  # weights that a network of one layer does not use
                state = moments.setdefault(weight, [torch.zeros_like(weight) for _ in range(2)])
                _move(weight, gradient, current, state, step + 1, adam=optimizer == "adam")
        stack.project()
    synchronize(task.x)
    return time.perf_counter() - start


@torch.no_grad()
def _move(
    weight: Tensor, g: Tensor, rates: Tensor, state: list[Tensor], step: int, *, adam: bool
) -> None:
    """One step of Adam, or of gradient descent with momentum; a gradient of NaN is none."""
    m, v = state
    rate = rates.view(-1, *[1] * (weight.ndim - 1))
    g = torch.nan_to_num(g, 0.0, 0.0, 0.0)
    if adam:
        a, b = _MOMENTS
        m.lerp_(g, 1 - a)
        v.lerp_(g.square(), 1 - b)
        scale = v.div(1 - b**step).sqrt_().add_(1e-8)
        weight.sub_(rate * m / (1 - a**step) / scale)
    else:
        weight.sub_(rate * m.mul_(_MOMENTUM).add_(g))


@torch.no_grad()
def measured(stack: Stack, task: Task, rates: int) -> dict[str, Any]:
    """Accuracies on validation and test samples, for every step size and seed, and costs."""
    seeds = len(task.test)
    numbers: dict[str, Any] = {}
    for name in ("validation", "test"):
        rows = getattr(task, name)
        parts, seconds = [], []
        costs: dict[str, list[Tensor]] = {"steps": [], "settled": []}
        for chosen in rows.T.split(_BLOCK):
            x, y = _rows(task.x, chosen, rates), _rows(task.y, chosen, rates)
            synchronize(x)
            start = time.perf_counter()
            scores = stack(x)
            synchronize(x)
            seconds.append((time.perf_counter() - start) / len(x) / x.shape[1])
            parts.append((scores.argmax(-1) == y).double())
            if (solution := stack.layer.solution) is not None:
                costs["steps"].append(solution.steps.double().view(len(x), -1))
                costs["settled"].append(solution.converged.double().view(len(x), -1))
        right = torch.cat(parts).mean(0)  # networks, places
        right = right.view(rates, seeds, -1)
        numbers[name] = right.mean(-1)
        if name == "test":
            numbers |= {"places": right, "latency": np.median(seconds)}
            for key, values in costs.items():
                mean = torch.cat(values).mean(0) if values else torch.full((rates * seeds,), np.nan)
                numbers[key] = mean.view(rates, seeds)
    return numbers


class Setting(NamedTuple):
    """Values around which one thing at a time is varied."""

    activation: str = "tanh"
    gain: float = 0.9
    scale: float = 1.0  # of the width
    optimizer: str = "adam"
    readout: float = 1.0


CENTER = Setting()._asdict()


class Compared(NamedTuple):
    """A network on a task in a setting, at the step size that validation samples chose.

    ``numbers`` are its accuracy, and its lead over the DEQ's; ``seconds`` of
    training, for one network, and ``latency``, for one sample; how far the input weights moved,
    relatively; of a DEQ also mean ``steps`` and the share of test samples that ``settled``.
    """

    task: str
    network: str
    axis: str  # the varied setting; empty at the center
    value: float | str
    numbers: Mapping[str, float]
    places: Any  # accuracies by places, of all seeds

    def summary(self) -> dict[str, float]:
        """The numbers, under their names in the record."""
        varied = f"_{self.axis}{self.value}" if self.axis else ""
        return named(f"{self.task}_{self.network}{varied}", self.numbers)


def student(values: Any) -> dict[str, float]:
    """The mean of one value for each seed, and its 95% interval; one seed has none."""
    count, mean, reach = len(values), float(np.mean(values)), 0.0
    if count > 1:
        error = float(np.std(values, ddof=1)) / math.sqrt(count)
        reach = float(stats.t.ppf(0.975, count - 1)) * error
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def compared(results: Sequence[Result]) -> list[Compared]:
    """Every network of a study, in the order of its points: DEQs before their rivals."""
    rows, deqs = [], {}
    for point, arrays in results:
        best = int(arrays["validation"].mean(1).argmax())  # of the step sizes
        at = {k: arrays[k][best] for k in ("test", "places", "moved", "steps", "settled")}
        setting = tuple(v for k, v in point.items() if k != "network")
        axis, network = next((k for k, v in CENTER.items() if point[k] != v), ""), point["network"]
        numbers = student(at["test"])
        numbers |= {key: float(arrays[key]) for key in ("seconds", "latency")}
        for key in ("moved", "steps", "settled") if network in ("deq", "free") else ("moved",):
            numbers[key] = at[key].mean()
        if network == "deq":
            deqs[setting] = at["test"]
        else:
            numbers |= named("gap", student(at["test"] - deqs[setting]))
        if not axis and at["places"].shape[1] > 1:
            near, far = np.array_split(at["places"].mean(0), 2)
            numbers |= {"near": near.mean(), "far": far.mean()}
        numbers = {key: value for key, value in numbers.items() if not math.isnan(value)}
        value = point[axis] if axis else ""
        rows.append(Compared(point["task"], network, axis, value, numbers, at["places"]))
    return rows
