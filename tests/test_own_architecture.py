"""A user's own architectures, made of public names alone, have every verb."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from shoal.activations import ReLU, Tanh
from shoal.architectures import Cell, ImplicitArchitecture, Layers, Weights


@dataclass(frozen=True)
class TwoLayerLoop(ImplicitArchitecture):
    """A DEQ whose loop passes two layers, with a readout of its own scale."""

    first: shoal.Activation
    second: shoal.Activation
    recurrent_variance: float = 0.3
    input_variance: float = 0.8
    readout_variance: float = 2.0

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        recurrent = Weights("recurrent", self.recurrent_variance, field="recurrent_variance")
        return Layers(
            (
                Cell(self.first, recurrent),
                Cell(self.second, Weights("between"), gain=0.9),
            ),
            readout=Weights("readout", self.readout_variance, field="readout_variance"),
            injection=Weights("input", self.input_variance, field="input_variance"),
        )


@dataclass(frozen=True)
class Blend(shoal.Architecture):
    """A chain in which each layer replaces a part of the features."""

    activations: tuple[shoal.Activation, ...]
    part: float = 0.6

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        first, *others = self.activations
        cells = [Cell(first, Weights("entry", 1.5))]
        cells += [
            Cell(
                sigma,
                Weights(f"blend{number}"),
                gain=self.part,
                skip=math.sqrt(1 - self.part**2),
            )
            for number, sigma in enumerate(others, start=2)
        ]
        return Layers(tuple(cells))


LOOP, CHAIN = (
    TwoLayerLoop(Tanh(), ReLU()),
    Blend((Tanh(), Tanh(), Tanh())),
)
BOTH = pytest.mark.parametrize("architecture", [LOOP, CHAIN], ids=["loop", "chain"])


def inputs(count: int, features: int = 10, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def network(
    architecture: shoal.Architecture, width: int, **options: Any
) -> shoal.networks.Network[Any]:
    return shoal.build(architecture, in_features=10, width=width, dtype=torch.float64, **options)


def by_hand(architecture: shoal.Architecture, x: Tensor, width: int, seed: int) -> Tensor:
    """The features of a random network, from their definition."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    if isinstance(architecture, Blend):
        weights = [math.sqrt(1.5) * draw(10, width), draw(width, width), draw(width, width)]
        z = torch.tanh(x @ weights[0]) / math.sqrt(width)
        for weight in weights[1:]:
            z = 0.8 * z + 0.6 * torch.tanh(z @ weight) / math.sqrt(width)
        return z
    w, between, u = draw(width, width), draw(width, width), draw(10, width)
    z = torch.zeros(len(x), width, dtype=torch.float64)
    for _ in range(60):
        hidden = torch.tanh(math.sqrt(0.3) * z @ w + math.sqrt(0.8) * x @ u) / math.sqrt(width)
        z = 0.9 * torch.relu(hidden @ between) / math.sqrt(width)
    return math.sqrt(2.0) * z


@BOTH
def test_kernels_are_the_limits_of_networks_written_by_hand(architecture):
    x = inputs(4)
    wide = torch.stack([by_hand(architecture, x, 400, seed) for seed in range(12)])
    samples = wide @ wide.transpose(1, 2)
    error = 4 * samples.std(0) / math.sqrt(12) + 0.01  # the mean converges like 1/m
    assert ((samples.mean(0) - shoal.kernel(architecture, x).ck).abs() <= error).all()


@BOTH
def test_kernel_functions(architecture):
    x = inputs(5)
    function = shoal.kernel_function(architecture)
    whole = shoal.kernel(architecture, x)
    one = torch.ones(5, dtype=torch.float64)
    products = (x @ x.T).fill_diagonal_(1.0)  # at an angle of zero, slopes have no last bits
    for found, wanted in zip(function(one[:, None], one, products), whole, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)
    shares = [
        shoal.kernel(architecture, x, trainable={g}).ntk for g in architecture.parameter_groups
    ]
    torch.testing.assert_close(torch.stack(shares).sum(0), whole.ntk, rtol=1e-10, atol=1e-10)


def test_kernels_are_differentiable_in_named_variances():
    x, value = inputs(3), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    shoal.kernel(LOOP, x, variances={"readout_variance": value}).ck.sum().backward()
    assert value.grad is not None
    wanted = shoal.kernel(LOOP, x).ck.sum() / 2
    assert float(value.grad) == pytest.approx(float(wanted), rel=1e-9)


@pytest.mark.thorough
@BOTH
def test_coefficients_equivalents_and_spectra(architecture):
    mixture = shoal.GaussianMixture([[0.0] * 300], 1.0)
    x, labels = mixture.sample(150, seed=1)
    found = shoal.equivalent(architecture, x, labels, input_norm=1.0)
    assert max(found.error(40)) < 0.1
    values = torch.linalg.eigvalsh(found.ck.to_dense())
    low, high = shoal.spectrum(architecture, mixture, n=150).ck.edges[-1]
    assert float(((values > 0.9 * low) & (values < 1.1 * high)).double().mean()) > 0.95


@dataclass(frozen=True)
class Offset(shoal.Architecture):
    """Two layers, the second with biases, whose variance is no field."""

    activations: tuple[shoal.Activation, ...] = (Tanh(), ReLU())

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        first, second = self.activations
        biases = Weights("threshold", 0.3)
        last = Cell(second, Weights("last"), bias=biases)
        return Layers((Cell(first, Weights("entry")), last))


def test_biases_of_any_name_keep_the_kernel_of_orthogonal_inputs():
    c = shoal.coefficients(Offset(), input_norm=1.0)
    orthogonal = shoal.kernel_function(shoal.centered(Offset(), input_norm=1.0))(1.0, 1.0, 0.0)
    assert not c.center
    assert c.ck.offset == pytest.approx(float(orthogonal.ck), rel=1e-9)
    assert c.ntk.offset == pytest.approx(float(orthogonal.ntk), rel=1e-9)


@BOTH
def test_training_and_regression_are_predicted(architecture):
    x, x_test = inputs(12), inputs(4, seed=1)
    y = torch.sin(3 * x[:, 0])
    flow = shoal.gradient_flow(architecture, x, y, x_test, [0.0, 1.0, math.inf])
    kernels, cross = shoal.kernel(architecture, x), shoal.kernel(architecture, x_test, x)
    limit = cross.ntk @ torch.linalg.solve(kernels.ntk, y)
    torch.testing.assert_close(flow.test_mean[-1], limit, rtol=1e-6, atol=1e-8)
    regression = shoal.kernel_regression(architecture, x, y, ridge=1e-3, center=False)
    noisy = kernels.ntk + 1e-3 * torch.eye(12, dtype=torch.float64)
    wanted = cross.ntk @ torch.linalg.solve(noisy, y)
    torch.testing.assert_close(regression.predict(x_test), wanted, rtol=1e-6, atol=1e-8)


@BOTH
def test_the_ntk_is_the_gram_matrix_of_gradients(architecture):
    net, x = network(architecture, 20, seed=2), inputs(3)
    rows = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(net(one[None]).sum(), net.parameters())]
        )
        for one in x
    ]
    jacobian = torch.stack(rows)
    torch.testing.assert_close(
        shoal.empirical_kernel(net, x).ntk, jacobian @ jacobian.T, rtol=1e-7, atol=1e-9
    )


@BOTH
def test_networks_are_saved(architecture, tmp_path):
    net, x, path = network(architecture, 20, seed=3), inputs(3), tmp_path / "net.safetensors"
    shoal.save(net, path)
    with pytest.raises(ValueError, match=r"load\(\.\.\., architectures=\[\.\.\.\]\)"):
        shoal.load(path)
    same = shoal.load(path, architectures=[type(architecture)])
    assert same.architecture == architecture
    assert torch.equal(same(x), net(x))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # PyTorch's exporter warns of itself
def test_an_explicit_network_is_exported(tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    net, x = network(CHAIN, 20), inputs(3)
    shoal.export(net, tmp_path / "blend.onnx")
    (found,) = onnxruntime.InferenceSession(tmp_path / "blend.onnx").run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), net(x).detach(), rtol=0, atol=1e-6)


def test_the_gain_of_a_loop_is_bounded():
    net = network(LOOP, 64)
    found = net.well_posedness()
    matrices = math.prod(
        float(torch.linalg.matrix_norm(net.get_parameter(n).detach(), 2))
        for n in ("recurrent", "between")
    )
    exact = math.sqrt(0.3) * 0.9 / 64 * matrices
    assert found.gain_lower <= exact <= found.gain_upper <= 1.01 * exact
    assert shoal.GainConstraint(net, max_gain=0.8).apply() <= 0.8
    assert net.well_posedness().gain_upper <= 0.8


@BOTH
def test_no_theorem_is_made_up(architecture):
    x = inputs(3)
    with pytest.raises(TypeError, match="no theorem is known"):
        shoal.certify(network(architecture, 16), x, x[:, 0])


@dataclass(frozen=True)
class Named(shoal.Architecture):
    """One layer of a group that is given."""

    group: str

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        return Layers((Cell(Tanh(), Weights(self.group)),))


@pytest.mark.parametrize("group", ["forward", "spec", "training", "a.b", ""])
def test_names_that_no_parameter_can_have(group):
    with pytest.raises(ValueError, match="named like attributes of"):
        network(Named(group), 8)


BAD_PARTS = [
    (lambda: Weights(3), TypeError, "group must be a str, got 3"),
    (lambda: Weights("w", -1.0), ValueError, "variance of 'w' must be >= 0, got -1"),
    (lambda: Weights("w", math.nan), ValueError, "variance of 'w' must be finite"),
    (lambda: Weights("w", "1"), TypeError, "variance of 'w' must be a real number"),
    (lambda: Weights("w", tangent=-1.0), ValueError, "tangent of 'w' must be >= 0"),
    (lambda: cell(activation=torch.tanh), TypeError, "activation must be an Activation"),
    (lambda: cell(weights="w"), TypeError, "weights must be a Weights, got 'w'"),
    (lambda: cell(gain=math.inf), ValueError, "gain must be finite"),
    (lambda: cell(skip="1"), TypeError, "skip must be a real number"),
    (lambda: cell(bias=0.1), TypeError, "bias must be a Weights, got 0.1"),
    (lambda: Layers(()), ValueError, "cells must have at least one"),
    (lambda: Layers([cell()]), TypeError, "cells must be a tuple"),
    (lambda: Layers((1,)), TypeError, r"cells\[0\] must be a Cell, got 1"),
    (lambda: Layers((cell(),), readout=1.0), TypeError, "readout must be a Weights"),
    (lambda: Layers((cell(),), injection="in"), TypeError, "injection must be a Weights"),
]


def cell(**changes: Any) -> Cell:
    return Cell(**{"activation": Tanh(), "weights": Weights("w")} | changes)


@pytest.mark.parametrize(("make", "error", "message"), BAD_PARTS)
def test_parts_that_no_network_has(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_groups_are_named_once():
    with pytest.raises(ValueError, match="'readout' again"):
        Named("readout").layers()


@dataclass(frozen=True)
class ExplicitLoop(shoal.Architecture):
    """A loop that does not say so."""

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        cell = Cell(Tanh(), Weights("recurrent", 0.1))
        return Layers((cell,), injection=Weights("input"))


def test_loops_are_implicit_architectures():
    with pytest.raises(TypeError, match="must be an ImplicitArchitecture"):
        network(ExplicitLoop(), 8)


@dataclass(frozen=True)
class Scaled(shoal.Architecture):
    """Weights whose variance is a multiple of what the field that they name holds."""

    name: str = "variance"
    variance: float = 0.5

    def layers(self, width: int | None = None) -> Layers:  # noqa: ARG002
        weights = Weights("entry", 2 * self.variance, field=self.name)
        return Layers((Cell(Tanh(), weights),))


@pytest.mark.parametrize("name", ["variance", "nothing"])
def test_fields_hold_the_variances_that_they_stand_for(name):
    """Or derivatives in the field would be those in the variance."""
    variance = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=f"'entry' of Scaled .* field '{name}', got 1.0"):
        shoal.kernel(Scaled(name), inputs(3), variances={name: variance})
