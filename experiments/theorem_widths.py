"""Widths from which the corrected theorems of Ling 2023 and Gao 2022 hold for random weights.

Both take for granted that the least eigenvalue of the Gram matrix is what the papers' lemmas say
of wide networks. Errata and proofs of the corrected conditions are in the documentation.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

import shoal

_EXPONENTS = (0, *range(1, 200, 2))  # of widths that are tried, powers of two
_REFINEMENTS = 5


def theorem_widths(
    architecture: shoal.DEQ | shoal.ImplicitNetwork,
    x: Tensor,
    y: Tensor,
    readout_scale: float,
    confidence: float = 0.9,
) -> dict[str, float]:
    """The widths for gradient flow and gradient descent; infinite if no width is enough."""
    failure = (1 - confidence) / 4
    if isinstance(architecture, shoal.ImplicitNetwork):
        least = _rectified_eigenvalue(x)
        laws = {"flow": lambda m: _gao(architecture.gamma, x, y, readout_scale, failure, least, m)}
    else:
        least = float(torch.linalg.eigvalsh(shoal.kernel(architecture, x).ck)[0])

        def law(descent: bool) -> Callable[[int], bool]:
            return lambda m: _ling(architecture, x, y, readout_scale, failure, least, m, descent)

        laws = {"flow": law(False), "descent": law(True)}
    return {"flow": math.inf, "descent": math.inf} | {k: _smallest(f) for k, f in laws.items()}


def _rectified_eigenvalue(x: Tensor) -> float:
    """The least eigenvalue of E[σ(w·x_i)σ(w·x_j)] with the ReLU."""
    squares, relu = x.square().sum(1), shoal.activations.ReLU()
    gram = shoal.gaussian.dual(relu, squares[:, None], squares, x @ x.T)
    return float(torch.linalg.eigvalsh(gram)[0])


def _ling(
    deq: shoal.DEQ,
    x: Tensor,
    y: Tensor,
    scale: float,
    failure: float,
    least: float,
    width: int,
    descent: bool,
) -> bool:
    """Theorem 1: Eqs. (7) and (8), half of them for flow, and λ_0 > 4 C_2 for descent."""
    # a Gaussian matrix exceeds √rows + √columns + t with probability exp(-t²/2) at most
    root, t, size = math.sqrt(width), math.sqrt(2 * math.log(1 / failure)), float(x.norm())
    weight = math.sqrt(deq.recurrent_variance) * (2 + t / root)
    if weight >= 1:
        return False
    inputs = math.sqrt(deq.input_variance) * (root + math.sqrt(x.shape[1]) + t)
    readout = scale * (1 + t / root)
    # E‖aᵀZ‖² = ‖Z‖²/m, ‖Z‖ ≤ ‖U‖‖X‖/(1 - ‖W‖), and Markov's inequality
    error = float(y.norm()) + scale * inputs * size / (1 - weight) / root / math.sqrt(failure)
    value, factor = width * least / 2, 4 if descent else 2

    def holds(delta: float) -> bool:
        gap, a, u = 1 - weight - delta, readout + delta, inputs + delta
        c_w, c_u, c_a = u * a / gap**2, a / gap, u / gap
        second = (c_w**2 + c_u**2) * size**2  # C_2
        return (
            value >= factor * max(c_w, c_u, c_a) * size * error / delta
            and value**1.5 >= factor * (2 + math.sqrt(2)) * second * error / a
            and not (descent and value <= 4 * second)
        )

    return any(holds(10 ** (-k / 10) * (1 - weight)) for k in range(1, 61))


def _gao(
    gamma: float,
    x: Tensor,
    y: Tensor,
    scale: float,
    failure: float,
    least: float,
    width: int,
) -> bool:
    """Lemma 3.5, repaired for gradient flow."""
    root, t, norm = math.sqrt(width), math.sqrt(2 * math.log(1 / failure)), float(x.norm())
    recurrent, inputs = 2 * root + t, root + math.sqrt(x.shape[1]) + t
    mapped, room = inputs * norm / root, 1 - gamma * recurrent / root
    c = max(recurrent, inputs) / root
    if not gamma <= min(0.5, 1 / (4 * c)) or scale >= 2:
        return False
    error = float(y.norm()) + scale * (mapped / room + mapped) * math.sqrt(2 / failure)
    travel = math.sqrt(len(x)) * float(x.norm(dim=1).max()) * error / least
    square = float(torch.linalg.matrix_norm(x, 2)) ** 2
    needed = (192 * c * square / least, 12 / c, 8 * c / (2 - scale), 8 / c)
    return root >= max(needed) * travel


def _smallest(holds: Callable[[int], bool]) -> float:
    """The smallest width at which the conditions hold, within a factor of about 1.04."""
    for smaller, larger in pairwise(_EXPONENTS):
        if holds(2**larger):
            low, high = 2**smaller, 2**larger
            for _ in range(_REFINEMENTS + (larger - smaller).bit_length()):
                middle = math.isqrt(low * high)
                low, high = (low, middle) if holds(middle) else (middle, high)
            return float(high)
    return math.inf
