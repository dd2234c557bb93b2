"""The shallow network inside a deep one."""

from collections.abc import Iterable

from shoal.architectures import Architecture
from shoal.architectures.base import check_flag
from shoal.checks import one_of
from shoal.designs.moments import moment_design
from shoal.designs.result import Design
from shoal.designs.sphere import sphere_design

__all__ = ["design"]

_TOLERANCE = 1e-6


def design(
    architecture: Architecture,
    *,
    tau0: float,
    match: str = "ntk",
    method: str = "moments",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    family: str | None = None,
    norm_gated: bool = False,
    degree: int | None = None,
    tolerance: float = _TOLERANCE,
) -> Design:
    r"""Design an explicit network that has the kernel of another architecture, such as a DEQ.

    ``"moments"`` gives one or two hidden layers with the high-dimensional coefficients of the
    centered architecture (see ``coefficients``): $\gamma^2, \alpha_1, \alpha_2, \alpha_3$ of the
    CK, or $\kappa_*^2, \beta_1, \beta_2, \beta_3$ of the NTK, all weights of the designed network
    being trained. The kernel matrices of both agree on high-dimensional Gaussian mixtures. If no
    network of the family has the coefficients, the nearest one comes back, ``feasible`` being
    false.

    ``"sphere"`` gives one hidden layer whose CK *or* NTK (readout and layer both trained) is the
    architecture's for every pair of inputs of norm ``tau0``, the architecture being taken as it
    is. The CK decides when the readout alone is trained, the NTK when everything is.

    Args:
        architecture: Whose kernel is wanted.
        tau0: The norm of the inputs; for ``"moments"`` their typical one.
        match: ``"ck"`` or ``"ntk"``.
        method: ``"moments"`` or ``"sphere"``.
        trainable: The groups that the wanted NTK counts; all by default.
        width: As for ``kernel_function``.
        family: For ``"moments"``: ``"hard_tanh"``, one layer; ``"leaky_relu"``, one or two;
            ``"sinusoid"``, one, or two of which the first is a cubic polynomial. By default the
            first of them that has the coefficients.
        norm_gated: For ``"sphere"``, and only for positively homogeneous architectures: the
            designed network multiplies its output by the norm of the input, whose direction alone
            it sees otherwise, and the kernels agree for inputs of every norm.
        degree: For ``"sphere"``: the number of Hermite coefficients less one; chosen by default.
        tolerance: For ``"sphere"``: the largest difference of the kernels for cosines up to 0.95 in
            size, relative to the diagonal.

    Raises:
        ValueError: If an argument is out of range or an option unknown.
        TypeError: If an argument is not of its kind, or the kernel's power series is not known.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the tolerance is not met.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ(shoal.Tanh(), recurrent_variance=0.2, input_variance=0.8)
        >>> d = shoal.design(deq, tau0=1.0, match="ck")
        >>> d.architecture.activations[0]  # doctest: +ELLIPSIS
        Affine(activation=HardTanh(bound=1.19648...), scale=0.76429..., shift=0.0)
        >>> d = shoal.design(deq, tau0=1.0, match="ntk", method="sphere")
        >>> d.residual < 1e-8
        True
        >>> [f"{shoal.kernel_function(a)(1.0, 1.0, 0.5).ntk:.6f}" for a in (deq, d.architecture)]
        ['0.371594', '0.371594']
    """
    one_of("match", match, ("ck", "ntk"))
    one_of("method", method, ("moments", "sphere"))
    gated = check_flag("norm_gated", norm_gated)
    if method == "moments":
        if gated or degree is not None or tolerance != _TOLERANCE:
            raise ValueError("norm_gated, degree and tolerance must be left out by moments")
        return moment_design(
            architecture, tau0, match, trainable=trainable, width=width, family=family
        )
    if family is not None:
        raise ValueError(f"family must be left out on the sphere, got {family!r}")
    return sphere_design(
        architecture,
        tau0,
        match,
        trainable=trainable,
        width=width,
        degree=degree,
        tolerance=tolerance,
        norm_gated=gated,
    )
