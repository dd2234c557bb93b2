"""Kernels of loops with tied weights, against other recursions and finite networks."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import shoal
from shoal import DEQ, LoopedNetwork, ResNet, build, empirical_kernel, kernel, kernel_function
from shoal.activations import Erf, ReLU, Tanh

GRID = torch.linspace(-8.5, 8.5, 161, dtype=torch.float64)
MASS = torch.exp(-(GRID**2) / 2) / torch.exp(-(GRID**2) / 2).sum()
LOOPS = [
    LoopedNetwork("tanh", 4, 0.5, recall=0.3, input_variance=0.7, bias_variance=0.2),
    LoopedNetwork("tanh", 5, 0.4, state_scale=0.7, recall=0.1, normalization=None),
    LoopedNetwork("gelu", 3, 0.7, recall=0.2, recurrent_variance=1.3, tied=False),
    LoopedNetwork("tanh", 4, 0.5, normalization=None, tied=False, bias_variance=0.1),
]


def inputs(count: int = 4, size: int = 6) -> Tensor:
    x = torch.randn(count, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return x * torch.linspace(0.3, 0.8, count, dtype=torch.float64)[:, None]


def expected(f, a: float, b: float, c: float) -> float:
    """E[f(u) f(v)] of a Gaussian pair, on a grid."""
    first = math.sqrt(a) * GRID
    second = c / math.sqrt(a) * GRID[:, None] + math.sqrt(max(b - c * c / a, 0.0)) * GRID
    return float(MASS @ (f(first)[:, None] * f(second)) @ MASS)


def by_paths(loop: LoopedNetwork, x: Tensor, y: Tensor) -> tuple[float, dict[str, float]]:
    """CK and NTK of each group, from covariances of states and of what is passed back."""
    n, alpha, gain = loop.steps, loop.state_scale, loop.step_scale**2 * loop.recurrent_variance
    phi, norm = loop.activation, loop.normalization is not None
    share = [1.0]
    for _ in range(n):
        share.append(alpha * share[-1] + loop.recall)

    def states(u, v, variances):
        inner = loop.input_variance * float(u @ v) + loop.bias_variance
        s, q, t = ({} for _ in range(3))
        for k in range(n + 1):
            for i, j in [(k, m) for m in range(k + 1)] + [(m, k) for m in range(k)]:
                s[i, j] = share[i] * share[j] * inner + gain * sum(
                    alpha ** (i - 1 - a) * alpha ** (j - 1 - b) * q[a, b]
                    for a in range(i)
                    for b in range(j)
                    if loop.tied or a == b
                )
                first, second = variances[0].get(i, s[i, j]), variances[1].get(j, s[i, j])
                size = math.sqrt(first * second) if norm else 1.0
                point = (1.0, 1.0, s[i, j] / size) if norm else (first, second, s[i, j])
                q[i, j] = expected(phi, *point)
                t[i, j] = expected(lambda z: phi.derivative(z, 1), *point) / size
            if u is v:
                variances[0][k] = s[k, k]
        return s, q, t

    own = []
    for one in (x, y):
        variances: dict[int, float] = {}
        own.append({k: states(one, one, (variances, variances))[0][k, k] for k in range(n + 1)})
    s, q, t = states(x, y, own)
    size = math.sqrt(own[0][n] * own[1][n]) if norm else 1.0
    p = {(n, n): 1 / size}
    for k in range(n, -1, -1):
        for l in range(n, -1, -1):  # noqa: E741
            p[k, l] = alpha ** (2 * n - k - l) / size + gain * sum(
                alpha ** (i - k) * alpha ** (j - l) * t[i, j] * p[i + 1, j + 1]
                for i in range(k, n)
                for j in range(l, n)
                if loop.tied or i == j
            )
    recall = [1.0] + [loop.recall] * n
    through = sum(recall[k] * recall[j] * p[k, j] for k in range(n + 1) for j in range(n + 1))
    pairs = [(k, j) for k in range(n) for j in range(n) if loop.tied or k == j]
    return s[n, n] / size, {
        "readout": s[n, n] / size,
        "recurrent": gain * sum(p[k + 1, j + 1] * q[k, j] for k, j in pairs),
        "input": loop.input_variance * float(x @ y) * through,
        "bias": loop.bias_variance * through,
    }


@pytest.mark.parametrize("loop", LOOPS, ids=range(len(LOOPS)))
def test_covariances_of_what_is_passed_back(loop: LoopedNetwork) -> None:
    x = inputs(2)
    ck, shares = by_paths(loop, x[0], x[1])
    for group in loop.parameter_groups:
        found = kernel(loop, x, trainable={group})
        assert float(found.ck[0, 1]) == pytest.approx(ck, rel=1e-10)
        assert float(found.ntk[0, 1]) == pytest.approx(shares[group], rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("loop", [*LOOPS, LoopedNetwork("relu", 4, 0.5, recall=0.2)], ids=repr)
def test_finite_networks_converge(loop: LoopedNetwork) -> None:
    """Errors fall like the root of the width: from 64 to 1,024 units by a factor of 4 or so."""
    x, errors = inputs(), []
    exact = kernel(loop, x)
    for width in (64, 1024):
        found = []
        for seed in range(4):
            net = build(loop, in_features=6, width=width, seed=seed, dtype=torch.float64)
            found += [
                (m - e).norm() / e.norm()
                for m, e in zip(empirical_kernel(net, x), exact, strict=True)
            ]
        errors.append(float(torch.stack(found).square().mean().sqrt()))
    assert errors[1] < 0.45 * errors[0]
    assert errors[1] < 0.15


@pytest.mark.parametrize("loop", LOOPS[1:3], ids=("tied", "untied"))
def test_tangents_of_a_module(loop: LoopedNetwork) -> None:
    """The kernel of a network is that of any module with these parameters."""
    net = build(loop, in_features=6, width=16, out_features=2, seed=3, dtype=torch.float64)
    x, wrapped = inputs(), torch.nn.Sequential(net)
    direct = empirical_kernel(net, x).ntk
    torch.testing.assert_close(direct, empirical_kernel(wrapped, x).ntk, rtol=1e-12, atol=0.0)


@pytest.mark.thorough("Tanh")
@pytest.mark.parametrize("phi", [Tanh(), ReLU()], ids=repr)
def test_many_steps_are_an_equilibrium(phi) -> None:
    r"""The limit solves $h = \sigma W\varphi(h) + \dots$: a DEQ's, read before its activation."""
    loop = LoopedNetwork(phi, 60, 0.3, state_scale=0.3, recall=0.4, normalization=None)
    recurrent, entering = (0.3 / 0.7) ** 2, (0.4 / 0.7) ** 2
    x, deq = inputs(), DEQ(phi, recurrent, entering)
    given, found = kernel(deq, x, trainable={"readout"}).ck, kernel(loop, x)
    state = recurrent * given + entering * (x @ x.T)
    through = kernel(deq, x, trainable={"recurrent"}).ntk / (recurrent * given)  # E/(1 - σ²E)
    torch.testing.assert_close(found.ck, state, rtol=1e-9, atol=0.0)
    expected = state * (2 + recurrent * through)
    torch.testing.assert_close(found.ntk, expected, rtol=1e-9, atol=0.0)


def test_untied_streams_of_odd_activations_are_residual_networks() -> None:
    """Both add what independent weights make; the CK and the share of the first layer agree."""
    x = inputs()
    loop = LoopedNetwork("erf", 3, 0.5, normalization=None, tied=False)
    net = ResNet(["identity", "erf", "erf", "erf"], 4, residual_scale=2.0)
    streams, layers = kernel(loop, x, trainable={"input"}), kernel(net, x, trainable={"layer1"})
    torch.testing.assert_close(streams.ck, layers.ck, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(streams.ntk, layers.ntk, rtol=1e-12, atol=0.0)


def test_step_sizes_that_keep_the_variance() -> None:
    """Tied streams grow like (εN)², untied ones like ε²N."""
    x, growth = inputs(1), {}
    for tied in (True, False):
        loops = [
            LoopedNetwork("gelu", n, 1 / n if tied else n**-0.5, normalization=None, tied=tied)
            for n in (16, 32, 64)
        ]
        growth[tied] = [float(kernel(loop, x).ck) for loop in loops]
        steps = growth[tied][1] - growth[tied][0], growth[tied][2] - growth[tied][1]
        assert abs(steps[1]) < 0.6 * abs(steps[0])  # a limit, approached like 1/N
    wrong = [LoopedNetwork("gelu", n, n**-0.5, normalization=None) for n in (16, 64)]
    first, last = (float(kernel(loop, x).ck) for loop in wrong)
    assert last > 2 * first


@pytest.mark.thorough
@pytest.mark.parametrize("loop", [LOOPS[0], LOOPS[1]], ids=("rms", "plain"))
def test_matrices_gradients_and_variances(loop: LoopedNetwork) -> None:
    """Matrices are the function at pairs, and slopes those of differences."""
    x = inputs(120, 5)
    square, function = (x**2).sum(1), kernel_function(loop)
    pairs = function(square[:, None], square, x @ x.T)
    for found, one in zip(kernel(loop, x), pairs, strict=True):
        torch.testing.assert_close(found, one, rtol=0.0, atol=1e-10 * float(one.diagonal().max()))
    loop, some = replace(loop, activation=Erf()), inputs(3, 5).requires_grad_()
    variance = torch.tensor(loop.recurrent_variance, dtype=torch.float64, requires_grad=True)

    def total(x: Tensor, v: Tensor) -> Tensor:
        return kernel(loop, x, variances={"recurrent_variance": v}).ntk

    assert torch.autograd.gradcheck(total, (some, variance), eps=1e-5, atol=1e-7)


def test_uses() -> None:
    """A network of any kind: saved, fitted, and iterated as a model whose loop is found."""
    x = inputs(40, 6)
    y = x[:, :2].sum(1, keepdim=True)
    fit = shoal.kernel_regression(LOOPS[0], x, y)
    assert float((fit.predict(x) - y).square().mean()) < 0.1 * float(y.var())
    net = build(LOOPS[0], in_features=6, width=24, seed=1, dtype=torch.float64)
    loop = shoal.find_loop(net, x)
    assert loop.steps == 4
    torch.testing.assert_close(loop.run(x), net(x), rtol=1e-12, atol=1e-14)


def test_saved(tmp_path) -> None:
    net = build(LOOPS[2], in_features=6, width=8, seed=1)
    shoal.save(net, tmp_path / "loop.safetensors")
    again = shoal.load(tmp_path / "loop.safetensors")
    x = inputs().float()
    assert torch.equal(net(x), again(x))
    assert again.architecture == LOOPS[2]


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="steps must be"):
        LoopedNetwork("tanh", 0, 0.5)
    with pytest.raises(ValueError, match="normalization must be one of 'rms'"):
        LoopedNetwork("tanh", 2, 0.5, normalization="layer")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="step_scale"):
        LoopedNetwork("tanh", 2, -0.5)
    zero = torch.zeros(2, 3, dtype=torch.float64)
    net = build(LoopedNetwork("tanh", 2, 0.5), in_features=3, width=4, dtype=torch.float64)
    assert net(zero).abs().max() == 0  # a state of zero stays zero
    with pytest.raises(ValueError, match="inputs must not be zero"):
        kernel(LoopedNetwork("tanh", 2, 0.5), zero)
    for some in (LoopedNetwork("relu", 600, 1.0, state_scale=2.0), LOOPS[0]):
        far = inputs() if some.steps == 600 else 1e100 * inputs()
        with pytest.raises(shoal.AccuracyError, match="beyond what can be normalized"):
            kernel(some, far)
    with pytest.raises(shoal.AccuracyError, match="overflow"):
        kernel(LoopedNetwork("relu", 400, 10.0, state_scale=10.0, normalization=None), inputs())
    with pytest.raises(TypeError, match="center=False"):
        shoal.centered(LOOPS[0], 1.0)
    with pytest.raises(TypeError, match="center"):
        shoal.design(LOOPS[0])
    assert replace(LOOPS[0], tied=False) != LOOPS[0]
