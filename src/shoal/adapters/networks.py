"""Networks that scikit-learn describes by flat parameters."""

from collections.abc import Iterable

from shoal.activations import Activation
from shoal.activations.names import parse_activation
from shoal.architectures import DEQ, Architecture
from shoal.core.checks import one_of
from shoal.kernels import KernelFunction, kernel_function

__all__ = ["described_activation", "described_function"]


def described_activation(activation: Activation | str) -> Activation:
    """An activation, given as such or by name."""
    if isinstance(activation, str):
        return parse_activation(activation)
    if not isinstance(activation, Activation):
        raise TypeError(f"activation must be an Activation or its name, got {activation!r}")
    return activation


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
        phi = described_activation(activation)
        architecture = DEQ(phi, recurrent_variance, input_variance, bias_variance=bias_variance)
    return kernel_function(architecture, trainable=trainable)
