"""What cannot be diagnosed is refused, and said why."""

import pytest
import torch
from torch import nn

import shoal
from diagnosis.models import Classifier, inputs
from shoal.adapters.torchdeq import get_deq


def test_a_cotangent_of_another_shape_is_refused() -> None:
    x = inputs()
    with pytest.raises(ValueError, match="cotangent must be like z0"):
        shoal.diagnose(lambda z, x: z / 2 + x, torch.zeros_like(x), x, cotangent=x[:, :2])
    d = shoal.diagnose(lambda z, x: z / 2 + x, torch.zeros_like(x), x, cotangent=x.float())
    assert d.gradients  # of another dtype it may be


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (TypeError, "model must be", (3, None)),
        (ValueError, "model must have an equilibrium", (lambda z: z, None)),
        (ValueError, "model must have an equilibrium", (nn.Linear(2, 2), None, inputs())),
        (TypeError, "z0 must be None", (get_deq(), inputs())),
        (ValueError, "z0 must be None for a model", (Classifier().double(), inputs())),
        (ValueError, "f must return a tensor of shape", (lambda z: z[:, :1], inputs())),
        (ValueError, "f must not change z in place", (lambda z: z.mul_(0.5), inputs())),
    ],
)
def test_what_is_no_loop_is_refused(
    error: type[Exception], words: str, arguments: tuple[object, ...]
) -> None:
    with pytest.raises(error, match=words):
        shoal.diagnose(*arguments)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("tolerance must be", {"tolerance": 0}),
        ("starts must be", {"starts": 0}),
        ("steps must be", {"steps": 1}),
        ("output must return one entry per sample", {"output": lambda z: z.sum()}),
        ("reference must be left out for a cell", {"reference": {}}),
    ],
)
def test_bad_options_are_named(words: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=words):
        shoal.diagnose(lambda z: z / 2, inputs(), **options)


def test_a_model_with_two_equilibria_inside_is_refused() -> None:
    model = nn.Sequential(shoal.Equilibrium(nn.Linear(4, 4)), shoal.Equilibrium(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match="one equilibrium inside, got 2"):
        shoal.diagnose(model, None, inputs())
