"""The series that a GPU sums, summed by the operations of torch."""

import math

import pytest
import torch

from shoal import DEQ, GELU, ReLU, Tanh, kernel_function
from shoal.kernels.approximations.surface import angular_surface, surface
from shoal.kernels.backends.series_forms import values_form


def summed(form, series, t):
    """Both kernels at points, given series of both in turn, the highest terms first."""
    first, second = torch.zeros(2, 2, len(t), dtype=t.dtype)
    for pair in series.view(form.terms, 2):
        if form.powers:
            first = t * first + pair[:, None]
        else:
            first, second = 2 * t * first + pair[:, None] - second, first
    return first - t * second


@pytest.mark.parametrize("phi", [ReLU(), Tanh(), GELU()], ids=repr)
@pytest.mark.parametrize("angles", [(1.25, 1.875), (0.5, 2.5), (0.0, math.pi)], ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 6e-7)])
def test_one_norm(phi, angles, dtype, tolerance):
    """To the errors that docs/kernels.md states."""
    function = kernel_function(DEQ(phi, 0.2, 0.8))
    chosen = angular_surface(function, 1.0, 1e-12).restricted(angles, 1e-12)
    form, series = values_form(chosen, dtype, torch.device("cpu"))
    angle = torch.linspace(*angles, 201, dtype=torch.float64)[1:-1]
    place = angle if form.of_angle else angle.cos()
    found = summed(form, series[0], ((place.to(dtype) - form.ends[0]) * form.ends[1]))
    one = torch.ones_like(angle)
    exact = torch.stack(tuple(function(one, one, angle.cos())))
    own = torch.stack(tuple(function.own(one[:1])))
    assert (found.double() - exact / own).abs().max() <= tolerance


@pytest.mark.parametrize("phi", [Tanh(), GELU()], ids=repr)
def test_any_norms(phi):
    function = kernel_function(DEQ(phi, 0.2, 0.8))
    chosen = surface(function, (-1.0, 1.0), (1.25, 1.875), 1e-11, 10**6)
    form, series = values_form(chosen, torch.float64, torch.device("cpu"))
    angle = torch.linspace(1.26, 1.86, 7, dtype=torch.float64)
    t = ((angle if form.of_angle else angle.cos()) - form.ends[0]) * form.ends[1]
    for left, right in [(0.51, 1.9), (0.7, 0.7), (1.3, 0.9)]:
        norms = torch.tensor([left, right], dtype=torch.float64)
        own, features = torch.stack(tuple(function.own(norms**2))), chosen.features(norms)
        rows = (features[0] @ series).view(chosen.rank, -1)
        found = sum(f * summed(form, row, t) for f, row in zip(features[1], rows, strict=True))
        a, b = norms.square()[:, None].expand(2, len(t))
        exact = torch.stack(tuple(function(a, b, (a * b).sqrt() * angle.cos())))
        scale = own.prod(1, keepdim=True).sqrt()
        assert (found - exact / scale).abs().max() <= 1e-10  # as stated for different norms


def test_a_kernel_that_is_zero():
    chosen = angular_surface(kernel_function(DEQ(Tanh(), 0.5, 0.0)), 1.0, 1e-12)
    form, series = values_form(chosen, torch.float64, torch.device("cpu"))
    assert form.terms > 0
    assert not series.any()
