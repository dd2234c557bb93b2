"""Solves at once and looks that come late give what steps one by one give, with every status."""

import copy
import math
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import shoal
from shoal.equilibrium.cuda_graphs import recurring

DEQ = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)


def inputs(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, dtype=torch.float64, generator=generator)


def network(**options):
    return shoal.build(DEQ, in_features=5, width=48, dtype=torch.float64, **options)


@pytest.mark.parametrize("cost", [1, 3, 11])
def test_equilibria_and_gradients_do_not_depend_on_looks(cost, late_looks):
    x, found = inputs(), []
    for steps in (0, cost):
        late_looks(steps)
        net = network()
        output = net(x)
        output.square().sum().backward()
        assert net.last_solve.converged.all()
        assert net.last_adjoint.converged.all()
        found.append([output.detach(), *(p.grad for p in net.parameters())])
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def test_few_looks_are_late_by_few_steps(late_looks):
    counts = []
    for steps in (0, 3):
        late_looks(steps)
        net = network(solver=shoal.Picard(coarse_steps=0))
        net(inputs())
        counts.append(net.last_solve.evaluations)
    assert counts[0] <= counts[1] <= counts[0] + 6


def test_a_start_that_is_the_solution_is_returned(late_looks):
    late_looks(4)
    net = network()
    solution = net.solve(torch.zeros(3, 5, dtype=torch.float64))
    assert solution.steps.tolist() == [0, 0, 0]
    assert not solution.value.any()


@pytest.mark.parametrize("cost", [0, 5])
def test_statuses_do_not_depend_on_looks(cost, late_looks):
    late_looks(cost)
    wild = shoal.DEQ(shoal.Identity(), 0.9, 0.1)
    net = shoal.build(wild, in_features=5, width=48, dtype=torch.float64, on_failure="status")
    with torch.no_grad():
        net.recurrent.mul_(3.0)
    x = inputs()
    x[0] = 0.0
    statuses = net.solve(x).status.tolist()
    assert statuses[0] == shoal.Status.CONVERGED
    assert set(statuses[1:]) == {shoal.Status.DIVERGED}
    capped = network(solver=shoal.Picard(max_steps=2), on_failure="status").solve(inputs())
    assert set(capped.status.tolist()) == {shoal.Status.OUT_OF_STEPS}
    assert capped.evaluations == 3


def test_warm_starts_stay_short(late_looks):
    x = inputs()
    late_looks(11)
    net = network(warm_start=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    counts = []
    for _ in range(8):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        counts.append(net.last_solve.evaluations + net.last_adjoint.evaluations)
        optimizer.step()
    assert counts[-1] < 0.5 * counts[0]


def passes(net, x):
    """Outputs and gradients."""
    net.zero_grad()
    output = net(x)
    output.square().sum().backward()
    assert net.last_solve.converged.all()
    assert net.last_adjoint.converged.all()
    return [output.detach(), *(p.grad.clone() for p in net.parameters())]


def layer_residual(net, x, z):
    """How far features are from being an equilibrium, by the definition."""
    root = math.sqrt(z.shape[1])
    inner = math.sqrt(0.2) * z @ net.recurrent.T + math.sqrt(0.8) * x @ net.input.T
    return (torch.tanh(inner) / root - z).norm(dim=1)


@pytest.mark.parametrize("warm_start", [False, True])
def test_training_is_the_same_at_once(warm_start, recorder):
    nets = [
        network(warm_start=warm_start, solver=shoal.Picard(coarse_steps=0, graphs=graphs))
        for graphs in (True, False)
    ]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.05) for net in nets]
    x = inputs()
    for turn in range(9):
        batch = x if warm_start else inputs(seed=turn)
        for left, right in zip(*(passes(net, batch) for net in nets), strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)
        for optimizer in optimizers:
            optimizer.step()
    assert recorder.replays >= 10
    found = nets[0].last_solve
    assert found.status.tolist() == [shoal.Status.CONVERGED] * 6
    assert found.steps.tolist() == [found.evaluations - 1] * 6


def test_residuals_are_those_of_what_is_returned(recorder):
    net, x = network(), inputs()
    for _ in range(4):
        with torch.no_grad():
            net(x)
    assert recorder.replays
    found = net.last_solve
    z = found.value.detach() / math.sqrt(48)
    off = layer_residual(net, x, z) * math.sqrt(48)
    torch.testing.assert_close(found.residual, off, rtol=1e-3, atol=1e-15)
    assert (off <= 1.001e-12 * found.value.norm(dim=1) + 1e-15).all()


def test_results_are_the_callers_and_weights_may_change(recorder):
    net, x = network(), inputs()
    with torch.no_grad():
        for _ in range(4):
            first = net(x)
        assert recorder.replays
        kept = first.clone()
        net.recurrent.mul_(0.5)
        second = net(-x)
        assert torch.equal(first, kept)
        fresh = copy.deepcopy(net)  # which starts afresh
        torch.testing.assert_close(second, fresh(-x), rtol=1e-10, atol=1e-12)
        net.recurrent.data = net.recurrent.data / 2  # elsewhere in memory
        fresh.recurrent.mul_(0.5)
        for _ in range(4):
            torch.testing.assert_close(net(x), fresh(x), rtol=1e-10, atol=1e-12)


def test_other_kinds_of_passes(recorder):
    net, x = network(), inputs(12)
    expected = net(x).detach()
    with torch.inference_mode():
        for count in (12, 5, 1, 12, 5, 1, 12, 5, 1, 12, 5, 1):
            torch.testing.assert_close(net(x[:count]), expected[:count], rtol=1e-10, atol=1e-12)
    assert recorder.captures >= 3
    with torch.no_grad():
        torch.testing.assert_close(net(x), expected, rtol=1e-10, atol=1e-12)
        mapped = torch.vmap(lambda row: net(row[None])[0])(x)
        torch.testing.assert_close(mapped, expected, rtol=1e-10, atol=1e-12)
        with pytest.raises(ValueError, match="x must be finite"):
            net(x / 0)
        with pytest.raises(ValueError, match="in_features = 5"):
            net(x[:, :4])
    hessian = torch.autograd.functional.hessian(lambda x: net(x).sum(), x[:1])
    found = torch.autograd.functional.hessian(lambda x: network()(x).sum(), x[:1])
    torch.testing.assert_close(hessian, found, rtol=1e-7, atol=1e-9)


def test_samples_that_do_not_converge_are_marked(recorder):
    net, x = network(on_failure="status"), inputs()
    for _ in range(4):
        passes(net, x)
    assert recorder.replays
    with torch.no_grad():
        net.recurrent.mul_(4.0)
    replays = recorder.replays
    known = network(on_failure="status", solver=shoal.Picard(graphs=False))
    known.load_state_dict(net.state_dict())
    for _ in range(5):
        with torch.no_grad():
            net(x)
            known(x)
        assert not net.last_solve.converged.all()
        assert net.last_solve.status.tolist() == known.last_solve.status.tolist()
        output = net(x)
        output.sum().backward()
        assert not net.last_solve.converged.all()
    assert recorder.replays <= replays + 4  # not tried in vain again and again
    strict = network(solver=shoal.Picard(max_steps=2))
    for _ in range(4):
        with pytest.raises(shoal.ConvergenceError):
            strict(x)


def test_harder_problems_take_more_steps(recorder):
    net, x = network(), inputs()
    for factor in (0.3, 0.3, 0.3, 1.0, 1.5, 1.5):
        with torch.no_grad():
            net(factor * x)
            net.recurrent.mul_(1.1)
            z = net.last_solve.value
            inner = net.layer.preactivation(z, net.inject(factor * x), net.recurrent / 1.1)
            off = (torch.tanh(inner) - z).norm(dim=1)
        assert (off <= 1e-11 * z.norm(dim=1)).all()
    assert recorder.replays


def test_rows_of_zeros_and_of_infinities_in_the_backward_pass(recorder):
    net, x = network(), inputs()
    for _ in range(4):
        passes(net, x)
    reference = network(solver=shoal.Picard(graphs=False))
    weights = torch.tensor([1.0, 0.0, 1e-200, 1e200, 0.0, math.inf], dtype=torch.float64)[:, None]
    found, replays = [], recorder.replays
    for one in (net, reference):
        u = one.inject(x).detach().requires_grad_()
        (one.equilibrium((u,)) * weights).sum().backward()
        found.append(u.grad)
    assert recorder.replays > replays
    torch.testing.assert_close(*found, rtol=1e-9, atol=0.0, equal_nan=True)
    assert not found[0][1].any()


@pytest.mark.usefixtures("recorder")
def test_a_start_at_the_solution_and_small_states():
    net = network()
    for scale in (0.0, 0.0, 0.0, 0.0, 1e-150, 1e-150, 1e-150, 1e-150):
        x = scale * inputs()
        with torch.no_grad():
            net(x)
        z = net.last_solve.value
        assert net.last_solve.converged.all()
        if not scale:
            assert not z.any()
        else:  # where the tanh is its argument
            matrix = torch.eye(48).double() - math.sqrt(0.2 / 48) * net.recurrent.detach()
            exact = torch.linalg.solve(matrix, net.inject(x).detach().T / scale).T
            torch.testing.assert_close(z / scale, exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("architecture", [DEQ, shoal.ImplicitNetwork(0.3, bias_variance=0.1)])
def test_gradients_of_recurring_passes_are_those_of_autograd(architecture, recorder):
    """Some weights are fixed, inputs are differentiated by, and the outputs changed in place."""
    found = []
    for graphed in (True, False):
        net = shoal.build(
            architecture,
            in_features=5,
            width=48,
            dtype=torch.float64,
            solver=shoal.Picard(graphs=graphed),
        )
        net.input.requires_grad_(False)
        x, tensors = inputs().requires_grad_(), []
        for _ in range(5):
            hidden = 2 * x
            output = net(hidden).mul_(3.0)
            output.square().sum().backward(retain_graph=True)
            (alone,) = torch.autograd.grad(output.sum(), net.recurrent)
            tensors = [x.grad, net.recurrent.grad, alone]
            assert net.input.grad is None
        weights = {name: 0.5 * p.detach() for name, p in net.named_parameters()}
        weights["recurrent"].requires_grad_()
        for _ in range(4):
            lent = torch.func.functional_call(net, weights, (x.detach(),))
            (other,) = torch.autograd.grad(lent.sum(), weights["recurrent"])
        found.append([*tensors, lent.detach(), other])
    assert recorder.replays >= 10
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


def test_checkpointing_beside_recurring_passes(recorder):
    net, x = network(), inputs()
    expected = passes(net, x)
    for _ in range(5):
        net.zero_grad()
        checkpoint(net, x, use_reentrant=False).square().sum().backward()
        for left, right in zip(expected[1:], net.parameters(), strict=True):
            torch.testing.assert_close(right.grad, left, rtol=1e-9, atol=1e-11)
    assert recorder.replays


class Seen(TorchDispatchMode):
    """Counts matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        self.count += "mm" in str(function)
        return function(*args, **(kwargs or {}))


def test_whoever_looks_at_operations_sees_them(recorder):
    net, x = network(), inputs()
    with torch.no_grad():
        for _ in range(4):
            net(x)
        replays = recorder.replays
        assert replays
        with Seen() as seen:
            net(x)
        assert seen.count >= net.last_solve.evaluations > 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(net, (x,), check_trace=False)
        assert recorder.replays == replays
        torch.testing.assert_close(traced(-x), net(-x), rtol=1e-9, atol=1e-11)


def test_weights_changed_before_the_backward_pass_are_noticed(recorder):
    net, x = network(), inputs()
    for _ in range(4):
        passes(net, x)
    assert recorder.replays
    output = net(x)
    with torch.no_grad():
        net.recurrent.mul_(0.5)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


class Cell(torch.nn.Module):
    """A user's cell of a pair of states."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.register_buffer("shift", torch.linspace(0, 1, width))

    def forward(self, state, x, scale=0.4):
        z, y = state
        new = torch.tanh(scale * self.first(y) + x + self.shift)
        return new, torch.sin(scale * self.second(z))


def test_a_users_cell_at_once(recorder):
    torch.manual_seed(0)
    cell = Cell().double()
    layers = [
        shoal.Equilibrium(c, graphs=g) for c, g in ((cell, True), (copy.deepcopy(cell), False))
    ]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]
    start = (torch.zeros(5, 8).double(), torch.zeros(5, 8).double())
    generator = torch.Generator().manual_seed(3)
    for turn in range(8):
        x = torch.randn(5, 8, dtype=torch.float64, generator=generator)
        found = []
        for layer, optimizer in zip(layers, optimizers, strict=True):
            optimizer.zero_grad()
            inputs = x.clone().requires_grad_()
            z, y = layer(start, inputs, 0.3 if turn == 6 else 0.4)
            (z.square().sum() + y.sum()).backward()
            gradients = [p.grad.clone() for p in layer.parameters()]
            found.append([z.detach(), y.detach(), inputs.grad, *gradients])
            assert layer.solution.converged.all()
            assert layer.solution.adjoint.converged.all()
            optimizer.step()
        for left, right in zip(*found, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)
    assert recorder.captures >= 2
    assert recorder.replays >= 8
    with torch.no_grad():  # of a copy, and with other weights
        again = copy.deepcopy(layers[0])
        again.cell.first.weight.mul_(0.5)
        layers[1].cell.first.weight.mul_(0.5)
        for _ in range(4):
            for left, right in zip(again(start, x), layers[1](start, x), strict=True):
                torch.testing.assert_close(left, right, rtol=1e-8, atol=1e-10)


def test_a_cell_that_draws_or_mixes_at_once(recorder):
    class Dropping(torch.nn.Module):
        def forward(self, z, x):
            return torch.nn.functional.dropout(torch.tanh(z / 2 + x), 0.5)

    class Mixing(torch.nn.Module):
        def forward(self, z, x):
            return torch.tanh(0.3 * z + 0.3 * z.mean(0) + x)

    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).double()
    layer = shoal.Equilibrium(Dropping(), graphs=True)
    for seed in range(6):
        torch.manual_seed(seed)
        z = layer(torch.zeros_like(x), x)
        torch.manual_seed(seed)
        expected = shoal.Equilibrium(Dropping())(torch.zeros_like(x), x)
        torch.testing.assert_close(z, expected, rtol=1e-9, atol=1e-11)
    found = []
    for recorded in (True, False):
        layer = shoal.Equilibrium(Mixing(), graphs=recorded)
        for _ in range(6):
            u = x.clone().requires_grad_()
            z = layer(torch.zeros_like(x), u)
            # a row whose cotangent is beyond the range in which the others have squares
            weights = torch.tensor([1.0, 2.0, 0.0, 1e-3, 1e170])[:, None].double()
            (z * weights).sum().backward(retain_graph=True)
            wide, u.grad = u.grad, None
            (z * weights[:4].mean()).sum().backward()
        found += [wide, u.grad]
    assert recorder.replays >= 4
    for one, other in ((0, 2), (1, 3)):
        torch.testing.assert_close(found[one], found[other], rtol=1e-9, atol=1e-12)


def test_few_are_kept():
    known = recurring.Recurrences()
    first = known.of("first")
    assert known.of("first") is first
    for other in range(recurring._KINDS):
        known.of(other)
    assert known.of("first") is not first


@pytest.mark.usefixtures("recorder")
def test_what_cannot_be_captured_runs_step_by_step(monkeypatch, caplog):
    tries = []

    def refused(function, tensors):
        del function, tensors
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recurring, "record", refused)
    net, x = network(), inputs()
    with torch.no_grad():
        found = [net(x) for _ in range(9)]
    assert all(torch.equal(one, found[0]) for one in found)
    assert len(tries) == 2  # of the layer and of the network
    assert "not permitted" in caplog.text


def test_misuse():
    with pytest.raises(TypeError, match="cell must be a module if graphs is True, got function"):
        shoal.Equilibrium(lambda z: z / 2, graphs=True)
    with pytest.raises(TypeError, match="graphs must be True or False, got 1"):
        shoal.Picard(graphs=1)
