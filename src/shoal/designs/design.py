"""The shallow network inside a deep one."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shoal.architectures import Architecture
from shoal.core.checks import one_of, shown
from shoal.core.settings import in_standard_settings
from shoal.designs.moments import MomentMatching
from shoal.designs.result import Design
from shoal.designs.sphere import SphereMatching
from shoal.kernels import kernel_function
from shoal.networks import Network

Method = str | MomentMatching | SphereMatching

METHODS: dict[str, type[MomentMatching | SphereMatching]] = {
    kind.name: kind for kind in (MomentMatching, SphereMatching)
}
"""The methods by their short names."""


@in_standard_settings
def design(
    architecture: Architecture | Network[Any],
    *,
    input_norm: float = 1.0,
    which: str | None = None,
    method: Method = "moments",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
) -> Design:
    r"""Design an explicit network that has the kernel of another architecture, such as a DEQ.

    :class:`MomentMatching`, or ``"moments"``, returns one or two hidden layers with the
    high-dimensional coefficients of the centered architecture. :class:`SphereMatching`, or
    ``"sphere"``, returns one hidden layer with the same kernel for all inputs of norm
    ``input_norm``. Kernels are those of infinitely wide networks with random weights.

    Args:
        architecture: The network whose kernel to match. For a network made by ``build``, its
            architecture, its trained groups and, if the NTK depends on it, its width are used, but
            not its weights.
        input_norm: Norm of the inputs; for moments, their typical norm.
        which: ``"ck"`` or ``"ntk"``. By default ``trainable`` decides: the CK if the readout alone
            is trained, the NTK otherwise.
        method: A :class:`MomentMatching` or :class:`SphereMatching` with its options, or
            ``"moments"`` or ``"sphere"`` with the default options.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.

    Raises:
        ValueError: If an argument is out of range or an option unknown.
        TypeError: If an argument has the wrong type, or the kernel's power series is not known.
        ConvergenceError: If the kernel does not exist.
        AccuracyError: If the tolerance is not met.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        >>> d = shoal.design(deq, input_norm=1.0, which="ck")
        >>> d.architecture.activations[0]
        Affine(activation=HardTanh(bound=1.1964853252887857), scale=0.7642966792080205, shift=0.0)
        >>> d = shoal.design(deq, input_norm=1.0, which="ntk", method="sphere")
        >>> d.residual < 1e-8
        True
        >>> [f"{shoal.kernel_function(a)(1.0, 1.0, 0.5).ntk:.6f}" for a in (deq, d.architecture)]
        ['0.371594', '0.371594']
    """
    if isinstance(method, str):
        method = METHODS[one_of("method", method, METHODS)]()
    if not isinstance(method, MomentMatching | SphereMatching):
        raise TypeError(
            "method must be a MomentMatching or SphereMatching, or the name of one, "
            f"got {shown(method)}"
        )
    asked = trainable is not None
    if isinstance(architecture, Network):
        architecture, trainable, width = _described(architecture, trainable, width)
    if not isinstance(architecture, Architecture):
        raise TypeError(
            f"architecture must be an Architecture or a network, got {shown(architecture)}"
        )
    function = kernel_function(architecture, trainable=trainable, width=width)
    trained = [group for group in architecture.parameter_groups if group in function.trainable]
    kind, reason = _kernel(which, trained, asked=asked)
    result = method.design(function, input_norm, kind)
    return replace(result, explanation=" ".join(filter(None, (result.explanation, reason))))


def _described(
    network: Network[Any], trainable: Iterable[str] | None, width: int | None
) -> tuple[Architecture, Iterable[str] | None, int | None]:
    """The architecture, trained groups and width of a network, unless others are asked for."""
    architecture = network.architecture
    if trainable is None:
        trainable = network.spec.trainable & set(architecture.parameter_groups) or None
    if width is None and architecture.width_matters:
        width = network.spec.width
    return architecture, trainable, width


def _kernel(which: str | None, groups: list[str], *, asked: bool) -> tuple[str, str]:
    """The kernel to match, and a remark about the choice, for groups that will be trained."""
    right = "ck" if groups == ["readout"] else "ntk"
    if which is None:
        why = (
            "the readout alone is trained, and the CK decides then; train no more of the design"
            if right == "ck"
            else f"{', '.join(groups)} {'is' if len(groups) == 1 else 'are'} trained, and the NTK "
            "decides then; train all weights of the design"
        )
        return right, f"Matched is the {right.upper()}, since {why}."
    one_of("which", which, ("ck", "ntk"))
    if not asked or which == right:
        return which, ""
    remark = f'But with {", ".join(groups)} trained, the {right.upper()} decides: which="{right}".'
    return which, remark
