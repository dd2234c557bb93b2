"""Certificates for the three architectures of Du 2018."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import shoal
from certificates.explicit_networks import inputs, jacobians, move, network
from certificates.networks import data, descend
from shoal.certificates.explicit import measure_explicit
from shoal.certificates.explicit_theorems import du2018_bounds
from shoal.certificates.papers.du2018 import lemma_constants

UNIT, _ = data(2, 10, norm=1.0, label=0.1)
LABELS = torch.tensor([0.1, -0.1], dtype=torch.float64)
IMAGES = inputs("convolutional", samples=2, seed=4)


def near(net: Any, x: Tensor) -> Tensor:
    """Labels near the initial outputs."""
    return net(x).detach()[:, 0] + LABELS


def trio(width: int) -> list[tuple[Any, Tensor]]:
    """The three architectures, with inputs."""
    options: Any = {"width": width, "dtype": torch.float64, "seed": 1}
    scale = 0.5 * shoal.kernels.pair_eigenvalue(UNIT) ** 1.5
    residual = shoal.ResNet("softplus", 3, residual_scale=scale)
    convolutional = shoal.ConvResNet(shoal.activations.Tanh(), 2, residual_scale=0.2)
    return [
        (
            shoal.build(
                shoal.FullyConnected.du2018(shoal.activations.Tanh(), 2), in_features=10, **options
            ),
            UNIT,
        ),
        (shoal.build(residual, in_features=10, **options), UNIT),
        (shoal.build(convolutional, in_features=2, pixel_axes=1, **options), IMAGES),
    ]


@pytest.mark.thorough("1", "2")
@pytest.mark.parametrize("index", range(3))
def test_a_proved_certificate_is_kept_in_training(index: int) -> None:
    net, x = trio(512)[index]
    y = near(net, x)
    certificate = shoal.certify(net, x, y)
    assert certificate.status == "proved"
    assert certificate.rate is not None
    assert certificate.step_size is not None
    run = shoal.train(net, x, y, steps=60, certificate=certificate, monitor=5)
    assert run.step_size == certificate.step_size
    assert all(run.kept.values())
    assert {f"distance.layer{h}" for h in (1, 2)} | {"loss"} <= set(run.kept)
    assert float(run.losses[-1]) < certificate.rate**50 * float(run.losses[0]) + 1e-20


@pytest.mark.thorough("1", "2")
@pytest.mark.parametrize("index", range(3))
def test_a_step_that_is_too_large_is_refused(index: int) -> None:
    net, x = trio(512)[index]
    y = near(net, x)
    step = shoal.certify(net, x, y).step_size
    assert step is not None
    refusal = shoal.certify(net, x, y, step_size=300 * step)
    assert not refusal.holds
    assert refusal.first_failure is not None
    assert refusal.first_failure.name == "step size"
    first, second = (descend(net, x, y, 300 * step) for _ in range(2))
    assert second > first


def test_an_ordinary_network_with_ordinary_labels() -> None:
    """One hidden layer of Du 2018 at initialization, labels of one: nothing is made small."""
    net = shoal.build(
        shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1),
        in_features=10,
        width=2048,
        seed=0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, UNIT, 10 * LABELS)
    assert certificate.status == "proved"
    assert float((net(UNIT).detach()[:, 0] - 10 * LABELS).norm()) > 1


def test_what_the_paper_asks_for_is_reported() -> None:
    for net, x in trio(64):
        certificate = shoal.certify(net, x, near(net, x))
        corrected, printed = certificate.conclusions[2:]
        assert (corrected.form, printed.form) == ("corrected", "printed")
        assert corrected.theorem.startswith("Du 2018, Theorem")
        assert corrected.first_failure is not None
        assert corrected.first_failure.name in ("Gram matrix", "travel")
        assert not printed.sound
        assert printed.conditions[0].value == 0
        last = f"layer{net.architecture.depth}"
        limit = shoal.kernel(net.architecture, x, trainable={last}).ntk
        gram = shoal.empirical_kernel(net, x, trainable={last}).ntk.detach()
        numbers = certificate.measurements
        assert math.isclose(numbers["lambda_0"], float(torch.linalg.eigvalsh(limit)[0]))
        found = float(torch.linalg.eigvalsh(gram)[0])
        assert found * (1 - 1e-9) <= numbers["least eigenvalue of G^(H)"] <= found
        share = shoal.gaussian.moments(_activation(net), 1.0).square
        assert math.isclose(numbers["c_sigma"], 1 / float(share))


def _activation(net: Any) -> Any:
    several = getattr(net.architecture, "activations", None)
    return several[0] if several else net.architecture.activation


@pytest.mark.parametrize("name", ["tanh", "softplus, 3 layers", "resnet", "convolutional"])
def test_the_lemmas_of_the_paper(name: str) -> None:
    """Gram matrix, gradients and steps stay within the corrected constants of Lemmas A, B, C."""
    generator, x = torch.Generator().manual_seed(2), inputs(name)
    full = "resnet" not in name and "conv" not in name
    for trial in range(4):
        net = network(name, seed=trial, width=60)
        y = torch.zeros(len(x), 1, dtype=torch.float64)
        bounds = du2018_bounds(net, x, measure_explicit(net, x, y), 1.0)
        assert bounds.exponential == full  # which of the lemmas are meant
        lemmas = lemma_constants(bounds)
        radius = lemmas.radius * 10.0 ** -(trial % 2)
        start, outputs = jacobians(net, x), net(x).detach()
        move(net, x, radius * math.sqrt(60), generator)
        moved, last = jacobians(net, x), f"layer{net.architecture.depth}"
        drift = moved[last] @ moved[last].T - start[last] @ start[last].T
        limit = len(x) * lemmas.stability * radius
        assert float(torch.linalg.matrix_norm(drift, 2)) <= limit
        for matrix in moved.values():
            assert float(matrix.norm(dim=1).max()) <= lemmas.pace
        step = radius * math.sqrt(60)  # ηQ
        change = float((net(x).detach() - outputs).norm())
        assert change <= math.sqrt(len(x)) * lemmas.change * step
        for group, matrix in moved.items():
            bend = float((matrix - start[group]).norm(dim=1).max())
            assert bend <= lemmas.pace * lemmas.bend * step


def test_kinks_are_refused_for_that_reason() -> None:
    for architecture in (
        shoal.FullyConnected.du2018(shoal.activations.ReLU(), 2),
        shoal.ResNet(shoal.activations.LeakyReLU(0.1), 2),
        shoal.FullyConnected((shoal.activations.Tanh(), shoal.activations.ReLU())),
    ):
        net = shoal.build(architecture, in_features=10, width=32, dtype=torch.float64)
        certificate = shoal.certify(net, UNIT, LABELS)
        assert not certificate.holds
        assert certificate.first_failure is not None
        assert certificate.first_failure.name == "smooth"
        assert "smooth activation" in certificate.explanation


def test_parallel_inputs_are_refused() -> None:
    net = shoal.build(
        shoal.FullyConnected.du2018(shoal.activations.Tanh(), 2),
        in_features=10,
        width=256,
        dtype=torch.float64,
    )
    twice = UNIT[:1].repeat(2, 1)
    certificate = shoal.certify(net, twice, LABELS)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"
    assert certificate.measurements["lambda"] < 1e-12


def test_inputs_of_other_norms_are_named() -> None:
    net, x = trio(64)[0]
    corrected = shoal.certify(net, 2 * x, near(net, x)).conclusions[2]
    assert corrected.first_failure is not None
    assert corrected.first_failure.name == "unit norm"
    assert corrected.first_failure.value == pytest.approx(1.0)


def test_a_zero_readout_that_stays_fixed_never_trains() -> None:
    net = shoal.build(
        shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1),
        in_features=10,
        width=64,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, UNIT, LABELS)
    assert certificate.first_failure is not None
    assert "must not be zero" in certificate.first_failure.remedy


@pytest.mark.parametrize("trainable", [{"layer1"}, {"layer2"}, {"layer1", "layer2"}])
def test_any_groups_can_be_trained(trainable: set[str]) -> None:
    architecture = shoal.FullyConnected.du2018(shoal.activations.Tanh(), 2)
    net = shoal.build(
        architecture,
        in_features=10,
        width=512,
        trainable=trainable,
        seed=1,
        dtype=torch.float64,
    )
    certificate = shoal.certify(net, UNIT, near(net, UNIT))
    assert certificate.status == "proved"
    kernel = shoal.empirical_kernel(net, UNIT).ntk.detach()
    least = float(torch.linalg.eigvalsh(kernel)[0])
    assert certificate.measurements["least eigenvalue of the NTK"] == pytest.approx(least)


def test_trained_readouts_and_several_outputs() -> None:
    architecture = shoal.FullyConnected((shoal.activations.Tanh(),))
    net = shoal.build(
        architecture,
        in_features=10,
        width=600,
        out_features=2,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    y = 0.3 * torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    certificate = shoal.certify(net, UNIT, y)
    assert certificate.status == "proved"
    assert len(certificate.conclusions) == 2
    assert certificate.rate is not None
    assert certificate.step_size is not None
    losses = [descend(net, UNIT, y, certificate.step_size) for _ in range(40)]
    assert all(v <= certificate.rate**k * losses[0] * (1 + 1e-9) for k, v in enumerate(losses))


def test_activations_without_proved_values_hold_as_measured() -> None:
    net = shoal.build(
        shoal.FullyConnected.du2018(shoal.activations.Erf(), 1),
        in_features=10,
        width=512,
        dtype=torch.float64,
    )
    assert shoal.certify(net, UNIT, near(net, UNIT)).status == "holds at the measured values"


def test_single_precision_and_extreme_numbers() -> None:
    architecture = shoal.FullyConnected.du2018(shoal.activations.Tanh(), 2)
    net = shoal.build(architecture, in_features=10, width=512, seed=1)
    x = UNIT.float()
    assert shoal.certify(net, x, net(x).detach()[:, 0] + LABELS.float()).status == "proved"
    for size in (0.0, 1e-200, 1e200):
        wild = shoal.build(architecture, in_features=10, width=16, dtype=torch.float64)
        with torch.no_grad():
            for p in wild.parameters():
                p *= size
        assert not shoal.certify(wild, UNIT, LABELS).holds


def test_networks_that_no_theorem_covers() -> None:
    gated = shoal.FullyConnected((shoal.activations.Tanh(),), norm_gated=True)
    net = shoal.build(gated, in_features=10, width=16, dtype=torch.float64)
    with pytest.raises(TypeError, match="gated by the norm"):
        shoal.certify(net, UNIT, LABELS)


def test_widths_of_theorems_and_of_experience() -> None:
    x = torch.eye(2, dtype=torch.float64)
    found = shoal.certificates.required_width(
        shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1),
        x,
        LABELS,
        largest_width=64,
        seeds=1,
    )
    corrected = found.theorems["Du 2018, Theorem 3.1 (corrected), gradient descent"]
    assert 1e10 < corrected < 1e14
    assert math.isinf(found.theorems["Du 2018, Theorem 3.1 (printed), gradient descent"])
    assert found.certified is not None
    assert found.empirical is not None
    assert found.empirical <= found.certified <= 64
    residual = shoal.ResNet("softplus", 2, residual_scale=0.5)
    width = shoal.certificates.required_width(residual, x, LABELS, largest_width=0).theorems
    assert 1e15 < width["Du 2018, Theorem 4.1 (corrected), gradient descent"] < 1e24


@pytest.mark.parametrize("name", ["tanh", "convolutional"])
def test_a_network_without_trained_weights_is_told_to_train_some(name: str) -> None:
    net = network(name).requires_grad_(False)
    failure = shoal.certify(net, inputs(name), torch.ones(3).double()).first_failure
    assert failure is not None
    assert failure.remedy.startswith("train some weights")
