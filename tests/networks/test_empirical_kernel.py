"""Empirical kernels against explicit Jacobians, and against the kernels of infinite width."""

import pytest
import torch

from shoal import (
    DEQ,
    ConvergenceWarning,
    ConvResNet,
    FullyConnected,
    Implicit,
    ImplicitNetwork,
    OneStep,
    Picard,
    ResNet,
    Unrolled,
    build,
    empirical_kernel,
    kernel,
)
from shoal.activations import ReLU, Softplus, Tanh


def inputs(*shape, seed=0):
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x / x.flatten(1).norm(dim=1).view(-1, *[1] * (x.dim() - 1))


def network(architecture, *, features=3, width=8, **options):
    pixels = {"pixel_axes": 1} if isinstance(architecture, ConvResNet) else {}
    options = {"dtype": torch.float64, **pixels, **options}
    return build(architecture, in_features=features, width=width, **options)


ARCHITECTURES = [
    DEQ(Tanh(), 0.2, 0.8),
    DEQ.ling2023(0.1, 3),
    ImplicitNetwork(gamma=0.4),
    FullyConnected((Tanh(), ReLU())),
    FullyConnected.du2018(Softplus(), depth=2),
    ResNet(Softplus(), depth=3),
    ConvResNet(Softplus(), depth=2),
]
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=repr)


def data(architecture, count, seed=0):
    shape = (count, 3, 5) if isinstance(architecture, ConvResNet) else (count, 3)
    return inputs(*shape, seed=seed)


def jacobian(net, x, name):
    """The gradient of every output with respect to one group, one backward pass each."""
    outputs = net(x)
    rows = [
        torch.autograd.grad(outputs[i, k], net.groups[name], retain_graph=True)[0].flatten()
        for i in range(outputs.shape[0])
        for k in range(outputs.shape[1])
    ]
    return torch.stack(rows).view(*outputs.shape, -1)


@every_architecture
@pytest.mark.parametrize("outputs", [1, 3])
def test_the_ntk_is_the_gram_matrix_of_the_jacobian(architecture, outputs):
    net = network(architecture, out_features=outputs, trainable="all")
    x1, x2 = data(architecture, 4), data(architecture, 3, seed=1)
    for name in net.groups:
        left, right = jacobian(net, x1, name), jacobian(net, x2, name)
        expected = torch.einsum("ikp,jkp->ij", left, right) / outputs
        found = empirical_kernel(net, x1, x2, trainable={name}).ntk
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
    parts = sum(empirical_kernel(net, x1, trainable={name}).ntk for name in net.groups)
    whole = empirical_kernel(net, x1).ntk
    torch.testing.assert_close(whole, parts)
    torch.testing.assert_close(whole, whole.T)


def deviation(architecture, width, x, *, trainable=None, weights="gaussian", seeds=4):
    """The root mean square deviation from the kernels of infinite width, relatively."""
    exact = kernel(architecture, x, trainable=trainable)
    squares = torch.zeros(2).double()
    for seed in range(seeds):
        net = network(architecture, features=x.shape[1], width=width, seed=seed, weights=weights)
        found = empirical_kernel(net, x, trainable=trainable)
        for i in range(2):
            squares[i] += (found[i] - exact[i]).square().mean() / exact[i].square().mean()
    return (squares / seeds).sqrt()


@pytest.mark.parametrize("weights", ["rademacher", "uniform"])
def test_the_limit_is_universal(weights):
    """Ling 2024: any law of mean zero and unit variance, if no single input counts too much."""
    architecture, x = DEQ(Tanh(), 0.2, 0.8), inputs(5, 60)
    narrow = deviation(architecture, 64, x, weights=weights)
    wide = deviation(architecture, 1024, x, weights=weights)
    assert (wide < 0.12).all()
    assert (narrow / wide > 2).all()


@every_architecture
def test_by_default_what_requires_a_gradient_counts(architecture):
    net, x = network(architecture), data(architecture, 4)
    names = list(net.groups)
    net.groups[names[-1]].requires_grad_(False)
    expected = empirical_kernel(net, x, trainable=names[:-1]).ntk
    torch.testing.assert_close(empirical_kernel(net, x).ntk, expected)
    net.requires_grad_(False)
    frozen = empirical_kernel(net, x)
    assert not frozen.ntk.any()
    torch.testing.assert_close(frozen.ck, empirical_kernel(net, x, trainable=names).ck)


@every_architecture
def test_all_counts_a_fixed_readout_too(architecture):
    x = data(architecture, 4)
    expected = empirical_kernel(network(architecture, trainable="all"), x).ntk
    found = empirical_kernel(network(architecture), x, trainable="all").ntk
    torch.testing.assert_close(found, expected)


@every_architecture
def test_neither_inference_mode_nor_autocast_matters(architecture):
    net, x = network(architecture, dtype=torch.float32), data(architecture, 4).float()
    expected = empirical_kernel(net, x)
    for context in (torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.no_grad()):
        with context:
            found = empirical_kernel(net, x.clone())
        torch.testing.assert_close(found.ntk, expected.ntk)
        torch.testing.assert_close(found.ck, expected.ck)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _, x: empirical_kernel(lambda y: y, x), TypeError, "torch.nn.Module"),
        (lambda net, x: empirical_kernel(net, x[:, :2]), ValueError, "x1 must have shape"),
        (lambda net, x: empirical_kernel(net, x, x.float()), TypeError, "x2 must have the"),
        (lambda net, x: empirical_kernel(net, x, trainable={"skip"}), ValueError, "chosen from"),
        (lambda net, x: empirical_kernel(net, x, trainable=()), ValueError, "at least one"),
        (lambda net, x: empirical_kernel(net, x, trainable="input"), TypeError, "a set of group"),
    ],
)
def test_bad_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(network(DEQ(Tanh(), 0.2, 0.8)), inputs(4, 3))


@pytest.mark.parametrize("architecture", ARCHITECTURES[:3], ids=repr)
@pytest.mark.parametrize(
    "gradient", [OneStep(), Unrolled(), Implicit(Picard(rtol=0.1), rtol=0.5)], ids=repr
)
def test_kernels_are_exact_whatever_a_network_trains_with(architecture, gradient):
    x = data(architecture, 4)
    net = network(architecture, gradient=gradient)
    exact = empirical_kernel(network(architecture), x).ntk
    torch.testing.assert_close(empirical_kernel(net, x).ntk, exact, rtol=1e-10, atol=1e-11)
    assert net.last_solve is None  # nor does it disturb what training has noted


def test_kernels_of_equilibria_that_are_not_found_are_marked():
    net = network(DEQ(Tanh(), 9.0, 0.1), width=64, on_failure="status")
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        empirical_kernel(net, inputs(3, 3))
