"""What the monitors see, against dense formulas of the papers."""

import copy

import pytest
import torch
from torch.nn.functional import softplus

import shoal
from shoal.training import TrainingError, train
from training.small import DU, GAO, LING, TANH, data, network


def ling(net, x):
    """ZZᵀ, Ling 2023."""
    z = torch.zeros(len(x), net.spec.width, dtype=x.dtype)
    for _ in range(200):
        z = torch.relu(z @ net.recurrent.T + x @ net.input.T)
    return z @ z.T


def gao(net, x):
    """The Gram matrix of Gao 2022, before Eq. (17)."""
    features = torch.relu(x @ net.input.T)
    return features @ features.T / net.spec.width


def du(net, x):
    """G^(H) of Du 2018, Section 6."""
    nodes, weights = torch.linspace(-12, 12, 100_001).double(), None
    weights = torch.exp(-(nodes**2) / 2)
    constant = float(weights.sum() / (weights * softplus(nodes) ** 2).sum())  # c_σ
    m = net.spec.width
    before = (constant / m) ** 0.5 * softplus(x @ net.layer1.T)
    slopes = torch.sigmoid(before @ net.layer2.T) * net.readout
    return (before @ before.T) * (slopes @ slopes.T) * constant / m


CASES = [(LING, 5e-4, ling), (GAO, 0.05, gao), (DU, 0.2, du)]


@pytest.mark.parametrize(("architecture", "step_size", "gram"), CASES, ids=["ling", "gao", "du"])
def test_monitors_are_what_the_papers_define(architecture, step_size, gram) -> None:
    x, y = data(architecture)
    net = network(architecture)
    start = copy.deepcopy(net)
    run = train(net, x, y, step_size=step_size, steps=7, monitor=5)
    assert run.monitor_steps.tolist() == [0, 5, 7]
    with torch.no_grad():
        first, last = gram(start, x), gram(net, x)
    initial = float(torch.linalg.eigvalsh(first)[0])
    assert run.initial_eigenvalue == pytest.approx(initial, rel=1e-6)
    found = {name: float(values[-1]) for name, values in run.monitors.items()}
    expected = float(torch.linalg.eigvalsh(last)[0])
    assert found["least_eigenvalue"] == pytest.approx(expected, rel=1e-6)
    assert found["drift"] == pytest.approx(
        float(torch.linalg.matrix_norm(last - first, 2)), rel=1e-5
    )
    loss = 0.5 * (net(x)[:, 0] - y).square().sum()
    gradients = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad])
    square = float(sum(g.square().sum() for g in gradients))
    ratio = square / (initial * loss.item())
    assert found["pl_ratio"] == pytest.approx(ratio, rel=1e-6)
    for name, p in net.groups.items():
        distance = (p - start.groups[name]).norm().item()
        assert float(run.distances[name][-1]) == pytest.approx(distance, rel=1e-12)
    steps = torch.arange(8).double()
    bound = (1 - step_size * initial / 2) ** steps * run.losses[0]
    torch.testing.assert_close(run.loss_bound, bound, rtol=1e-6, atol=0)
    assert run.bounds["least_eigenvalue"].tolist() == [run.initial_eigenvalue / 2] * 3
    assert run.bounds["drift"].tolist() == [run.initial_eigenvalue / 4] * 3
    if architecture is DU:
        assert "gain" not in run.monitors
        return
    factor = 1.0 if architecture is LING else architecture.gamma / net.spec.width**0.5
    gain = factor * float(torch.linalg.matrix_norm(net.recurrent.detach(), 2))
    assert found["gain"] == pytest.approx(gain, rel=1e-5)
    assert gain <= found["gain_upper"] < 1
    assert run.kept["gain"]


def largest(net, x):
    return float(torch.linalg.eigvalsh(shoal.empirical_kernel(net, x).ntk)[-1])


@pytest.mark.parametrize("architecture", [LING, GAO, DU, TANH], ids=lambda a: type(a).__name__)
def test_a_step_ten_times_too_large_is_noticed(architecture) -> None:
    x, y = data(architecture)
    size = 2 / largest(network(architecture), x)
    good = train(network(architecture), x, y, step_size=size / 4, steps=10, monitor=1)
    assert good.kept["loss"]
    assert good.kept["pl_ratio"]
    assert good.status == "finished"
    run = train(
        network(architecture), x, y, step_size=10 * size, steps=3, on_violation="stop", monitor=1
    )
    assert run.status == "stopped"
    assert run.violations["loss"] == 1
    assert not run.kept["loss"]
    assert "the loss exceeded its bound at step 1" in run.message
    with pytest.raises(TrainingError, match="at step 1") as error:
        train(network(architecture), x, y, step_size=10 * size, steps=3, on_violation="raise")
    assert error.value.run.steps == 1
    assert isinstance(error.value, shoal.ConvergenceError)


def test_a_lost_equilibrium_ends_the_run_or_is_recorded() -> None:
    x, y = data(LING)
    with pytest.warns(shoal.ConvergenceWarning, match="equilibrium did not converge"):
        run = train(network(LING), x, y, step_size=1.0, steps=20)
    assert run.status == "diverged"
    assert f"at step {run.steps}" in run.message
    assert "step_size" in run.message
    assert run.violations["equilibrium"] == run.steps
    assert not run.kept["equilibrium"]
    net = network(LING)
    with pytest.raises(TrainingError, match="equilibrium"):
        train(net, x, y, step_size=1.0, steps=20, on_violation="raise", monitor=False)
    lenient = network(LING, on_failure="status", solver=shoal.Picard(max_steps=3))
    run = train(lenient, x, y, step_size=1e-4, steps=2)
    assert run.violations["equilibrium"] == 0


def test_an_adjoint_of_earlier_work_breaks_no_promise() -> None:
    """The gradient of a readout takes no solve: the last one was of other work."""
    x, y = data()
    rough = shoal.Implicit(shoal.Picard(max_steps=1))
    net = network(on_failure="status", gradient=rough, warm_start=False)
    assert train(net, x, y, step_size=0.01, steps=1).violations == {"equilibrium": 0}
    net.input.requires_grad_(False)
    net.recurrent.requires_grad_(False)
    run = train(net, x, y, step_size=0.01, steps=2)
    assert run.kept["equilibrium"]
    assert run.violations == {}


def test_rounding_breaks_no_promise() -> None:
    # the bound falls on where the loss cannot: float32 and a loose solver leave an error
    x, y = data(dtype=torch.float32)
    net = network(dtype=torch.float32, trainable={"readout"}, solver=shoal.Picard(rtol=1e-4))
    size = 1 / largest(net, x)
    run = train(net, x, y, step_size=size, steps=30, monitor=30, least_eigenvalue=1.9 / size)
    assert run.violations["loss"] == 1  # far too much was promised
    exact = float(run.losses[0]) * 0.05**30
    assert float(run.loss_bound[-1]) == pytest.approx(exact, rel=1e-6)
    x, y = data(n=2, dtype=torch.float32)
    net = network(dtype=torch.float32, trainable={"readout"})
    run = train(net, x, y, step_size=1 / largest(net, x), steps=400, monitor=100)
    assert run.loss_bound[-1] < 1e-12 * run.losses[0]  # below what float32 can tell from zero
    assert run.kept["loss"]


def test_promises_can_be_chosen() -> None:
    x, y = data()
    strict = {"drift", "loss"}
    run = train(network(), x, y, step_size=0.1, steps=4, monitor=2, promises=strict)
    assert set(run.kept) == {"drift", "loss"}
    drift, bound = run.monitors["drift"], run.bounds["drift"]
    assert run.kept["drift"] == bool((drift <= bound).all())
    assert "drift" not in train(network(), x, y, step_size=0.1, steps=1).kept
    assert "drift" in train(network(GAO), *data(GAO), step_size=0.01, steps=1).kept
    alone = train(network(), x, y, step_size=0.1, steps=1, monitor=False)
    assert set(alone.kept) == {"equilibrium"}
    assert alone.loss_bound is None
    known = train(network(), x, y, step_size=0.1, steps=1, monitor=False, least_eigenvalue=0.01)
    assert known.loss_bound[1] == known.losses[0] * (1 - 0.1 * 0.01 / 2)


def test_nothing_is_promised_of_a_singular_gram_matrix() -> None:
    x, y = data()
    x[1] = x[0]  # with another label
    run = train(network(), x, y, step_size=0.05, steps=4, monitor=2)
    assert run.initial_eigenvalue == 0
    assert run.loss_bound.tolist() == [float(run.losses[0])] * 5
    assert run.monitors["pl_ratio"].isinf().all()
    assert all(run.kept.values())


def test_a_loss_of_zero_stays() -> None:
    x, y = data()
    net = network(readout_scale=0.0)
    run = train(net, x, 0 * y, step_size=0.05, steps=3)
    assert run.losses.tolist() == [0.0] * 4
    assert all(run.kept.values())
    pytest.importorskip("matplotlib")
    run.plot().canvas.draw()
