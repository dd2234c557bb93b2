r"""Gradients in variances, told by those in inputs.

A DEQ sees its inputs as $\alpha = \sigma_b^2 a$, $\beta = \sigma_b^2 b$, $\gamma = \sigma_b^2 c$.
By the implicit function theorem, a change of $\sigma_a^2$ moves its fixed points as a change of
these sources by the conjugate kernels $G_{ii}$, $G_{jj}$, $G_{ij}$ does, so that

$\partial_{\sigma_a^2} \kappa = G_{ii}\,\partial_\alpha \kappa + G_{jj}\,\partial_\beta \kappa
+ G_{ij}\,\partial_\gamma \kappa$,

up to the places where $\sigma_a^2$ and $\gamma$ stand in the shares of the NTK themselves, beside
$G$ and $M = \partial_\gamma G$. So a surface that can be differentiated in inputs needs no other.
"""

from dataclasses import dataclass
from functools import singledispatch

from torch import Tensor

from shoal.architectures import DEQ, Architecture
from shoal.kernels.adjoint import Adjoint
from shoal.kernels.function import KernelFunction

__all__ = ["Strip", "has_sources", "ntk_factors", "variance_gradients"]


@dataclass(frozen=True, eq=False)
class Strip:
    """What is known of some rows.

    Attributes:
        entries: The entries and the gradients of what they are made of.
        upstream: The gradient of the NTK. shape: (n, m)
        cosine: Cosines of the angles. shape: (n, m)
        norms: Of rows and columns, none of them zero. shapes: (n,), (m,)
        logs: Gradients in the logarithms of these norms. shapes: (n,), (m,)
        own: Conjugate kernels of inputs with themselves. shapes: (n,), (m,)
    """

    entries: Adjoint
    upstream: Tensor
    cosine: Tensor
    norms: tuple[Tensor, Tensor]
    logs: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor]


def has_sources(architecture: Architecture) -> bool:
    """Whether :func:`variance_gradients` is there for this architecture."""
    return isinstance(architecture, DEQ) and architecture.input_variance > 0


@singledispatch
def variance_gradients(
    architecture: Architecture,
    function: KernelFunction,  # noqa: ARG001
    strip: Strip,  # noqa: ARG001
) -> dict[str, Tensor]:
    """What some entries contribute to the gradients of all variances."""
    raise TypeError(f"no sources are known for {type(architecture).__name__}")


@variance_gradients.register
def _(architecture: DEQ, function: KernelFunction, strip: Strip) -> dict[str, Tensor]:
    injection = architecture.input_variance
    entries, (left, right) = strip.entries, strip.norms
    # derivatives in γ
    scale = (left[:, None] * right * injection).to(strip.cosine)
    pull, through = entries.cosine / scale, entries.ck_slope / scale
    moved = (pull * entries.ck).double().sum()
    turned = entries.cosine * strip.cosine
    for dim, norm, logs, own in zip((1, 0), strip.norms, strip.logs, strip.own, strict=True):
        in_alpha = (logs - turned.sum(dim)) / (2 * injection * norm**2)
        moved = moved + (in_alpha * own).sum()
    by_recurrent = entries.ck * through * strip.upstream
    by_input = scale * strip.cosine * through * strip.upstream
    recurrent, own_recurrent, inputs = ntk_factors(architecture, function)
    moved = moved + ((recurrent * by_recurrent + inputs * by_input) * through).double().sum()
    moved = moved + (own_recurrent - inputs) * by_recurrent.double().sum()
    seen = (strip.logs[0].sum() + strip.logs[1].sum()) / 2
    if architecture.parametrization == "standard":
        seen = seen - inputs * by_input.double().sum()
    return {"recurrent_variance": moved, "input_variance": seen / injection}


def ntk_factors(architecture: DEQ, function: KernelFunction) -> tuple[float, float, float]:
    r"""The weight of $GM$ in the NTK, its derivative in $\sigma_a^2$, and that of $\gamma M$."""
    recurrent, inputs = (float(group in function.trainable) for group in ("recurrent", "input"))
    if architecture.parametrization == "ntk":
        return recurrent * architecture.recurrent_variance, recurrent, inputs
    growing, fixed = (1.0, 0.0) if function.width is None else (float(function.width), 1.0)
    return recurrent * growing, 0.0, inputs * fixed / architecture.input_variance
