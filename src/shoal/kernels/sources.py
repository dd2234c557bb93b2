r"""Gradients in variances, told by those in inputs.

A DEQ sees its inputs as $\alpha = \sigma_b^2 a$, $\beta = \sigma_b^2 b$, $\gamma = \sigma_b^2 c$.
By the implicit function theorem, a change of $\sigma_a^2$ moves its fixed points as a change of
these sources by the conjugate kernels $G_{ii}$, $G_{jj}$, $G_{ij}$ does, so that

$\partial_{\sigma_a^2} \kappa = G_{ii}\,\partial_\alpha \kappa + G_{jj}\,\partial_\beta \kappa
+ G_{ij}\,\partial_\gamma \kappa$,

up to the places where $\sigma_a^2$ and $\gamma$ stand in the shares of the NTK themselves, beside
$G$ and $M = \partial_\gamma G$. A bias is added to all three sources. So a surface that can be
differentiated in inputs needs no other.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
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
    """Whether :func:`variance_gradients` is there for this architecture: a DEQ of one layer."""
    return (
        isinstance(architecture, DEQ)
        and architecture.input_variance > 0
        and len(architecture.activations) == 1
    )


def variance_gradients(function: KernelFunction, strip: Strip) -> dict[str, Tensor]:
    """What some entries contribute to the gradients of all variances of a DEQ."""
    deq = function.architecture
    assert isinstance(deq, DEQ)
    injection = deq.input_variance
    entries, (left, right) = strip.entries, strip.norms
    # derivatives in γ
    scale = (left[:, None] * right * injection).to(strip.cosine)
    pull, through = entries.cosine / scale, entries.ck_slope / scale
    turned = entries.cosine * strip.cosine
    in_alpha = [
        (logs - turned.sum(dim)) / (2 * injection * norm**2)
        for dim, norm, logs in zip((1, 0), strip.norms, strip.logs, strict=True)
    ]
    f = ntk_factors(function)
    reaction = through * strip.upstream
    by_recurrent, by_input = entries.ck * reaction, scale * strip.cosine * reaction
    moved = (pull * entries.ck).double().sum()
    moved = moved + sum((a * own).sum() for a, own in zip(in_alpha, strip.own, strict=True))
    shares = f.recurrent * by_recurrent + f.inputs * by_input + f.bias * reaction
    moved = moved + (shares * through).double().sum()
    moved = moved + (f.own_recurrent - f.inputs) * by_recurrent.double().sum()
    shifted = pull.double().sum() + torch.stack([a.sum() for a in in_alpha]).sum()
    shifted = shifted + (f.own_bias - f.inputs) * reaction.double().sum()
    seen = (strip.logs[0].sum() + strip.logs[1].sum()) / 2
    if deq.parametrization == "standard":
        seen = seen - f.inputs * by_input.double().sum()
    return {
        "recurrent_variance": moved,
        "input_variance": seen / injection,
        "bias_variance": shifted,
    }


class Factors(NamedTuple):
    r"""How the shares of the NTK of a DEQ depend on its variances.

    Attributes:
        recurrent: The weight of $GM$, and ...
        own_recurrent: ... its derivative in $\sigma_a^2$.
        inputs: The weight of $\sigma_b^2 c\,M$.
        bias: The weight of $M$, and ...
        own_bias: ... its derivative in the variance of the biases.
    """

    recurrent: float
    own_recurrent: float
    inputs: float
    bias: float
    own_bias: float


def ntk_factors(function: KernelFunction) -> Factors:
    """Those of a DEQ."""
    deq = function.architecture
    assert isinstance(deq, DEQ)
    recurrent, inputs, bias = (
        float(group in function.trainable) for group in ("recurrent", "input", "bias")
    )
    if deq.parametrization == "ntk":
        spread = recurrent * deq.recurrent_variance
        return Factors(spread, recurrent, inputs, bias * deq.bias_variance, bias)
    growing, fixed = (1.0, 0.0) if function.width is None else (float(function.width), 1.0)
    return Factors(recurrent * growing, 0.0, inputs * fixed / deq.input_variance, bias * fixed, 0.0)
