"""Results that are kept for later calls: no two activations are confused."""

import numpy as np
import pytest
import torch

import shoal


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_of_a_class_that_change_in_place_count(kind):
    class Table(shoal.Activation):
        values = kind([0.0] * 2000)  # more than a repr shows

        def function(self, x):
            return x * (1 + float(self.values.sum()))

    before = shoal.gaussian.moments(Table(), 1.0).square
    Table.values[1000] = 1.0
    after = shoal.gaussian.moments(Table(), 1.0).square
    assert [float(before), float(after)] == pytest.approx([1.0, 4.0])


def test_methods_of_a_class_that_are_replaced_count(monkeypatch):
    class Own(shoal.Activation):
        def function(self, x):
            return torch.tanh(x)

    assert Own().lipschitz == pytest.approx(1.0)
    monkeypatch.setattr(Own, "function", lambda _, x: 3 * torch.tanh(x))
    assert Own().lipschitz == pytest.approx(3.0)


def test_lists_of_an_instance_count_as_they_are_now():
    class Leaky(shoal.Activation):
        def __init__(self, slope):
            self.slopes = [slope]

        def function(self, x):
            return torch.where(x > 0, x, self.slopes[0] * x)

    phi = Leaky(0.1)
    assert phi == Leaky(0.1) != Leaky(0.3)
    for slope in (0.1, 0.3):
        phi.slopes[0] = slope
        expected = shoal.gaussian.moments(shoal.activations.LeakyReLU(slope), 1.5)
        assert shoal.gaussian.moments(phi, 1.5).square == pytest.approx(expected.square)


def test_coefficients_are_forgotten_too():
    slope = 0.1

    class Leaky(shoal.Activation):
        def function(self, x):
            return torch.where(x > 0, x, slope * x)  # of which nothing is known here

    def found(phi):
        network = shoal.FullyConnected((phi,))
        return shoal.coefficients(network, input_norm=1.0, center=False).ck.alpha3

    for slope in (0.1, 0.6):
        shoal.core.clear_caches()
        assert found(Leaky()) == pytest.approx(found(shoal.activations.LeakyReLU(slope)), rel=1e-12)
