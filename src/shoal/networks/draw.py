"""Random weights: the same numbers for a seed on every device and in every dtype."""

import math
from typing import Literal

import torch
from torch import Tensor

from shoal.core.checks import one_of, room, seeded

__all__ = ["LAWS", "Law", "Source", "check_law"]

Law = Literal["gaussian", "rademacher", "uniform"]
LAWS = ("gaussian", "rademacher", "uniform")


def check_law(value: str) -> Law:
    """Return ``value`` if it is a law that weights can have, or list them."""
    one_of("weights", value, LAWS)
    return value  # type: ignore[return-value]


class Source:
    """A stream of independent random weights of mean zero and unit variance.

    They are drawn on the CPU in float64, then rounded and moved.

    Args:
        seed: Where the stream begins.
        dtype: The dtype of the weights.
        device: The device of the weights.
    """

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self._generator = seeded("seed", seed)
        self._dtype, self._device = dtype, device

    def draw(self, law: Law, *shape: int, scale: float = 1.0) -> Tensor:
        """The next weights, times ``scale``."""
        if self._device.type == "meta":  # shapes alone are wanted
            return torch.empty(shape, dtype=self._dtype, device="meta")
        room("width (or another size)", *shape)
        generator, dtype = self._generator, torch.float64
        if law == "gaussian":
            weights = torch.randn(shape, generator=generator, dtype=dtype)
        elif law == "uniform":
            weights = torch.rand(shape, generator=generator, dtype=dtype)
            weights = weights.mul_(2).sub_(1).mul_(math.sqrt(3))
        else:
            weights = torch.randint(0, 2, shape, generator=generator).to(dtype).mul_(2).sub_(1)
        return weights.mul_(scale).to(dtype=self._dtype, device=self._device)
