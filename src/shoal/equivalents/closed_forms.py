r"""Expansions of kernels in closed form, by moments (Ling 2024, Theorems 3.3, 3.4, 3.8, corrected).

Nothing of the architecture's kernel function is used, so that the two check each other. With
$m_k = \mathbb{E}[\varphi^{(k)}(\tau\xi)]$ and $q = \mathbb{E}[(\varphi^2)''(\tau\xi)]$:

**DEQ.** $p(a)$, the variance of the hidden units at squared norm $a$, satisfies $p = \sigma_a^2
\mathbb{E}[\varphi(\sqrt p\,\xi)^2] + \sigma_b^2 a$, so $p' = \alpha_4 = \sigma_b^2/(1 - \sigma_a^2
q/2)$. Their covariance $\Lambda(a, b, c)$ satisfies $\Lambda = \sigma_a^2 G + \sigma_b^2 c$, $G =
D_\varphi(p(a), p(b), \Lambda)$; differentiating once and twice gives linear equations with the
factor $s = 1 - \sigma_a^2 D_{11}$. The NTK is $w_r G + (w_A G + w_B c) M$, $M = E/(1 -
\sigma_a^2E)$, $E = D_{11}(p(a), p(b), \Lambda)$, where a weight is zero for a group that is not
trained and otherwise $(w_r, w_A, w_B) = (1, \sigma_a^2, \sigma_b^2)$.

Centered, duals at $\Lambda = 0$ are products $D_{jk} = m_jm_k$ with $m_0 = 0$, and this becomes
$$\alpha_1 = \sigma_b^2 m_1^2/s, \quad \alpha_2 = m_2^2\alpha_4^2/(4s), \quad
\alpha_3 = m_2^2\ell^2/(2s), \quad \ell = \Lambda_c = \sigma_b^2/s,$$
$$\beta_1 = (w_r + w_AM)\alpha_1 + w_BM, \quad \beta_2 = (w_r + w_AM)\alpha_2, \quad
\beta_3 = (w_r + w_AM)\alpha_3 + (w_A\alpha_1 + w_B)m_2^2\ell/s^2, \quad M = m_1^2/s.$$
With readout and recurrent weights trained, $w_r + w_AM = 1/s$: Ling 2024, Theorem 3.4. With all
trained, $\Theta = G + \Lambda M$, so $\beta_1 = \alpha_1 + \ell M = \ell m_1^2(1 + 1/s)$.
Not centered, the same equations hold with the duals at the solution $\Lambda$ of $\Lambda =
\sigma_a^2 D_\varphi(\tau_*^2, \tau_*^2, \Lambda)$.

**Fully connected networks.** The kernels of one layer are duals of the last one's, and the rule
for their derivatives is applied layer by layer; centered, it is the recursion of Theorem 3.8.
"""

import math
from functools import lru_cache, singledispatch
from typing import Literal

import torch

from shoal.activations import Activation
from shoal.architectures import DEQ, Architecture, FullyConnected
from shoal.equivalents.autograd import gradients
from shoal.equivalents.jets import DualTable, Expansion, Jet, Variance, composed
from shoal.exceptions import ConvergenceError
from shoal.gaussian import dual, moments
from shoal.gaussian.moments import Moments, mean_square
from shoal.kernels.fixed_points import fixed_covariance, fixed_variance
from shoal.kernels.fully_connected import layer_factor

__all__ = ["closed_expansion", "sooner"]

_INNER_PRODUCT = Jet(c=1.0)


@singledispatch
def closed_expansion(
    architecture: Architecture,
    tau0: float,  # noqa: ARG001
    trainable: frozenset[str],  # noqa: ARG001
    width: int | None,  # noqa: ARG001
    center: bool,  # noqa: ARG001
) -> Expansion:
    r"""The expansion at inputs of norm $\tau_0$; ``center`` says that all means vanish."""
    name = type(architecture).__name__
    raise TypeError(f"no closed form is known for {name}; use method='derivatives'")


def sooner(architecture: Architecture) -> Literal["closed", "derivatives"]:
    """The method of :func:`~shoal.coefficients` that takes less time; the numbers are the same."""
    known = closed_expansion.dispatch(type(architecture)) is not closed_expansion.dispatch(object)
    return "closed" if known else "derivatives"


@closed_expansion.register
def _(
    architecture: DEQ, tau0: float, trainable: frozenset[str], width: int | None, center: bool
) -> Expansion:
    phi, recurrent = architecture.activation, architecture.recurrent_variance
    injection = architecture.input_variance
    factor, injected = torch.tensor([recurrent, injection * tau0**2], dtype=torch.float64)
    fixed = fixed_variance(phi, factor, injected, differentiable=False)
    m = moments(phi, fixed.sqrt())
    growth = injection / _below_one(1 - recurrent * float(m.square_second) / 2)
    bend = growth**2 * recurrent * _square_bend(phi, fixed, center)
    variance = Variance(float(fixed), growth, growth * bend / injection)
    zero = torch.zeros_like(fixed)
    inner = (
        0.0
        if center
        else float(fixed_covariance(phi, factor, fixed, fixed, zero, differentiable=False))
    )
    table = _centered_table(m) if center else _table(phi, float(fixed), inner)
    covariance = _fixed_jet(table, recurrent, injection, variance, inner)
    ck, slope = (composed(table, order, variance, covariance) for order in (0, 1))
    rest = 1 - recurrent * slope.value
    through = slope.mapped(slope.value / rest, 1 / rest**2, 2 * recurrent / rest**3)
    readout, hidden, input_ = _weights(architecture, trainable, width)
    ntk = ck.times(readout) + (ck.times(hidden) + _INNER_PRODUCT.times(input_)) * through
    square, own_slope = float(m.square), float(m.first_square)
    own_through = own_slope / _below_one(1 - recurrent * own_slope)
    own_ntk = readout * square + (hidden * square + input_ * tau0**2) * own_through
    return Expansion(ck, ntk, square, own_ntk, growth)


@closed_expansion.register
def _(
    architecture: FullyConnected,
    tau0: float,
    trainable: frozenset[str],
    width: int | None,  # noqa: ARG001
    center: bool,
) -> Expansion:
    variance, ck, ntk, own_ntk = Variance(tau0**2, 1.0, 0.0), _INNER_PRODUCT, Jet(), 0.0
    for layer, sigma in enumerate(architecture.activations, start=1):
        factor, m = layer_factor(architecture, sigma), moments(sigma, math.sqrt(variance.value))
        table = _centered_table(m) if center else _table(sigma, variance.value, ck.value)
        if f"layer{layer}" in trainable:
            ntk, own_ntk = ntk + ck, own_ntk + variance.value
        ntk = ntk * composed(table, 1, variance, ck).times(factor)
        own_ntk *= factor * float(m.first_square)
        ck = composed(table, 0, variance, ck).times(factor)
        fixed = torch.tensor(variance.value, dtype=torch.float64)
        half = float(m.square_second) / 2
        bend = _square_bend(sigma, fixed, center) * variance.first**2
        variance = Variance(
            factor * float(m.square),
            factor * half * variance.first,
            factor * (bend + half * variance.second),
        )
    if "readout" in trainable:
        ntk, own_ntk = ntk + ck, own_ntk + variance.value
    return Expansion(ck, ntk, variance.value, own_ntk, variance.first)


def _fixed_jet(
    table: DualTable, recurrent: float, injection: float, variance: Variance, inner: float
) -> Jet:
    r"""The jet of $\Lambda = \sigma_a^2 D_\varphi(p(a), p(b), \Lambda) + \sigma_b^2 c$.

    Derivatives of one order of $\Lambda$ enter those of $D_\varphi$ by the factor $D_{11}$ alone.
    So what they are without it, over $1 - \sigma_a^2D_{11}$, is what they are.
    """
    rest = _below_one(1 - recurrent * table(1, 1))
    free = composed(table, 0, variance, Jet(inner))
    first = Jet(inner, a=recurrent * free.a / rest, c=injection / rest)
    free = composed(table, 0, variance, first).times(recurrent / rest)
    return Jet(inner, first.a, first.c, free.aa, free.ab, free.cc)


def _weights(
    architecture: DEQ, trainable: frozenset[str], width: int | None
) -> tuple[float, float, float]:
    """How much readout, recurrent and input weights count in the NTK."""
    if architecture.parametrization == "ntk":
        weights = (1.0, architecture.recurrent_variance, architecture.input_variance)
    else:  # Ling 2023: weights in their own scale, so the NTK grows with the width
        weights = (1.0, 1.0, 0.0) if width is None else (float(width), float(width), 1.0)
    readout, hidden, input_ = (
        weight if group in trainable else 0.0
        for weight, group in zip(weights, ("readout", "recurrent", "input"), strict=True)
    )
    return readout, hidden, input_


def _centered_table(m: Moments) -> DualTable:
    """Duals of independent arguments, that is products of moments, the first one zero."""
    means = (0.0, float(m.first), float(m.second), float(m.third))

    def table(j: int, k: int) -> float:
        # derivatives from the fourth on meet kernels of orthogonal inputs, which vanish
        return means[j] * means[k] if max(j, k) < len(means) else 0.0

    return table


def _table(phi: Activation, variance: float, inner: float) -> DualTable:
    r"""Duals of correlated arguments, $D_{2i+l, l} = 2^i \partial_p^i \partial_c^l D$."""

    @lru_cache
    def table(j: int, k: int) -> float:
        p, b, c = torch.tensor([variance, variance, inner], dtype=torch.float64)
        with torch.enable_grad():
            p.requires_grad_()
            c.requires_grad_()
            value = dual(phi, p, b, c)
            for variable in (c,) * k + (p,) * ((j - k) // 2):
                (value,) = gradients(value, variable)
        return math.ldexp(float(value.detach()), (j - k) // 2)

    return table


def _square_bend(phi: Activation, variance: torch.Tensor, center: bool) -> float:
    r"""$\partial_p^2\,\mathbb{E}[\varphi(\sqrt p\,\xi)^2]$; what is centered does not need it."""
    if center:
        return 0.0
    with torch.enable_grad():
        p = variance.detach().clone().requires_grad_()
        (bend,) = gradients(mean_square(phi, p)[1], p)
    return float(bend.detach())


def _below_one(rest: float) -> float:
    """One minus a slope that must be below one, or say that it is not."""
    if not rest > 0:
        raise ConvergenceError(
            f"the kernel does not exist: recurrent_variance times the slope is {1 - rest:.4g} at "
            "the fixed point, and must be below 1"
        )
    return rest
