"""How wide must a network be? By the theorems, by certificates, by trying, and to predict."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import singledispatch
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from shoal.architectures import Architecture, ConvResNet
from shoal.architectures.base import ImplicitArchitecture
from shoal.certificates.certificate import Conclusion
from shoal.certificates.certify import certify
from shoal.certificates.refusals import uncovered
from shoal.core import checks
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import as_tensor, checked_image_samples, checked_samples
from shoal.learning.convergence.arguments import checked_labels
from shoal.learning.prediction.width import accurate_width
from shoal.networks import Network, build, empirical_kernel
from shoal.training import TrainingError, train
from shoal.training.measures import gram_group

NO_ROOM = 1e-9  # instead of less than nothing, where no theorem holds

Law = Callable[[int], tuple[Conclusion, ...]]  # of the width
NoLaw = str  # why there is none

_EXPONENTS = (0, *range(1, 100, 2), 1000)  # of widths for which theorems are tried, powers of two
_REFINEMENTS = 5  # after those that bring two exponents to a distance of one
_NOTHING = 1e-9  # a share of the NTK below this is rounding
_ASSUMPTION = (
    "the least eigenvalue of the Gram matrix is what Ling 2023, Theorem 2, Gao 2022, Lemma 3.3, or "
    "Du 2018, Lemmas A.2, B.2 and C.2, says, and features of explicit networks are at most twice "
    "those of the infinitely wide one (Lemmas A.1, B.1 and C.1); widths of these lemmas have no "
    "explicit constant"
)


@dataclass(frozen=True)
class RequiredWidth:
    r"""Widths from which theorems and experience say that training works.

    Attributes:
        theorems: For each theorem, the width from which its conditions hold with the probability
            that was asked for; infinite if they hold at no width (none up to $2^{1000}$).
        certified: The first power of two at which ``certify`` says yes to gradient descent, for all
            seeds that were tried; ``None`` if not up to the largest width tried.
        empirical: The same for gradient descent that keeps what the theorems conclude.
        largest_width: The largest width tried.
        assumption: What the theorems' widths rest on; if there are none, why.
        accurate: If an ``excess`` was given, the width from which a network with a trained readout
            predicts new samples as well as an infinitely wide one, but for that share.
    """

    theorems: Mapping[str, float] = field(hash=False)
    certified: int | None
    empirical: int | None
    largest_width: int
    assumption: str
    accurate: int | None = None

    def __str__(self) -> str:
        def word(width: float | None) -> str:
            if width is None:
                return f"above {self.largest_width}"
            return "no width" if math.isinf(width) else f"{width:.4g}"

        rows = {**self.theorems, "certificate": self.certified, "experience": self.empirical}
        if self.accurate is not None:
            rows["prediction"] = self.accurate
        size = max(map(len, rows))
        lines = [f"{name:<{size}}  {word(width)}" for name, width in rows.items()]
        return "\n".join(lines if self.theorems else [f"no theorem: {self.assumption}", *lines])


class Draw(NamedTuple):
    """How networks are drawn, and what they are trained on.

    Attributes:
        x: Inputs, in float64.
        y: Labels, of shape (samples, outputs).
        failure: The probability with which the bounds may fail.
        readout_scale: The factor of the readout at initialization.
    """

    x: Tensor
    y: Tensor
    failure: float
    readout_scale: float


@singledispatch
def random_networks(architecture: Architecture, draw: Draw) -> Law | NoLaw:  # noqa: ARG001
    """What the theorems say of networks of each width; a new theorem registers its architecture."""
    return f"there is no theorem about a {type(architecture).__name__}"


@in_standard_settings
def required_width(
    architecture: Architecture,
    x: Tensor,
    y: Tensor,
    confidence: float = 0.9,
    *,
    readout_scale: float = 1.0,
    largest_width: int = 512,
    seeds: int = 2,
    excess: float | None = None,
    ridge: float = 0.0,
) -> RequiredWidth:
    r"""Say how wide a network must be for gradient descent to train it, and to predict well.

    Args:
        architecture: Theorems are about a ``DEQ`` in the parametrization of Ling 2023, an
            ``ImplicitNetwork``, and about ``FullyConnected``, ``ResNet`` and ``ConvResNet`` as in
            Du 2018, with a smooth activation. Others have certificates and experience alone.
        x: The training inputs, of shape (n, in_features); images for a ``ConvResNet``.
        y: The labels, of shape (n,) or (n, outputs).
        confidence: The probability with which random weights shall satisfy the theorems.
        readout_scale: As for ``build``.
        largest_width: Up to which width networks are built and tried, in powers of two. Zero tries
            none.
        seeds: How many networks of each width must all succeed.
        excess: The share by which the predicted error on new samples may exceed that of an
            infinitely wide network, for one hidden layer or an equilibrium; needs no training. See
            ``width`` of :func:`shoal.learning_curve`.
        ridge: Of the readout that is trained for that.

    Returns:
        The widths, side by side.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If an argument is out of range.

    Example:
        >>> import torch, shoal
        >>> x = torch.eye(2, dtype=torch.float64)
        >>> y = torch.tensor([0.1, -0.1]).double()
        >>> found = shoal.certificates.required_width(
        ...     shoal.ImplicitNetwork(0.1), x, y, readout_scale=0.0, largest_width=64, seeds=1
        ... )
        >>> found.empirical, found.certified
        (4, 16)
        >>> print(f"{found.theorems['Gao 2022, Lemma 3.5 (corrected), gradient flow']:.1e}")
        4.4e+05
    """
    if not isinstance(architecture, Architecture):
        kind = type(architecture).__name__
        hint = ": take its .architecture" if isinstance(architecture, Network) else ""
        raise TypeError(f"architecture must be an architecture such as a DEQ, got a {kind}{hint}")
    confidence = checks.real("confidence", confidence, above=0, below=1)
    scale = checks.real("readout_scale", readout_scale)
    largest = checks.integer("largest_width", largest_width, at_least=0)
    seeds = checks.integer("seeds", seeds, at_least=1)
    ridge = checks.real("ridge", ridge, at_least=0.0)
    inputs = _inputs(architecture, as_tensor(x, "x")).detach().double().cpu()
    labels = checked_labels("y", y, len(inputs)).double().cpu()
    labels = labels[:, None] if labels.dim() == 1 else labels
    draw = Draw(inputs, labels, 1 - confidence, scale)
    kind = uncovered(architecture)
    law = random_networks(architecture, draw) if kind is None else f"none is about networks {kind}"

    def attempt(test: Callable[[Network[Any]], bool]) -> int | None:
        def holds(width: int) -> bool:
            return all(test(_network(architecture, draw, width, seed)) for seed in range(seeds))

        return next((width for width in _powers(largest) if holds(width)), None)

    return RequiredWidth(
        theorems={} if isinstance(law, str) else _theorem_widths(law),
        certified=attempt(lambda net: certify(net, inputs, labels).holds),
        empirical=attempt(lambda net: trains(net, inputs, labels)),
        largest_width=largest,
        assumption=law if isinstance(law, str) else _ASSUMPTION,
        accurate=(
            None
            if excess is None
            else accurate_width(architecture, inputs, labels, excess=excess, ridge=ridge)
        ),
    )


def _inputs(architecture: Architecture, x: object) -> Tensor:
    """Inputs, or what is wrong with them."""
    if isinstance(architecture, ConvResNet):
        return checked_image_samples("x", x, architecture)
    inputs = checked_samples("x", x)
    if inputs.dim() != 2:
        raise ValueError(f"x must have shape (samples, features), got {tuple(inputs.shape)}")
    return inputs


def _powers(largest: int) -> list[int]:
    return [2**k for k in range(1, largest.bit_length())] if largest else []


def _network(architecture: Architecture, draw: Draw, width: int, seed: int) -> Network[Any]:
    implicit = isinstance(architecture, ImplicitArchitecture)
    options: Any = {"on_failure": "status"} if implicit else {}
    if draw.x.dim() > 2:
        options["pixel_axes"] = draw.x.dim() - 2
    return build(
        architecture,
        in_features=draw.x.shape[1],
        width=width,
        out_features=draw.y.shape[1],
        seed=seed,
        dtype=torch.float64,
        readout_scale=draw.readout_scale,
        **options,
    )


def _theorem_widths(law: Law) -> dict[str, float]:
    """For each conclusion, the smallest width at which all its conditions hold."""

    def names(width: int) -> set[str]:
        return {_name(c) for c in law(width) if all(k.holds for k in c.conditions)}

    everything = [_name(c) for c in law(16)]
    widths = dict.fromkeys(everything, math.inf)
    for smaller, larger in pairwise(_EXPONENTS):
        held = names(2**larger)
        for name in held & {name for name, width in widths.items() if math.isinf(width)}:
            low, high = 2**smaller, 2**larger
            for _ in range(_REFINEMENTS + (larger - smaller).bit_length()):
                middle = math.isqrt(low * high)
                low, high = (low, middle) if name in names(middle) else (middle, high)
            widths[name] = float(high)
        if not any(map(math.isinf, widths.values())):
            break
    return widths


def _name(conclusion: Conclusion) -> str:
    return f"{conclusion.theorem} ({conclusion.form}), {conclusion.dynamics}"


def trains(net: Network[Any], x: Tensor, y: Tensor, *, steps: int = 200) -> bool:
    """Train a network, and say whether all that the theorems conclude held.

    The step size is one over the largest eigenvalue of the NTK at the start.

    Args:
        net: The network; its weights change.
        x: Inputs in its dtype.
        y: Labels, of shape (samples, outputs).
        steps: How many steps to take.
    """
    readouts = [group for group in net.groups if group in ("readout", "skip")] or [gram_group(net)]
    whole = empirical_kernel(net, x).ntk.detach()
    share = empirical_kernel(net, x, trainable=readouts).ntk.detach()
    least, largest = torch.linalg.eigvalsh(share)[0], torch.linalg.eigvalsh(whole)[-1]
    if not bool(least > _NOTHING * largest):
        return False
    try:
        train(net, x, y, steps=steps, step_size="auto", on_violation="raise")
    except TrainingError:
        return False
    return True
