"""Steps by graphs and looks that come late give what steps one by one give, with every status."""

import pytest
import torch

import shoal
from shoal.equilibrium import coarse, graphs
from shoal.equilibrium.graphs import StepGraph

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
    return torch.tanh(z @ weight.T + shift)


@pytest.mark.parametrize("count", [1, 3, 4, 11])
def test_a_graph_makes_the_steps_of_the_function(count):
    generator = torch.Generator().manual_seed(1)
    z, shift = torch.randn(2, 3, 4, dtype=torch.float64, generator=generator)
    weight = torch.randn(4, 4, dtype=torch.float64, generator=generator) / 4
    recorder = Recorder()
    graph = StepGraph(step, torch.zeros_like(z), [torch.zeros_like(shift)], [weight], recorder)
    for factor in (1.0, 0.5):  # optimizers change weights in place
        weight.mul_(factor)
        expected = z
        for _ in range(count):
            expected = torch.tanh(expected @ weight.T + shift)
        found = graph.run(z, [shift], count)
        torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-14)
        kept = found.clone()
        graph.run(z + 1, [shift], 1)
        assert torch.equal(found, kept)  # a result is the caller's
    assert recorder.captures == 2
    assert recorder.replays == 2 * (count // 4 + count % 4 + 1)


def test_graphs_are_made_of_what_recurs_and_few_are_kept():
    made = []

    def make():
        made.append(StepGraph(step, torch.zeros(1, 1), [torch.zeros(1, 1)], [], Recorder()))
        return made[-1]

    known = graphs._Graphs()
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

    known = graphs._Graphs()
    assert [known.find("key", make) for _ in range(9)] == [None] * 9
    assert len(tries) == 1
    assert "not permitted" in caplog.text


def test_misuse():
    with pytest.raises(TypeError, match="graphs must be True or False, got 1"):
        shoal.Picard(graphs=1)
