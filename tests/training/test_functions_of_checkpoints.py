"""Checkpoints know the functions that a run is made of: cells of equilibria, and losses."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

import shoal
from training import modules


class FunctionCell(torch.nn.Module):
    """The equilibrium of a function."""

    def __init__(self, cell, **options):
        super().__init__()
        self.first = torch.nn.Linear(5, 2, dtype=torch.float64)
        torch.nn.init.constant_(self.first.weight, 0.1)
        torch.nn.init.zeros_(self.first.bias)
        self.equilibrium = shoal.Equilibrium(cell, **options)

    def forward(self, x):
        y = self.first(x)
        return self.equilibrium(torch.zeros_like(y), y)


def scaling(factor):
    return lambda z, x: torch.tanh(factor * z + x)


def adding(function):
    return lambda z, x: torch.tanh(0.2 * z + function(x))


def scale(z, x, *, factor):
    return torch.tanh(factor * z + x)


class Scale:
    """A cell that is an object of its own."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, z, x):
        return scale(z, x, factor=self.factor)


def weighted(weight):
    return lambda output, y: weight * (output - y).square().sum()


def compared(module):
    return lambda output, y: module(output, y)


FACTOR = 0.2


def by_global_name(z, x):
    return scale(z, x, factor=FACTOR)


def resumed(path, net, loss=None):
    x, y = modules.data()
    options = {"step_size": 0.01, "steps": 1, "monitor": False, "checkpoint": path}
    return shoal.train(net, x, y, loss=loss, **options)


CELLS = {
    "closure": scaling,
    "code": lambda f: scaling(0.2) if f == 0.2 else (lambda z, x: torch.tanh(0.2 * (z + x))),
    "function in a closure": lambda f: adding(lambda x: f * x),
    "function of PyTorch": lambda f: adding(torch.sin if f == 0.2 else torch.cos),
    "module in a closure": lambda f: adding(torch.nn.LeakyReLU(f)),
    "tensor in a closure": lambda f: scaling(torch.tensor(f, dtype=torch.float64)),
    "partial": lambda f: partial(scale, factor=f),
    "default": lambda f: lambda z, x, factor=f: scale(z, x, factor=factor),
    "object": Scale,
    "activation": lambda f: adding(shoal.LeakyReLU(f)),
}


@pytest.mark.parametrize("kind", CELLS)
def test_checkpoints_of_other_cells_are_refused(tmp_path, kind) -> None:
    make, path = CELLS[kind], tmp_path / "run"
    first = resumed(path, FunctionCell(make(0.2)))
    assert torch.equal(resumed(path, FunctionCell(make(0.2))).losses, first.losses)
    with pytest.raises(ValueError, match="another training: net differ"):
        resumed(path, FunctionCell(make(0.3)))


@pytest.mark.parametrize(
    "options",
    [
        {"solver": shoal.Picard(max_steps=100)},
        {"solver": (shoal.Picard(max_steps=100), shoal.Anderson(history=3))},
        {"batched": False},
        {"separable": True},
    ],
    ids=repr,
)
def test_checkpoints_of_other_solvers_of_a_layer_are_refused(tmp_path, options) -> None:
    resumed(tmp_path / "run", FunctionCell(scaling(0.2)))
    with pytest.raises(ValueError, match="another training: net differ"):
        resumed(tmp_path / "run", FunctionCell(scaling(0.2), **options))


def test_calls_before_a_run_do_not_matter(tmp_path) -> None:
    """What a layer keeps of its last solve is no part of the computation."""
    path, (x, _) = tmp_path / "run", modules.data()
    whole = resumed(path, FunctionCell(scaling(0.2)))
    called = FunctionCell(scaling(0.2))
    called(x).sum().backward()
    called.zero_grad()
    again = resumed(path, called)
    assert torch.equal(again.losses, whole.losses)


def test_checkpoints_of_another_global_value_are_refused(tmp_path, monkeypatch) -> None:
    resumed(tmp_path / "run", FunctionCell(by_global_name))
    monkeypatch.setitem(globals(), "FACTOR", 0.3)
    with pytest.raises(ValueError, match="another training: net differ"):
        resumed(tmp_path / "run", FunctionCell(by_global_name))


def test_checkpoints_of_other_losses_are_refused(tmp_path) -> None:
    losses = [
        weighted(1.0),
        weighted(2.0),
        compared(torch.nn.HuberLoss(delta=1.0)),
        compared(torch.nn.HuberLoss(delta=2.0)),
        torch.nn.HuberLoss(delta=1.0),
        torch.nn.HuberLoss(delta=2.0),
        torch.nn.functional.mse_loss,
        torch.nn.functional.l1_loss,
    ]
    for number, mine in enumerate(losses):
        path = tmp_path / str(number)
        resumed(path, modules.mlp(), mine)
        resumed(path, modules.mlp(), mine)
        for other in losses[:number] + losses[number + 1 :]:
            with pytest.raises(ValueError, match="another training: loss differ"):
                resumed(path, modules.mlp(), other)


def test_objects_that_cannot_be_compared_are_told_of(tmp_path) -> None:
    generator = torch.Generator()

    def loss(output, y):
        return (output - y + torch.randn(y.shape, generator=generator)).square().sum()

    with pytest.warns(
        UserWarning, match=r"uses objects of .*Generator, of which checkpoint"
    ) as told:
        resumed(tmp_path / "run", modules.mlp(), loss)
    assert [warning.filename for warning in told] == [__file__]


@pytest.mark.thorough
def test_functions_are_the_same_in_every_process_and_place(tmp_path) -> None:
    lines = [
        "import sys, torch, shoal",
        "def weighted(weight, names):",
        "    return lambda o, y: weight * (weight in {2.0, 'a', 'b'}) * (o - y).square().sum()",
        "net = torch.nn.Linear(2, 1)",
        "torch.nn.init.ones_(net.weight), torch.nn.init.ones_(net.bias)",
        "loss = weighted(float(sys.argv[2]), {'one', 'two', 'three', 'four'})",
        "for _ in range(100): loss(torch.ones(1), torch.ones(1))",
        "options = {'steps': 1, 'step_size': 0.01, 'loss': loss, 'checkpoint': sys.argv[1]}",
        "shoal.train(net, torch.ones(3, 2), torch.ones(3, 1), **options)",
    ]
    ends = []
    for number, weight in enumerate((2.0, 2.0, 3.0)):
        script = tmp_path / f"script{number}.py"
        script.write_text("\n" * number + "\n".join(lines))
        seed = {"PYTHONHASHSEED": str(number), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, str(script), str(tmp_path / "run"), str(weight)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | seed, check=False
        )
        ends.append(done.stderr)
    assert ends[:2] == ["", ""]
    assert "another training: loss differ" in ends[2]
