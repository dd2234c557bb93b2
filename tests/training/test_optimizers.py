"""Training by optimizers of PyTorch and mini-batches, against loops written out."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import shoal
from training.modules import data, mlp, residual, seeded
from training.small import data as small_data
from training.small import network


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


@pytest.mark.parametrize("make", [mlp, residual], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "optimizer", [adam, torch.optim.RMSprop, lambda p: torch.optim.SGD(p, 0.01, momentum=0.9)]
)
def test_optimizers_make_their_own_steps(make, optimizer):
    x, y = data()
    net, twin = make(), make()
    run = shoal.train(net, x, y, steps=8, optimizer=optimizer, monitor=3)
    theirs, losses = optimizer(list(twin.parameters())), []
    for step in range(9):
        loss = 0.5 * (twin(x) - y).square().sum()
        losses.append(loss.item())
        theirs.zero_grad()
        loss.backward()
        if step < 8:
            theirs.step()
    torch.testing.assert_close(
        run.losses, torch.tensor(losses, dtype=torch.float64), rtol=1e-9, atol=0
    )
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)
        assert mine.grad is None
    assert run.method == type(theirs).__name__
    assert run.step_size is None
    assert run.loss_bound is None
    assert run.batch_losses is None
    assert run.monitor_steps.tolist() == [0, 3, 6, 8]


def test_mini_batches_are_those_of_the_seed():
    x, y = data()
    net, twin = mlp(), mlp()
    run = shoal.train(net, x, y, steps=7, optimizer=adam, batch_size=3, seed=5, monitor=2)
    generator = torch.Generator().manual_seed(5)
    batches = [b for _ in range(3) for b in torch.randperm(7, generator=generator).split(3)]
    theirs, losses, whole = adam(list(twin.parameters())), [], []
    for step in range(8):
        whole.append(0.5 * (twin(x) - y).square().sum().item())
        rows = batches[step]
        loss = 0.5 * (twin(x[rows]) - y[rows]).square().sum() * 7 / len(rows)
        losses.append(loss.item())
        theirs.zero_grad()
        loss.backward()
        if step < 7:
            theirs.step()
    torch.testing.assert_close(run.batch_losses, torch.tensor(losses[:7], dtype=torch.float64))
    assert run.loss_steps.tolist() == run.monitor_steps.tolist() == [0, 2, 4, 6, 7]
    torch.testing.assert_close(run.losses, torch.tensor(whole, dtype=torch.float64)[run.loss_steps])
    for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-10)
    other = shoal.train(mlp(), x, y, steps=7, optimizer=adam, batch_size=3, seed=6, monitor=False)
    assert other.loss_steps.tolist() == [0, 7]
    assert other.batch_losses[1] != run.batch_losses[1]


def test_descent_on_mini_batches():
    x, y = small_data()
    run = shoal.train(network(), x, y, step_size=0.05, steps=3, batch_size=2)
    assert set(run.kept) == {"gain", "equilibrium"}  # no theorem is about mini-batches
    assert run.step_size == 0.05


def test_an_optimizer_that_is_gradient_descent_is_promised_what_that_is():
    x, y = small_data()
    net, own = network(), network()
    mine = shoal.train(own, x, y, steps=5, step_size=0.1, monitor=2)
    theirs = shoal.train(net, x, y, steps=5, optimizer=lambda p: torch.optim.SGD(p, 0.1), monitor=2)
    assert theirs.kept == mine.kept
    torch.testing.assert_close(theirs.losses, mine.losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(theirs.loss_bound, mine.loss_bound)
    assert theirs.step_size == 0.1
    other = shoal.train(network(), x, y, steps=5, optimizer=torch.optim.Adam, monitor=2)
    assert set(other.kept) == {"gain", "equilibrium"}
    assert set(other.monitors) == set(mine.monitors)


def test_an_optimizer_may_evaluate_again():
    """LBFGS on a quadratic problem: the least squares of a linear model."""
    x, y = data(12)
    net = seeded(lambda: nn.Linear(5, 2))

    def lbfgs(parameters):
        return torch.optim.LBFGS(parameters, max_iter=30, line_search_fn="strong_wolfe")

    shoal.train(net, x, y, steps=3, optimizer=lbfgs)
    with_ones = torch.cat([x, torch.ones(12, 1).double()], 1)
    best = torch.linalg.lstsq(with_ones, y).solution
    torch.testing.assert_close(net.weight.detach(), best[:5].T, rtol=1e-5, atol=1e-6)


def test_a_module_of_any_loss_is_trained():
    net, (x, _) = mlp(), data()
    classes = torch.tensor([0, 1, 0, 1, 1, 0, 0])
    run = shoal.train(net, x, classes, loss=cross_entropy, optimizer=adam, steps=40, monitor=False)
    assert run.losses[-1] < 0.2 * run.losses[0]
    assert run.losses[-1] == pytest.approx(cross_entropy(net(x), classes).item())


def test_a_lost_loss_ends_a_run_of_mini_batches():
    x, y = data()
    with pytest.warns(shoal.ConvergenceWarning, match="the training diverged"):
        run = shoal.train(mlp(), x, y, steps=400, step_size=10.0, batch_size=2, monitor=False)
    assert run.status == "diverged"
    assert 0 < run.steps < 400
    assert len(run.batch_losses) == run.steps
    net = residual(solver=shoal.Picard(max_steps=2), on_failure="raise")
    with pytest.warns(shoal.ConvergenceWarning, match="at step 0: .*did not converge"):
        run = shoal.train(net, x, y, steps=2, optimizer=adam, batch_size=2)
    assert run.kept == {"equilibrium": False}
    pytest.importorskip("matplotlib")
    run.plot().canvas.draw()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"optimizer": torch.optim.Adam(mlp().parameters())},
            TypeError,
            "callable params -> Optimizer",
        ),
        ({"optimizer": lambda p: p}, TypeError, "must return a torch.optim.Optimizer"),
        ({"optimizer": lambda _: adam(mlp().parameters())}, ValueError, "trained parameters of"),
        (
            {"optimizer": adam, "step_size": 0.1},
            ValueError,
            "step_size must be None with an optimizer",
        ),
        ({"batch_size": 0, "step_size": 0.1}, ValueError, "batch_size must be >= 1"),
        ({"batch_size": 8, "step_size": 0.1}, ValueError, "batch_size must be <= 7"),
        ({"batch_size": 2}, ValueError, "step_size must be given"),
        ({"optimizer": adam, "batch_size": 2, "seed": -1}, ValueError, "seed"),
    ],
)
def test_bad_arguments(changes, error, message):
    x, y = data()
    arguments = {"net": mlp(), "x": x, "y": y, "steps": 1} | changes
    with pytest.raises(error, match=message):
        shoal.train(**arguments)
