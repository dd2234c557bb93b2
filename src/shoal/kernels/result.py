"""What a kernel computation returns, and what it may use."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class Kernels(NamedTuple):
    """The two kernels of an infinitely wide network.

    Attributes:
        ck: The conjugate kernel, the covariance of the network's function at initialization.
        ntk: The neural tangent kernel of the groups that are trained.
    """

    ck: Tensor
    ntk: Tensor


class Work(NamedTuple):
    """How a matrix is computed.

    Attributes:
        memory: Most bytes for what is not a result; ``None`` for what suits the device.
        on_progress: Called with the share that is done.
    """

    memory: int | None = None
    on_progress: Callable[[float], object] | None = None
