"""The shallow network inside a deep one."""

from collections.abc import Iterable

from shoal.architectures import Architecture
from shoal.architectures.base import check_flag
from shoal.checks import one_of
from shoal.design.result import Design
from shoal.design.sphere import sphere_design

__all__ = ["design"]


def design(
    architecture: Architecture,
    *,
    tau0: float,
    match: str = "ntk",
    method: str = "moments",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    norm_gated: bool = False,
    degree: int | None = None,
    tolerance: float = 1e-6,
) -> Design:
    r"""Design an explicit network that has the kernel of another architecture, such as a DEQ.

    ``"sphere"`` gives one hidden layer whose CK *or* NTK (readout and layer both trained) is the
    architecture's for every pair of inputs of norm ``tau0``, the architecture being taken as it
    is. The CK decides when the readout alone is trained, the NTK when everything is.

    Args:
        architecture: Whose kernel is wanted.
        tau0: The norm of the inputs.
        match: ``"ck"`` or ``"ntk"``.
        method: ``"sphere"``.
        trainable: The groups that the wanted NTK counts; all by default.
        width: As for ``kernel_function``.
        norm_gated: Only for positively homogeneous architectures: the designed network multiplies
            its output by the norm of the input, whose direction alone it sees otherwise, and the
            kernels agree for inputs of every norm.
        degree: The number of Hermite coefficients less one; chosen by default.
        tolerance: The largest difference of the kernels for cosines up to 0.95 in size, relative to
            the diagonal.

    Raises:
        ValueError: If an argument is out of range or an option unknown.
        TypeError: If an argument is not of its kind, or the kernel's power series is not known.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the tolerance is not met.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
        >>> d = shoal.design(deq, tau0=1.0, match="ntk", method="sphere")
        >>> d.residual < 1e-8
        True
        >>> [f"{shoal.kernel_function(a)(1.0, 1.0, 0.5).ntk:.6f}" for a in (deq, d.architecture)]
        ['0.351137', '0.351137']
    """
    one_of("match", match, ("ck", "ntk"))
    one_of("method", method, ("sphere",))
    return sphere_design(
        architecture,
        tau0,
        match,
        trainable=trainable,
        width=width,
        degree=degree,
        tolerance=tolerance,
        norm_gated=check_flag("norm_gated", norm_gated),
    )
