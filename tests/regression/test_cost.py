"""The model of what regressions cost: its arithmetic, and that rates can be measured."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import shoal
from shoal.regression import CostModel

MODEL = CostModel(
    features=784,
    columns=10,
    entry=1e-11,
    exact_entry=5e-11,
    column_entry=1e-11,
    multiply_add=2e-14,
    exchanged_byte=1e-10,
)


def test_times_follow_from_the_rates():
    cost = MODEL.predict(10**6, rank=10**4, steps=50, looks=2)
    assert cost.step_seconds == pytest.approx(5.0 + 0.1)
    assert cost.look_seconds == pytest.approx(25.0)
    assert cost.prepare_seconds == pytest.approx(0.5 + 3.0)
    assert cost.exchange_seconds == 0.0
    assert cost.seconds == pytest.approx(3.5 + 50 * 5.1 + 2 * 25.0)
    inputs, columns = 4 * 8 * 10**6 * 784, 2 * 10**10
    assert cost.memory == pytest.approx(inputs + columns, rel=0.1)


def test_processes_share_the_matrix_and_exchange_vectors():
    alone, eight = (MODEL.predict(10**6, rank=10**4, steps=50, processes=r) for r in (1, 8))
    assert eight.exchange_seconds == pytest.approx(2 * 8 * 8 * 10**7 * 1e-10)
    assert eight.step_seconds == pytest.approx((5.0 + 0.1) / 8 + eight.exchange_seconds)
    assert eight.prepare_seconds == pytest.approx((0.5 + 3.0) / 8 + 8 * 8 * 10**8 * 1e-10)
    assert alone.memory - eight.memory == 7 * 2 * 10**10 // 8  # each has all inputs
    assert alone.seconds / 8 < eight.seconds < alone.seconds


def test_rates_are_measured():
    x = torch.rand(600, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
    found = CostModel.measured(deq, x, columns=3)
    assert (found.features, found.columns) == (5, 3)
    assert 0 < found.entry < 1e-3
    assert math.isfinite(found.predict(1000, rank=50, steps=10).seconds)


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="entry must be"):
        replace(MODEL, entry=0.0)
    with pytest.raises(ValueError, match="processes must be"):
        MODEL.predict(100, rank=10, steps=5, processes=0)


def test_integers_of_numpy_do_not_overflow():
    model = replace(MODEL, features=np.int32(784), columns=np.int32(10))
    found = model.predict(np.int64(10**10), rank=np.int32(10**4), steps=np.int8(1))
    assert found == MODEL.predict(10**10, rank=10**4, steps=1)
    assert type(found.memory) is int
    assert type(found.seconds) is float


def test_no_more_samples_are_projected_to_than_there_are():
    assert MODEL.predict(50, rank=1000, steps=5) == MODEL.predict(50, rank=50, steps=5)
