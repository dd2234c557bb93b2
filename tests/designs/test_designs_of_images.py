"""Explicit convolutional networks instead of convolutional equilibria."""

import pytest
import torch

import shoal
from shoal import ConvDEQ, Erf, ReLU

DEQ = ConvDEQ(ReLU(), 0.9, 0.5, padding="circular")


def images(cosines, norm=1.0):
    """Two images whose pixels have one norm, and these cosines."""
    x = torch.zeros(2, 2, *cosines.shape, dtype=torch.float64)
    x[0, 0], x[1, 0], x[1, 1] = 1.0, cosines, (1 - cosines.square()).sqrt()
    return norm * x


def off(design, cosines):
    """By how much the kernels of two images differ, over the diagonal."""
    x = images(cosines, design.tau0)
    wanted, found = design.kernels(x)
    return abs(float(wanted[0, 1] - found[0, 1])) / float(wanted[0, 0])


@pytest.fixture(scope="module")
def design():
    return shoal.design(DEQ, tau0=1.5, method="patches")


def test_cosines_that_are_the_same_at_all_pixels_are_exact(design):
    for cosine in (-0.8, 0.3, 0.9):
        assert off(design, torch.full((4, 3), cosine, dtype=torch.float64)) < 1e-6
    assert not design.feasible
    assert design.gap(images(torch.full((4, 3), 0.3, dtype=torch.float64), 1.5)).relative < 1e-6
    assert design.match == "ck"


def test_the_second_order_is_as_far_off_as_is_said(design):
    """Errors fall fourfold with half the cosines, below the bound that is stated."""
    generator = torch.Generator().manual_seed(3)
    cosines = 0.4 * (2 * torch.rand(6, 5, generator=generator, dtype=torch.float64) - 1)
    first, second = off(design, cosines), off(design, cosines / 2)
    assert 3 < first / second < 5
    stated = design.errors["second order in cosines"] * float(cosines.square().mean())
    assert 0.1 * stated < first < 1.1 * stated


@pytest.mark.thorough
@pytest.mark.parametrize("phi", [ReLU(), Erf()], ids=repr)
@pytest.mark.parametrize("pooling", [None, "average"])
def test_errors_of_any_images_are_small(phi, pooling):
    net = ConvDEQ(phi, 0.6, 0.8, padding="circular", pooling=pooling)
    found = shoal.design(net, tau0=1.0, match="ck", method=shoal.PatchMatching())
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(4, 3, 5, 4, generator=generator, dtype=torch.float64)
    wanted, got = found.kernels(torch.nn.functional.normalize(x, dim=1))
    assert float((wanted - got).abs().max()) < 4e-3 * float(wanted.max())


@pytest.mark.thorough
def test_more_layers_near_the_edge():
    """Where loops reach further, averages must too."""
    near = ConvDEQ(ReLU(), 1.6, 0.5, padding="circular")
    chosen = shoal.design(near, tau0=1.0, method="patches")
    one = shoal.design(near, tau0=1.0, method=shoal.PatchMatching(layers=1))
    assert chosen.architecture.depth > one.architecture.depth == 1
    assert chosen.residual < 0.3 * one.residual


def test_it_is_a_network_like_any_other(design, tmp_path):
    net = shoal.build(
        design.architecture, in_features=2, width=16, pixels=(4, 3), dtype=torch.float64
    )
    x = images(torch.zeros(4, 3, dtype=torch.float64))
    assert net(x).shape == (2, 1)
    shoal.export(net, tmp_path / "small.py")
    pytest.importorskip("matplotlib")
    assert "CK design" in design.plot().axes[0].get_title()


def test_what_is_refused():
    with pytest.raises(TypeError, match=r'ConvDEQ with padding="circular" for method="patches"'):
        shoal.design(ConvDEQ(ReLU(), 0.9, 0.5), tau0=1.0, method="patches")
    with pytest.raises(TypeError, match="must be a ConvDEQ"):
        shoal.design(shoal.DEQ(ReLU(), 0.9, 0.5), tau0=1.0, method="patches")
    with pytest.raises(ValueError, match='match must be "ck" for method="patches"'):
        shoal.design(DEQ, tau0=1.0, match="ntk", method="patches")
    with pytest.raises(ValueError, match="layers must be"):
        shoal.PatchMatching(layers=0)


@pytest.mark.thorough("single", "loop")
@pytest.mark.parametrize(
    "net",
    [
        ConvDEQ(ReLU(), 0.9, 0.5, kernel_size=1, padding="circular"),
        ConvDEQ(ReLU(), 0.0, 0.5, padding="circular"),
        ConvDEQ(shoal.Identity(), 0.5, 0.5, padding="circular"),
    ],
    ids=["single pixels", "no loop", "linear"],
)
def test_designs_say_where_they_are_exact(net):
    found = shoal.design(net, tau0=1.0, method="patches")
    generator = torch.Generator().manual_seed(2)
    cosines = 2 * torch.rand(5, 4, generator=generator, dtype=torch.float64) - 1
    assert off(found, cosines) < 1e-8
    assert found.feasible
    assert found.architecture.depth == 1
    assert found.errors["second order in cosines"] == 0
    assert "exactly the CK" in found.explanation
    assert "No explicit network" not in found.explanation
