"""Random bits that are a function of where they are, the same on every device."""

from torch import Tensor

_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def mixed(z: Tensor) -> Tensor:
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014), of int64; products wrap around.

    Example:
        >>> import torch
        >>> int(mixed(torch.tensor([1]) * -0x61C8864680B583EB)) % 2**64 == 0xE220A8397B1DCDAF
        True
    """
    z = (z ^ shifted(z, 30)) * _FIRST
    z = (z ^ shifted(z, 27)) * _SECOND
    return z ^ shifted(z, 31)


def shifted(z: Tensor, places: int) -> Tensor:
    """Bits of a number without a sign, moved to the right."""
    return (z >> places) & ((1 << (64 - places)) - 1)
