"""What a kernel computation returns."""

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
