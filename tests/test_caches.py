"""Results that are kept for later calls: no two activations are confused."""

import pytest
import torch

import shoal


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
