"""Kernel matrices in little memory and of arrays: always the same ones."""

import numpy as np
import pytest
import torch

from kernels.points import inputs, norms_between
from shoal import DEQ, kernel
from shoal.activations import ReLU, Tanh


@pytest.mark.thorough("9KiB")
@pytest.mark.parametrize("limit", ["9KiB", "1GB"])
def test_memory_limits_change_nothing(limit):
    x = norms_between(0.7, 1.6, 70, 6, 5)
    for phi in (ReLU(), Tanh()):
        whole, part = kernel(DEQ(phi, 0.15, 0.8), x), kernel(DEQ(phi, 0.15, 0.8), x, memory=limit)
        for left, right in zip(whole, part, strict=True):
            # each is within 1e-13 of the kernel
            assert (left - right).abs().max() <= 2e-13 * left.max()
            assert torch.equal(right, right.T)


def test_arrays():
    x = inputs(6, 3)
    found = kernel(DEQ(ReLU(), 0.2, 0.8), x.numpy(), x[:2].numpy())
    assert isinstance(found.ck, np.ndarray)
    assert np.array_equal(found.ntk, kernel(DEQ(ReLU(), 0.2, 0.8), x, x[:2]).ntk.numpy())


def test_arrays_that_torch_does_not_know():
    with pytest.raises(TypeError, match="x1 must be float32 or float64"):
        kernel(DEQ(ReLU(), 0.2, 0.8), np.ones((2, 2), dtype=">f8"))
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    assert kernel(DEQ(ReLU(), 0.2, 0.8), backwards).ck.shape == (3, 3)
