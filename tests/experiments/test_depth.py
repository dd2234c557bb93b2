"""The study of depth: its networks are what they are called, and nothing learns from its tests."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import shoal
from experiments.depth.networks import Stack
from experiments.depth.tasks import task
from experiments.depth.training import Setting, compared, student, trained
from experiments.experiment import Result

CPU = torch.device("cpu")
PLACES = {"none": (), "line": (7,), "chain": (7,), "grid": (4, 5)}


def stack(kind: str, neighbors: str, layers: int = 1, gain: float = 0.6) -> Stack:
    return Stack(
        kind, (shoal.activations.Tanh(),) * layers, (3, PLACES[neighbors], (2,)), count=2, width=4,
        neighbors=neighbors, pooled=False, gain=gain, readout=1.0,
        solver=shoal.Picard(rtol=1e-7), seed=0, device=CPU,
    ).double()  # fmt: skip


def inputs(neighbors: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(5, 2, *PLACES[neighbors], 3, generator=generator, dtype=torch.float64)


def by_hand(net: Stack, neighbors: str, z: Tensor, which: int) -> Tensor:
    """What the recurrent weights of one network make of states, by PyTorch's own operations."""
    weights = net.recurrent[0][which] / 2  # the root of the width
    if neighbors == "none":
        return z @ weights
    if neighbors == "chain":
        eye = torch.eye(7, dtype=z.dtype)
        one = torch.ones(6, dtype=z.dtype)
        matrix = eye + torch.diag(one, 1) + torch.diag(one, -1)
        root = matrix.sum(1).sqrt()
        return (matrix / root[:, None] / root) @ z @ weights
    if neighbors == "line":
        kernel = weights.view(3, 4, 4).permute(2, 1, 0)
        return nn.functional.conv1d(z.mT, kernel, padding=1).mT
    kernel = weights.view(3, 3, 4, 4).permute(3, 2, 0, 1)
    return nn.functional.conv2d(z.permute(0, 3, 1, 2), kernel, padding=1).permute(0, 2, 3, 1)


@pytest.mark.parametrize("neighbors", PLACES)
def test_a_deq_is_the_limit_of_its_cell(neighbors: str) -> None:
    net, x = stack("deq", neighbors), inputs(neighbors)
    found = net.states(x)
    for which in range(2):
        u = x[:, which] @ net.input[which]
        z = torch.zeros_like(u)
        for _ in range(100):
            z = torch.tanh(by_hand(net, neighbors, z, which) + u)
        torch.testing.assert_close(found[:, which], z, atol=1e-5, rtol=0)


def test_unrolled_networks_come_near_the_equilibrium_and_plain_ones_see_inputs_once() -> None:
    x = inputs("line")
    deq, unrolled = stack("deq", "line"), stack("unrolled", "line", 60)
    unrolled.load_state_dict(deq.state_dict())
    torch.testing.assert_close(unrolled(x), deq(x), atol=1e-5, rtol=0)
    plain = stack("plain", "line", 3)
    far = x.clone()
    far[:, :, 4:] += 1.0
    same = (plain(far) == plain(x)).all((0, 1, 3))
    assert same.tolist() == [True, True, False, False, False, False, False]  # two places away


@pytest.mark.parametrize("name", ["sequence", "graph", "diabetes", "digits"])
def test_nothing_learns_from_tests(name: str) -> None:
    found = task(name, 200, 3, 6, CPU)
    for train, validation, test in zip(found.train, found.validation, found.test, strict=True):
        rows = [*train.tolist(), *validation.tolist(), *test.tolist()]
        assert len(rows) == len(set(rows))
    assert not torch.equal(found.train[0], found.train[1])
    assert float(found.x.flatten(1).square().mean()) < 1.5


def test_a_network_learns_and_a_step_size_of_zero_changes_nothing() -> None:
    found = task("digits", 300, 1, 6, CPU)
    options = {"count": 2, "width": 16, "neighbors": "none", "pooled": True, "gain": 0.9}
    net = Stack(
        "plain", (shoal.activations.Tanh(),), (64, (), (10,)), readout=1.0,
        solver=shoal.Picard(), seed=0, device=CPU, **options,
    )  # fmt: skip
    before = [p.detach().clone() for p in net.parameters()]
    trained(net, found, "adam", (0.0, 0.05), 60, 50, seed=0)
    with torch.no_grad():
        x = found.x[found.test[0]][:, None].expand(-1, 2, -1)
        right = (net(x).argmax(-1) == found.y[found.test[0]][:, None]).double().mean(0)
    assert right[0] < 0.4
    assert right[1] > 0.8
    for old, new in zip(before, net.parameters(), strict=True):
        assert torch.equal(old[0], new[0])


def result(network: str, test: list[list[float]], **setting: object) -> Result:
    rates, seeds = np.shape(test)
    arrays = {key: np.array(1.0) for key in ("seconds", "latency", "parameters")}
    arrays |= {key: np.ones((rates, seeds)) for key in ("settled", "moved", "steps")}
    arrays["test"] = np.array(test)
    arrays |= {"validation": np.array(test)[::-1], "places": np.ones((rates, seeds, 1))}
    point = {"task": "cancer", "network": network, **Setting(**setting)._asdict()}
    return Result(point, arrays)


def test_validation_chooses_and_differences_are_paired() -> None:
    # the validation samples prefer the other step size than the tests would
    found = compared([
        result("deq", [[0.5, 0.6], [0.9, 0.9]]),
        result("plain2", [[0.4, 0.4], [0.8, 0.8]]),
        result("deq", [[0.1, 0.2], [0.3, 0.3]], gain=0.2),
    ])  # fmt: skip
    deq, plain, low = (one.summary() for one in found)
    assert deq["cancer_deq_mean"] == pytest.approx(0.55)
    assert plain["cancer_plain2_gap_mean"] == pytest.approx(-0.15)
    assert low["cancer_deq_gain0.2_mean"] == pytest.approx(0.15)


def test_intervals_are_students() -> None:
    values = [0.9, 0.92, 0.91, 0.95, 0.89]
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert student(values) == pytest.approx({"mean": np.mean(values), "low": low, "high": high})
