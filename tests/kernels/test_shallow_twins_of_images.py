"""How near a convolutional equilibrium is to one hidden layer with a wider filter."""

import pytest
import torch

import shoal
from shoal import ConvDEQ, Erf, ReLU

PIXELS = 9


def pair(size):
    """Two images of pixels of norm one, with cosines of this size between equal pixels."""
    generator = torch.Generator().manual_seed(0)
    cosine = size * torch.rand(PIXELS, generator=generator, dtype=torch.float64)
    x = torch.zeros(2, 2, PIXELS, dtype=torch.float64)
    x[0, 0], x[1, 0], x[1, 1] = 1.0, cosine, (1 - cosine.square()).sqrt()
    return x, cosine


def resolvent(deq):
    """The filter $(1 - r)(I - rP)^{-1}P$ of circular patches of three, r the gain at no cosine."""
    dense = shoal.DEQ(deq.activation, deq.recurrent_variance, deq.input_variance)
    function = shoal.kernel_function(dense)
    tau = deq.recurrent_variance * float(function(1.0, 1.0, 1.0).ck) + deq.input_variance
    start = deq.recurrent_variance * float(function(1.0, 1.0, 0.0).ck)
    slope = float(shoal.gaussian.dual_derivative(deq.activation, tau, tau, start))
    place = torch.arange(PIXELS)
    step = (place[:, None] - place).abs()
    patch = (torch.minimum(step, PIXELS - step) <= 1).double() / 3
    rate = deq.recurrent_variance * slope
    inverse = torch.linalg.inv(torch.eye(PIXELS, dtype=torch.float64) - rate * patch)
    return function, (1 - rate) * inverse @ patch


@pytest.mark.parametrize(("phi", "order"), [(ReLU(), 3), (Erf(), 5)], ids=["relu", "erf"])
def test_one_layer_with_the_filter_of_the_resolvent(phi, order):
    """It has the conjugate kernel up to the third order in cosines; the fifth if φ is odd."""
    deq = ConvDEQ(phi, 0.9, 0.5, padding="circular")
    function, smoothing = resolvent(deq)
    assert bool((smoothing > 0).all())
    torch.testing.assert_close(smoothing.sum(1), torch.ones(PIXELS, dtype=torch.float64))
    errors = []
    for size in (0.5, 0.25):
        x, cosine = pair(size)
        exact = float(shoal.kernel(deq, x).ck[0, 1])
        errors.append(abs(float(function(1.0, 1.0, smoothing @ cosine).ck.mean()) - exact))
    assert 2 ** (order - 0.6) < errors[0] / errors[1] < 2 ** (order + 0.8)


@pytest.mark.parametrize("phi", [ReLU(), Erf()], ids=repr)
def test_it_is_exact_for_even_cosines(phi):
    deq = ConvDEQ(phi, 0.9, 0.5, padding="circular")
    function, _ = resolvent(deq)
    x = torch.zeros(2, 2, PIXELS, dtype=torch.float64)
    x[0, 0], x[1, 0], x[1, 1] = 1.0, 0.6, 0.8
    exact = shoal.kernel(deq, x)
    for found, wanted in zip(function(1.0, 1.0, 0.6), exact, strict=True):
        assert float(found) == pytest.approx(float(wanted[0, 1]), rel=1e-10)


def test_distant_pixels_multiply_in_the_equilibrium_alone():
    """What no chain of fewer layers than lie between two pixels has: a mixed difference."""

    def mixed(net):
        def entry(first, second):
            cosine = torch.zeros(PIXELS, dtype=torch.float64)
            cosine[0], cosine[4] = first, second
            x = torch.zeros(2, 2, PIXELS, dtype=torch.float64)
            x[0, 0], x[1, 0], x[1, 1] = 1.0, cosine, (1 - cosine.square()).sqrt()
            return float(shoal.kernel(net, x).ck[0, 1])

        return entry(0.8, 0.8) - entry(0.8, 0.0) - entry(0.0, 0.8) + entry(0.0, 0.0)

    assert mixed(ConvDEQ(ReLU(), 1.2, 0.5, padding="circular")) > 1e-6
    assert abs(mixed(shoal.ConvNet([ReLU()], padding="circular"))) < 1e-14
