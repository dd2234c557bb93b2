"""From which size on it pays to make products cheaper, by bfloat16, fewer rows or fewer looks."""

from functools import lru_cache

import torch
from torch import Tensor

STEPS = 5  # after which the rounding of bfloat16 leaves little to be gained
_LEAST = {"cpu": 1 << 26, "cuda": 1 << 32}  # multiplications from which on casts do not matter
_DROPPED = {"cpu": 1 << 21, "cuda": 1 << 31}  # multiplications less per step that pay for copies
_LOOK = {"cuda": 7e-5}  # seconds in which the device waits for the host, which looks at norms
_STEP, _PRODUCT = 6e-6, 7e-14  # seconds of a step on a GPU, and of a multiplication in it


def packing_pays(dropped: int, weight: Tensor) -> bool:
    """Whether a product with so many rows less is worth the copies that it takes."""
    return dropped * weight.numel() >= _DROPPED.get(weight.device.type, 1 << 21)


def evaluations_per_look(rows: int, weight: Tensor) -> int:
    """How many steps of so many rows take as long as a look at where they are."""
    look = _LOOK.get(weight.device.type, 0.0)
    return round(look / float(_STEP + _PRODUCT * rows * weight.numel()))


def products_pay(rows: int, weight: Tensor) -> bool:
    """Whether bfloat16 makes the product of so many rows with a float32 matrix faster."""
    kind = weight.device.type
    if weight.dtype != torch.float32 or rows * weight.numel() < _LEAST.get(kind, 1 << 62):
        return False
    return _native(kind)


@lru_cache(maxsize=8)
def _native(kind: str) -> bool:
    """Whether the device multiplies in bfloat16 by itself."""
    if kind == "cuda":
        return torch.cuda.get_device_capability()[0] >= 8
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
