"""Widths from which networks are certified and train, against every seed and every width."""

import pytest
import torch

import shoal
from certificates.networks import DOUBLE, sphere

DEQ = shoal.DEQ.ling2023(weight_variance=0.001, in_features=10)
IMPLICIT = shoal.ImplicitNetwork(0.1)


def test_all_seeds_succeed_from_the_required_width_on() -> None:
    """With two seeds, a width of four happens to be proved for both; of eight, three are."""
    x, y = torch.eye(2, dtype=torch.float64), torch.tensor([0.1, -0.1]).double()
    options = {"readout_scale": 0.0, "largest_width": 64}
    found = shoal.certificates.required_width(IMPLICIT, x, y, **options)
    assert found.seeds == 8
    held = {
        width: [
            shoal.certify(
                shoal.build(
                    IMPLICIT, in_features=2, width=width, seed=seed, readout_scale=0.0, **DOUBLE
                ),
                x,
                y,
            ).holds
            for seed in range(8)
        ]
        for width in (2, 4, 8, 16, 32, 64)
    }
    assert found.certified is not None
    assert all(all(row) for width, row in held.items() if width >= found.certified)
    assert not all(held[found.certified // 2])
    assert found.empirical is not None
    assert found.empirical <= found.certified
    assert str(found).splitlines()[0].split() == ["certified", str(found.certified)]


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
