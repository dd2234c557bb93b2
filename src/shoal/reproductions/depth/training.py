"""Training networks side by side, each seed at several step sizes."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from shoal.lab.descent import synchronize
from shoal.reproductions.depth.networks import Stack
from shoal.reproductions.depth.tasks import Task

_BLOCK = 200  # samples that are evaluated at once
_MOMENTS = (0.9, 0.99)
_MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """How networks are trained: in batches, by a step size that falls to zero like a cosine.

    Attributes:
        optimizer: ``"adam"`` or ``"sgd"``, which has momentum.
        rates: The step sizes, each of which trains all seeds.
        steps: How many there are.
        batch: How many samples each step sees.
    """

    optimizer: str
    rates: tuple[float, ...]
    steps: int
    batch: int


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
