"""Runs that diverge: they end with what is known, which can be printed, drawn and judged."""

import pytest

import shoal
from shoal.training import train
from training.small import SHALLOW, data, network

WILD = shoal.DEQ(
    shoal.activations.Softplus(), recurrent_variance=30.0, input_variance=0.8
)  # no equilibrium


def diverged(net, y_scale=1.0, **options):
    x, y = data()
    options = {"step_size": 0.1, "steps": 3} | options
    with pytest.warns(shoal.ConvergenceWarning, match="the training diverged"):
        return train(net, x, y_scale * y, **options)


@pytest.mark.parametrize("options", [{}, {"monitor": False, "least_eigenvalue": 0.1}])
@pytest.mark.parametrize(("architecture", "labels"), [(WILD, 1.0), (SHALLOW, 1e200)])
def test_a_run_without_a_loss_is_printed_and_drawn(architecture, labels, options) -> None:
    run = diverged(network(architecture), labels, **options)
    assert (run.status, run.steps) == ("diverged", 0)
    assert run.losses.shape == (0,)
    assert repr(run).startswith("TrainingRun(diverged after 0 steps, no loss was found")
    pytest.importorskip("matplotlib")
    figure = run.plot()
    figure.canvas.draw()
    assert figure.axes[0].get_title() == "loss, diverged"


def test_promises_that_nothing_was_measured_of_are_not_kept() -> None:
    assert diverged(network(WILD)).kept == {"equilibrium": False}
    assert diverged(network(SHALLOW), 1e200).kept == {}


def test_a_loss_that_overflows_has_exceeded_its_bound() -> None:
    run = diverged(network(SHALLOW), step_size=1e160)
    assert run.losses.isfinite().all()
    assert run.violations["loss"] == run.steps == 1
    assert not run.kept["loss"]
