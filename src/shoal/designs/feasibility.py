r"""Which DEQs have which designs.

In energies, the coefficients of a centered DEQ depend on $\sigma_a^2$ and $\sigma_b^2\tau_0^2$
alone. With $m_k$, $q$ at $\tau_*$, $s = 1 - \sigma_a^2m_1^2$, $\ell = \sigma_b^2/s$, $M = m_1^2/s$
(Ling 2024, Theorems 3.3 and 3.4, corrected; the NTK with all weights trained):
$$\alpha_1 = \ell m_1^2, \quad \alpha_2 = m_2^2\alpha_4^2/(4s), \quad \alpha_3 = m_2^2\ell^2/(2s),
\quad \beta_1 = \alpha_1 + \ell M, \quad \beta_2 = \alpha_2(1 + \sigma_a^2M), \quad
\beta_3 = \alpha_3(1 + \sigma_a^2M) + \ell^2m_2^2/s^2.$$
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.activations.names import as_activation
from shoal.core.checks import items, one_of, real
from shoal.designs.energies import Numbers
from shoal.designs.moments import FAMILIES
from shoal.gaussian import moments
from shoal.gaussian.moments import Moments

_STEPS = 60
_CONVERGED = 1e-13


@dataclass(frozen=True)
class Feasibility:
    r"""Which family of networks has the coefficients of each DEQ of a grid.

    Attributes:
        which: ``"ck"`` or ``"ntk"``.
        recurrent_variances: The grid of $\sigma_a^2$.
        injected: The grid of $\sigma_b^2\tau_0^2$.
        exists: Where the centered DEQ has a kernel. shape: (recurrent, injected)
        families: For each family where it has the coefficients. shape: (recurrent, injected)
    """

    which: str
    recurrent_variances: np.ndarray
    injected: np.ndarray
    exists: np.ndarray
    families: Mapping[str, np.ndarray] = field(hash=False)


def feasibility(
    activation: Activation,
    recurrent_variances: Sequence[float],
    injected: Sequence[float],
    *,
    which: str = "ck",
) -> Feasibility:
    r"""Find out for a grid of DEQs which family of networks has their coefficients.

    Args:
        activation: That of the DEQs, which are centered.
        recurrent_variances: Values of $\sigma_a^2$.
        injected: Values of $\sigma_b^2\tau_0^2$.
        which: ``"ck"`` or ``"ntk"``, all weights of the DEQ being trained.

    Example:
        >>> import shoal
        >>> from shoal.designs import feasibility
        >>> grid = feasibility(shoal.activations.ReLU(), [0.2, 0.9], [1.0])
        >>> {name: where[:, 0].tolist() for name, where in grid.families.items()}
        {'hard_tanh': [False, False], 'leaky_relu': [True, False], 'sinusoid': [True, True]}
    """
    activation = as_activation("activation", activation)
    one_of("which", which, ("ck", "ntk"))
    recurrent = np.array(
        [
            real("recurrent_variances", v, at_least=0.0)
            for v in items("recurrent_variances", recurrent_variances)
        ]
    )
    inputs = np.array([real("injected", v, above=0.0) for v in items("injected", injected)])
    if not (recurrent.size and inputs.size):
        raise ValueError("recurrent_variances and injected must not be empty")
    pairs = torch.cartesian_prod(torch.from_numpy(recurrent), torch.from_numpy(inputs))
    numbers, exists = _numbers(activation, pairs[:, 0], pairs[:, 1], which)
    shape = (recurrent.size, inputs.size)
    rows = [Numbers(*map(float, row)) for row in numbers]
    cells = list(zip(rows, exists.tolist(), strict=True))
    families = {
        name: np.array(
            [good and not family.violation(row, which) for row, good in cells], dtype=bool
        ).reshape(shape)
        for name, family in FAMILIES.items()
    }
    return Feasibility(which, recurrent, inputs, exists.numpy().reshape(shape), families)


def _numbers(
    phi: Activation, recurrent: Tensor, injected: Tensor, which: str
) -> tuple[Tensor, Tensor]:
    """The numbers of all DEQs, and where they exist."""
    variance, solved = _variances(phi, recurrent, injected)
    m = moments(phi, variance.sqrt())
    own, growth = _centered_square(m)
    rest, through = 1 - recurrent * m.first**2, 1 - recurrent * m.first_square
    slope = injected / rest  # ℓτ_0²
    gain = injected / (1 - recurrent * growth)  # α_4τ_0²
    linear = slope * m.first**2
    norms = m.second**2 * gain**2 / (2 * rest)
    square = m.second**2 * slope**2 / (2 * rest)
    exists = solved & (through > 0) & (recurrent * growth < 1)
    if which == "ntk":
        hidden = m.first**2 / rest
        own = own + variance * m.first_square / through
        linear = linear + slope * hidden
        norms = norms * (1 + recurrent * hidden)
        square = square * (1 + recurrent * hidden) + m.second**2 * slope**2 / rest**2
    return torch.stack([own, linear, norms, square], dim=1), exists


def _variances(phi: Activation, recurrent: Tensor, injected: Tensor) -> tuple[Tensor, Tensor]:
    r"""The hidden variances by Newton's method from below, and where that succeeded.

    $v = \sigma_a^2\operatorname{Var}[\varphi(\sqrt v\,\xi)] + \sigma_b^2\tau_0^2$.
    """
    variance = injected.clone()
    solved = torch.zeros_like(variance, dtype=torch.bool)
    for _ in range(_STEPS):
        own, growth = _centered_square(moments(phi, variance.sqrt()))
        excess, slope = recurrent * own + injected - variance, 1 - recurrent * growth
        solved = excess.abs() <= _CONVERGED * variance
        if bool(solved.all()):
            break
        step = torch.where(slope > 0, excess / slope.clamp(min=0.05), excess)
        variance = torch.maximum(variance + step, injected).clamp(max=1e12)
    return variance, solved


def _centered_square(m: Moments) -> tuple[Tensor, Tensor]:
    r"""$\operatorname{Var}[\varphi(\sqrt v\xi)]$ and its derivative in $v$."""
    return m.square - m.mean**2, m.square_second / 2 - m.mean * m.second
