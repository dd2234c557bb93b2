"""What the monitors see, against dense formulas of the papers."""

import copy
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import softplus

import shoal
from shoal.linalg.norms import dominant_singular_pair, least_eigenpair
from shoal.networks.module_inputs import ModuleInputs
from shoal.training import Monitor, TrainingError, train
from shoal.training.gram import gram_group, gram_matrix
from shoal.training.objective import Objective
from training.small import CONV, DU, GAO, LING, RESNET, SHALLOW, TANH, data, network


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
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_monitors_are_what_the_papers_define(architecture, step_size, gram, reduction) -> None:
    x, y = data(architecture)
    net = network(architecture)
    start = copy.deepcopy(net)
    divisor = len(x) if reduction == "mean" else 1
    size = step_size * divisor
    run = train(net, x, y, step_size=size, steps=7, monitor=5, reduction=reduction)
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
    loss = 0.5 * (net(x)[:, 0] - y).square().sum() / divisor
    gradients = torch.autograd.grad(loss, [p for p in net.parameters() if p.requires_grad])
    square = float(sum(g.square().sum() for g in gradients))
    ratio = square * divisor / (initial * loss.item())
    assert found["pl_ratio"] == pytest.approx(ratio, rel=1e-6)
    for name, p in net.groups.items():
        distance = (p - start.groups[name]).norm().item()
        assert float(run.distances[name][-1]) == pytest.approx(distance, rel=1e-12)
    steps = torch.arange(8).double()
    bound = (1 - size * initial / divisor / 2) ** steps * run.losses[0]
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


@pytest.mark.parametrize("architecture", [DU, RESNET, CONV], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_gram_matrix_is_a_share_of_the_ntk(architecture, outputs) -> None:
    x, _ = data(architecture, n=4)
    net = network(architecture, 16, outputs)
    group = gram_group(net)
    assert group == "layer2"
    weight = net.get_parameter(group)
    rows = [
        torch.autograd.grad(net(x[i : i + 1])[0, k], weight)[0].flatten()
        for k in range(outputs)
        for i in range(len(x))
    ]
    jacobian = torch.stack(rows)
    torch.testing.assert_close(gram_matrix(net, x, group), jacobian @ jacobian.T)


def test_groups_that_are_trained_are_watched() -> None:
    assert gram_group(network(GAO)) == "skip"
    assert gram_group(network(GAO, trainable={"readout", "recurrent"})) == "readout"
    assert gram_group(network(TANH, trainable={"recurrent", "input"})) == "recurrent"
    assert gram_group(network(SHALLOW)) == "readout"
    assert gram_group(network(SHALLOW, trainable={"layer1"})) == "layer1"
    x, _ = data(n=4)
    for group in ("recurrent", "input", "readout"):
        net = network(TANH, 16, trainable={group})
        net(x)
        share = shoal.empirical_kernel(net, x).ntk
        torch.testing.assert_close(gram_matrix(net, x, group), share)


def test_parametrized_weights_are_trained_without_monitors() -> None:
    x, y = data()
    net = network()
    torch.nn.utils.parametrizations.spectral_norm(net, "recurrent")
    assert gram_group(net) == "readout"
    net.readout.requires_grad_(False)
    assert gram_group(net) == "input"
    net.input.requires_grad_(False)
    with pytest.raises(ValueError, match=r"got parametrizations\.recurrent\.original: undo"):
        train(net, x, y, step_size=0.1, steps=2)
    run = train(net, x, y, step_size=0.1, steps=2, monitor=False)
    assert run.losses[2] < run.losses[0]


def test_eigenvalues_that_overtake_others_are_found() -> None:
    generator = torch.Generator().manual_seed(3)
    basis = torch.linalg.qr(torch.randn(300, 300, generator=generator).double())[0]
    values = torch.linspace(1, 50, 300).double()
    before = (basis * values) @ basis.T
    _, vector = least_eigenpair(before)
    values[40] = 0.9  # another one is the least now
    after = (basis * values) @ basis.T
    assert least_eigenpair(after, vector).value == pytest.approx(0.9, rel=1e-7)
    singular = after - 0.9 * torch.eye(300).double()
    assert least_eigenpair(singular, vector).value == 0
    _, vector = dominant_singular_pair(before)
    values[7] = -60.0
    assert dominant_singular_pair((basis * values) @ basis.T, vector).value == pytest.approx(
        60, rel=1e-5
    )
    assert dominant_singular_pair(torch.zeros(3, 3).double()).value == 0


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


def test_divergence_ends_the_run() -> None:
    x, y = data(SHALLOW)
    with pytest.warns(shoal.ConvergenceWarning, match="the loss at step"):
        run = train(network(SHALLOW), x, y, step_size=1e3, steps=500)
    assert run.status == "diverged"
    assert 0 < run.steps < 500
    assert run.losses.isfinite().all()
    assert len(run.losses) == run.steps + 1


def test_a_lost_equilibrium_ends_the_run_or_is_recorded() -> None:
    x, y = data(LING)
    with pytest.warns(shoal.ConvergenceWarning, match="equilibrium did not converge"):
        run = train(network(LING), x, y, step_size=1.0, steps=20)
    assert run.status == "diverged"
    assert f"at step {run.steps + 1}" in run.message
    assert "step_size" in run.message
    assert run.violations["equilibrium"] == run.steps + 1
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


@pytest.mark.thorough
def test_an_equilibrium_that_the_flow_loses_is_told() -> None:
    """At gains up to 0.6, twelve iterations are enough; the labels lead beyond."""
    x, y = data()
    softplus = shoal.DEQ(shoal.activations.Softplus(), recurrent_variance=0.1, input_variance=0.8)
    options = {"trainable": {"recurrent"}, "warm_start": False}
    options |= {"solver": shoal.Picard(max_steps=12, rtol=1e-6)}
    arguments = {"step_size": 30.0, "steps": 1, "method": "flow", "rtol": 1e-2}
    with pytest.warns(shoal.ConvergenceWarning, match="an equilibrium is lost"):
        run = train(network(softplus, 16, **options), x, 5 * y.abs(), **arguments)
    assert run.status == "diverged"
    assert run.violations == {"equilibrium": 1}
    assert not run.kept["equilibrium"]
    net = network(softplus, 16, on_failure="status", **options)
    run = train(net, x, 5 * y.abs(), **arguments)
    assert run.violations["equilibrium"] == 1


def test_an_equilibrium_that_is_missing_within_a_step_of_the_flow_is_told(monkeypatch) -> None:
    true, calls = Objective.evaluate, []

    def evaluate(self, rows=None):
        calls.append(len(calls))
        return replace(true(self, rows), converged=calls[-1] != 3)

    monkeypatch.setattr(Objective, "evaluate", evaluate)
    run = train(network(), *data(), step_size=1e-3, steps=2, method="flow")
    assert run.status == "finished"
    assert run.violations == {"equilibrium": 1}


def test_the_gain_is_followed_until_it_is_too_large() -> None:
    wild = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.6, input_variance=0.8)
    x, y = data()
    run = train(network(wild), x, y, step_size=0.01, steps=2, monitor=1)
    assert run.violations["gain"] == 0
    assert run.monitors["gain"][0] > 1


def test_overflow_is_seen_and_recorded() -> None:
    # no equilibrium: the features of least residual are those of the start, and finite
    x, y = data(LING)
    wild = shoal.DEQ.ling2023(weight_variance=4.0, in_features=x.shape[1])
    solver = shoal.Picard(max_steps=400)
    net = network(wild, on_failure="status", readout_scale=0.0, solver=solver)
    run = train(net, x, y, step_size=1e-4, steps=3, monitor=1)
    assert run.losses.isfinite().all()
    assert run.violations["equilibrium"] == 0
    assert run.violations["gain"] == 0
    huge = torch.diag(torch.tensor([1e200, 3e200], dtype=torch.float64))
    assert dominant_singular_pair(huge).value == pytest.approx(3e200)
    assert least_eigenpair(huge).value == pytest.approx(1e200)
    huge[0, 0] = torch.inf
    assert dominant_singular_pair(huge).value == torch.inf
    assert least_eigenpair(huge).value == 0


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
    strict = Monitor(every=2, promises={"drift", "loss"})
    run = train(network(), x, y, step_size=0.1, steps=4, monitor=strict)
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


@pytest.mark.parametrize("name", ["gain", "equilibrium"])
def test_promises_that_cannot_be_measured_are_refused(name) -> None:
    """An explicit network has no recurrent layer: nothing could break these, or keep them."""
    monitor = Monitor(promises={name, "loss"})
    with pytest.raises(ValueError, match=rf"promises of monitor .* FullyConnected, got {name}:"):
        train(network(DU), *data(DU), step_size=0.1, steps=1, monitor=monitor)
    run = train(network(), *data(), step_size=0.1, steps=1, monitor=monitor)
    assert set(run.kept) == {name, "loss"}


@pytest.mark.parametrize("architecture", [LING, GAO, DU, CONV], ids=lambda a: type(a).__name__)
def test_looking_changes_nothing(architecture) -> None:
    x, y = data(architecture)
    runs = [
        train(network(architecture, 32), x, y, step_size=1e-3, steps=4, monitor=monitor)
        for monitor in (1, False)
    ]
    assert torch.equal(runs[0].losses, runs[1].losses)


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
    flow = train(net, x, 0 * y, step_size=0.05, steps=3, method="flow")
    assert flow.losses.tolist() == [0.0] * 4
    pytest.importorskip("matplotlib")
    run.plot().canvas.draw()


def test_the_error_of_a_rough_equilibrium_is_bounded_without_a_monitor() -> None:
    """A linear layer, whose equilibrium is a direct solution; its residual is far below its error.

    The loss is put between a bound with the residual itself and one with the residual over
    1 - gain: it is known no better than that, so no promise is broken.
    """
    x, y = data()
    linear = shoal.DEQ(shoal.activations.Identity(), recurrent_variance=0.1, input_variance=0.8)
    solver = shoal.Picard(rtol=1e-5, max_steps=400)

    def rough():
        net = network(linear, solver=solver, warm_start=False)
        with torch.no_grad():
            net.recurrent.copy_(0.95 / net.layer.scale * torch.eye(64))  # a gain of 0.95
        return net

    net = rough()
    objective = Objective(net, ModuleInputs.checked("x", x), y[:, None], 1.0)
    now = objective.evaluate()
    with torch.no_grad():
        gain = float(torch.linalg.matrix_norm(net.recurrent * net.layer.scale, 2))
        exact = net.feature_scale * net.inject(x) / (1 - gain) @ net.readout.T
    with torch.no_grad():
        error = float((net(x) - exact).norm())  # of the same solve
    size = float(torch.linalg.matrix_norm(net.readout.detach(), 2)) * net.feature_scale
    small, large = size * now.residual, size * now.residual / (1 - gain)
    assert small < error <= objective.output_error(now) == pytest.approx(large, rel=0.05)
    options = {"step_size": 1e-6, "steps": 1}
    losses = train(rough(), x, y, monitor=False, **options).losses
    root = float(losses[1].sqrt()) - 0.5**0.5 * (small + large) / 2
    promised = 2 * (1 - root**2 / float(losses[0])) / options["step_size"]
    for monitor in (False, 1):
        run = train(rough(), x, y, monitor=monitor, least_eigenvalue=promised, **options)
        assert run.loss_bound[1] < run.losses[1]
        assert run.kept["loss"]
