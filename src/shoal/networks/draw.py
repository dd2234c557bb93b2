"""Random weights: the same numbers for a seed on every device and in every dtype."""

import math
from typing import Literal, cast

import torch
from torch import Tensor

from shoal.core.checks import one_of, room, seeded

Law = Literal["gaussian", "rademacher", "uniform", "orthogonal", "symmetric"]
ENTRY_LAWS = ("gaussian", "rademacher", "uniform")
MATRIX_LAWS = ("orthogonal", "symmetric")


def check_law(value: str) -> Law:
    """Return ``value`` if it is a law of weights, or raise an error that lists them."""
    one_of("weights", value, ENTRY_LAWS + MATRIX_LAWS)
    return cast("Law", value)


def law_of_entries(law: Law) -> Law:
    """The law of the other weights, with independent entries."""
    return "gaussian" if law in MATRIX_LAWS else law


class Source:
    """A stream of random weights of mean zero and unit variance.

    They are drawn on the CPU in float64, then rounded and moved.

    Args:
        seed: Seed of the stream.
        dtype: The dtype of the weights.
        device: The device of the weights.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = seeded("seed", seed)
        self._dtype, self._device = dtype, device

    def draw(self, law: Law, *shape: int, scale: float = 1.0) -> Tensor:
        """The next weights, times ``scale``; square ones if the law is one of matrices."""
        if self._device.type == "meta":  # for shapes alone
            return torch.empty(shape, dtype=self._dtype, device="meta")
        room("width (or another size)", *shape)
        generator, dtype = self._generator, torch.float64
        if law == "gaussian" or law in MATRIX_LAWS:
            weights = torch.randn(shape, generator=generator, dtype=dtype)
            if law == "orthogonal":
                weights = _orthogonal(weights)
            elif law == "symmetric":
                weights = (weights + weights.T).mul_(math.sqrt(0.5))
        elif law == "uniform":
            weights = torch.rand(shape, generator=generator, dtype=dtype)
            weights = weights.mul_(2).sub_(1).mul_(math.sqrt(3))
        else:
            weights = torch.randint(0, 2, shape, generator=generator).to(dtype).mul_(2).sub_(1)
        return weights.mul_(scale).to(dtype=self._dtype, device=self._device)


def _orthogonal(gaussian: Tensor) -> Tensor:
    r"""A rotation or reflection, uniform among all of them, times $\sqrt m$."""
    q, r = torch.linalg.qr(gaussian)
    signs = r.diagonal().sign()  # they make QR unique, so that q is uniform
    return torch.mul(q, signs).mul_(math.sqrt(len(q)))
