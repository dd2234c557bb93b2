"""The shallow network inside a deep one."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from shoal.architectures import Architecture
from shoal.core.checks import flag, one_of, shown
from shoal.core.settings import in_standard_settings
from shoal.designs.moments import moment_design
from shoal.designs.networks import network_gap
from shoal.designs.result import Design
from shoal.designs.sphere import sphere_design
from shoal.kernels import kernel_function
from shoal.networks import Network

__all__ = ["design"]

_TOLERANCE = 1e-6


@in_standard_settings
def design(
    architecture: Architecture | Network[Any],
    *,
    tau0: float,
    match: str | None = None,
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
    is.

    All kernels are those of infinitely wide networks with random weights. A finite or trained
    network has others: give it instead of its architecture, and the design says how far they are
    from what is imitated.

    Args:
        architecture: Whose kernel is wanted. A network made by ``build`` stands for its
            architecture, its trained groups and, where the NTK depends on it, its width, and its
            own kernels are measured too.
        tau0: The norm of the inputs; for ``"moments"`` their typical one.
        match: ``"ck"`` or ``"ntk"``. By default what ``trainable`` asks for: the CK decides when
            the readout alone is trained, the NTK otherwise.
        method: ``"moments"`` or ``"sphere"``.
        trainable: The groups of the architecture's parameters that will be trained, which the
            wanted NTK counts; all by default.
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
    one_of("method", method, ("moments", "sphere"))
    gated = flag("norm_gated", norm_gated)
    foreign: dict[str, tuple[object, object]] = {"family": (family, None)}
    if method == "moments":
        foreign = {"norm_gated": (gated, False), "degree": (degree, None)}
        foreign["tolerance"] = (tolerance, _TOLERANCE)
    for name, (value, default) in foreign.items():
        if value != default:
            raise ValueError(f"{name} must be left out with method={method!r}, got {value!r}")
    network = architecture if isinstance(architecture, Network) else None
    if network is not None:
        architecture, trainable, width = _described(network, trainable, width)
    if not isinstance(architecture, Architecture):
        raise TypeError(
            f"architecture must be an Architecture or a network, got {shown(architecture)}"
        )
    groups = kernel_function(architecture, trainable=trainable, width=width).trainable
    trained = [group for group in architecture.parameter_groups if group in groups]
    chosen, reason = _kernel(match, trained, asked=trainable is not None and network is None)
    if method == "moments":
        found = moment_design(
            architecture, tau0, chosen, trainable=groups, width=width, family=family
        )
    else:
        found = sphere_design(
            architecture,
            tau0,
            chosen,
            trainable=groups,
            width=width,
            degree=degree,
            tolerance=tolerance,
            norm_gated=gated,
        )
    words = [found.explanation, reason]
    gap = None if network is None else network_gap(network, tau0, groups, width)
    if gap is not None:
        words.append(str(gap))
    return replace(found, explanation=" ".join(filter(None, words)), network=gap)


def _described(
    network: Network[Any], trainable: Iterable[str] | None, width: int | None
) -> tuple[Architecture, Iterable[str] | None, int | None]:
    """What a network says where nothing else is asked for."""
    architecture = network.architecture
    if trainable is None:
        trainable = network.spec.trainable & set(architecture.parameter_groups) or None
    if width is None and getattr(architecture, "parametrization", "ntk") == "standard":
        width = network.spec.width
    return architecture, trainable, width


def _kernel(match: str | None, groups: list[str], *, asked: bool) -> tuple[str, str]:
    """The kernel to match, and what there is to say about the choice.

    Args:
        match: What was asked for.
        groups: What will be trained.
        asked: Whether that was said.
    """
    right = "ck" if groups == ["readout"] else "ntk"
    if match is None:
        why = (
            "the readout alone is trained, and the CK decides then; train no more of the design"
            if right == "ck"
            else f"{', '.join(groups)} {'is' if len(groups) == 1 else 'are'} trained, and the NTK "
            "decides then; train all weights of the design"
        )
        return right, f"Matched is the {right.upper()}, since {why}."
    one_of("match", match, ("ck", "ntk"))
    if not asked or match == right:
        return match, ""
    if match == "ck":
        return match, (
            f"But the CK decides only if the readout alone is trained: with "
            f'{", ".join(groups)} trained the NTK does, match="ntk".'
        )
    return match, (
        "But this NTK, of the readout alone, is the CK, and the design has it if all of its "
        'weights are trained: if only its readout is to be trained, match="ck".'
    )
