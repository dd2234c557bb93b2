"""The reference values of tests/oracles, computed in ball arithmetic without shoal."""

import json
from pathlib import Path
from typing import Any

import torch

import shoal
from shoal import Activation

REFERENCE: dict[str, Any] = json.loads(
    (Path(__file__).parent / "oracles/reference.json").read_text()
)


class Mish(Activation):
    def function(self, x):
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))


class ShiftedReLU(Activation):
    def function(self, x):
        return torch.relu(x - 0.7)


class Step(Activation):
    def function(self, x):
        return (x > 0.3).to(x.dtype)


class SquaredReLU(Activation):
    def function(self, x):
        return torch.relu(x) ** 2


class AbsCubed(Activation):
    def function(self, x):
        return x.abs() ** 3


BUILT_IN: dict[str, Activation] = {
    "ReLU": shoal.activations.ReLU(),
    "LeakyReLU": shoal.activations.LeakyReLU(0.1),
    "Tanh": shoal.activations.Tanh(),
    "HardTanh": shoal.activations.HardTanh(),
    "Swish": shoal.activations.Swish(),
    "GELU": shoal.activations.GELU(),
    "Erf": shoal.activations.Erf(),
    "Softplus": shoal.activations.Softplus(),
    "Sigmoid": shoal.activations.Sigmoid(),
    "ELU_1": shoal.activations.ELU(),
    "ELU_0.5": shoal.activations.ELU(0.5),
    "Sine": shoal.activations.Sine(),
    "Cosine": shoal.activations.Cosine(),
    "Identity": shoal.activations.Identity(),
    "HermiteSeries": shoal.activations.Hermite((0.1, 0.7, -0.3, 0.2)),
}
OWN: dict[str, Activation] = {
    "Mish": Mish(),
    "ShiftedReLU": ShiftedReLU(),
    "Step": Step(),
    "SquaredReLU": SquaredReLU(),
    "AbsCubed": AbsCubed(),
}
ACTIVATIONS = BUILT_IN | OWN


def numbers(strings: list[str | None]) -> torch.Tensor:
    """Decimal strings as float64; NaN where the reference has no value."""
    values = [float("nan") if s is None else float(s) for s in strings]
    return torch.tensor(values, dtype=torch.float64)
