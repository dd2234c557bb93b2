"""Networks that scikit-learn describes by flat parameters."""

from collections.abc import Iterable

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.architectures import DEQ, Architecture
from shoal.core.checks import one_of
from shoal.kernels import KernelFunction, kernel_function

__all__ = ["described_function"]


def described_function(
    activation: Activation | str,
    recurrent_variance: float,
    input_variance: float,
    *,
    architecture: Architecture | None,
    which: str,
    trainable: Iterable[str] | None,
    bias_variance: float = 0.0,
) -> KernelFunction:
    """The kernels of a DEQ, or of the architecture that is given instead of it."""
    one_of("which", which, ("ck", "ntk"))
    if architecture is None:
        phi = as_activation("activation", activation)
        architecture = DEQ(phi, recurrent_variance, input_variance, bias_variance=bias_variance)
    return kernel_function(architecture, trainable=trainable)
