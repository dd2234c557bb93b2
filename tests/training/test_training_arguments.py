"""Arguments, certificates, progress and pictures of training."""

from dataclasses import dataclass, field

import pytest
import torch

import shoal
from shoal.training import Promises
from shoal.training.objective import TrainingProblem
from training.small import TANH, data, network


@dataclass
class Conclusion:
    """As a certificate makes them."""

    holds: bool
    step_size: float | None
    rate: float | None
    promises: Promises = field(default_factory=Promises)


@dataclass
class Certificate:
    """As ``certify`` makes them."""

    gradient_descent: Conclusion
    fingerprint: dict[str, str] = field(
        default_factory=lambda: TrainingProblem.checked(network(), *data()).fingerprint()
    )


def test_certificates_give_step_size_and_rate() -> None:
    x, y = data()
    certificate = Certificate(Conclusion(True, 0.05, 0.999))
    for monitor in (True, False):
        run = shoal.train(network(), x, y, steps=3, certificate=certificate, monitor=monitor)
        assert run.step_size == 0.05
        expected = run.losses[0] * 0.999 ** torch.arange(4).double()
        torch.testing.assert_close(run.loss_bound, expected)
        assert run.kept["loss"]
    # with another step size the rate is not certified
    run = shoal.train(network(), x, y, steps=3, certificate=certificate, step_size=0.1)
    expected = run.losses[0] * (1 - 0.05 * run.initial_eigenvalue) ** 3
    torch.testing.assert_close(run.loss_bound[3], expected)
    refused = Certificate(Conclusion(False, 0.05, 0.9))
    with pytest.raises(ValueError, match="step_size must be given"):
        shoal.train(network(), x, y, steps=3, certificate=refused)


def test_promises_of_certificates_are_watched() -> None:
    x, y = data()
    travel = {"input": 9.0, "readout": 0.01, "not trained": 1.0}
    promises = Promises(travel=travel, gain=0.9, singular_value=1e-3)
    descent = Conclusion(True, 0.05, 0.999, promises)
    certificate = Certificate(descent)
    run = shoal.train(network(), x, y, steps=3, certificate=certificate, monitor=1)
    expected = {"loss", "equilibrium", "gain", "distance.input", "distance.readout"}
    assert set(run.kept) == expected | {"least_eigenvalue"}
    assert run.violations == {"distance.readout": 1}
    assert run.message == "the weights readout traveled too far at step 1"
    assert run.bounds["distance.input"].tolist() == [9.0] * 4
    assert run.bounds["distance.readout"].tolist() == [0.01] * 4
    assert run.bounds["gain"].tolist() == [0.9] * 4
    assert run.bounds["least_eigenvalue"].tolist() == pytest.approx([(1e-3 / 8) ** 2] * 4)


def scaled(net):
    with torch.no_grad():
        net.input[0, 0] *= 1 + 2e-16
    return net


def test_certificates_of_anything_else_are_refused() -> None:
    x, y = data()
    certificate = shoal.certify(network(), x, y)
    more = torch.cat([x, x[:1]]), torch.cat([y, y[:1]])
    others = [
        ((network(seed=1), x, y), "weights"),
        ((scaled(network()), x, y), "weights"),
        ((network(trainable={"readout"}), x, y), "trained groups"),
        ((network(shoal.DEQ(shoal.activations.Tanh(), 0.1, 0.7)), x, y), "architecture"),
        ((network(), x.flip(0), y), "x"),
        ((network(), x, -y), "y"),
        ((network(), *more), "x, y"),
        ((network(gradient=shoal.OneStep()), x, y), "gradient method"),
        ((network(gradient=shoal.Unrolled()), x, y), "gradient method"),
        ((network(gradient=shoal.Implicit(rtol=0.5)), x, y), "gradient method"),
        ((network(gradient=shoal.Implicit(shoal.Picard(max_steps=1))), x, y), "gradient method"),
        ((network(solver=shoal.Picard(rtol=0.5)), x, y), "solver"),
    ]
    for arguments, words in others:
        with pytest.raises(ValueError, match=rf"got one in which {words} differ: certify again"):
            shoal.train(*arguments, steps=1, step_size=0.1, certificate=certificate)
    net = network()
    options = {"steps": 1, "step_size": 0.1, "certificate": certificate}
    shoal.train(net, x.numpy(), y[:, None].numpy(), **options)
    with pytest.raises(ValueError, match="weights differ"):  # it is trained
        shoal.train(net, x, y, **options)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"net": 3.0}, TypeError, "net must be a Module"),
        ({"x": torch.ones(6, 4).double()}, ValueError, "x must have shape"),
        ({"x": torch.full((6, 5), torch.nan).double()}, ValueError, "x must be finite"),
        ({"y": torch.ones(5).double()}, ValueError, "y must have shape"),
        ({"y": torch.ones(6, 2).double()}, ValueError, "one column for each"),
        ({"y": torch.full((6,), torch.inf).double()}, ValueError, "y must be finite"),
        ({"steps": -1}, ValueError, "steps must be >= 0"),
        ({"steps": 1.5}, TypeError, "steps must be an integer"),
        ({"step_size": 0.0}, ValueError, "step_size must be > 0"),
        ({"step_size": "large"}, ValueError, "step_size must be a number or 'auto'"),
        ({"step_size": None}, ValueError, "step_size must be given"),
        ({"on_violation": "ignore"}, ValueError, "on_violation must be one of"),
        ({"monitor": 0}, ValueError, "monitor must be >= 1"),
        ({"monitor": "yes"}, TypeError, "monitor must be an integer"),
        ({"least_eigenvalue": -1.0}, ValueError, "least_eigenvalue must be > 0"),
        ({"progress": 3}, TypeError, "progress must be callable"),
        ({"checkpoint": "/nowhere/run"}, ValueError, "checkpoint must be a file in a folder"),
        ({"checkpoint": 3}, TypeError, "checkpoint must be a path"),
        ({"certificate": "yes"}, TypeError, "certificate must be what shoal.certify returned"),
        ({"checkpoint_seconds": -1}, ValueError, "checkpoint_seconds must be >= 0"),
    ],
)
def test_bad_arguments(changes, error, message) -> None:
    x, y = data()
    arguments = {"net": network(), "x": x, "y": y, "steps": 1, "step_size": 0.1} | changes
    with pytest.raises(error, match=message):
        shoal.train(arguments.pop("net"), arguments.pop("x"), arguments.pop("y"), **arguments)


def test_no_steps_are_a_look() -> None:
    run = shoal.train(network(), *data(), step_size=0.1, steps=0)
    assert run.steps == 0
    assert run.losses.shape == run.monitors["gain"].shape == (1,)
    assert run.monitors["drift"].tolist() == [0.0]


def test_frozen_groups_stay_and_inference_mode_is_left() -> None:
    x, y = data()
    net = network(trainable={"readout", "input"})
    before = net.recurrent.detach().clone()
    with torch.inference_mode():
        run = shoal.train(net, x + 0.0, y, step_size=0.1, steps=3)
    assert torch.equal(net.recurrent, before)
    assert set(run.distances) == {"readout", "input"}
    assert run.losses[3] < run.losses[0]


def test_progress_is_reported() -> None:
    seen = []
    shoal.train(network(), *data(), step_size=0.1, steps=3, progress=seen.append)
    assert [now.step for now in seen] == [0, 1, 2, 3]
    assert seen[-1].steps == 3


def test_pictures(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    run = shoal.train(network(), *data(), step_size=0.1, steps=3, monitor=1)
    figure = run.plot()
    figure.savefig(tmp_path / "run.png")
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0] == "loss, finished"
    assert len(titles) == 6
    panels = {axes.get_title(): axes for axes in figure.axes}
    drift = panels["drift of the Gram matrix"]
    assert len(drift.get_lines()) == 1  # nothing is promised of it for a DEQ
    assert len(panels["gain of the recurrent layer"].get_lines()) == 2
    bare = shoal.train(network(TANH), *data(), step_size=0.1, steps=3, monitor=False).plot()
    assert len(bare.axes) == 1
    promises = Promises(travel={"recurrent": 9.0, "readout": 0.01}, gain=0.9)
    descent = Conclusion(True, 0.05, 0.999, promises)
    certificate = Certificate(descent)
    certified = shoal.train(network(), *data(), steps=3, certificate=certificate, monitor=1)
    axes = certified.plot().axes[-1]
    dashed = [line for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert sorted(float(line.get_ydata()[0]) for line in dashed) == [0.01, 9.0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylim()[0] > 1e-5  # distances of zero at the start do not count
    assert "broken" in axes.get_legend_handles_labels()[1]
    text = repr(run)
    assert text.startswith("TrainingRun(finished after 3 steps, loss ")
