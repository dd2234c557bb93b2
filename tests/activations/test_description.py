"""What decides the numbers of activations, as text."""

from dataclasses import dataclass

import pytest
import torch

import shoal
from shoal.activations import Activation
from shoal.activations.description import description


class Scaled(Activation):
    """A plain class: its repr is that of every other factor."""

    def __init__(self, factor: object) -> None:
        object.__setattr__(self, "factor", factor)

    def function(self, x):
        return self.factor * torch.tanh(x)


class Sharp(Activation):
    """With an attribute of the class."""

    sharpness = 2.0

    def function(self, x):
        return torch.tanh(self.sharpness * x)


def closure(factor):
    """A class whose function uses what nothing else tells of."""

    class Closed(Activation):
        def function(self, x):
            return factor * torch.tanh(x)

    return Closed()


@dataclass(frozen=True, eq=False)
class Held(Activation):
    """With a field that has no repr of its own."""

    tool: object

    def function(self, x):
        return torch.tanh(x)


def test_activations_of_shoal_are_described_as_they_are_written() -> None:
    deq = shoal.DEQ(shoal.Affine(shoal.LeakyReLU(0.1), 2.0, 1.0), 0.2, 0.8)
    assert description(deq) == repr(deq)
    du = shoal.FullyConnected.du2018(shoal.Softplus(), depth=2)
    assert description(du) == repr(du)
    assert description((shoal.Tanh(),)) == "(Tanh(),)"
    assert description(shoal.Anderson()) == repr(shoal.Anderson())


def test_attributes_count_however_they_are_held() -> None:
    assert description(Scaled(2.0)) == description(Scaled(2.0))
    assert description(Scaled(2.0)) != description(Scaled(2.5))
    assert description(Scaled(1.0)) != description(Scaled(1.0 + 1e-15))
    many = torch.linspace(0, 1, 5000)
    other = many.clone()
    other[2500] += 1e-3  # which no printed tensor shows
    assert description({"table": many}) != description({"table": other})
    assert description({"table": many.numpy()}) == description({"table": many.clone().numpy()})


def test_attributes_of_classes_count(monkeypatch) -> None:
    before = description(shoal.DEQ(Sharp(), 0.1, 0.8))
    monkeypatch.setattr(Sharp, "sharpness", 3.0)
    assert description(shoal.DEQ(Sharp(), 0.1, 0.8)) != before


def test_functions_count_by_their_values() -> None:
    assert description(closure(2.0)) == description(closure(2.0))
    assert description(closure(2.0)) != description(closure(2.0 + 1e-6))


def test_tables_count_by_all_their_numbers() -> None:
    knots = [k / 100 for k in range(101)]
    pieces = [[0.0, 1.0]] * 100
    one, two = (
        shoal.PiecewisePolynomial(knots, p) for p in (pieces, [[0.0, 1.0 + 1e-14], *pieces[1:]])
    )
    assert description(one) != description(two)
    assert len(description(one)) < 1000


@pytest.mark.parametrize("value", [Held(object()), Held(closure), Held({"b", "a", "c"}), Held({})])
def test_the_same_in_every_process(value) -> None:
    assert " at 0x" not in description(value)
    assert description(value) == description(value)


def test_sets_do_not_depend_on_hashes() -> None:
    assert description({"b": 1, "a": {"y", "x"}}) == "{'a': {'x', 'y'}, 'b': 1}"
