"""Graphs read the memory that is in use, whatever becomes of weights, inputs and contexts."""

import pytest
import torch
from torch.nn.utils import parametrize, prune

import shoal
from shoal.equilibrium.cuda_graphs import graphs

DEQ = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)


def inputs(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, dtype=torch.float64, generator=generator)


def pair():
    """A network that may be recorded, and the same that may not."""
    solvers = shoal.Picard(), shoal.Picard(graphs=False)
    options = {"in_features": 5, "width": 16, "dtype": torch.float64}
    return [shoal.build(DEQ, **options, solver=solver) for solver in solvers]


def passes(net, x, called=None):
    """Outputs and gradients."""
    net.zero_grad()
    output = (called or net)(x)
    output.square().sum().backward()
    return [output.detach(), *(p.grad for p in net.parameters())]


def assert_same(found):
    for left, right in zip(*found, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)


def train(nets, called=lambda net: net):
    """Steps of training, in which both do the same."""
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in nets]
    for _ in range(8):
        assert_same([passes(net, inputs(), called(net)) for net in nets])
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.usefixtures("recorder")
def test_weights_that_hooks_make_of_others():
    nets = pair()
    for net in nets:
        prune.l1_unstructured(net, "recurrent", 0.5)
    train(nets)
    for net in nets:
        prune.remove(net, "recurrent")
    train(nets)


def replica(module):
    """A copy whose weights are attributes, as ``nn.DataParallel`` makes one for each device."""
    made = module._replicate_for_data_parallel()
    for name, parameter in module._parameters.items():
        setattr(made, name, parameter.clone())
    return made


@pytest.mark.usefixtures("recorder")
def test_replicas():
    train(pair(), replica)


class Cell(torch.nn.Module):
    """A cell of one matrix."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(0.8 * torch.eye(5, dtype=torch.float64))

    def forward(self, z, x):
        return torch.tanh(z @ self.weight + x)


@pytest.mark.usefixtures("recorder")
def test_replicas_of_a_cell():
    layer, x = shoal.Equilibrium(Cell(), graphs=True), inputs()
    for _ in range(6):
        made = layer._replicate_for_data_parallel()
        made.cell = cell = replica(layer.cell)
        z = made(torch.zeros_like(x), x)
        torch.testing.assert_close(cell(z, x), z, rtol=1e-10, atol=1e-11)
        with torch.no_grad():
            layer.cell.weight.mul_(0.9)


class Bounded(torch.nn.Module):
    """Entries below one fifth."""

    def forward(self, weight):
        return torch.tanh(weight) / 5


@pytest.mark.parametrize("cached", [False, True])
def test_parametrized_cells(cached, recorder):
    cell = Cell()
    parametrize.register_parametrization(cell, "weight", Bounded())
    layer, x = shoal.Equilibrium(cell, graphs=True), inputs()
    for _ in range(6):
        if cached:
            with parametrize.cached():
                z = layer(torch.zeros_like(x), x)
        else:
            z = layer(torch.zeros_like(x), x)
        torch.testing.assert_close(cell(z, x), z, rtol=1e-10, atol=1e-11)
        with torch.no_grad():
            cell.parametrizations.weight.original.mul_(0.8)
    assert bool(recorder.replays) is not cached


def test_what_changes_between_the_passes(recorder):
    nets, x = pair(), inputs()
    train(nets)
    replays, found = recorder.replays, []
    for net in nets:
        net.zero_grad()
        output = net(x)
        net.readout.requires_grad_(requires_grad=False)
        output.sum().backward()
        net.readout.requires_grad_(requires_grad=True)
        found.append([net.recurrent.grad, net.input.grad])
    assert_same(found)
    assert recorder.replays == replays + 2
    found = []
    for net in nets:
        net.zero_grad()
        output = net(x)
        before = net.recurrent.data
        net.recurrent.data = before.clone()
        before.zero_()  # whoever gets that memory
        output.sum().backward()
        found.append([p.grad for p in net.parameters()])
    assert_same(found)


@pytest.mark.usefixtures("recorder")
def test_numbers_on_another_device_are_not_recorded():
    here, elsewhere = torch.zeros(3, 2), torch.zeros((), device="meta")
    assert graphs.can_record(here, here)
    assert not graphs.can_record(here, here, elsewhere)


@pytest.mark.usefixtures("recorder")
def test_settings_of_convolutions_and_of_determinism_make_other_graphs():
    x, places = inputs(), []
    before = torch.backends.cudnn.conv.fp32_precision
    for precision in ("tf32", "ieee"):
        torch.backends.cudnn.conv.fp32_precision = precision
        places.append(graphs.place((x,), ()))
    torch.backends.cudnn.conv.fp32_precision = before
    torch.use_deterministic_algorithms(mode=True)
    places.append(graphs.place((x,), ()))
    torch.use_deterministic_algorithms(mode=False)
    assert len(set(places)) == 3


def test_a_slow_last_step_does_not_end_recording(recorder):
    """Where a start is hardly off, its steps tell no rate."""

    class Slow(torch.nn.Module):
        def forward(self, z, x):
            return z + 1e-5 * (x - z)

    layer = shoal.Equilibrium(Slow(), solver=shoal.Picard(rtol=1e-4, atol=0.0), graphs=True)
    x = torch.ones(2, 3, dtype=torch.float64)
    with torch.no_grad():
        for _ in range(20):  # |f(z) - z| is 1.00005 times the tolerance at first
            replays = recorder.replays
            layer(0.090905 * x, x)
            assert layer.solution.converged.all()
    assert recorder.replays > replays
    assert layer.solution.evaluations < 8


def test_graphs_die_with_their_network_or_when_they_are_forgotten(recorder):
    net, x = pair()[0], inputs()
    layer = shoal.Equilibrium(Cell(), graphs=True)
    for one, given in ((net, (x,)), (layer, (torch.zeros_like(x), x))):
        for _ in range(8):
            one(*given).sum().backward()
        assert recorder.kept
        one.forget()
        assert not recorder.kept
    with torch.no_grad():
        for _ in range(4):
            net.features(x)
    assert recorder.kept
    del net, one, given
    assert not recorder.kept


def test_cotangents_that_are_mapped(recorder):
    nets, x = pair(), inputs(2)
    layer = shoal.Equilibrium(Cell())
    cotangents = torch.eye(2, dtype=torch.float64)[:, :, None]
    for net in nets:
        for _ in range(8):
            passes(net, x)
    for net in (*nets, lambda x: layer(torch.zeros_like(x), x)[:, :1]):
        u = x.clone().requires_grad_()
        output = net(u)

        def pull(cotangent, output=output, u=u):
            return torch.autograd.grad(output, u, cotangent, retain_graph=True)[0]

        expected = torch.stack([pull(cotangent) for cotangent in cotangents])
        found = torch.vmap(pull)(cotangents)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    assert recorder.replays
