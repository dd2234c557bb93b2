"""What is kept for later calls: no two activations are confused, and its size is bounded."""

import numpy as np
import pytest
import torch

import shoal
from shoal.core import caches
from shoal.core.caches import cached
from shoal.kernels.plan import shared_norm


@pytest.fixture
def store(monkeypatch):
    """An empty store for a million bytes."""
    empty = caches._Store(10**6)
    monkeypatch.setattr(caches, "_STORE", empty)
    return empty


def test_results_are_kept_and_forgotten(store):
    calls = []

    @cached
    def double(x, *, twice=False):
        calls.append(x)
        return None if x == 0 else (4 * x if twice else 2 * x)

    assert [double(1), double(1), double(1, twice=True), double(0), double(0)] == [
        2,
        2,
        4,
        None,
        None,
    ]
    assert calls == [1, 1, 0]
    shoal.clear_caches()
    assert not store.entries
    assert double(1) == 2
    assert calls == [1, 1, 0, 1]


def test_errors_are_not_kept(store):
    @cached
    def fails(x):
        raise ValueError(x)

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            fails(3)
    assert not store.entries


def test_bytes_are_bounded_and_what_is_used_stays(store):
    @cached
    def zeros(k):
        return {"a": [torch.zeros(20_000, dtype=torch.float64)], "k": k}

    for k in range(50):
        zeros(k)
        assert zeros(0)["k"] == 0
        assert store.size <= store.most
    assert store.size > store.most / 2
    kept = [key.parts[1][0] for key in store.entries]
    assert 0 in kept
    assert 1 not in kept


def test_what_is_larger_than_the_store_is_not_kept(store):
    @cached
    def large(k):
        return np.zeros(10**6) + k

    assert large(1).sum() == 10**6
    assert not store.entries


def test_views_are_counted_once():
    x = torch.zeros(1000, dtype=torch.float64)
    assert caches._bytes([x, x[:5], x.view(10, 100)], set()) < 9000
    assert caches._bytes(np.zeros((100, 10)).T, set()) == 8000


@pytest.mark.parametrize("kind", [np.array, torch.tensor])
def test_arrays_of_a_class_that_change_in_place_count(kind):
    class Table(shoal.Activation):
        values = kind([0.0] * 2000)  # more than a repr shows

        def function(self, x):
            return x * (1 + float(self.values.sum()))

    before = shoal.gaussian.moments(Table(), 1.0).square
    Table.values[1000] = 1.0
    after = shoal.gaussian.moments(Table(), 1.0).square
    assert [float(before), float(after)] == pytest.approx([1.0, 4.0])


def test_methods_of_a_class_that_are_replaced_count(monkeypatch):
    class Own(shoal.Activation):
        def function(self, x):
            return torch.tanh(x)

    assert Own().lipschitz == pytest.approx(1.0)
    monkeypatch.setattr(Own, "function", lambda _, x: 3 * torch.tanh(x))
    assert Own().lipschitz == pytest.approx(3.0)


def test_norms_of_batches_are_shared_up_to_rounding():
    for dtype, rounding in ((torch.float64, 1e-15), (torch.float32, 2e-8)):
        for norm in (1.0, 0.25, 3.0):
            near = [
                shared_norm(torch.tensor([norm * (1 + k * rounding)]).double(), dtype)
                for k in (-1, 0, 1)
            ]
            assert near == [norm] * 3
    other = torch.tensor([0.7310585786300049], dtype=torch.float64)
    assert shared_norm(other, torch.float64) == pytest.approx(float(other), rel=1e-13)
    assert shared_norm(other, torch.float32) == pytest.approx(float(other), rel=1.2e-7)


def test_lists_of_an_instance_count_as_they_are_now():
    class Leaky(shoal.Activation):
        def __init__(self, slope):
            self.slopes = [slope]

        def function(self, x):
            return torch.where(x > 0, x, self.slopes[0] * x)

    phi = Leaky(0.1)
    assert phi == Leaky(0.1) != Leaky(0.3)
    for slope in (0.1, 0.3):
        phi.slopes[0] = slope
        expected = shoal.gaussian.moments(shoal.LeakyReLU(slope), 1.5)
        assert shoal.gaussian.moments(phi, 1.5).square == pytest.approx(expected.square)


def test_coefficients_are_forgotten_too():
    slope = 0.1

    class Leaky(shoal.Activation):
        def function(self, x):
            return torch.where(x > 0, x, slope * x)  # of which nothing is known here

    def found(phi):
        network = shoal.FullyConnected((phi,))
        return shoal.coefficients(network, tau0=1.0, method="closed", center=False).ck.alpha3

    for slope in (0.1, 0.6):
        shoal.clear_caches()
        assert found(Leaky()) == pytest.approx(found(shoal.LeakyReLU(slope)), rel=1e-12)
