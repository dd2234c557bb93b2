"""Certificates of random small problems, against dense Jacobians along a run."""

import random
from typing import Any

import pytest
import torch

import shoal
from certificates.networks import keep_promises
from shoal.certificates import plain

ACTIVATIONS = [
    shoal.activations.ReLU(),
    shoal.activations.LeakyReLU(-1.0),
    shoal.activations.HardTanh(0.5),
    shoal.activations.Tanh(),
    shoal.activations.Cosine(),  # not zero at zero
]


def problem(seed: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """A network, inputs, and the directions in which labels differ from outputs."""
    draw = random.Random(seed)
    samples, size, outputs = draw.choice([1, 2, 3]), draw.choice([1, 3, 10]), draw.choice([1, 2])
    architecture: shoal.DEQ | shoal.ImplicitNetwork = shoal.ImplicitNetwork(
        draw.choice([0.05, 0.3])
    )
    groups = draw.choice([{"readout"}, {"readout", "input"}, {"readout", "input", "recurrent"}])
    if seed % 3:
        architecture = shoal.DEQ(
            ACTIVATIONS[seed % len(ACTIVATIONS)],
            draw.choice([0.0, 1e-3, 0.05]),
            0.5,
            parametrization="ntk" if draw.random() < 0.5 else "standard",
        )
    else:
        groups = groups | {"skip"}
    net = shoal.build(
        architecture,
        in_features=size,
        width=draw.choice([samples, 8, 30]),
        out_features=outputs,
        seed=seed,
        dtype=torch.float64,
        readout_scale=draw.choice([0.0, 0.3, 1.0]),
        trainable=groups,
    )
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    return net, x, torch.randn(samples, outputs, generator=generator, dtype=torch.float64)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(15))
def test_certificates_of_random_problems_are_kept(seed: int) -> None:
    """With labels as far from the outputs as can be certified, within a factor of thirty."""
    net, x, direction = problem(seed)
    with torch.no_grad():
        output = net(x)
    for distance in (1.0, 0.03, 0.001, 1e-6):
        labels = output + distance * direction
        found = shoal.certify(net, x, labels).gradient_descent
        if found.holds:
            keep_promises(net, x, labels, found, steps=25)
            return
    step = plain.step(net, x, labels, 0.0, groups={"readout", "skip"})
    assert step.singular_value <= 1e-4  # no rank, or hardly any
