r"""The promises of this room, by brute force: coefficients, equivalents and spectra.

`deq_coefficients` and `layer_coefficients` are the closed forms of Ling 2024, Theorems 3.3, 3.4 and
3.8 (corrected), by moments of the activation alone. `equivalent_entries` fills the equivalent entry
by entry, and `sampled_eigenvalues` draws what a limiting spectrum predicts. Slow and short: the
tests compare everything else with these.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import Architecture
from shoal.asymptotics.centering import centered
from shoal.asymptotics.coefficients import KernelCoefficients
from shoal.asymptotics.mixture import GaussianMixture
from shoal.gaussian import moments
from shoal.kernels import kernel


def centered_moments(phi: Activation, tau: float) -> tuple[float, ...]:
    r"""$E[\varphi^2]$, $m_1$, $m_2$, $q$ and $E[\varphi'^2]$ of $\varphi$ less its mean."""
    m = moments(phi, tau)
    square, q = m.square - m.mean**2, m.square_second - 2 * m.mean * m.second
    return float(square), float(m.first), float(m.second), float(q), float(m.first_square)


def deq_coefficients(
    phi: Activation, recurrent: float, injected: float, norm: float, *, frozen_input: bool
) -> tuple[KernelCoefficients, KernelCoefficients, float, float]:
    r"""Both kernels of a centered DEQ, $\tau_*$ and $\alpha_4$; B trained or frozen."""
    variance = injected * norm**2
    for _ in range(12):  # Newton's method
        square, _, _, q, _ = centered_moments(phi, math.sqrt(variance))
        excess = recurrent * square + injected * norm**2 - variance
        variance += excess / (1 - recurrent * q / 2)
    square, m1, m2, q, slopes = centered_moments(phi, math.sqrt(variance))
    s = 1 - recurrent * m1**2
    a1, a4 = injected * m1**2 / s, injected / (1 - recurrent * q / 2)
    entering = recurrent * a1 + injected
    a2, a3 = m2**2 * a4**2 / (4 * s), m2**2 * entering**2 / (2 * s)
    if frozen_input:  # Ling 2024, Theorem 3.4, corrected
        b1, b2 = a1 / s, a2 / s
        b3 = (a3 + b1 * recurrent * m2**2 * entering) / s
        diagonal = square / (1 - recurrent * slopes)
    else:
        hidden = m1**2 / s
        b1, b2 = a1 + entering * hidden, a2 * (1 + recurrent * hidden)
        b3 = a3 * (1 + recurrent * hidden) + entering**2 * m2**2 / s**2
        diagonal = square + variance * slopes / (1 - recurrent * slopes)
    ck = KernelCoefficients(square, a1, a2, a3)
    return ck, KernelCoefficients(diagonal, b1, b2, b3), math.sqrt(variance), a4


def layer_coefficients(
    activations: Sequence[Activation], norm: float
) -> tuple[KernelCoefficients, KernelCoefficients]:
    """Both kernels of a centered fully connected network with all weights trained."""
    a1 = a4 = b1 = 1.0
    a2 = a3 = b2 = b3 = 0.0
    variance = diagonal = norm**2
    for phi in activations:
        square, m1, m2, q, slopes = centered_moments(phi, math.sqrt(variance))
        b3 = m1**2 * (a3 + b3) + m2**2 * a1 * (a1 / 2 + b1)
        b2 = m1**2 * (a2 + b2) + m2**2 * a4**2 / 4
        a3, a2 = m1**2 * a3 + m2**2 * a1**2 / 2, m1**2 * a2 + m2**2 * a4**2 / 4
        b1, a1, a4 = m1**2 * (a1 + b1), m1**2 * a1, q / 2 * a4
        variance, diagonal = square, square + diagonal * slopes
    return KernelCoefficients(variance, a1, a2, a3), KernelCoefficients(diagonal, b1, b2, b3)


def equivalent_entries(
    k: KernelCoefficients, norm: float, x: Tensor, labels: Sequence[int]
) -> Tensor:
    r"""The equivalent of a kernel with these coefficients at $\tau_0$ = ``norm``."""
    n, gram = len(x), (x @ x.T).tolist()
    chi = [gram[i][i] - norm**2 for i in range(n)]
    squares: dict[tuple[int, int], list[float]] = {}
    for i in range(n):
        for j in range(n):
            if i != j:
                squares.setdefault((labels[i], labels[j]), []).append(gram[i][j] ** 2)
    result = torch.empty(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            pairs = squares[labels[i], labels[j]]
            entry = (
                k.offset + k.slope * (chi[i] + chi[j]) + k.bend / 2 * (chi[i] ** 2 + chi[j] ** 2)
            )
            entry += k.alpha1 * gram[i][j] + k.alpha2 * chi[i] * chi[j]
            entry += k.alpha3 * sum(pairs) / len(pairs)
            result[i, j] = entry + (i == j) * (k.gamma2 - k.offset - norm**2 * k.alpha1)
    return result


def sampled_eigenvalues(
    architecture: Architecture, mixture: GaussianMixture, *, n: int, norm: float, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Eigenvalues of both exact kernels of samples, the architecture being centered."""
    x, _ = mixture.sample(n, seed)
    ck, ntk = kernel(centered(architecture, norm), x)
    return torch.linalg.eigvalsh(ck), torch.linalg.eigvalsh(ntk)
