"""Refusals are deserved, and name what would help."""

import pytest
import torch

import shoal
from certificates.networks import conclusion, descend, ling2023, sphere


def test_a_frozen_readout_is_refused() -> None:
    x, y = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(300, trainable={"recurrent", "input"}), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.remedy == "train the readout"


def test_a_step_ten_times_too_large_is_refused_and_diverges() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(500, readout_scale=0.0)
    good = shoal.certify(net, x, y)
    assert good.step_size is not None
    again = shoal.certify(net, x, y, step_size=good.step_size)
    assert again.step_size == good.step_size
    bad = shoal.certify(net, x, y, step_size=10 * good.step_size)
    assert not bad.holds
    assert bad.step_size is None
    assert bad.rate is None
    assert bad.first_failure is not None
    assert bad.first_failure.name == "step size"
    assert "smaller step" in bad.explanation
    losses = [descend(net, x, y, 10 * good.step_size) for _ in range(4)]
    assert losses[-1] > losses[0]


def test_recurrent_weights_that_are_too_large_are_refused() -> None:
    x, y = sphere(2, 0.1)
    certificate = shoal.certify(ling2023(200, weight_variance=0.3), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "contraction"
    assert certificate.first_failure.value > 1


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_parallel_inputs_are_refused(factor: float) -> None:
    x, y = sphere(3, 0.1)
    x[1] = factor * x[0]
    certificate = shoal.certify(ling2023(300, readout_scale=0.0), x, y)
    assert not certificate.holds
    assert certificate.first_failure is not None
    assert "parallel" in certificate.first_failure.remedy
    net = shoal.build(
        shoal.ImplicitNetwork(0.1),
        in_features=10,
        width=300,
        readout_scale=0.0,
        dtype=torch.float64,
    )
    implicit = shoal.certify(net, x, y)
    assert not implicit.holds
    parallel = conclusion(implicit, "corrected", "gradient flow").conditions[0]
    assert parallel.name == "not parallel"
    assert not parallel.holds


def test_more_samples_than_units_have_no_rank() -> None:
    x, y = sphere(5, 0.1)
    certificate = shoal.certify(ling2023(4, readout_scale=0.0), x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"


def test_a_network_of_zeros_has_no_rank() -> None:
    x, y = torch.eye(2).double(), torch.tensor([0.1, -0.1]).double()
    net = shoal.build(shoal.ImplicitNetwork(0.1), in_features=2, width=8, dtype=torch.float64)
    with torch.no_grad():
        for weights in net.groups.values():
            weights.zero_()
    certificate = shoal.certify(net, x, y)
    assert certificate.first_failure is not None
    assert certificate.first_failure.name == "rank"
    assert not conclusion(certificate, "corrected", "gradient flow").holds


def test_inputs_of_zero_are_never_certified() -> None:
    x, y = sphere(2, 0.1)
    net = ling2023(100, readout_scale=0.0)  # its outputs are zero forever, whatever is trained
    certificate = shoal.certify(net, 0 * x, y)
    assert not any(found.holds for found in certificate.conclusions)
    assert certificate.first_failure is not None
    assert certificate.first_failure.relation == "<"  # found 0, needed < 0
    assert certificate.first_failure.needed == "< 0"


def test_remedies_mend() -> None:
    x, y = sphere(3, 1.0)
    refused = shoal.certify(ling2023(200), x, y).first_failure
    assert refused is not None
    assert refused.remedy.startswith("a zero readout (readout_scale=0) with smaller labels")
    assert shoal.certify(ling2023(200, readout_scale=0.0), x, 0.1 * y).holds
    x[1] = 2 * x[0]
    net = ling2023(200, readout_scale=0.0)
    refused = shoal.certify(net, x, 0.01 * y).first_failure
    assert refused is not None
    assert "perturbed, merged or removed" in refused.remedy
    noise = torch.randn(3, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert shoal.certify(net, x + 0.3 * noise, 0.01 * y).holds
    assert shoal.certify(net, x[1:], 0.01 * y[1:]).holds
