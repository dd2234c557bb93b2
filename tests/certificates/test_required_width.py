"""Widths that theorems ask for, against conditions that are written out and against runs."""

import math

import pytest
import torch

import shoal
from certificates.networks import data, sphere
from shoal.certificates.gao2022 import infinite_gram
from shoal.certificates.trial import trains

DEQ = shoal.DEQ.ling2023(weight_variance=0.001, in_features=10)
FLOW = "Ling 2023, Theorem 1 (corrected), gradient flow"
DESCENT = "Ling 2023, Theorem 1 (corrected), gradient descent"


def test_smaller_labels_need_less_width_and_a_readout_of_one_none_suffices() -> None:
    x, y = sphere(2, 1.0)
    small, large = (
        shoal.required_width(DEQ, x, label * y, readout_scale=0.0, largest_width=0)
        for label in (0.1, 0.2)
    )
    assert small.certified is None
    # Eq. (7) of the flow is λ_* m/2 ≥ (2/δ) c_a √(nd) e_0, with c_a ~ √m: m ~ e_0² at least
    assert 3 <= large.theorems[FLOW] / small.theorems[FLOW] <= 6
    assert small.theorems[FLOW] < small.theorems[DESCENT] < 1e5
    ordinary = shoal.required_width(DEQ, x, y, largest_width=0)
    assert math.isinf(ordinary.theorems[DESCENT])
    assert "no width" in str(ordinary)


def test_a_network_of_the_required_width_satisfies_the_theorem() -> None:
    x, y = sphere(2, 0.05)
    found = shoal.required_width(DEQ, x, y, readout_scale=0.0, largest_width=0)
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
    found = shoal.required_width(
        shoal.ImplicitNetwork(0.05), x, y, readout_scale=0.0, largest_width=0, confidence=0.5
    )
    least = float(torch.linalg.eigvalsh(infinite_gram(x))[0])
    size, error = float(torch.linalg.matrix_norm(x, 2)) ** 2, float(y.norm())
    width = found.theorems["Gao 2022, Lemma 3.5 (corrected), gradient flow"]
    c = 2 + math.sqrt(2 * math.log(8)) / math.sqrt(width)
    expected = (192 * c * size * math.sqrt(3) * error / least**2) ** 2
    assert width == pytest.approx(expected, rel=0.1)
    assert math.isinf(found.theorems["Gao 2022, Lemma 3.5 (printed), gradient flow"])


def test_rounding_does_not_make_widths_infinite() -> None:
    for seed in range(6):
        x, y = data(2, 3, norm=1.0, label=0.01, seed=seed)
        found = shoal.required_width(
            shoal.ImplicitNetwork(0.05), x, y, readout_scale=0.0, largest_width=0
        )
        assert math.isfinite(found.theorems["Gao 2022, Lemma 3.5 (corrected), gradient flow"])


def test_experience_needs_less_than_certificates_and_these_less_than_theorems() -> None:
    x, y = sphere(2, 0.1)
    found = shoal.required_width(DEQ, x, y, readout_scale=0.0, largest_width=64)
    assert found.empirical is not None
    assert found.certified is not None
    assert found.empirical <= found.certified < found.theorems[FLOW]


def test_no_width_makes_a_contraction_of_a_large_variance() -> None:
    x, y = sphere(2, 1e-60)
    large = shoal.DEQ.ling2023(weight_variance=0.3, in_features=10)
    found = shoal.required_width(large, x, y, 0.9, readout_scale=0.0, largest_width=0)
    assert all(map(math.isinf, found.theorems.values()))


def test_a_network_that_does_not_train_is_told() -> None:
    x, y = sphere(2, 0.1)
    x[1] = x[0]  # and different labels
    net = shoal.build(DEQ, in_features=10, width=64, dtype=torch.float64)
    assert not trains(net, x, torch.stack([y[0], -y[0]])[:, None])


def test_the_infinite_gram_matrix_is_the_dual_of_the_relu() -> None:
    x, _ = data(5, 4, norm=1.0, label=1.0)
    x = x * torch.arange(1, 6, dtype=torch.float64)[:, None]
    squares = x.square().sum(1)
    dual = shoal.gaussian.dual(shoal.ReLU(), squares[:, None], squares, x @ x.T)
    assert torch.allclose(infinite_gram(x), dual, rtol=1e-13)


def test_bad_arguments_are_named() -> None:
    x, y = sphere(2, 0.1)
    with pytest.raises(ValueError, match="confidence must be < 1"):
        shoal.required_width(DEQ, x, y, confidence=1.0)
    with pytest.raises(ValueError, match="y must have shape"):
        shoal.required_width(DEQ, x, y[:1])
    with pytest.raises(TypeError, match="largest_width must be an integer"):
        shoal.required_width(DEQ, x, y, largest_width=2.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no theorem"):
        shoal.required_width(shoal.ConvResNet(shoal.Tanh(), 2), x, y)
    with pytest.raises(TypeError, match="as in Ling 2023"):
        shoal.required_width(shoal.DEQ(shoal.Tanh(), 0.1, 0.1), x, y)
