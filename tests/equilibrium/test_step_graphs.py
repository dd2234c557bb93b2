"""Steps by graphs and looks that come late give what steps one by one give, with every status."""

import pytest
import torch

import shoal
from shoal.equilibrium import coarse, graphs, layer
from shoal.equilibrium.graphs import StepGraph
from shoal.equilibrium.problem import Evaluation

DEQ = shoal.DEQ(shoal.Tanh(), 0.2, 0.8)


def inputs(count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 5, dtype=torch.float64, generator=generator)


def network(**options):
    return shoal.build(DEQ, in_features=5, width=48, dtype=torch.float64, **options)


@pytest.fixture
def late_looks(monkeypatch):
    """Let a look cost as much as some steps, as on a GPU."""

    def cost(steps):
        monkeypatch.setitem(coarse._LOOK, "cpu", steps * coarse._STEP * 1.1)

    return cost


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


class Recorder:
    """Counts captures and replays; a replay does on the CPU what was captured."""

    def __init__(self):
        self.captures = self.replays = 0

    def __call__(self, run):
        self.captures += 1

        def replay():
            self.replays += 1
            run()

        return replay


def step(z, shift, weight):
    inner = z @ weight.T + shift
    return Evaluation(torch.tanh(inner), inner)


def case():
    generator = torch.Generator().manual_seed(1)
    z, shift = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    return z, shift, torch.randn(4, 4, dtype=torch.float64, generator=generator) / 4


@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_a_graph_makes_the_steps_of_the_function(count):
    z, shift, weight = case()
    recorder = Recorder()
    graph = StepGraph(step, torch.zeros_like(z), [torch.zeros_like(shift)], [weight], 5, recorder)
    for factor in (1.0, 0.5):  # optimizers change weights in place
        weight.mul_(factor)
        expected = z
        for _ in range(count):
            expected = torch.tanh(expected @ weight.T + shift)
        found = graph.iterated(z, [shift], count)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
        kept = found.clone()
        graph.iterated(z + 1, [shift], 1)
        assert torch.equal(found, kept)  # a result is the caller's
    assert recorder.captures == 3
    assert recorder.replays == 2 * (count // 4 + count % 4 + 1)


@pytest.mark.parametrize("first", [1, 2, 6])
def test_a_graph_opens_an_iteration(first):
    z, shift, weight = case()
    empty = torch.zeros_like(z)
    graph = StepGraph(step, empty, [empty], [weight], first, Recorder())
    begun, new, ended, norms = graph.opening(z, [shift])
    graph.opening(z + 1, [shift])
    path = [z]
    for _ in range(first + 1):
        path.append(torch.tanh(path[-1] @ weight.T + shift))
    torch.testing.assert_close(begun.value, path[1])
    torch.testing.assert_close(begun.kept, z @ weight.T + shift)
    torch.testing.assert_close(new, path[first])
    torch.testing.assert_close(ended.value, path[first + 1])
    torch.testing.assert_close(ended.kept, path[first] @ weight.T + shift)
    expected = [[(path[k + 1] - path[k]).norm(dim=1), path[k].norm(dim=1)] for k in (0, first)]
    torch.testing.assert_close(norms, torch.stack([torch.stack(pair) for pair in expected]))


@pytest.mark.parametrize("phi", [shoal.Tanh(), shoal.ReLU()], ids=repr)
def test_solves_by_graphs(phi, late_looks, monkeypatch):
    """With graphs that replay on the CPU, in both passes, while weights change in place."""
    late_looks(4)
    recorder, known = Recorder(), graphs.Graphs()

    def found(step, z, changing, weights, first):
        key = (step, z.shape, *(w.data_ptr() for w in weights))
        make = lambda: StepGraph(step, z, changing, weights, first, recorder)  # noqa: E731
        return known.find(key, make)

    deq = shoal.DEQ(phi, 0.2, 0.8)
    nets = [
        shoal.build(deq, in_features=5, width=48, dtype=torch.float64, solver=solver)
        for solver in (shoal.Picard(), shoal.Picard(graphs=False))
    ]
    for turn in range(4):
        x, results = inputs(seed=turn), []
        for net, graph in zip(nets, (found, None), strict=True):
            with monkeypatch.context() as patch:
                if graph is not None:
                    patch.setattr(layer, "step_graph", graph)
                net.zero_grad()
                output = net(x)
                output.square().sum().backward()
            results.append([output.detach(), *(p.grad for p in net.parameters())])
            assert net.last_solve.converged.all()
            assert net.last_adjoint.converged.all()
            with torch.no_grad():
                net.recurrent.mul_(0.9)
        for left, right in zip(*results, strict=True):
            torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-11)
        assert nets[0].last_solve.evaluations == nets[1].last_solve.evaluations
    assert recorder.captures == 6  # of the steps of both passes
    assert recorder.replays > 6


def test_graphs_are_made_of_what_recurs_and_few_are_kept():
    made = []

    def make():
        one = torch.zeros(1, 1)
        made.append(StepGraph(step, one, [one], [one], 2, Recorder()))
        return made[-1]

    known = graphs.Graphs()
    found = [known.find("often", make) for _ in range(8)]
    assert found[: graphs._AFTER] == [None] * graphs._AFTER
    assert all(graph is made[0] for graph in found[graphs._AFTER :])
    for other in range(graphs._KEPT):
        known.find(other, make)
    assert known.find("often", make) is None  # forgotten: others were used since
    assert len(made) == 1


def test_what_cannot_be_captured_runs_step_by_step(caplog):
    tries = []

    def make():
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    known = graphs.Graphs()
    assert [known.find("key", make) for _ in range(9)] == [None] * 9
    assert len(tries) == 1
    assert "not permitted" in caplog.text


def test_misuse():
    with pytest.raises(TypeError, match="graphs must be True or False, got 1"):
        shoal.Picard(graphs=1)
