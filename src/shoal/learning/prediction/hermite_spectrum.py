r"""Eigenvalues of a kernel from the covariance of the data: the Hermite eigenstructure ansatz.

Let inputs have principal components $x_i = \sqrt{\gamma_i}\, z_i$ with independent standard normal
$z_i$, and let the kernel at their norm be $\sum_k g_k \rho^k$ in the cosine. Powers of
$\rho = \sum_i \gamma_i z_i z_i' / \sum_i \gamma_i$ are sums of products of monomials of $z$ and
$z'$, whose leading parts are products of normalized Hermite polynomials. To leading order in the
inverse of the effective dimension these are the eigenfunctions, and
$$\lambda_\alpha = c_{|\alpha|} \prod_i (\gamma_i/\textstyle\sum_j \gamma_j)^{\alpha_i},
\qquad c_\ell = \ell!\, g_\ell$$
(Karkada et al. 2025). The next order is in closed form too. By Stein's lemma $c_\ell$ is the mean
of the $\ell$-th derivative in $\rho$, of which $\ell!\, g_\ell$ is the value at zero. Let
$q_i = \gamma_i/\sum_j \gamma_j$ and $s = \sum_i q_i^2$. Then $\rho$ is nearly normal with variance
$s$, and moments of inputs of one norm are those of normal ones, divided by moments of the norm:
$$c_\ell = \sum_{k - \ell = 0, 2, \dots} \frac{g_k\, k!}{(k-\ell)!!}\,
\frac{s^{(k-\ell)/2}}{\prod_{j < (k+\ell)/2} (1 + 2js)}, \qquad
\lambda_\alpha = c_\ell \prod_i
\Bigl(q_i\, \frac{1 + 2(\ell - 1)s}{1 + 2(\ell - 1)q_i}\Bigr)^{\alpha_i}.$$
The last factor is that of a norm that is larger where these components are. On a sphere with equal
variances all of this is exact (Funk and Hecke); in general it is right to first order in the
$q_i$. Without it, eigenvalues of high levels grow like $\ell!\, q_1^\ell$, beyond all bounds.
"""

import heapq
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.exceptions import AccuracyError
from shoal.kernels import KernelFunction
from shoal.kernels.calculi.power_series import PowerSeries
from shoal.kernels.function import kernels_in

Index = tuple[int, ...]  # (0, 0, 2) is of degree two in the first component, one in the third

_DEGREE = 128  # of the kernel's series; what is beyond is in the rest
_EXCESS = 0.05  # of the trace: products of one norm are not independent, and counted too often


@dataclass(frozen=True, eq=False)
class HermiteSpectrum:
    r"""The largest eigenvalues of a kernel's operator, and what is left of its trace.

    Attributes:
        values: Eigenvalues, descending. shape: (modes,)
        indices: The eigenfunction of each, a product of normalized Hermite polynomials of principal
            components of variance one: ``(0, 0, 2)`` is $h_2(z_0)\, h_1(z_2)$, and ``()`` is one.
        rest: The sum of all other eigenvalues.
        levels: $c_\ell$, for $\ell = 0, 1, \dots$
        effective_dimension: $(\sum_i \gamma_i)^2/\sum_i \gamma_i^2$; the ansatz is for large ones.
    """

    values: Tensor
    indices: tuple[Index, ...]
    rest: float
    levels: Tensor
    effective_dimension: float

    def freedom(self, kappa: float) -> float:
        r"""$\sum_i \lambda_i/(\lambda_i + \kappa)$, for a $\kappa$ above those that are left."""
        return float((self.values / (self.values + kappa)).sum()) + self.rest / kappa


def hermite_spectrum(
    function: KernelFunction, variances: Tensor, kernel: int, modes: int
) -> HermiteSpectrum:
    """The spectrum for principal variances, descending; ``kernel`` is 0 for the CK.

    Raises:
        AccuracyError: If eigenvalues sum to clearly more than the kernel's trace.
    """
    total = float(variances.sum())
    shares = (variances / total).tolist()
    inverse = sum(share**2 for share in shares)
    found = kernels_in(function.architecture, PowerSeries(math.sqrt(total), _DEGREE), function)
    series = (found.ck if kernel == 0 else found.ntk).coefficients
    levels = _levels(series, inverse)
    values, indices = _largest(levels, shares, modes)
    trace = float(function.own(torch.tensor([total], dtype=torch.float64))[kernel])
    rest = trace - sum(values)
    if rest < -_EXCESS * trace:
        raise AccuracyError(
            f"eigenvalues of the Hermite ansatz sum to {sum(values) / trace:.3g} times "
            f"the kernel's trace: an effective dimension of {1 / inverse:.3g} is too small for it"
        )
    return HermiteSpectrum(
        torch.tensor(values, dtype=torch.float64),
        tuple(indices),
        max(rest, 0.0),
        torch.tensor(levels, dtype=torch.float64),
        1 / inverse,
    )


def _levels(series: np.ndarray, inverse: float) -> list[float]:
    """The coefficients of all levels; terms are positive, and their logarithms tame."""
    top = len(series) - 1
    norms = np.concatenate([[0.0], np.cumsum(np.log1p(2 * inverse * np.arange(top)))])

    def term(k: int, level: int) -> float:
        pairs = (k - level) // 2
        double = pairs * math.log(2) + math.lgamma(pairs + 1)  # (k - level)!!
        power = pairs * math.log(inverse) - norms[(k + level) // 2]
        return float(series[k]) * math.exp(math.lgamma(k + 1) - double + power)

    return [
        sum(term(k, level) for k in range(level, top + 1, 2) if series[k] > 0)
        for level in range(top + 1)
    ]


def _largest(
    levels: list[float], shares: list[float], modes: int
) -> tuple[list[float], list[Index]]:
    """The largest products, found by raising one component of one factor at a time."""
    square = sum(share**2 for share in shares)

    def share_of(component: int, degree: int) -> float:
        """The share of the norm that lies in products of some degree."""
        share, times = shares[component], 2 * max(degree - 1, 0)
        return share * (1 + times * square) / (1 + times * share)

    starts = ((c * share_of(0, degree) ** degree, (0,) * degree) for degree, c in enumerate(levels))
    queue = [(-value, index) for value, index in starts if value > 0]
    heapq.heapify(queue)
    seen = {index for _, index in queue}
    values: list[float] = []
    indices: list[Index] = []
    while queue and len(values) < modes:
        negative, index = heapq.heappop(queue)
        values.append(-negative)
        indices.append(index)
        for place, component in enumerate(index):
            above = index[place + 1] if place + 1 < len(index) else len(shares) - 1
            raised = (*index[:place], component + 1, *index[place + 1 :])
            if component < above and raised not in seen:
                seen.add(raised)
                degree = len(index)
                ratio = share_of(component + 1, degree) / share_of(component, degree)
                heapq.heappush(queue, (negative * ratio, raised))
    return values, indices
