"""An activation of one's own that knows itself in closed form, with public names only."""

import math
from dataclasses import dataclass

import pytest
import torch

import shoal
from shoal.activations import Activation, Affine, ClosedForm, Evaluated, Smoothness


@dataclass(frozen=True)
class ArcSine(ClosedForm):
    """Of erf(rx): that of erf at variances times r²."""

    rate: float

    def mean(self, a):
        return 0 * a

    def covariance(self, a, b, c):
        a, b, c = (2 * self.rate**2 * t for t in (a, b, c))
        return 2 / math.pi * torch.asin(c / ((1 + a) * (1 + b)).sqrt())

    def derivative_dual(self, a, b, c):
        a, b, c = (2 * self.rate**2 * t for t in (a, b, c))
        return 4 / math.pi * self.rate**2 / ((1 + a) * (1 + b) - c**2).sqrt()


@dataclass(frozen=True)
class Quiet(Activation):
    """The same function, of which nothing is known."""

    rate: float = 0.5

    def function(self, x):
        return torch.erf(self.rate * x)


@dataclass(frozen=True)
class Known(Quiet):
    """erf(rx), with its dual and its bounds."""

    def closed_form(self):
        return ArcSine(self.rate)

    def smoothness(self):
        up = 1 + 1e-12
        slope = 2 / math.sqrt(math.pi) * self.rate
        curvature = self.rate**2 * math.sqrt(8 / (math.pi * math.e))
        return Smoothness(slope * up, kinks=(), jump=0.0, curvature=curvature * up)


class Softsign(Activation):
    """x / (1 + |x|): sums and quotients alone, whose errors are known."""

    def function(self, x):
        return x / (1 + x.abs())

    def first_derivative(self, x):
        return 1 / (1 + x.abs()) ** 2

    def smoothness(self):
        return Smoothness(lipschitz=1.0, kinks=(), jump=0.0, curvature=2.0)

    def evaluated(self, x):
        values, slopes = self(x), self.first_derivative(x)
        share = 2.0**-50  # eight roundings, and more than these operations have
        return Evaluated(values, slopes, share * values.abs(), share * slopes, proved=True)


def triples(count=60):
    generator = torch.Generator().manual_seed(0)
    a, b, rho = torch.rand(3, count, dtype=torch.float64, generator=generator)
    a, b = 0.1 + 3 * a, 0.1 + 3 * b
    return a, b, (2 * rho - 1) * (a * b).sqrt()


@pytest.mark.parametrize("scale", [1.0, -2.5])
def test_duals_are_those_of_quadrature(scale):
    known, quiet = (Affine(phi, scale, 0.3) for phi in (Known(0.7), Quiet(0.7)))
    for function in (shoal.gaussian.dual, shoal.gaussian.dual_derivative):
        found, expected = (function(phi, *triples()) for phi in (known, quiet))
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_duals_come_from_the_closed_form():
    calls = []

    class Watched(ArcSine):
        def covariance(self, a, b, c):
            calls.append(len(a))
            return super().covariance(a, b, c)

    class Own(Known):
        def closed_form(self):
            return Watched(self.rate)

    shoal.gaussian.dual(Own(), *triples(77))
    assert calls[-1] == 77
    tensors = [t.requires_grad_() for t in triples(5)]
    slopes = torch.autograd.grad(shoal.gaussian.dual(Own(), *tensors).sum(), tensors)
    plain = [t.requires_grad_() for t in triples(5)]
    expected = torch.autograd.grad(shoal.gaussian.dual(Quiet(), *plain).sum(), plain)
    assert calls[-1] == 5
    torch.testing.assert_close(slopes, expected, rtol=1e-11, atol=1e-12)


@pytest.mark.thorough("one")
@pytest.mark.parametrize("norms", ["one", "several"])
def test_kernels_agree_with_the_default_path(norms):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(12, 6, dtype=torch.float64, generator=generator)
    if norms == "one":
        x = torch.nn.functional.normalize(x)
    found, expected = (
        shoal.kernel(shoal.DEQ(phi, recurrent_variance=0.4, input_variance=1.0), x)
        for phi in (Known(), Quiet())
    )
    torch.testing.assert_close(tuple(found), tuple(expected), rtol=1e-10, atol=1e-11)


def certificate(phi):
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(3, 10, dtype=torch.float64, generator=generator))
    y = 0.01 * torch.randn(3, dtype=torch.float64, generator=generator)
    deq = shoal.DEQ(phi, recurrent_variance=0.02, input_variance=1.0)
    options = {"readout_scale": 0.0, "seed": 0, "dtype": torch.float64}
    network = shoal.build(deq, in_features=10, width=300, **options)
    return shoal.certify(network, x, y)


@pytest.mark.thorough
def test_certificates_are_as_good_as_the_bounds():
    assert certificate(Softsign()).status == "proved"
    assert certificate(Known()).status == "holds at the measured values"
    assert certificate(Quiet()).status == "not established"  # its curvature is not known


@pytest.mark.parametrize("part", ["mean", "covariance", "derivative_dual"])
def test_a_wrong_closed_form_is_told(part):
    wrong = type("Wrong", (ArcSine,), {part: lambda _, a, *__: 0 * a + 0.1})
    phi = type("Own", (Known,), {"closed_form": lambda self: wrong(self.rate)})()
    with pytest.raises(ValueError, match="of the closed_form of Own"):
        shoal.gaussian.dual(phi, *triples(3))
    with pytest.raises(ValueError, match="of the closed_form of Own"):
        shoal.gaussian.dual(Affine(phi, 2.0), *triples(3))


def test_what_is_no_closed_form_is_told():
    phi = type("Own", (Known,), {"closed_form": lambda _: 3})()
    with pytest.raises(TypeError, match="closed_form of Own"):
        shoal.gaussian.dual(phi, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("smoothness", lambda _: Smoothness(0.1, (), 0.0, 1.0), "lipschitz in smoothness"),
        ("smoothness", lambda _: Smoothness(1.0, (), 0.0, 0.0), "curvature in smoothness"),
        ("evaluated", lambda _, x: Evaluated.of_lines(x, x), "values in evaluated"),
    ],
)
def test_wrong_bounds_are_told(name, value, words):
    phi = type("Own", (Known,), {name: value})()
    with pytest.raises(ValueError, match=words):
        certificate(phi)
