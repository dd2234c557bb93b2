"""What is measured of a network uses its exact gradient, whatever it trains with."""

import pytest

import shoal
from shoal.training import train
from training.small import data, network

DEEP = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.2, input_variance=0.8)


@pytest.mark.parametrize("trainable", [{"recurrent"}, {"input"}, None], ids=str)
@pytest.mark.parametrize("gradient", [shoal.OneStep(), shoal.Implicit(rtol=0.5)], ids=repr)
def test_step_sizes_ratios_and_gram_matrices(gradient, trainable):
    x, y = data(DEEP)
    runs = [
        train(
            network(DEEP, gradient=method, trainable=trainable, warm_start=False),
            x,
            y,
            step_size="auto",
            steps=1,
            monitor=True,
        )
        for method in (shoal.Implicit(), gradient)
    ]
    exact, other = runs
    assert other.step_size == pytest.approx(exact.step_size, rel=1e-8)
    for name in ("least_eigenvalue", "pl_ratio"):
        first = [float(run.monitors[name][0]) for run in runs]
        assert first[1] == pytest.approx(first[0], rel=1e-6)
    # the weights themselves move along what was asked for
    assert exact.losses[1].item() != pytest.approx(other.losses[1].item(), rel=1e-9)
