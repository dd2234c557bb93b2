"""Networks of random architectures: their equations written out, and what saving keeps."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import elu, gelu

import shoal

FUNCTIONS = {
    shoal.activations.Tanh(): torch.tanh,
    shoal.activations.ReLU(): torch.relu,
    shoal.activations.GELU(): gelu,
    shoal.activations.ELU(): elu,
    shoal.activations.Affine(shoal.activations.Erf(), 0.7, 0.3): lambda x: 0.7 * torch.erf(x) + 0.3,
}
activations = st.sampled_from(list(FUNCTIONS))
seeds = st.integers(0, 2**31)
sizes = st.integers(1, 5)
few = settings(max_examples=8)


def numbers(seed: int, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def built(architecture, features: int, outputs: int, seed: int):
    return shoal.build(
        architecture,
        in_features=features,
        width=12,
        out_features=outputs,
        seed=seed,
        dtype=torch.float64,
    )


@few
@given(
    phi=activations,
    recurrent=st.floats(0, 0.05),
    injected=st.floats(0.1, 2),
    bias=st.sampled_from([0.0, 0.5]),
    features=sizes,
    outputs=sizes,
    seed=seeds,
)
def test_a_deq_is_its_equation(phi, recurrent, injected, bias, features, outputs, seed) -> None:
    deq = shoal.DEQ(phi, recurrent, injected, bias_variance=bias)
    net, x = built(deq, features, outputs, seed), numbers(seed, 4, features)
    function, z = FUNCTIONS[phi], torch.zeros(4, 12, dtype=torch.float64)
    with torch.no_grad():
        shift = injected**0.5 * x @ net.input.T + (bias**0.5 * net.bias if bias else 0)
        for _ in range(200):
            z = function(recurrent**0.5 * z @ net.recurrent.T + shift) / 12**0.5
        torch.testing.assert_close(net(x), z @ net.readout.T, rtol=1e-8, atol=1e-9)


@few
@given(
    chosen=st.lists(activations, min_size=1, max_size=3), features=sizes, outputs=sizes, seed=seeds
)
def test_a_fully_connected_network_is_its_layers(chosen, features, outputs, seed) -> None:
    net = built(shoal.FullyConnected(chosen), features, outputs, seed)
    x = numbers(seed, 4, features)
    layers = dict(net.named_parameters())
    readout = layers.pop("readout")
    with torch.no_grad():
        h = x
        for phi, weight in zip(chosen, layers.values(), strict=True):
            h = FUNCTIONS[phi](h @ weight.T) / 12**0.5
        torch.testing.assert_close(net(x), h @ readout.T, rtol=1e-12, atol=1e-12)


@few
@given(
    recurrent=st.floats(0, 0.05),
    factor=st.floats(1e-3, 1e3),
    seed=seeds,
)
def test_rectified_networks_are_positively_homogeneous(recurrent, factor, seed) -> None:
    net, x = (
        built(shoal.DEQ(shoal.activations.ReLU(), recurrent, 0.8), 3, 2, seed),
        numbers(seed, 4, 3),
    )
    with torch.no_grad():
        torch.testing.assert_close(net(factor * x), factor * net(x), rtol=1e-7, atol=1e-8 * factor)


@few
@given(
    architecture=st.one_of(
        st.builds(shoal.DEQ, activations, st.floats(0, 0.05), st.floats(0.1, 2)),
        st.builds(shoal.FullyConnected, st.lists(activations, min_size=1, max_size=3)),
        st.builds(shoal.ResNet, activations, st.integers(1, 3)),
        st.builds(shoal.ImplicitNetwork, st.floats(0.01, 0.4)),
    ),
    seed=seeds,
    order=st.permutations(range(4)),
)
def test_networks_are_saved_whole_and_see_one_sample_at_a_time(
    tmp_path_factory, architecture, seed, order
) -> None:
    net, x = built(architecture, 3, 2, seed), numbers(seed, 4, 3)
    path = tmp_path_factory.mktemp("saved") / "net.safetensors"
    shoal.save(net, path)
    loaded = shoal.load(path)
    assert loaded.architecture == architecture
    with torch.no_grad():
        assert torch.equal(loaded(x), net(x))
        torch.testing.assert_close(net(x[order]), net(x)[order], rtol=1e-7, atol=1e-8)
