"""Widths from which networks are certified and train, against every seed and every width."""

import pytest
import torch

import shoal
from certificates.networks import DOUBLE, sphere

DEQ = shoal.DEQ.ling2023(weight_variance=0.001, in_features=10)
TANH = shoal.FullyConnected(("tanh",))
POINTS = torch.eye(2, dtype=torch.float64)


def proved(net: shoal.FullyConnected, y: torch.Tensor, width: int, seed: int) -> bool:
    options = {"in_features": 2, "width": width, "seed": seed, "readout_scale": 0.0}
    return shoal.certify(shoal.build(net, **options, **DOUBLE), POINTS, y).holds


def test_all_seeds_succeed_from_the_required_width_on() -> None:
    """With two seeds, a width of 16 happens to be proved for both; of eight, five are."""
    y = torch.tensor([0.1, -0.1]).double()
    options = {"readout_scale": 0.0, "largest_width": 64}
    found = shoal.certificates.required_width(TANH, POINTS, y, **options)
    assert found.seeds == 8
    held = {w: [proved(TANH, y, w, seed) for seed in range(8)] for w in (16, 32, 64)}
    assert all(held[16][:2])
    assert not all(held[16])
    assert all(held[32] + held[64])
    assert found.certified == 32
    assert found.empirical is not None
    assert found.empirical <= found.certified
    assert str(found).splitlines()[0].split() == ["certified", "32"]


def test_all_larger_widths_succeed() -> None:
    """A width of two happens to be proved, and one of four is not."""
    y = torch.tensor([0.03, -0.03]).double()
    assert [proved(TANH, y, w, 0) for w in (2, 4, 8, 16)] == [True, False, True, True]
    options = {"readout_scale": 0.0, "largest_width": 16, "seeds": 1}
    assert shoal.certificates.required_width(TANH, POINTS, y, **options).certified == 8


def test_a_width_that_fails_at_the_end_is_none() -> None:
    x, y = sphere(2, 1.0)
    found = shoal.certificates.required_width(DEQ, x, y, largest_width=4, seeds=2)
    assert found.certified is None
    assert "above 4" in str(found)


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    net = shoal.build(DEQ, in_features=10, width=8, dtype=torch.float64)
    conv = shoal.ConvResNet(shoal.activations.Tanh(), 2)
    biased = shoal.DEQ(shoal.activations.Tanh(), 0.1, 0.5, bias_variance=0.1)
    for error, words, arguments in (
        (ValueError, "y must have shape", (DEQ, x, y[:1])),
        (TypeError, r"got a LoopNetwork: take its \.architecture", (net, x, y)),
        (TypeError, "architecture must be an architecture such as a DEQ", ("deq", x, y)),
        (ValueError, r"x must have shape \(samples, channels, pixels", (conv, x, y)),
        (ValueError, r"x must have shape \(samples, features\)", (DEQ, x[None], y)),
        (TypeError, "no theorem is known for networks with biases", (biased, x, y)),
    ):
        with pytest.raises(error, match=words):
            shoal.certificates.required_width(*arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="largest_width must be an integer"):
        shoal.certificates.required_width(DEQ, x, y, largest_width=2.5)  # type: ignore[arg-type]
