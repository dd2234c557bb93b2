r"""One hidden layer with a DEQ's kernel, exactly, for inputs of one norm.

A kernel of inputs of norm $r$ is $\sum_k \kappa_k \rho^k$ with $\kappa_k \ge 0$ (Schoenberg). One
hidden layer with $\sigma(u) = \sum_k \pm s_k h_k(u / r)$ has the CK $\sum_k s_k^2 \rho^k$ and the
NTK $\sum_k (1 + k) s_k^2 \rho^k$.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from shoal.activations import PiecewisePolynomial
from shoal.architectures import FullyConnected
from shoal.core.checks import flag, real
from shoal.core.exceptions import AccuracyError
from shoal.designs.profile import END, Profile, Quadrature, choose, quadrature, tabulated
from shoal.designs.result import Design
from shoal.designs.series import kernel_series
from shoal.kernels import KernelFunction

_DEGREE = 320  # Hermite coefficients less one
_TAIL = 1e-13  # a share of the diagonal beyond the degree that needs no carrier
_CORRECTED = 80  # coefficients that are corrected for the tangents beyond the ends
_CORRECTIONS = 12
_COSINES = tuple(np.linspace(-0.95, 0.95, 21).tolist())
_OUTER = (-1.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class SphereMatching:
    """One hidden layer whose CK *or* NTK is a network's for all pairs of inputs of one norm.

    The architecture is taken as it is, and readout and layer of the designed network are both
    trained.

    Args:
        norm_gated: Only for positively homogeneous architectures: the designed network multiplies
            its output by the norm of the input, whose direction alone it sees otherwise, and the
            kernels agree for inputs of every norm.
        tolerance: The largest difference of the kernels for cosines up to 0.95 in size, relative
            to the diagonal.

    Example:
        >>> import shoal
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> gated = shoal.designs.SphereMatching(norm_gated=True)
        >>> d = shoal.design(deq, input_norm=1.0, which="ck", method=gated)
        >>> [f"{shoal.kernel_function(a)(4.0, 9.0, 3.0).ck:.6f}" for a in (deq, d.architecture)]
        ['1.644827', '1.644827']
    """

    norm_gated: bool = False
    tolerance: float = 1e-6

    name: ClassVar[Literal["sphere"]] = "sphere"

    def __post_init__(self) -> None:
        flag("norm_gated", self.norm_gated)
        real("tolerance", self.tolerance, above=0.0)

    def design(self, function: KernelFunction, input_norm: float, which: str) -> Design:
        """Design by the power series of the kernel."""
        norm = real("input_norm", input_norm, above=0.0)
        if self.norm_gated and not function.architecture.positively_homogeneous:
            raise ValueError(
                "norm_gated must be False unless the kernel is positively homogeneous, as for ReLU "
                f"and LeakyReLU, got {function.architecture!r}"
            )
        norm = 1.0 if self.norm_gated else norm
        activation, carried = _activation(function, norm, which)
        return _verified(self, function, norm, which, activation, carried)


def _activation(
    function: KernelFunction, norm: float, which: str
) -> tuple[PiecewisePolynomial, float]:
    """The activation, and the share of the diagonal that is carried."""
    opposite, _, same = _values(function, norm, which, (-1.0, 0.0, 1.0))
    series = kernel_series(function, norm=norm, degree=_DEGREE)
    coefficients = series.ck if which == "ck" else series.ntk
    halves = (same + opposite) / 2, (same - opposite) / 2
    tails = [max(0.0, half - coefficients[p::2].sum()) for p, half in enumerate(halves)]
    rule = quadrature(_DEGREE)
    counts = 1.0 + np.arange(_DEGREE + 1) if which == "ntk" else np.ones(_DEGREE + 1)
    amounts = tuple(
        _amount(rule, counts, parity, tail) if tail > _TAIL * same else 0.0
        for parity, tail in enumerate(tails)
    )
    sizes = np.sqrt(coefficients / counts)
    target, profile = choose(sizes, series.natural, (amounts[0], amounts[1]), rule)
    carried = sum(tail for tail, amount in zip(tails, amounts, strict=True) if amount)
    return tabulated(_corrected(target, profile, rule), norm), float(carried / same)


def _amount(rule: Quadrature, counts: np.ndarray, parity: int, tail: float) -> float:
    """The amount of a carrier that has this tail beyond the degree."""
    value, slope = rule.carriers[parity]
    coefficients = (rule.rows @ (rule.weights * value))[parity::2]
    slopes = rule.weights @ slope**2 if counts[-1] > 1 else 0.0
    whole = rule.weights @ value**2 + slopes
    return float(np.sqrt(tail / (whole - counts[parity::2] @ coefficients**2)))


def _corrected(target: np.ndarray, profile: Profile, rule: Quadrature) -> Profile:
    """Make up for the tangents beyond the ends in the first coefficients."""
    few = slice(0, _CORRECTED)
    best, least = profile, np.inf
    for _ in range(_CORRECTIONS):
        value, _ = profile.evaluate(rule)
        error = rule.rows[few] @ (rule.weights * value) - target[few]
        size = float(np.abs(error).max())
        if size >= least:
            break
        best, least = profile, size
        coefficients = profile.coefficients.copy()
        coefficients[few] -= error
        profile = Profile(coefficients, profile.amounts)
    return best


def _values(
    function: KernelFunction, norm: float, which: str, cosines: Iterable[float]
) -> np.ndarray:
    """The matched kernel at some cosines."""
    square = norm**2
    products = square * torch.tensor(tuple(cosines), dtype=torch.float64)
    kernels = function(square, square, products)
    values: np.ndarray = (kernels.ck if which == "ck" else kernels.ntk).numpy()
    return values


def _layer_values(
    activation: PiecewisePolynomial, norm: float, which: str, cosines: Iterable[float]
) -> np.ndarray:
    """The kernel of one hidden layer, from its values and slopes; higher degrees count as the next.

    That is exact for inputs that are equal or opposite, and right to 1e-7 of the share of the
    higher degrees for cosines up to 0.95.
    """
    rule = quadrature(_DEGREE)
    x = torch.from_numpy(norm * rule.x)
    value = activation(x).numpy()
    slope = norm * activation.derivative(x).numpy() * (which == "ntk")
    counts = 1.0 + np.arange(_DEGREE + 1) * (which == "ntk")
    coefficients = counts * (rule.rows @ (rule.weights * value)) ** 2
    mass = rule.weights @ (value**2 + slope**2)
    swapped = rule.weights @ (value * value[::-1] - slope * slope[::-1])
    halves = (mass + swapped) / 2, (mass - swapped) / 2
    tails = [half - coefficients[p::2].sum() for p, half in enumerate(halves)]
    powers = np.vander(np.array(tuple(cosines)), _DEGREE + 3, increasing=True)
    result: np.ndarray = powers @ np.concatenate([coefficients, tails[::-1]])  # an odd degree first
    return result


def _verified(
    method: SphereMatching,
    function: KernelFunction,
    norm: float,
    which: str,
    activation: PiecewisePolynomial,
    carried: float,
) -> Design:
    """Compare the kernels of both networks; the design's is computed from its activation alone."""
    cosines = (*_COSINES, *_OUTER)
    target = _values(function, norm, which, cosines)
    obtained = _layer_values(activation, norm, which, cosines)
    error = np.abs(target - obtained) / target[-1]
    inner = float(error[: len(_COSINES)].max())
    if not inner <= method.tolerance:
        raise AccuracyError(
            f"the {which.upper()} of the designed network is off by {inner:.2g} of its diagonal, "
            f"above the tolerance {method.tolerance:.2g}: give a larger tolerance, or inputs of a "
            f"smaller norm than input_norm = {norm:.4g}"
        )
    names = {0.0: "at a right angle", 1.0: "of an input with itself", -1.0: "of opposite inputs"}
    picked = {name: cosines.index(place) for place, name in names.items()}
    outer = {f"cosine {c:g}": float(e) for c, e in zip(_OUTER, error[-len(_OUTER) :], strict=True)}
    where = "every norm" if method.norm_gated else f"norm {norm:g}"
    trained = "" if which == "ck" else f", trained in {', '.join(sorted(function.trainable))}"
    remainder = (
        f" The remaining {carried:.1g} of the diagonal is carried by |x| and x log|x|, rounded "
        "off at zero."
        if carried
        else ""
    )
    return Design(
        architecture=FullyConnected((activation,), norm_gated=method.norm_gated),
        function=function,
        which=which,
        method=method.name,
        input_norm=norm,
        target={name: float(target[i]) for name, i in picked.items()},
        obtained={name: float(obtained[i]) for name, i in picked.items()},
        residual=inner,
        errors={"cosines from -0.95 to 0.95": inner, **outer},
        feasible=True,
        explanation=(
            f"One hidden layer with the {which.upper()} of {function.architecture!r}{trained}, for "
            f"all pairs of inputs of {where}. Its activation is made of {_DEGREE + 1} Hermite "
            f"coefficients of the kernel's power series; beyond {END} standard deviations it goes "
            f"on linearly.{remainder} At infinite width and random weights, the kernels of both "
            f"networks differ, relative to the diagonal, by at most {inner:.1e} for cosines up to "
            f"0.95 in size, and by {float(error.max()):.1e} for all cosines tried."
        ),
    )
