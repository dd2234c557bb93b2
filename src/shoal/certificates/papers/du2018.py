r"""Theorems 3.1, 4.1 and 5.1 of Du 2018, with the constants that their proofs make explicit.

The induction is $\|e(k)\|^2 \le (1 - \eta\lambda_0/2)^k \|e(0)\|^2$, by the last layer's share
$G^{(H)}$ of the NTK alone. If all weights stay within $R\sqrt m$ of their start, the proofs bound

- $\|G^{(H)} - G^{(H)}(0)\| \le n \Gamma R$ (Lemmas A.4, B.4, C.4),
- the gradient of an output in layer $h$ by $\beta_h$ (A.5, B.5, C.5), so that $R$ need not be above
  $4 \sqrt n \max\beta_h e_0/(\lambda_0\sqrt m)$,
- its change in a step by $\beta_h \zeta \eta Q$, $Q = \sqrt n \max\beta_h \|e\|$ (A.6, B.6, C.6),
- that of the outputs by $\sqrt n \chi \eta Q$ (A.7, B.7, C.7).

The constants here are measured or derived from measured norms; the documentation says where they
differ from printed ones.
"""

import math
from dataclasses import dataclass, field
from functools import partial

from shoal.certificates.certificate import Conclusion, Condition, condition
from shoal.training import Promises

_UNIT_NORM = 2.0**-20  # what rounding makes of norms of one, in float32 too
_FAILURE = 0.1  # the probability in printed widths
_WIDTH = "more width"
_PARALLEL = "remove or perturb inputs that are parallel or nearly so"
_measured = partial(condition, rigorous=False)


@dataclass(frozen=True)
class Du2018Bounds:
    r"""What the theorems ask of a network and its data.

    Attributes:
        theorem: Which one, such as ``"Du 2018, Theorem 3.1"``.
        samples: $n$.
        depth: $H$.
        width: $m$.
        limit: $\lambda_0 = \lambda_{\min}(K^{(H)})$ of the infinitely wide network.
        gram: A lower bound of $\lambda_{\min}(G^{(H)}(0))$.
        separation: $\lambda$, over pairs of different inputs.
        norm_error: How far norms of inputs are from one.
        weight: $c_{w,0}$, the largest $\|W^{(h)}(0)\|_2/\sqrt m$.
        feature: $c_{x,0}$, the largest norm of the features of any layer, the inputs included.
        normalization: $c_\sigma$.
        lipschitz: $L$.
        smoothness: $\beta$.
        error: $e_0$, at most.
        scale: $c_\lambda\lambda^{3/2}$, of residual networks.
        pixels: $p$.
        patch: $q$.
        exponential: Whether printed widths have factors of $2^{O(H)}$.
    """

    theorem: str
    samples: int
    depth: int
    width: int
    limit: float
    gram: float
    separation: float
    norm_error: float
    weight: float
    feature: float
    normalization: float
    lipschitz: float
    smoothness: float
    error: float
    scale: float = field(default=0.0, kw_only=True)
    pixels: int = field(default=1, kw_only=True)
    patch: int = field(default=1, kw_only=True)
    exponential: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class LemmaConstants:
    r"""What the lemmas say of weights within $R\sqrt m$ of their start; see the module.

    Attributes:
        stability: $\Gamma$.
        radius: The largest $R$ for which they hold.
        pace: $\max\beta_h$.
        pace_square: $\sum_h \beta_h^2$.
        bend: $\zeta$.
        change: $\chi$.
    """

    stability: float
    radius: float
    pace: float
    pace_square: float
    bend: float
    change: float


def lemma_constants(b: Du2018Bounds) -> LemmaConstants:
    """What the lemmas say of a network."""
    return _fully_connected(b) if b.exponential else _residual(b)


def _fully_connected(b: Du2018Bounds) -> LemmaConstants:
    """Lemmas A.3 to A.7."""
    lift = math.sqrt(b.normalization) * b.lipschitz  # √c_σ L
    growth = max(2 * lift * b.weight, lift, 1.0)  # c_x
    total = sum(_power(growth, layer) for layer in range(b.depth))  # g_{c_x}(H)
    pace = 2 * b.feature * _power(growth, b.depth)
    stability = 2 * b.smoothness * b.feature + 3 * math.sqrt(b.normalization) * b.lipschitz**2
    root, slope = math.sqrt(b.width), b.smoothness / b.lipschitz
    bend = (b.depth / (2 * b.weight) + lift * total) / root
    return LemmaConstants(
        stability=stability * b.lipschitz * b.normalization * b.feature**2 * total,
        radius=min(b.weight, 1 / (lift * total)),
        pace=pace,
        pace_square=b.depth * pace * pace,
        bend=bend + 2 * b.depth * slope * b.feature * total,
        change=2 * lift * b.feature * total,
    )


def _residual(b: Du2018Bounds) -> LemmaConstants:
    """Lemmas B.3 to B.7, and C.3 to C.7 where there are pixels."""
    scale = b.scale if b.depth > 1 else 0.0  # one layer has no residual
    patch, spread = math.sqrt(b.patch), math.sqrt(b.patch * b.pixels)
    lift = math.sqrt(b.normalization) * b.lipschitz * patch
    growth = _power(math.e, 2 * scale * b.weight * b.lipschitz * patch)
    c_x = (lift * b.feature + b.feature / b.weight) * growth
    first = lift * math.sqrt(b.pixels) * b.feature * growth  # layer 1 has no skip, nor 1/H
    later = 2 * scale / b.depth * b.feature * b.lipschitz * spread * growth
    last = (scale / b.depth) ** 2 if b.depth > 1 else b.normalization
    inner = 2 * patch * (b.weight * c_x + b.feature)
    products = 3 * b.lipschitz * b.pixels * c_x
    slopes = 2 * b.smoothness * math.sqrt(b.pixels) * b.feature
    slopes *= 2 * b.weight * patch * c_x + patch * b.feature
    root = math.sqrt(b.width)
    bend = c_x / (2 * b.feature * root) + b.smoothness * inner / b.lipschitz
    bend += scale * patch * (2 * b.weight * b.smoothness * inner + b.lipschitz / root)
    return LemmaConstants(
        stability=last * b.lipschitz * b.patch * b.feature * (products + slopes),
        radius=min(b.weight, b.feature / c_x),
        pace=max(first, later),
        pace_square=first * first + (b.depth - 1) * later * later,
        bend=bend,
        change=c_x * math.sqrt(b.pixels),
    )


def _power(base: float, exponent: float) -> float:
    """A power, infinite beyond the range of floats."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def theorem(b: Du2018Bounds, *, step_size: float | None = None) -> tuple[Conclusion, Conclusion]:
    """What the theorem says of a network: corrected, and as it is printed.

    Args:
        b: The network and its data.
        step_size: The step size to certify; by default the largest that the proof allows.
    """
    lemmas = lemma_constants(b)
    largest = _steps(b, lemmas)
    step = min(largest.values()) if step_size is None else step_size
    steps = [
        _measured(name, step, "<=", bound, words, "a smaller step size")
        for (name, bound), words in zip(
            largest.items(),
            ("what is not linear in a step stays small", "so does the square of a step"),
            strict=True,
        )
    ]
    corrected = (*_assumptions(b), *_initial(b), *_stays(b, lemmas), *steps)
    return (
        Conclusion(
            b.theorem,
            "corrected",
            "gradient descent",
            corrected,
            step_size=step,
            rate=1 - step * b.limit / 2,
            promises=_promises(b, lemmas),
            note="Norms and constants are measured, not those of the worst case.",
        ),
        _printed(b, step_size),
    )


def _steps(b: Du2018Bounds, lemmas: LemmaConstants) -> dict[str, float]:
    """The largest step sizes for the two terms of second order."""
    n, limit = b.samples, max(b.limit, 0.0)
    linear = n**1.5 * lemmas.pace_square * lemmas.pace * lemmas.bend * b.error
    square = n**2 * lemmas.change * lemmas.change * lemmas.pace * lemmas.pace
    return {
        "I_2": limit / (8 * linear) if linear > 0 else math.inf,
        "step squared": limit / (8 * square) if square > 0 else math.inf,
    }


def _assumptions(b: Du2018Bounds) -> tuple[Condition, ...]:
    return (
        _measured(
            "unit norm",
            b.norm_error,
            "<=",
            _UNIT_NORM,
            "inputs have norm one",
            "normalize the inputs",
        ),
        _positive("lambda", b.separation, "no two inputs are parallel"),
        _positive("lambda_0", b.limit, "the limit Gram matrix of the last layer is regular"),
    )


def _positive(name: str, value: float, words: str) -> Condition:
    return _measured(name, value, ">", 0.0, words, _PARALLEL)


def _initial(b: Du2018Bounds) -> tuple[Condition, ...]:
    words = (
        "at the start, the last layer's Gram matrix is as regular as three quarters of its limit"
    )
    return (_measured("Gram matrix", b.gram, ">=", 0.75 * b.limit, words, _WIDTH),)


def _travel(b: Du2018Bounds, lemmas: LemmaConstants) -> float:
    r"""$R'$: how far weights travel, over $\sqrt m$."""
    if b.limit <= 0:
        return math.inf
    return 4 * math.sqrt(b.samples / b.width) * lemmas.pace * b.error / b.limit


def _stays(b: Du2018Bounds, lemmas: LemmaConstants) -> tuple[Condition, ...]:
    travel = _travel(b, lemmas)
    drift = b.samples * lemmas.stability * travel
    stays, moves = "weights stay where the lemmas hold", "G^(H) moves by lambda_0/4 at most"
    return (
        _measured("travel", travel, "<=", lemmas.radius, stays, _WIDTH),
        _measured("Gram drift", drift, "<=", b.limit / 4, moves, _WIDTH),
    )


def _promises(b: Du2018Bounds, lemmas: LemmaConstants) -> Promises:
    travel = _travel(b, lemmas) * math.sqrt(b.width)
    return Promises(travel={f"layer{h}": travel for h in range(1, b.depth + 1)})


def _printed_sizes(b: Du2018Bounds) -> tuple[float, float]:
    """The width and the step size, with all constants that the paper leaves open set to one."""
    n, depth, limit = b.samples, b.depth, max(b.limit, 1e-300)
    logarithm = n**2 * math.log(depth * n**2 / _FAILURE) * _power(limit, -2)
    if b.exponential:
        separated = _power(max(b.separation, 1e-300), -1.5 * depth)
        widths = [
            n**4 * _power(2, depth) * _power(limit, -4),
            n * _power(2, depth) / _FAILURE,
            logarithm * separated,
        ]
        return max(widths), limit / (n**2 * _power(2, depth))
    power = 4 if b.pixels > 1 else 2
    widths = [
        n**4 * _power(limit, -4) / depth**6,
        n**power * _power(limit, -power) / depth**2,
        n / _FAILURE,
        logarithm,
    ]
    return max(widths), limit * depth**2 / n**2


def _printed(b: Du2018Bounds, step_size: float | None) -> Conclusion:
    width, largest = _printed_sizes(b)
    step = largest if step_size is None else step_size
    words = "with all constants set to one"
    conditions = (
        _positive("lambda", 0.0, "as printed, over all pairs of inputs, each with itself too"),
        *_assumptions(b)[::2],
        _measured("width", b.width, ">=", width, words, _WIDTH),
        _measured("step size", step, "<=", largest, words, "a smaller step size"),
    )
    return Conclusion(
        b.theorem,
        "printed",
        "gradient descent",
        conditions,
        step_size=step,
        rate=1 - step * b.limit / 2,
        sound=False,
        note="The paper leaves constants open; with a pair of one input twice, lambda is zero.",
    )
