"""The tasks of the study of depth: images, tables, a sequence and a graph."""

from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from shoal import data

_SIGNALS = 2  # classes of the generated tasks
_NOISE = 4  # channels of their inputs that say nothing


@dataclass(frozen=True, eq=False)
class Task:
    """Samples and how they are divided, differently for every seed."""

    x: Tensor  # inputs, of shape (samples, *places, features) and mean squared norm about one
    y: Tensor  # classes, of shape (samples,), or (samples, *places) where every place has an answer
    classes: int  # how many there are
    neighbors: str  # neighbors that the cell reads: a key of depth.networks.NEIGHBORS
    train: Tensor  # which samples to learn from, for each seed; shape: (seeds, samples)
    validation: Tensor  # which samples choose the step size
    test: Tensor  # which samples count

    @property
    def everywhere(self) -> bool:
        """Whether every place has its own answer."""
        return self.y.ndim > 1


@lru_cache(maxsize=2)
def task(name: str, samples: int, seeds: int, length: int, device: torch.device) -> Task:
    """A task by its name."""
    x, y, classes, neighbors, tests = _pool(name, length)
    drawn = len(x) - tests if tests else len(x)
    generator = torch.Generator().manual_seed(1)
    orders = torch.stack([torch.randperm(drawn, generator=generator) for _ in range(seeds)])
    withheld = min(drawn // 5, samples // 4)
    last = drawn if tests else drawn - drawn // 4
    train = orders[:, : min(samples, last - withheld)]
    validation = orders[:, last - withheld : last]
    test = torch.arange(drawn, len(x)).expand(seeds, -1) if tests else orders[:, last:]
    x, y, *rows = (t.to(device) for t in (x.float(), y.long(), train, validation, test))
    return Task(x, y, classes, neighbors, *rows)


def flattened(task: Task) -> Task:
    """A task whose places stand side by side, as features of one place."""
    return replace(task, x=task.x.flatten(1), neighbors="none")


Pool = tuple[Tensor, Tensor, int, str, int]  # x, y, classes, neighbors, fixed tests at the end


def _images(name: str, tests: int = 4000) -> tuple[Tensor, Tensor, int]:
    parts = [data.load(name, split=split, dtype=torch.float32) for split in ("train", "test")]
    tests = min(tests, len(parts[1]))
    white = 16 if name == "digits" else 255
    x = (white * torch.cat([parts[0].x, parts[1].x[:tests]])).round() / 255
    y = torch.cat([parts[0].labels, parts[1].labels[:tests]])
    return (x - x.mean()) / x.std(), y, tests


def _dense_images(name: str) -> Pool:
    x, y, tests = _images(name)
    x = x.flatten(1)
    return x / x.shape[1] ** 0.5, y, 10, "none", tests


def _patches(name: str) -> Pool:
    """Patches of 3 by 3 pixels around every second pixel, as features of the places of a grid."""
    x, y, tests = _images(name)
    side = x.shape[2] // 2
    rows = functional.unfold(x, 3, padding=1, stride=2).mT.unflatten(1, (side, side))
    return rows / rows.shape[-1] ** 0.5, y, 10, "grid", tests


def _table(name: str) -> Pool:
    """Columns of mean zero and variance one; numbers to predict are above their median or not."""
    from sklearn import datasets

    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    rows, targets = torch.from_numpy(x), torch.from_numpy(y)
    if targets.is_floating_point():
        targets = targets > targets.median()
    rows = (rows - rows.mean(0)) / rows.std(0)
    return rows / rows.shape[1] ** 0.5, targets, int(targets.max()) + 1, "none", 0


def _signals(length: int, neighbors: str, samples: int = 2000) -> Pool:
    """The first place tells a class that all others shall say; all have noise, and a constant."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(_SIGNALS, (samples,), generator=generator)
    noise = torch.randn(samples, length, _NOISE, generator=generator)
    signal = torch.zeros(samples, length, _SIGNALS)
    signal[:, 0] = 2.0 * functional.one_hot(y, _SIGNALS)
    x = torch.cat([signal, noise, torch.ones(samples, length, 1)], -1)
    return x / x.shape[-1] ** 0.5, y[:, None].expand(-1, length), _SIGNALS, neighbors, 0


def _pool(name: str, length: int) -> Pool:
    neighbors = {"sequence": "line", "graph": "chain"}
    if name in neighbors:
        return _signals(length, neighbors[name])
    if name in ("cancer", "diabetes"):
        return _table({"cancer": "breast_cancer"}.get(name, name))
    images = name.removesuffix("-conv")
    images = {"fashion": "fashion-mnist", "cifar": "cifar-10"}.get(images, images)
    return _patches(images) if name.endswith("-conv") else _dense_images(images)
