"""Designs for networks: the kernels of these are measured, and told of."""

import pytest
import torch

import shoal
from shoal.networks import Network

DEQ = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)


def network(width: int) -> Network:
    return shoal.build(DEQ, in_features=5, width=width, dtype=torch.float64, seed=0)


@pytest.mark.thorough
def test_kernels_of_a_changed_network_are_measured() -> None:
    net = network(400)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1.3)
    found = shoal.design(net, tau0=1.5, match="ntk", method="sphere")
    assert found.original == DEQ
    assert found.network is not None
    x = torch.randn(400, 5, generator=torch.manual_seed(1), dtype=torch.float64)
    x = 1.5 * torch.nn.functional.normalize(x)
    finite, limit = shoal.empirical_kernel(net, x), shoal.kernel(DEQ, x)
    for own, wanted, gap in zip(finite, limit, found.network, strict=True):
        expected = torch.linalg.matrix_norm(own.detach() - wanted, 2)
        expected /= torch.linalg.matrix_norm(wanted, 2)
        assert gap == pytest.approx(float(expected), rel=0.3)  # at other inputs
        assert gap > 0.3
        assert f"{gap:.2%}" in found.explanation


@pytest.mark.thorough
def test_kernels_of_wider_networks_are_nearer() -> None:
    near, far = (
        shoal.design(network(m), tau0=1.0, match="ck", method="sphere").network for m in (2000, 20)
    )
    assert near is not None
    assert far is not None
    assert near.ck < far.ck
    assert near.ntk < far.ntk


@pytest.mark.thorough
def test_designs_say_whose_kernels_they_are() -> None:
    for method in ("moments", "sphere"):
        found = shoal.design(DEQ, tau0=1.0, match="ck", method=method)
        assert found.network is None
        assert "infinite width" in found.explanation


@pytest.mark.thorough
def test_networks_say_what_is_trained() -> None:
    net = shoal.build(DEQ, in_features=5, width=50, trainable={"readout"}, dtype=torch.float64)
    found = shoal.design(net, tau0=1.0, method="sphere")
    assert (found.match, found.trainable) == ("ck", {"readout"})
