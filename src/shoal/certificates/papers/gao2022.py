r"""Lemmas 3.5 and 3.6 of Gao 2022: repaired for gradient flow, and as printed.

With $\|A(0)\|, \|W(0)\| \le c\sqrt m$, $\|x_i\| \le \nu$ (one in the paper), $\lambda_0$ the least
eigenvalue of $G^\infty_{ij} = E[\sigma(w^\top x_i)\sigma(w^\top x_j)]$ and
$\|u\|, \|v\| \le 2\sqrt m$ throughout, gradients are at most $2c\nu\sqrt n$ ($v$),
$4c\nu\sqrt n$ ($u$), $6\nu\sqrt n$ ($W$) and $16\gamma c\nu\sqrt n$ ($A$) times the error, whose
integral is at most $2e_0/\lambda_0$.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from shoal.certificates.certificate import Conclusion, Condition, condition
from shoal.certificates.evidence.enclosures import least_eigenvalue, spectral_norm
from shoal.certificates.evidence.rounding import (
    ROUND_UP,
    TINY,
    UNIT,
    down,
    exact,
    gamma,
    row_norms,
    up,
)
from shoal.training import Promises

_WIDTH = "more width, smaller labels, a smaller readout"
_PARALLEL = "remove, merge or perturb parallel inputs"
_ENTRY_ERROR = 64 * UNIT  # of a formula with one cosine and one sine


def infinite_gram(x: Tensor) -> Tensor:
    r"""$G^\infty$ of inputs in float64; its entries err by less than 64 roundings of their size."""
    norms = torch.linalg.vector_norm(x, dim=1)
    unit = x / norms[:, None].clamp(min=1e-300)
    angle = torch.arccos((unit @ unit.T).clamp(-1, 1))
    angle.fill_diagonal_(0.0)
    kernel = (angle.sin() + (math.pi - angle) * angle.cos()) / (2 * math.pi)
    gram: Tensor = norms[:, None] * norms * kernel
    return gram


def _least_infinite(x: Tensor) -> float:
    """A lower bound of the least eigenvalue of the infinite Gram matrix."""
    gram = infinite_gram(x)
    rounding = (_ENTRY_ERROR + gamma(x.shape[1] + 8)) * float(gram.diagonal().sum()) * 2
    return max(0.0, least_eigenvalue(gram, error=up(rounding)))


def parallel_condition(x: Tensor) -> Condition:
    """The condition that no two inputs are parallel."""
    unit = x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp(min=1e-300)
    cosines = (unit @ unit.T).abs().fill_diagonal_(0.0)
    largest = float(cosines.max()) if len(x) > 1 else 0.0
    value = largest + 4 * gamma(x.shape[1] + 8)
    words = "no two inputs are parallel: the cosine of the smallest angle"
    return condition("not parallel", value, "<", 1, words, _PARALLEL, rigorous=True)


@dataclass(frozen=True)
class ImplicitBounds:
    r"""What the lemmas ask of a network and its data; all norms are upper bounds.

    Attributes:
        gamma: The network's $\gamma$.
        width: $m$.
        recurrent_norm: $\|A\|_2$.
        input_weight_norm: $\|W\|_2$.
        readout_norm: The larger of $\|u\|_2$ and $\|v\|_2$.
        gram: The least eigenvalue of $G(0)$, at least.
        error: $\|\hat y - y\|$.
        skip_trained: Whether $v$ is trained.
    """

    gamma: float
    width: int
    recurrent_norm: float
    input_weight_norm: float
    readout_norm: float
    gram: float
    error: float
    skip_trained: bool


class InputBounds:
    """What the lemmas ask of the inputs alone.

    Args:
        x: The inputs, in float64.
    """

    def __init__(self, x: Tensor) -> None:
        self.least = _least_infinite(x)
        self.size = up(math.sqrt(len(x))) * float(row_norms(x).max()) * ROUND_UP  # √n ν
        self.norm = spectral_norm(x)
        self.parallel = parallel_condition(x)


class _Constants:
    """What the lemmas are made of."""

    def __init__(self, bounds: ImplicitBounds, inputs: InputBounds) -> None:
        self.bounds, self.inputs, self.gamma = bounds, inputs, exact(bounds.gamma)
        self.root_width = exact(down(math.sqrt(bounds.width)))
        largest = max(bounds.recurrent_norm, bounds.input_weight_norm, TINY)  # c is not zero
        self.c = exact(up(largest)) / self.root_width
        self.least = exact(inputs.least)
        self.error = exact(bounds.error)
        self.samples = exact(inputs.size)
        self.square = exact(inputs.norm) ** 2  # ‖X‖²

    def basics(self) -> tuple[Condition, ...]:
        """What both lemmas assume."""
        limit = min(Fraction(1, 2), 1 / (4 * self.c))
        return (
            self.inputs.parallel,
            condition(
                "gamma",
                self.gamma,
                "<=",
                limit,
                "gamma <= min(1/2, 1/(4c)) with the measured c",
                f"gamma below {down(limit):.4g}",
                rigorous=True,
            ),
            condition(
                "Gram matrix",
                exact(self.bounds.gram),
                ">=",
                self.least * 3 / 4,
                "lambda_min(G(0)) >= 3/4 lambda_0",
                "more width",
                rigorous=True,
            ),
        )

    def at_least_root(self, name: str, bound: Fraction, words: str) -> Condition:
        """A lower bound of the root of the width."""
        rigorous = self.least > 0
        return condition(name, self.root_width, ">=", bound, words, _WIDTH, rigorous=rigorous)

    def at_most_root(self, name: str, bound: Fraction, words: str) -> Condition:
        """An upper bound of the root of the width."""
        remedy = "no width helps"
        return condition(name, self.root_width, "<=", bound, words, remedy, rigorous=True)


def lemma_3_5(bounds: ImplicitBounds, inputs: InputBounds) -> tuple[Conclusion, ...]:
    """What the lemmas say of a network.

    Args:
        bounds: The network.
        inputs: The inputs.
    """
    k = _Constants(bounds, inputs)
    if k.least == 0:
        failed = (inputs.parallel, _rank(k))
        return (Conclusion("Gao 2022, Lemma 3.5", "corrected", "gradient flow", failed),)
    return _repaired(k), _printed(k, "gradient flow"), _printed(k, "gradient descent")


def _rank(k: _Constants) -> Condition:
    words = "the infinite Gram matrix is positive definite, as far as can be proved"
    return condition("lambda_0", k.least, ">", 0, words, _PARALLEL, rigorous=True)


def _repaired(k: _Constants) -> Conclusion:
    travel = k.samples * k.error / k.least
    start = exact(k.bounds.readout_norm) / k.root_width
    readout = max(8 * k.c * travel / (2 - start), Fraction(0)) if start < 2 else Fraction(10**300)
    conditions = (
        *k.basics(),
        k.at_least_root(
            "W, Gram", 192 * k.c * k.square * travel / k.least, "W stays where G keeps lambda_0/2"
        ),
        k.at_least_root("W, norm", 12 * travel / k.c, "the norm of W at most doubles"),
        k.at_least_root("readouts", readout, "the norms of u and v stay below 2 sqrt(m)"),
        k.at_least_root("A, norm", 8 * travel / k.c, "the norm of A at most doubles"),
        condition(
            "skip",
            int(k.bounds.skip_trained),
            ">",
            0,
            "the skip readout is trained",
            "train the skip readout",
            rigorous=True,
        ),
    )
    return Conclusion(
        "Gao 2022, Lemma 3.5",
        "corrected",
        "gradient flow",
        conditions,
        rate=down(k.least),
        promises=_promises(k),
    )


def _promises(k: _Constants) -> Promises:
    return Promises(gain=0.5, singular_value=down(math.sqrt(down(k.least / 2))))


def _printed(k: _Constants, dynamics: str) -> Conclusion:
    flow = dynamics == "gradient flow"
    factor = 8 if flow else 16
    upper = factor * k.c * k.samples * k.error / k.least
    lower = 2048 * k.c**2 * k.samples**2 * k.square * k.error**2 / k.least**3
    conditions = (
        *k.basics(),
        k.at_most_root("(iii) at t = 0", upper, "the printed bound of v must hold at the start"),
        k.at_least_root("m", exact(up(math.sqrt(up(lower)))), "the printed width, as proved"),
    )
    note = "The last two contradict each other at every width."
    if not flow:
        note += " The proof also bounds a positive semidefinite part by its size."
    return Conclusion(
        f"Gao 2022, Lemma {'3.5' if flow else '3.6'}",
        "printed",
        "gradient flow" if flow else "gradient descent",
        conditions,
        rate=down(k.least) if flow else None,
        sound=False,
        note=note,
    )
