"""Widths that theorems ask for, against conditions that are written out and against runs."""

import math

import pytest
import torch

import shoal
from certificates.networks import data, sphere
from shoal.certificates.explicit_theorems import explicit_law
from shoal.certificates.papers.gao2022 import infinite_gram
from shoal.certificates.width import Draw

DEQ = shoal.DEQ.ling2023(weight_variance=0.001, in_features=10)
FLOW = "Ling 2023, Theorem 1 (corrected), gradient flow"
DESCENT = "Ling 2023, Theorem 1 (corrected), gradient descent"


@pytest.mark.thorough
def test_smaller_labels_need_less_width_and_a_readout_of_one_none_suffices() -> None:
    x, y = sphere(2, 1.0)
    small, large = (
        shoal.certificates.required_width(DEQ, x, label * y, readout_scale=0.0, largest_width=0)
        for label in (0.1, 0.2)
    )
    assert small.certified is None
    # Eq. (7) of the flow is λ_* m/2 ≥ (2/δ) c_a √(nd) e_0, with c_a ~ √m: m ~ e_0² at least
    assert 3 <= large.theorems[FLOW] / small.theorems[FLOW] <= 6
    assert small.theorems[FLOW] < small.theorems[DESCENT] < 1e5
    ordinary = shoal.certificates.required_width(DEQ, x, y, largest_width=0)
    assert math.isinf(ordinary.theorems[DESCENT])
    assert "no width" in str(ordinary)


def test_a_network_of_the_required_width_satisfies_the_theorem() -> None:
    x, y = sphere(2, 0.05)
    found = shoal.certificates.required_width(DEQ, x, y, readout_scale=0.0, largest_width=0)
    width = int(found.theorems[FLOW]) + 1
    net = shoal.build(
        DEQ, in_features=10, width=width, readout_scale=0.0, seed=3, dtype=torch.float64
    )
    flow = next(
        c
        for c in shoal.certify(net, x, y).conclusions
        if (c.form, c.dynamics) == ("corrected", "gradient flow")
    )
    assert flow.holds


def test_the_width_of_gao_2022_is_the_one_of_its_formula() -> None:
    x, y = data(3, 10, norm=1.0, label=0.01)
    found = shoal.certificates.required_width(
        shoal.ImplicitNetwork(0.05), x, y, readout_scale=0.0, largest_width=0, confidence=0.5
    )
    least = float(torch.linalg.eigvalsh(infinite_gram(x))[0])
    size, error = float(torch.linalg.matrix_norm(x, 2)) ** 2, float(y.norm())
    width = found.theorems["Gao 2022, Lemma 3.5 (corrected), gradient flow"]
    c = 2 + math.sqrt(2 * math.log(8)) / math.sqrt(width)
    expected = (192 * c * size * math.sqrt(3) * error / least**2) ** 2
    assert width == pytest.approx(expected, rel=0.01)
    assert math.isinf(found.theorems["Gao 2022, Lemma 3.5 (printed), gradient flow"])


def test_rounding_does_not_make_widths_infinite() -> None:
    for seed in range(6):
        x, y = data(2, 3, norm=1.0, label=0.01, seed=seed)
        found = shoal.certificates.required_width(
            shoal.ImplicitNetwork(0.05), x, y, readout_scale=0.0, largest_width=0
        )
        assert math.isfinite(found.theorems["Gao 2022, Lemma 3.5 (corrected), gradient flow"])


@pytest.mark.thorough
def test_experience_needs_less_than_certificates_and_these_less_than_theorems() -> None:
    x, y = sphere(2, 0.1)
    found = shoal.certificates.required_width(DEQ, x, y, readout_scale=0.0, largest_width=64)
    assert found.empirical is not None
    assert found.certified is not None
    assert found.empirical <= found.certified < found.theorems[FLOW]


@pytest.mark.thorough
def test_no_width_makes_a_contraction_of_a_large_variance() -> None:
    x, y = sphere(2, 1e-60)
    large = shoal.DEQ.ling2023(weight_variance=0.3, in_features=10)
    found = shoal.certificates.required_width(large, x, y, 0.9, readout_scale=0.0, largest_width=0)
    assert all(map(math.isinf, found.theorems.values()))


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    with pytest.raises(ValueError, match="confidence must be < 1"):
        shoal.certificates.required_width(DEQ, x, y, confidence=1.0)
    with pytest.raises(ValueError, match="y must have shape"):
        shoal.certificates.required_width(DEQ, x, y[:1])
    with pytest.raises(TypeError, match="largest_width must be an integer"):
        shoal.certificates.required_width(DEQ, x, y, largest_width=2.5)  # type: ignore[arg-type]
    net = shoal.build(DEQ, in_features=10, width=8, dtype=torch.float64)
    with pytest.raises(TypeError, match=r"got a LoopNetwork: take its \.architecture"):
        shoal.certificates.required_width(net, x, y)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="architecture must be an architecture such as a DEQ"):
        shoal.certificates.required_width("deq", x, y)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x must have shape \(samples, channels, pixels"):
        shoal.certificates.required_width(shoal.ConvResNet(shoal.activations.Tanh(), 2), x, y)
    with pytest.raises(ValueError, match=r"x must have shape \(samples, features\)"):
        shoal.certificates.required_width(DEQ, x[None], y)


@pytest.mark.thorough("deq")
@pytest.mark.parametrize(
    ("architecture", "words"),
    [
        (shoal.DEQ(shoal.activations.Tanh(), 0.002, 0.2), "parametrization='standard'"),
        (shoal.FullyConnected((shoal.activations.Tanh(),)), "FullyConnected.du2018"),
        (shoal.FullyConnected((shoal.activations.ReLU(),)), "one activation, which is smooth"),
    ],
    ids=["deq", "readout", "relu"],
)
def test_without_a_theorem_there_are_certificates_and_experience(
    architecture: shoal.Architecture, words: str
) -> None:
    x, y = sphere(2, 0.01)
    found = shoal.certificates.required_width(
        architecture, x, y, readout_scale=0.0, largest_width=64, seeds=1
    )
    assert not found.theorems
    assert words in found.assumption
    assert str(found).startswith("no theorem: ")
    assert found.empirical is not None
    if words == "one activation, which is smooth":
        assert found.certified is None
    else:
        assert found.certified is not None
        assert found.empirical <= found.certified


def test_others_than_du_2018_have_a_reason() -> None:
    x, y = data(2, 10, norm=1.0, label=0.1)
    du = shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1)
    for labels, scale in ((torch.stack([y, y], 1), 1.0), (y, 0.5)):
        found = shoal.certificates.required_width(
            du, x, labels, readout_scale=scale, largest_width=0
        )
        assert "one output and readout_scale = 1" in found.assumption


SOFTPLUS = shoal.ConvResNet(shoal.activations.Softplus(), 2, residual_scale=0.5)


def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 2, 5, generator=generator, dtype=torch.float64)
    return x / x.flatten(1).norm(dim=1)[:, None, None]


def test_one_layer_has_no_residual_whose_scale_could_matter() -> None:
    """Its constants by hand: c_x = (√c_σ L + 1/c_w) c_x0 and max β = √c_σ L c_x0."""
    x, y = torch.eye(2, dtype=torch.float64), torch.tensor([0.1, -0.1]).double()
    name = "Du 2018, Theorem 4.1 (corrected), gradient descent"
    small, large = (
        shoal.certificates.required_width(
            shoal.ResNet(shoal.activations.Softplus(), 1, residual_scale=scale),
            x,
            y,
            largest_width=0,
        ).theorems[name]
        for scale in (0.1, 3.0)
    )
    assert small == large
    c = 1 / float(shoal.gaussian.moments(shoal.activations.Softplus(), 1.0).square)
    slopes = shoal.gaussian.moments(shoal.activations.Sigmoid(), 1.0).square
    least, norm, feature = c * float(slopes), 2.0, 2.0  # of orthogonal inputs
    c_x = (math.sqrt(c) + 1 / norm) * feature
    gamma = c * feature * (3 * c_x + 2 * 0.25 * feature * (2 * norm * c_x + feature))
    error = math.sqrt(0.02) + 2 * math.sqrt(2 / 0.05)
    travel = 4 * math.sqrt(2) * math.sqrt(c) * feature * error / least  # R √m
    assert small == pytest.approx((2 * gamma * travel / (least / 4)) ** 2, rel=0.02)


def test_the_width_of_a_convolutional_network() -> None:
    x, y = images(), torch.tensor([0.1, -0.1]).double()
    found = shoal.certificates.required_width(SOFTPLUS, x, y, largest_width=0)
    width = found.theorems["Du 2018, Theorem 5.1 (corrected), gradient descent"]
    law = explicit_law(SOFTPLUS, Draw(x, y[:, None], 0.1, 1.0))
    assert not isinstance(law, str)
    for scale, holds in ((1.05, True), (0.95, False)):
        (corrected, _) = law(int(scale * width))
        assert all(condition.holds for condition in corrected.conditions) == holds
    # a unit sees three pixels: its layer's norm is 1 + √3 times √m
    net = shoal.build(SOFTPLUS, in_features=2, width=300, pixel_axes=1, dtype=torch.float64)
    layer = net.get_parameter("layer2").detach().flatten(1)
    largest = float(torch.linalg.matrix_norm(layer, 2)) / math.sqrt(300)
    assert largest == pytest.approx(1 + math.sqrt(3), rel=0.02)
