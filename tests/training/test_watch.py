"""Loops and modules that shoal did not write, watched."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import shoal
from shoal.training import Records, TrainingError
from training.modules import data, jacobian, layered, mlp, residual, restless
from training.small import DU, TANH, network
from training.small import data as small_data


def by_adam(net, x, y, watch=None, steps=6, every=2):
    """A user's own loop, with mini-batches."""
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for step in range(steps):
        if watch is not None and step % every == 0:
            watch.record(step)
        rows = torch.arange(3) + step % (len(x) - 2)
        optimizer.zero_grad()
        mse_loss(net(x[rows]), y[rows]).backward()
        optimizer.step()
    return watch


def test_numbers_of_the_user_that_come_later_are_nan_before():
    net, (x, y) = mlp(), data()
    extra = iter(({}, {"accuracy": 0.5}))
    watch = shoal.Watch(net, x, y, gram=False, also=lambda: next(extra))
    assert "accuracy" not in watch.record(0)
    assert watch.record(1)["accuracy"] == 0.5
    before, after = watch.records.monitors["accuracy"].tolist()
    assert before != before
    assert after == 0.5


def test_columns_are_what_explicit_formulas_give():
    net, (x, y) = mlp(), data()
    start = copy.deepcopy(net)
    watch = by_adam(net, x, y, shoal.Watch(net, x, y, promises={"least_eigenvalue", "drift"}))
    row = watch.record(6)
    seen = watch.records
    assert isinstance(seen, Records)
    assert seen.monitor_steps.tolist() == seen.loss_steps.tolist() == [0, 2, 4, 6]
    first, last = jacobian(start, x), jacobian(net, x)
    first, last = first @ first.T, last @ last.T
    least = torch.linalg.eigvalsh(first)[0].item()
    assert seen.initial_eigenvalue == pytest.approx(least, rel=1e-6)
    loss = 0.5 * (net(x) - y).square().sum()
    gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])
    expected = {
        "loss": loss.item(),
        "least_eigenvalue": torch.linalg.eigvalsh(last)[0].item(),
        "drift": torch.linalg.matrix_norm(last - first, 2).item(),
        "pl_ratio": (gradient.square().sum() / (least * loss)).item(),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-5), name
    assert seen.losses[-1] == row["loss"]
    for (name, p), before in zip(net.named_parameters(), start.parameters(), strict=True):
        assert seen.distances[name][-1].item() == pytest.approx((p - before).norm().item())
    assert set(seen.monitors) == {"least_eigenvalue", "pl_ratio", "drift"}  # there is no gain
    assert seen.loss_bound is None  # nobody promised one
    below = seen.monitors["least_eigenvalue"] >= least / 2
    assert seen.kept["least_eigenvalue"] == bool(below.all())
    assert set(seen.kept) == {"least_eigenvalue", "drift"}


@pytest.mark.parametrize("make", [mlp, restless, residual, layered], ids=lambda f: f.__name__)
def test_looking_changes_nothing(make):
    x, y = data()
    nets = [make(), make()]
    states = []
    for number, net in enumerate(nets):
        torch.manual_seed(1)
        by_adam(net, x, y, shoal.Watch(net, x, y) if number else None, every=1)
        states.append((net.state_dict(), torch.get_rng_state()))
        assert net.training
        assert all(one.training for one in net.modules())
    for name, tensor in states[0][0].items():
        assert torch.equal(tensor, states[1][0][name]), name
    assert torch.equal(states[0][1], states[1][1])
    gradients = [[p.grad for p in net.parameters()] for net in nets]
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("gradient", [shoal.Implicit(), shoal.OneStep()], ids=repr)
def test_the_equilibrium_of_a_cell_of_ones_own_is_watched(gradient):
    """Its exact gradient is measured, whatever it trains with, and its failures are told."""
    x, y = data()
    net, exact = layered(gradient=gradient), layered()
    net(x)
    solution = net.middle.solution
    watch = shoal.Watch(net, x, y)
    row = watch.record(0)
    rows = jacobian(exact, x)
    least = torch.linalg.eigvalsh(rows @ rows.T)[0].item()
    assert row["least_eigenvalue"] == pytest.approx(least, rel=1e-5)
    gradients = torch.autograd.grad(0.5 * (exact(x) - y).square().sum(), list(exact.parameters()))
    square = sum(g.square().sum().item() for g in gradients)
    assert row["pl_ratio"] == pytest.approx(square / (least * row["loss"]), rel=1e-5)
    assert net.middle.solution is solution
    assert watch.kept == {"equilibrium": True}
    rough = layered(solver=shoal.Picard(max_steps=2), on_failure="status")
    watch = shoal.Watch(rough, x, y)
    watch.record(0)
    assert watch.kept == {"equilibrium": False}


def test_warm_starts_and_solves_of_the_loop_stay():
    x, y = small_data()
    net = network(TANH)
    watch = shoal.Watch(net, x, y)
    net(x[:3]).sum().backward()
    solve = net.last_solve
    watch.record(0)
    assert net.last_solve is solve


def test_gradient_descent_by_hand_keeps_what_train_sees():
    x, y = small_data()
    run = shoal.train(network(TANH), x, y, step_size=0.1, steps=4, monitor=1)
    net = network(TANH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    watch = shoal.Watch(net, x, y, optimizer=optimizer)
    for step in range(5):
        watch.record(step)
        optimizer.zero_grad()
        (0.5 * (net(x)[:, 0] - y).square().sum()).backward()
        optimizer.step()
    seen = watch.records
    assert seen.kept == run.kept
    torch.testing.assert_close(seen.losses, run.losses, rtol=1e-6, atol=0)
    torch.testing.assert_close(seen.loss_bound, run.loss_bound, rtol=1e-6, atol=0)
    for name, values in run.monitors.items():
        torch.testing.assert_close(seen.monitors[name], values, rtol=1e-4, atol=1e-6)
    assert seen.gram_group == run.gram_group == "readout"
    assert str(watch).startswith("Watch of a LoopNetwork: Records(5 losses, loss ")


def test_promises_that_were_never_measured_are_not_kept():
    x, y = data()
    for net in (mlp(), residual()):
        assert shoal.Watch(net, x, y).kept == {}
    small = small_data()
    theirs = shoal.Watch(network(TANH), *small)
    theirs.record(0)
    assert set(theirs.kept) == {"gain", "equilibrium"}  # of another loop nothing else is promised
    watch = shoal.Watch(mlp(), x, y)
    watch.record(0)
    assert watch.kept == {}
    bare = shoal.Watch(network(TANH), *small, step_size=0.1, gram=False)
    bare.record(0)
    assert set(bare.kept) == {"gain", "equilibrium"}
    assert set(bare.records.monitors) == {"gain", "gain_upper"}


@pytest.mark.parametrize(
    ("make", "promise", "options"),
    [
        (mlp, "gain", {}),
        (mlp, "equilibrium", {}),
        (mlp, "loss", {}),
        (mlp, "drift", {"gram": False}),
        (residual, "pl_ratio", {"loss": mse_loss, "gram": True}),
        (lambda: network(TANH, outputs=2), "loss", {}),
        (lambda: network(TANH, outputs=2), "loss", {"step_size": 0.1, "gram": False}),
        (lambda: network(DU, outputs=2), "gain", {"step_size": 0.1}),
    ],
)
def test_promises_that_cannot_be_measured_are_refused(make, promise, options):
    with pytest.raises(ValueError, match=f"can be measured here, .*, got {promise}"):
        shoal.Watch(make(), *data(), promises={promise}, **options)


def test_a_network_inside_a_module_has_a_gain_and_equilibria():
    net, (x, y) = residual(on_failure="status"), data()
    watch = shoal.Watch(net, x, y, promises={"gain", "equilibrium"}, gram={"last"})
    row = watch.record(0)
    weight = net.deq.recurrent.detach()
    scale = net.deq.layer.scale
    gain = scale * torch.linalg.matrix_norm(weight, 2).item()
    assert row["gain"] == pytest.approx(gain, rel=1e-4)
    assert gain <= row["gain_upper"] < 1
    assert watch.kept == {"gain": True, "equilibrium": True}
    assert watch.records.gram_group == "last.weight, last.bias"
    with torch.no_grad():
        weight.mul_(1.5 / gain)
    watch.record(1)
    assert watch.violations == {"gain": 1}
    jumpy = residual(on_failure="status", solver=shoal.Picard(max_steps=2))
    other = shoal.Watch(jumpy, x, y)
    other.record(3)
    assert other.kept == {"equilibrium": False}
    assert other.violations == {"equilibrium": 3}


@pytest.mark.parametrize("on_violation", ["record", "raise"])
def test_a_lost_equilibrium_or_loss_is_told(on_violation):
    x, y = data()
    net = residual(solver=shoal.Picard(max_steps=2), on_failure="raise")
    watch = shoal.Watch(net, x, y, on_violation=on_violation)
    if on_violation == "raise":
        with pytest.raises(
            TrainingError, match=r"an equilibrium, .* did not converge at step 0"
        ) as error:
            watch.record(0)
        assert error.value.run.kept == {"equilibrium": False}
    else:
        with pytest.warns(shoal.ConvergenceWarning, match="at step 0: .*did not converge"):
            assert watch.record(0) == {"step": 0}
        assert watch.kept == {"equilibrium": False}
        assert len(watch.records.losses) == 0
    lost = mlp()
    with torch.no_grad():
        lost[2].bias.fill_(torch.inf)
    with pytest.warns(shoal.ConvergenceWarning, match="at step 4: the loss is inf"):
        shoal.Watch(lost, x, y, gram=False).record(4)


def test_certificates_are_about_gradient_descent_only():
    x, y = small_data()
    net = network(TANH, trainable={"readout"})
    certificate = shoal.certify(net, x, y)
    assert certificate.holds
    for wrong in (
        torch.optim.Adam(net.parameters()),
        torch.optim.SGD([net.readout], lr=certificate.step_size, momentum=0.9),
        torch.optim.SGD([net.readout], lr=certificate.step_size, weight_decay=0.1),
    ):
        with pytest.raises(ValueError, match="certificate covers full-batch gradient descent"):
            shoal.Watch(net, x, y, certificate=certificate, optimizer=wrong)
    optimizer = torch.optim.SGD([net.readout], lr=certificate.step_size)
    watch = shoal.Watch(net, x, y, certificate=certificate, optimizer=optimizer)
    with pytest.raises(ValueError, match="step must be 0 at first"):
        watch.record(1)
    for step in range(4):
        watch.record(step)
        optimizer.zero_grad()
        (0.5 * (net(x)[:, 0] - y).square().sum()).backward()
        optimizer.step()
    own = shoal.train(
        network(TANH, trainable={"readout"}), x, y, steps=3, certificate=certificate, monitor=1
    )
    assert watch.kept == own.kept
    assert all(watch.kept.values())
    torch.testing.assert_close(watch.records.loss_bound, own.loss_bound)
    for net, error, words in (
        (network(TANH), ValueError, "trained groups differ"),
        (nn.Linear(5, 1).double(), TypeError, "for networks made by shoal.build"),
    ):
        with pytest.raises(error, match=words):
            shoal.Watch(net, x, y, certificate=certificate)


def test_a_watch_goes_on_from_its_state(tmp_path):
    x, y = data()
    net = residual()
    whole = shoal.Watch(net, x, y)
    nets, states = [], []
    for step in range(4):
        whole.record(step)
        nets.append(copy.deepcopy(net))
        states.append(copy.deepcopy(whole.state_dict()))
        by_adam(net, x, y, steps=1)
    torch.save(states[1], tmp_path / "watch.pt")
    again = shoal.Watch(nets[1], x, y)  # whose start is another one
    again.load_state_dict(torch.load(tmp_path / "watch.pt", weights_only=True))
    for step in (2, 3):
        nets[1].load_state_dict(nets[step].state_dict())
        again.record(step)
    first, second = whole.records, again.records
    assert torch.equal(first.losses, second.losses)
    for name in ("monitors", "distances", "bounds"):
        mine, theirs = getattr(first, name), getattr(second, name)
        assert list(mine) == list(theirs)
        for key, values in mine.items():
            assert torch.equal(values, theirs[key]) or key == "gain_upper", key
    assert (second.monitors["gain"] <= second.monitors["gain_upper"]).all()
    assert first.kept == second.kept


def test_other_losses_and_labels():
    net, (x, _) = mlp(), data()
    classes = torch.tensor([0, 1, 0, 1, 1, 0, 0])
    watch = shoal.Watch(net, x, classes, loss=cross_entropy)
    row = watch.record(0)
    assert row["loss"] == pytest.approx(cross_entropy(net(x), classes).item())
    assert not watch.records.monitors
    row = shoal.Watch(net, x, classes, loss=cross_entropy, gram={"2.*"}).record(0)
    rows = jacobian(nn.Sequential(net[2]), net[1](net[0](x)).detach())
    least = torch.linalg.eigvalsh(rows @ rows.T)[0].item()
    assert row["least_eigenvalue"] == pytest.approx(max(least, 0.0), abs=1e-8)
    assert "pl_ratio" not in row
    one = nn.Sequential(nn.Linear(5, 1), nn.Flatten(0)).double()
    assert shoal.Watch(one, x, x[:, :1]).record(0)["loss"] > 0  # labels take the outputs' shape
    many = data(600)
    assert "least_eigenvalue" not in shoal.Watch(mlp(), *many).record(0)  # 1200 rows unasked


class Named(nn.Module):
    """A module that returns more than a tensor."""

    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        return {"logits": self.inner(x), "inputs": x}


def test_outputs_of_any_kind_come_with_their_loss():
    def loss(output, y):
        return 0.5 * (output["logits"] - y).square().sum()

    net, plain, (x, y) = Named(), mlp(), data()
    assert shoal.Watch(net, x, y, loss=loss).record(0)["loss"] == pytest.approx(
        shoal.Watch(plain, x, y).record(0)["loss"]
    )
    for one, options in ((net, {"loss": loss}), (plain, {})):
        shoal.train(one, x, y, steps=3, step_size=0.01, **options)
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(TypeError, match=r"net must return a tensor .* got dict: give loss="):
        shoal.train(net, x, y, steps=1, step_size=0.01, monitor=False)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"net": 3.0}, TypeError, "net must be a Module"),
        ({"x": [1.0]}, TypeError, "x must be a tensor"),
        ({"y": torch.ones(3, 2).double()}, ValueError, "the same samples"),
        ({"y": torch.ones(7, 3).double()}, ValueError, "the shape of the outputs"),
        ({"y": torch.full((7, 2), torch.nan)}, ValueError, "y must be finite"),
        ({"gram": {"nothing"}}, ValueError, "trainable must name parameters"),
        ({"gram": "0"}, TypeError, "gram"),
        ({"promises": {"peace"}}, ValueError, "promises must be one of"),
        ({"on_violation": "stop"}, ValueError, "on_violation must be one of"),
        ({"optimizer": torch.optim.Adam}, TypeError, "optimizer must be"),
        ({"loss": 3}, TypeError, "loss must be callable"),
        ({"loss": torch.sub}, TypeError, "a tensor of one number"),
        ({"step_size": -1.0}, ValueError, "step_size must be > 0"),
    ],
)
def test_bad_arguments(changes, error, message):
    x, y = data()
    arguments = {"net": mlp(), "x": x, "y": y} | changes
    with pytest.raises(error, match=message):
        shoal.Watch(**arguments).record(0)


def test_steps_go_on():
    net, (x, y) = mlp(), data()
    watch = shoal.Watch(net, x, y)
    watch.record(5)
    for step in (5, 4, -1):
        with pytest.raises(ValueError, match="step must be >= 6"):
            watch.record(step)
    frozen = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="weights that require a gradient"):
        shoal.Watch(frozen, x, y)
