"""Designs for networks: the kernels of these are measured, and told of."""

import pytest
import torch

import shoal
from shoal.networks import Network

DEQ = shoal.DEQ(shoal.activations.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def network(width: int) -> Network:
    return shoal.build(DEQ, in_features=5, width=width, dtype=torch.float64, seed=0)


@pytest.mark.thorough
def test_kernels_of_a_changed_network_are_measured() -> None:
    net = network(400)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.3)
    found = shoal.design(net, input_norm=1.5, which="ntk", method="sphere")
    assert found.original == DEQ
    assert found.network is not None
    sets = torch.randn(12, 32, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    gaps = []
    for x in 1.5 * torch.nn.functional.normalize(sets, dim=2):
        finite, limit = shoal.empirical_kernel(net, x), shoal.kernel(DEQ, x)
        sizes = [
            torch.linalg.matrix_norm(torch.stack([own.detach() - wanted, wanted]), 2)
            for own, wanted in zip(finite, limit, strict=True)
        ]
        gaps.append([float(off / size) for off, size in sizes])
    # it is measured at 32 inputs of its own, of which there is one set
    gap, others = torch.tensor(found.network), torch.tensor(gaps)
    assert bool(((gap - others.mean(0)).abs() < 4 * others.std(0)).all())
    assert float((others.std(0) / others.mean(0)).max()) < 0.15
    for one in found.network:
        assert one > 0.3
        assert f"{one:.2%}" in found.explanation


@pytest.mark.thorough
def test_kernels_of_wider_networks_are_nearer() -> None:
    near, far = (
        shoal.design(network(m), input_norm=1.0, which="ck", method="sphere").network
        for m in (2000, 20)
    )
    assert near is not None
    assert far is not None
    assert near.ck < far.ck
    assert near.ntk < far.ntk


@pytest.mark.thorough
def test_designs_say_whose_kernels_they_are() -> None:
    for method in ("moments", "sphere"):
        found = shoal.design(DEQ, input_norm=1.0, which="ck", method=method)
        assert found.network is None
        assert "infinite width" in found.explanation


@pytest.mark.thorough
def test_networks_say_what_is_trained() -> None:
    net = shoal.build(DEQ, in_features=5, width=50, trainable={"readout"}, dtype=torch.float64)
    found = shoal.design(net, input_norm=1.0, method="sphere")
    assert (found.which, found.trainable) == ("ck", {"readout"})
