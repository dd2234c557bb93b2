"""Implicit networks: values, the papers' gradients, failures, warm starts."""

import copy
import math
import pickle

import pytest
import torch

import shoal
from networks.small import inputs, network
from shoal import (
    DEQ,
    ConvergenceError,
    ConvergenceWarning,
    Implicit,
    ImplicitNetwork,
    Picard,
)
from shoal.activations import ReLU, Softplus, Tanh
from shoal.equilibrium import Status

IMPLICIT = [
    DEQ(Tanh(), 0.2, 0.8),
    DEQ(Softplus(), 0.2, 0.5, parametrization="standard"),
    DEQ(ReLU(), 0.0, 1.0),
    DEQ.ling2023(0.1, 4),
    ImplicitNetwork(gamma=0.4),
]


def test_the_equation_of_the_deq():
    net, x = network(out_features=3), inputs()
    z = net.solve(x).value
    layer = torch.tanh(
        math.sqrt(0.2) * z @ net.recurrent.T + math.sqrt(0.8) * x @ net.input.T
    ) / math.sqrt(32)
    torch.testing.assert_close(z, layer, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(net(x), z @ net.readout.T)
    torch.testing.assert_close(net.features(x), z)


def test_the_equation_of_the_standard_parametrization():
    deq = DEQ.ling2023(0.1, 4)
    net, x = network(deq, width=64), 2 * inputs()
    z = net.solve(x).value
    torch.testing.assert_close(z, torch.relu(z @ net.recurrent.T + x @ net.input.T))
    torch.testing.assert_close(net(x), z @ net.readout.T)
    # the same function as in the other parametrization
    same = network(DEQ(ReLU(), deq.recurrent_variance, deq.input_variance), width=64)
    torch.testing.assert_close(same(x), net(x), rtol=1e-9, atol=1e-10)
    assert abs(float(net.recurrent.detach().var()) - 0.2 / 64) < 0.1 * 0.2 / 64
    assert abs(float(net.readout.detach().var()) - 1 / 64) < 0.5 / 64


def test_the_equation_of_the_implicit_network():
    net, x = network(ImplicitNetwork(gamma=0.4), out_features=2), inputs()
    z, mapped = net.solve(x).value, torch.relu(x @ net.input.T) / math.sqrt(32)
    layer = torch.relu(0.4 / math.sqrt(32) * z @ net.recurrent.T + mapped)
    torch.testing.assert_close(z, layer, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(net(x), z @ net.readout.T + mapped @ net.skip.T)
    for readout in (net.readout, net.skip):
        assert set(readout.flatten().tolist()) == {-1.0, 1.0}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of dynamo's
def test_compilation_of_the_surrounding_model():
    net, x = network(features=6, out_features=3), inputs(4, 6)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), net, torch.nn.Tanh()).double()
    compiled = torch.compile(model, backend="aot_eager")
    expected = torch.autograd.grad(model(x).sum(), model.parameters())
    found = torch.autograd.grad(compiled(x).sum(), model.parameters())
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)


def test_failures_in_both_passes():
    wild = DEQ(Tanh(), 9.0, 0.1)
    x, alone = inputs(), {"solver": Picard()}
    found = network(wild, on_failure="status").solve(x)  # by the solvers that take over
    assert found.converged.sum() > 2
    with pytest.raises(
        ConvergenceError, match=r"(?s)equilibrium did not converge.*What helps"
    ) as error:
        network(wild, on_failure="raise", **alone)(x)
    assert not error.value.solution.converged.any()
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        network(wild, **alone)(x)
    net = network(wild, on_failure="status", **alone)
    assert net(x).shape == (5, 1)
    assert not net.last_solve.converged.any()
    assert net.solve(x).failures
    with pytest.raises(ConvergenceError):
        network(wild, on_failure="raise", **alone).solve(x)
    net = network(gradient=Implicit(Picard(max_steps=1)), **alone, on_failure="raise")
    loss = net(x).sum()
    with pytest.raises(ConvergenceError, match="backward pass"):
        loss.backward()
    net = network(gradient=Implicit(Picard(max_steps=1)), **alone, on_failure="status")
    net(x).sum().backward()
    assert net.last_adjoint.failures == {Status.OUT_OF_STEPS: 5}


@pytest.mark.parametrize("architecture", IMPLICIT, ids=repr)
def test_warm_starts_change_the_time_and_nothing_else(architecture):
    x, y = inputs(20), inputs(20, 1, seed=1)
    ends, evaluations = [], []
    for warm_start in (False, True):
        net = network(architecture, warm_start=warm_start)
        standard = getattr(architecture, "parametrization", "") == "standard"
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-4 if standard else 1e-2)
        count = 0
        for _ in range(20):
            optimizer.zero_grad()
            (net(x) - y).square().mean().backward()
            count += net.last_solve.evaluations + net.last_adjoint.evaluations
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        evaluations.append(count)
    torch.testing.assert_close(*ends, rtol=1e-8, atol=1e-9)
    if architecture != DEQ(ReLU(), 0.0, 1.0):  # no recurrence, nothing to be saved
        assert evaluations[1] < evaluations[0]


def test_copies_and_pickles_are_equal_and_apart():
    net, x = network(warm_start=True), inputs()
    expected = net(x)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(other(x), expected)
        assert other.spec == net.spec
        other.recurrent.data.zero_()
    torch.testing.assert_close(net(x), expected)


def test_inference_mode():
    net, x = network(), inputs()
    with torch.inference_mode():
        torch.testing.assert_close(net(x).clone(), net(x))
    assert pickle.loads(pickle.dumps(ConvergenceError("why"))).args == ("why",)


def test_well_posedness_says_what_is_certain():
    report = network(width=200).well_posedness()
    true = float(torch.linalg.matrix_norm(network(width=200).recurrent.detach(), 2)) * math.sqrt(
        0.2 / 200
    )
    assert report.gain_lower <= true <= report.gain_upper <= 1.001 * true
    assert report.contraction
    assert report.sufficient
    assert "certified" in str(report)
    report = network(DEQ(Tanh(), 0.5, 0.5), width=200).well_posedness()
    assert not report.contraction
    assert not report.sufficient
    assert report.kernel
    assert "may expand" in str(report)
    assert network(DEQ(ReLU(), 0.0, 1.0)).well_posedness().gain_upper == 0
    gao = network(ImplicitNetwork(gamma=0.3), width=200).well_posedness()
    assert gao.contraction
    steep = network(DEQ(shoal.activations.Hermite((0.0, 0.1, 0.1)), 0.01, 0.1)).well_posedness()
    assert steep.gain_upper == math.inf
    assert not steep.contraction


def test_numbers_are_no_inputs():
    net = network()
    calls = (net, net.solve, net.features, net.trace, lambda x: shoal.empirical_kernel(net, x))
    for call in calls:
        with pytest.raises(ValueError, match=r"x1? must have shape \(samples, in_features\).*got"):
            call(1.0)
