r"""One hidden layer with a DEQ's kernel, exactly, for inputs of one norm.

A kernel of inputs of norm $r$ is $\sum_k \kappa_k \rho^k$ with $\kappa_k \ge 0$ (Schoenberg). One
hidden layer with $\sigma(u) = \sum_k \pm s_k h_k(u / r)$ has the CK $\sum_k s_k^2 \rho^k$ and the
NTK $\sum_k (1 + k) s_k^2 \rho^k$.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from shoal.activations import PiecewisePolynomial
from shoal.architectures import Architecture, FullyConnected
from shoal.core.checks import integer, real
from shoal.core.exceptions import AccuracyError
from shoal.designs.kernel_series import series_of
from shoal.designs.profile import END, Profile, Quadrature, quadrature
from shoal.designs.result import Design
from shoal.designs.signs import Choice, choose
from shoal.designs.table import tabulated
from shoal.kernels import KernelFunction, kernel_function

__all__ = ["sphere_design"]

_DEGREES = (48, 96, 192, 320)
_TAIL = 1e-13  # a share of the diagonal beyond the degree that needs no carrier
_CORRECTED = 24  # coefficients that are corrected for the tangents beyond the ends
_CORRECTIONS = 4
_COSINES = tuple(np.linspace(-0.95, 0.95, 21).tolist())
_OUTER = (-1.0, -0.999, -0.99, 0.99, 0.999, 1.0)


@dataclass(frozen=True)
class Task:
    """What to design.

    Attributes:
        function: The kernels.
        norm: The norm of the inputs.
        match: ``"ck"`` or ``"ntk"``.
        degree: The degree of the polynomial part; chosen if ``None``.
        tolerance: Of the kernel.
        norm_gated: Whether for inputs of every norm.
    """

    function: KernelFunction
    norm: float
    match: str
    degree: int | None
    tolerance: float
    norm_gated: bool


def sphere_design(
    architecture: Architecture,
    tau0: float,
    match: str,
    *,
    trainable: Iterable[str] | None,
    width: int | None,
    degree: int | None,
    tolerance: float,
    norm_gated: bool,
) -> Design:
    """Design by the power series of the kernel; see :func:`shoal.design`."""
    function = kernel_function(architecture, trainable=trainable, width=width)
    norm = real("tau0", tau0, above=0.0)
    if norm_gated and not architecture.positively_homogeneous:
        raise ValueError(
            "norm_gated must be False unless the kernel is positively homogeneous, as for ReLU "
            f"and LeakyReLU, got {architecture!r}"
        )
    task = Task(
        function,
        1.0 if norm_gated else norm,
        match,
        None if degree is None else integer("degree", degree, at_least=2),
        real("tolerance", tolerance, above=0.0),
        norm_gated,
    )
    wanted = _values(function, task.norm, match, (-1.0, 0.0, 1.0))
    activation, degree, carried = _activation(task, wanted)
    designed = FullyConnected((activation,), norm_gated=norm_gated)
    return _verified(task, function, designed, _made_of(degree, carried))


def _activation(task: Task, wanted: np.ndarray) -> tuple[PiecewisePolynomial, int, float]:
    """The activation, the degree of its polynomial part, and the share that is carried."""
    opposite, _, own = wanted
    for degree in _DEGREES if task.degree is None else (task.degree,):
        series = series_of(task.function, task.norm, degree)
        coefficients = series.ck if task.match == "ck" else series.ntk
        halves = (own + opposite) / 2, (own - opposite) / 2
        tails = [max(0.0, half - coefficients[p::2].sum()) for p, half in enumerate(halves)]
        if sum(tails) <= _TAIL * own:
            break
    rule = quadrature(degree)
    counts = 1.0 + np.arange(degree + 1) if task.match == "ntk" else np.ones(degree + 1)
    amounts = tuple(
        _amount(rule, counts, parity, tail) if tail > _TAIL * own else 0.0
        for parity, tail in enumerate(tails)
    )
    sizes = np.sqrt(coefficients / counts)
    choice = choose(sizes, series.natural, (amounts[0], amounts[1]), rule)
    carried = sum(tail for tail, amount in zip(tails, amounts, strict=True) if amount)
    return tabulated(_corrected(choice, rule), task.norm), degree, float(carried / own)


def _amount(rule: Quadrature, counts: np.ndarray, parity: int, tail: float) -> float:
    """How much of a carrier has this tail beyond the degree."""
    value, slope = rule.carriers[parity]
    coefficients = (rule.rows @ (rule.weights * value))[parity::2]
    slopes = rule.weights @ slope**2 if counts[-1] > 1 else 0.0
    own = rule.weights @ value**2 + slopes
    return float(np.sqrt(tail / (own - counts[parity::2] @ coefficients**2)))


def _corrected(choice: Choice, rule: Quadrature) -> Profile:
    """Make up for the tangents beyond the ends in the first coefficients."""
    profile = choice.profile
    few = slice(0, min(_CORRECTED, len(choice.target)))
    best, least = profile, np.inf
    for _ in range(_CORRECTIONS):
        value, _ = profile.at(rule)
        error = rule.rows[few] @ (rule.weights * value) - choice.target[few]
        size = float(np.abs(error).max())
        if size >= least:
            break
        best, least = profile, size
        coefficients = profile.coefficients.copy()
        coefficients[few] -= error
        profile = Profile(coefficients, profile.amounts)
    return best


def _values(
    function: KernelFunction, norm: float, match: str, cosines: Iterable[float]
) -> np.ndarray:
    """The matched kernel at some cosines."""
    square = norm**2
    products = square * torch.tensor(tuple(cosines), dtype=torch.float64)
    kernels = function(square, square, products)
    values: np.ndarray = (kernels.ck if match == "ck" else kernels.ntk).numpy()
    return values


def _verified(
    task: Task, function: KernelFunction, designed: FullyConnected, made_of: str
) -> Design:
    """Compare the kernels of both networks, which know nothing of how the one was designed."""
    cosines = (*_COSINES, *_OUTER)
    own_function = kernel_function(designed)
    target, obtained = (
        _values(f, task.norm, task.match, cosines) for f in (function, own_function)
    )
    error = np.abs(target - obtained) / target[-1]
    inner = float(error[: len(_COSINES)].max())
    if not inner <= task.tolerance:
        raise AccuracyError(
            f"the {task.match.upper()} of the designed network is off by {inner:.2g} of its "
            f"diagonal, above the tolerance {task.tolerance:.2g}; ask for a larger one"
        )
    names = {0.0: "at a right angle", 1.0: "of an input with itself", -1.0: "of opposite inputs"}
    picked = {name: cosines.index(place) for place, name in names.items()}
    outer = {f"cosine {c:g}": float(e) for c, e in zip(_OUTER, error[-len(_OUTER) :], strict=True)}
    return Design(
        architecture=designed,
        original=task.function.architecture,
        match=task.match,
        method="sphere",
        tau0=task.norm,
        trainable=task.function.trainable,
        width=task.function.width,
        target={name: float(target[i]) for name, i in picked.items()},
        obtained={name: float(obtained[i]) for name, i in picked.items()},
        residual=inner,
        errors={"cosines from -0.95 to 0.95": inner, **outer},
        feasible=True,
        explanation=_explanation(task, made_of, error),
    )


def _made_of(degree: int, carried: float) -> str:
    rest = (
        f" What is beyond them, {carried:.1g} of the diagonal, is carried by |x| and x log|x|, "
        "rounded off at zero."
        if carried
        else ""
    )
    return (
        f"Its activation is made of {degree + 1} Hermite coefficients of the kernel's power "
        f"series; beyond {END} standard deviations it goes on linearly.{rest}"
    )


def _explanation(task: Task, made_of: str, error: np.ndarray) -> str:
    inner, whole = float(error[: len(_COSINES)].max()), float(error.max())
    where = "every norm" if task.norm_gated else f"norm {task.norm:g}"
    architecture, groups = task.function.architecture, sorted(task.function.trainable)
    trained = "" if task.match == "ck" else f", trained in {', '.join(groups)}"
    parts = [
        f"One hidden layer with the {task.match.upper()} of {architecture!r}{trained}, "
        f"for all pairs of inputs of {where}.",
        made_of,
        "At infinite width and random weights, the kernels of both networks differ, relative to "
        f"the diagonal, by at most {inner:.1e} for cosines up to "
        f"0.95 in size, and by {whole:.1e} for all cosines tried.",
    ]
    return " ".join(parts)
