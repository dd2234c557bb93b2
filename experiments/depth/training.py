"""Training networks side by side, each seed at several step sizes."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy
import torch
from torch import Tensor
from torch.nn import functional

from experiments.depth.networks import Stack
from experiments.depth.tasks import Task
from experiments.experiment import Result, named
from experiments.networks import synchronize

_BLOCK = 200  # samples that are evaluated at once
_MOMENTS = (0.9, 0.99)
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """How networks are trained: in batches, by a step size that falls to zero like a cosine."""

    optimizer: str  # ``"adam"`` or ``"sgd"``, which has momentum
    rates: tuple[float, ...]  # the step sizes, each of which trains all seeds
    steps: int  # how many there are
    batch: int  # how many samples each step sees


def _rows(of: Tensor, rows: Tensor, rates: int) -> Tensor:
    """Samples (count, seeds) as (count, networks, ...): each seed once for every step size."""
    chosen = of[rows].unsqueeze(1)
    return chosen.expand(-1, rates, *chosen.shape[2:]).flatten(1, 2)


def trained(stack: Stack, task: Task, recipe: Recipe, seed: int) -> float:
    """Train all networks; the seconds that it took."""
    rates = torch.tensor(recipe.rates, device=task.x.device)
    seeds, samples = task.train.shape
    each = rates.repeat_interleave(seeds)[:, None, None]
    optimizer = _Optimizer(stack, recipe.optimizer)
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, seeds, dtype=torch.long)
    synchronize(task.x)
    start = time.perf_counter()
    for step in range(recipe.steps):
        if len(order) < min(recipe.batch, samples):
            orders = [torch.randperm(samples, generator=generator) for _ in range(seeds)]
            order = torch.stack(orders, 1).to(task.x.device)
        chosen, order = order[: recipe.batch], order[recipe.batch :]
        rows = task.train.T.gather(0, chosen)
        scores = stack(_rows(task.x, rows, len(rates)))
        labels = _rows(task.y, rows, len(rates))
        loss = functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        loss = loss * len(each)  # the mean of each network's samples, summed over networks
        gradients = torch.autograd.grad(loss, optimizer.weights, allow_unused=True)
        optimizer.step(gradients, each * (1 + math.cos(math.pi * step / recipe.steps)) / 2)
        stack.project()
    synchronize(task.x)
    return time.perf_counter() - start


class _Optimizer:
    """Adam, or gradient descent with momentum, with a step size for every network."""

    def __init__(self, stack: Stack, name: str) -> None:
        self.weights = list(stack.parameters())
        self.adam, self.steps = name == "adam", 0
        self.first = [torch.zeros_like(w) for w in self.weights]
        self.second = [torch.zeros_like(w) for w in self.weights]

    def step(self, gradients: Any, rates: Tensor) -> None:
        """Move all weights; a network whose gradient is no number stays where it is."""
        self.steps += 1
        a, b = _MOMENTS if self.adam else (_MOMENTUM, 0.0)
        for weight, g, m, v in zip(self.weights, gradients, self.first, self.second, strict=True):
            if g is None:  # weights that a network of one layer does not use
                continue
            rate = rates.view(-1, *[1] * (weight.ndim - 1))
            g = torch.nan_to_num(g, 0.0, 0.0, 0.0)
            with torch.no_grad():
                if self.adam:
                    m.lerp_(g, 1 - a)
                    v.lerp_(g.square(), 1 - b)
                    scale = v.div(1 - b**self.steps).sqrt_().add_(1e-8)
                    weight.sub_(rate * m / (1 - a**self.steps) / scale)
                else:
                    m.mul_(a).add_(g)
                    weight.sub_(rate * m)


@torch.no_grad()
def measured(stack: Stack, task: Task, rates: int) -> dict[str, Any]:
    """Accuracies on validation and test samples, for every step size and seed, and costs."""
    seeds = len(task.test)
    found: dict[str, Any] = {}
    for name in ("validation", "test"):
        rows = getattr(task, name)
        parts, steps, settled, seconds = [], [], [], []
        for chosen in rows.T.split(_BLOCK):
            x, y = _rows(task.x, chosen, rates), _rows(task.y, chosen, rates)
            synchronize(x)
            start = time.perf_counter()
            scores = stack(x)
            synchronize(x)
            seconds.append((time.perf_counter() - start) / len(x) / x.shape[1])
            parts.append((scores.argmax(-1) == y).double())
            if (solution := stack.layer.solution) is not None:
                steps.append(solution.steps.double().view(len(x), -1))
                settled.append(solution.converged.double().view(len(x), -1))
        right = torch.cat(parts).mean(0)  # networks, places
        right = right.view(rates, seeds, -1)
        found[name] = right.mean(-1)
        if name == "test":
            found["places"] = right
            found["latency"] = np.median(seconds)
            for key, parts in (("steps", steps), ("settled", settled)):
                mean = torch.cat(parts).mean(0) if parts else torch.full((rates * seeds,), np.nan)
                found[key] = mean.view(rates, seeds)
    return found


_BY_NETWORK = ("test", "places", "moved", "steps", "settled")


class Setting(NamedTuple):
    """What is varied, one at a time, around these values."""

    activation: str = "tanh"
    gain: float = 0.9
    scale: float = 1.0  # of the width
    optimizer: str = "adam"
    readout: float = 1.0


CENTER = Setting()._asdict()


class Interval(NamedTuple):
    """A mean over seeds and its 95% interval, Student's."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> "Interval":
        """From one value for each seed; without an interval if there is one seed only."""
        values = np.asarray(values, dtype=np.float64)
        count, mean = len(values), float(values.mean())
        reach = 0.0
        if count > 1:
            error = float(values.std(ddof=1)) / math.sqrt(count)
            reach = float(scipy.stats.t.ppf(0.975, count - 1)) * error
        return cls(mean, mean - reach, mean + reach)


@dataclass(frozen=True, eq=False)
class Compared:
    """A network on a task in a setting, at the step size that validation samples chose."""

    task: str  # the task
    network: str  # the network
    axis: str  # what is varied, or nothing at the center
    value: float | str  # the value of that
    accuracy: Interval  # On test samples
    # what it is better by than the DEQ of the same task and setting, seed by seed; nothing of the
    # DEQ itself
    gap: Interval | None
    # ``seconds`` of training, for one network; ``latency``, seconds for one sample; ``moved``,
    # how far the input weights went, relative to where they began; of a DEQ also ``steps``, mean
    # applications of its cell, and ``settled``, the share of test samples whose equilibrium was
    # found to its tolerance
    numbers: Mapping[str, float]
    places: Any  # Accuracies by places, of all seeds

    @property
    def name(self) -> str:
        """Task, network and what is varied, as the keys of summaries have it."""
        return f"{self.task}_{self.network}" + (f"_{self.axis}{self.value}" if self.axis else "")

    def summary(self) -> dict[str, float]:
        """All numbers; times are left out where they are NaN, of machines that others used."""
        found = self.accuracy._asdict() | dict(self.numbers)
        if self.gap is not None:
            found |= named("gap", self.gap._asdict())
        if not self.axis and self.places.shape[1] > 1:
            near, far = np.array_split(self.places.mean(0), 2)
            found |= {"near": near.mean(), "far": far.mean()}
        return named(self.name, {k: value for k, value in found.items() if not math.isnan(value)})


def compared(results: Sequence[Result]) -> list[Compared]:
    """Every network of a study, in the order of its points."""
    deqs = {_setting(r): _chosen(r)["test"] for r in results if r.point["network"] == "deq"}
    found = []
    for result in results:
        at = _chosen(result)
        axis = next((k for k, v in CENTER.items() if result.point[k] != v), "")
        task, network = str(result.point["task"]), str(result.point["network"])
        own, numbers = network == "deq", ("steps", "settled") if network in ("deq", "free") else ()
        found.append(
            Compared(
                task,
                network,
                axis,
                result.point[axis] if axis else "",
                Interval.of(at["test"]),
                None if own else Interval.of(at["test"] - deqs[_setting(result)]),
                {key: float(result.arrays[key]) for key in ("seconds", "latency")}
                | {key: float(at[key].mean()) for key in ("moved", *numbers)},
                at["places"],
            )
        )
    return found


def _setting(result: Result) -> tuple[int | float | str, ...]:
    return tuple(value for key, value in result.point.items() if key != "network")


def _chosen(result: Result) -> dict[str, Any]:
    """The runs of every seed, at the step size that is best on validation samples."""
    best = int(result.arrays["validation"].mean(1).argmax())
    return {key: result.arrays[key][best] for key in _BY_NETWORK}
