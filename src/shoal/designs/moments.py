r"""Shallow networks with the coefficients of a DEQ's high-dimensional equivalents.

On Gaussian mixtures of high dimension, a centered kernel is known by four numbers (Ling 2024,
Theorems 3.3, 3.4, 3.8): networks that have them in common have the same kernel matrix up to an
error that vanishes with the dimension. A family of networks is a module with three functions of
the target: ``solutions``, all of them or none, ``violation``, why there are none, and ``nearest``.
"""

import math
from dataclasses import dataclass, replace
from types import ModuleType
from typing import ClassVar, Literal

from shoal.architectures import FullyConnected, ImplicitNetwork
from shoal.asymptotics import Coefficients, coefficients
from shoal.core.checks import one_of
from shoal.core.exceptions import AccuracyError
from shoal.designs import hard_tanh, leaky_relu, sinusoids
from shoal.designs.energies import Numbers, Proposal, kernel_slant, names, target_numbers
from shoal.designs.result import Design
from shoal.kernels import KernelFunction

FAMILIES: dict[str, ModuleType] = {
    "hard_tanh": hard_tanh,
    "leaky_relu": leaky_relu,
    "sinusoid": sinusoids,
}
"""The families in the order in which they are tried: the simplest networks first."""

_WORDS = {"hard_tanh": "hard tanh", "leaky_relu": "leaky rectifiers", "sinusoid": "sinusoids"}
_ROUNDING = 1e-25  # far below what second derivatives of kernels leave of a square
_AGREEMENT = 1e-9  # of two ways to find a coefficient, relative to the diagonal
_ZERO = 1e-10  # a coefficient so small, relative to the diagonal, counts as none
_SMALL = 1e-4  # below this share of the diagonal, differences count relative to it


@dataclass(frozen=True, kw_only=True)
class MomentMatching:
    r"""One or two hidden layers with the high-dimensional coefficients of a network.

    They are those of the centered architecture (see ``coefficients``): $\gamma^2, \alpha_1,
    \alpha_2, \alpha_3$ of the CK, or $\kappa_*^2, \beta_1, \beta_2, \beta_3$ of the NTK, all
    weights of the designed network being trained. The kernel matrices of both agree on
    high-dimensional Gaussian mixtures. If no network of the family has the coefficients, the
    nearest one comes back, ``feasible`` being false.

    Args:
        family: ``"hard_tanh"``, one layer; ``"leaky_relu"``, one or two; ``"sinusoid"``, one, or
            two of which the first is a cubic polynomial. By default the first of them that has the
            coefficients.
    """

    family: str | None = None

    name: ClassVar[Literal["moments"]] = "moments"

    def __post_init__(self) -> None:
        if self.family is not None:
            one_of("family", self.family, FAMILIES)

    def design(self, function: KernelFunction, input_norm: float, which: str) -> Design:
        """Design by the coefficients of the equivalents."""
        architecture = function.architecture
        if not isinstance(architecture, ImplicitNetwork) and architecture.layers().biased:
            raise ValueError(
                f"designs by moments are for networks without biases, got {architecture!r}; "
                "method='sphere' designs for one norm of the inputs"
            )
        wanted = coefficients(function, input_norm=input_norm)
        target = replace(target_numbers(wanted, which), slant=kernel_slant(wanted, which))
        if target.own == 0:
            raise ValueError(f"the kernel is zero: {architecture} has an activation that vanishes")
        tried = [self.family] if self.family is not None else list(FAMILIES)
        for name in tried:
            found = FAMILIES[name].solutions(target, wanted.input_norm, which)
            if found:
                return _feasible(wanted, which, name, found)
        proposals = {
            name: FAMILIES[name].nearest(target, wanted.input_norm, which) for name in tried
        }
        best = min(tried, key=lambda name: target.error(proposals[name].numbers(which)))
        reasons = [FAMILIES[name].violation(target, which) for name in tried]
        return _nearest(wanted, which, best, proposals[best], reasons)


def _feasible(wanted: Coefficients, which: str, family: str, found: list[Proposal]) -> Design:
    depth = len(found[0].layers)
    words = [_intention(wanted, which, family, depth), _depth_reason(wanted, which, depth)]
    others = tuple(
        _verified(wanted, which, family, proposal, feasible=True, words=[*words, proposal.note])
        for proposal in found[1:]
    )
    if others:
        words.append(
            f"There are {len(found)} such networks; this is the one that errors of the target move "
            "least, and the other is in alternatives."
        )
    words.append(found[0].note)
    best = _verified(wanted, which, family, found[0], feasible=True, words=words)
    return replace(best, alternatives=others)


def _nearest(
    wanted: Coefficients, which: str, family: str, proposal: Proposal, reasons: list[str]
) -> Design:
    error = target_numbers(wanted, which).error(proposal.numbers(which))
    depth = len(proposal.layers)
    words = [
        f"Not feasible. {' '.join(reasons)} Nearest to it:",
        _intention(wanted, which, family, depth),
        f"It is predicted to miss at most {error:.1e} of the kernel matrix, in spectral norm, for "
        "as many isotropic inputs as dimensions, all of norm input_norm; varying norms add to it, "
        "see gap.",
        proposal.note,
    ]
    return _verified(wanted, which, family, proposal, feasible=False, words=words)


def _intention(wanted: Coefficients, which: str, family: str, depth: int) -> str:
    layers = "One hidden layer" if depth == 1 else "Two hidden layers"
    groups = [g for g in wanted.architecture.parameter_groups if g in wanted.trainable]
    trained = "" if which == "ck" else f" with {', '.join(groups)} trained"
    kind = _WORDS[family]
    if family == "sinusoid":
        kind = "a sinusoid" if depth == 1 else "a cubic polynomial and a sinusoid"
    return (
        f"{layers} of {kind} for the {which.upper()} coefficients of the centered "
        f"{type(wanted.architecture).__name__}{trained}, at input_norm = {wanted.input_norm:g}."
    )


def _depth_reason(wanted: Coefficients, which: str, depth: int) -> str:
    """Ling 2024, Remark 3.9, and the same for the NTK."""
    _, _, norms, square = names(which)
    values = _named(wanted, which)
    factor = 2 if which == "ck" else 6
    identity = f"{square} = {factor} {norms}"
    if depth == 1:
        vanish = " = 0" if values[square] <= _ZERO * next(iter(values.values())) else ""
        return f"One layer is enough, since {identity}{vanish}, as in every such network."
    ratio = values[square] / values[norms] if values[norms] else math.inf
    return f"One layer is not enough: it has {identity}, and here the ratio is {ratio:.6g}."


def _verified(
    wanted: Coefficients,
    which: str,
    family: str,
    proposal: Proposal,
    *,
    feasible: bool,
    words: list[str],
) -> Design:
    """Compute the coefficients of the network anew, in two ways that know nothing of the design."""
    designed = FullyConnected(proposal.activations)
    obtained = coefficients(designed, input_norm=wanted.input_norm)
    closed = target_numbers(
        coefficients(designed, input_norm=wanted.input_norm, method="closed"), which
    )
    target, got = (target_numbers(c, which) for c in (wanted, obtained))
    for numbers in (closed, proposal.numbers(which)):
        if not got.error(numbers) <= _AGREEMENT:
            raise AccuracyError(
                f"the coefficients of {designed!r} are {got} by derivatives of its kernel, but "
                f"{numbers} by moments"
            )
    residual = max(_residual(target, numbers) for numbers in (got, closed))
    verdict = f"Largest relative difference of a coefficient, at infinite width: {residual:.1e}."
    words = [*filter(None, words), verdict]
    return Design(
        architecture=designed,
        original=wanted.architecture,
        which=which,
        method=MomentMatching.name,
        input_norm=wanted.input_norm,
        trainable=wanted.trainable,
        width=wanted.width,
        target=_named(wanted, which),
        obtained=_named(obtained, which),
        residual=residual,
        errors={"predicted": target.error(got)},
        feasible=feasible,
        explanation=" ".join(words),
        family=family,
    )


def _residual(target: Numbers, got: Numbers) -> float:
    pairs = zip(target.matched, got.matched, strict=True)
    least = _SMALL * target.own
    return max(abs(a - b) / max(abs(a), least) for a, b in pairs)


def _named(c: Coefficients, which: str) -> dict[str, float]:
    """The coefficients by name; those that vanish but for rounding are zero."""
    shares = target_numbers(c, which)
    values = zip(names(which), shares.matched, strict=True)
    kept = {name for name, share in values if share > _ROUNDING * shares.own}
    return {n: float(getattr(c, n)) if n in kept else 0.0 for n in names(which)}
