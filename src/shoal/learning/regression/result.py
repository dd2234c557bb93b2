"""What kernel regression returns."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import integer, room, seeded
from shoal.core.exceptions import AccuracyError
from shoal.core.settings import in_standard_settings
from shoal.kernels.arguments import as_tensor
from shoal.kernels.images.function import checked_points
from shoal.learning.regression.problem import Problem
from shoal.learning.regression.ridge_path import RidgePath, agreement
from shoal.learning.regression.solver import Solver

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, eq=False)
class Report:
    r"""How a system was solved.

    Attributes:
        method: ``"cholesky"`` or ``"cg"``.
        preconditioner: Its name, or ``None``.
        iterations: Steps of conjugate gradients, for each right-hand side; for a factorization
            these are steps of refinement, usually one.
        residual: $\|y - (K + \lambda I)\alpha\| / \|y\|$ for each right-hand side, computed anew
            at the end, in float64.
        history: Relative residuals after each step, of shape (steps, right-hand sides).
        converged: Whether all residuals met the tolerance.
        form_seconds: What forming the matrix took, or as much of it as is kept; what is not kept
            is formed in every step, and that is part of ``solve_seconds``.
        prepare_seconds: What the factorization or the preconditioner took.
        solve_seconds: What the rest took.
    """

    method: Literal["cholesky", "cg"]
    preconditioner: str | None
    iterations: Tensor
    residual: Tensor
    history: Tensor = field(repr=False)
    converged: bool
    form_seconds: float
    prepare_seconds: float
    solve_seconds: float


class Estimate(NamedTuple):
    """A number that was estimated from random vectors.

    Attributes:
        value: The number.
        standard_error: Its standard error.
    """

    value: float
    standard_error: float


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    r"""What a regression predicts for each of its samples when that one is left out.

    Attributes:
        predictions: In the shape of the targets.
        residuals: Targets less predictions.
        variance: $1 / G_{ii}$: that of the left-out observation, noise included, for a Gaussian
            process of scale one.
        mean_squared_error: Of all residuals.
        accuracy: The share of samples whose largest output, or the sign of a single one, is that
            of the target. It means something where the targets are indicators of classes.
    """

    predictions: Any = field(repr=False)
    residuals: Any = field(repr=False)
    variance: Any = field(repr=False)
    mean_squared_error: float
    accuracy: float


def _together(
    method: Callable[Concatenate["KernelRegression", _P], _R],
) -> Callable[Concatenate["KernelRegression", _P], _R]:
    """A method that all processes of a regression call, and that fails in all or none."""

    @wraps(method)
    def wrapped(self: "KernelRegression", /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        with self._problem.processes.collective():
            return method(self, *arguments, **options)

    return wrapped


@dataclass(frozen=True, eq=False)
class KernelRegression:
    r"""Ridge regression with a kernel, or a posterior: $f(x) = k(x, X) \alpha$.

    If several processes share it, all of them call its methods, with the same arguments.

    Attributes:
        coefficients: $\alpha = (K + \lambda I)^{-1} y$, in the shape of ``y``.
        report: How they were found.
        path: The ridges among which the ridge was chosen, if it was.
    """

    coefficients: Any = field(repr=False)
    report: Report
    _problem: Problem = field(repr=False)
    _solver: Solver = field(repr=False)
    _alpha: Tensor = field(repr=False)
    _dtype: torch.dtype = field(repr=False)
    path: RidgePath | None = field(default=None, repr=False)

    @property
    def ridge(self) -> float:
        r"""$\lambda$, the variance of the noise."""
        return self._problem.ridge

    @in_standard_settings
    @_together
    def predict(self, x: Any) -> Any:
        r"""$k(x, X) \alpha$: the regression function, or the posterior mean.

        Args:
            x: New inputs of shape (m, p); a NumPy array gives a NumPy array.
        """
        own, block = self._problem.x, self._solver.block
        rows = max(1, block // 8 // (own[0].numel() * own.itemsize))  # with directions and copies
        values = torch.cat(
            [
                self._problem.cross(some, own, block // 2) @ self._alpha
                for some in self._inputs(x).split(rows)
            ]
        )
        return self._like(x, values[:, 0] if self.coefficients.ndim == 1 else values)

    @in_standard_settings
    @_together
    def variance(self, x: Any, *, batch: int = 1024) -> Any:
        r"""$k(x, x) - k(x, X) (K + \lambda I)^{-1} k(X, x)$: the posterior variance of $f(x)$.

        It is that of the function; an observation has $\lambda$ more. After conjugate gradients
        every input is one more right-hand side, solved to the same tolerance.

        Args:
            x: New inputs of shape (m, p); a NumPy array gives a NumPy array.
            batch: How many of them are treated together at most: that many columns are in memory,
                or fewer, if the regression was given less of it.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        inputs, block = self._inputs(x), self._solver.block
        column = self._solver.columns * self._alpha.itemsize * len(self._alpha)
        most = max(1, block // 2 // column)
        parts = []
        for some in inputs.split(min(integer("batch", batch, at_least=1), most)):
            cross = self._problem.cross(self._problem.x, some, block // 2).to_dense()
            reduction = self._solver.quadratic(cross)
            parts.append((self._problem.own(some) - reduction).clamp_min(0.0))  # but for rounding
        return self._like(x, torch.cat(parts))

    @property
    @in_standard_settings
    def log_marginal_likelihood(self) -> float:
        r"""$\log N(y; 0, K + \lambda I)$, summed over the columns of $y$.

        Raises:
            ValueError: If there is no factorization in float64, which the determinant is read from.
            AccuracyError: If it overflows.
        """
        logdet = self._solver.logdet()
        if logdet is None:
            raise ValueError(
                "log_marginal_likelihood needs method='cholesky' in float64; "
                "estimate_log_marginal_likelihood() does without"
            )
        return self._likelihood(logdet)

    @property
    @in_standard_settings
    def output_scale(self) -> float:
        r"""$s^2 = y^T (K + \lambda I)^{-1} y / n$, a mean over columns: the likeliest scale.

        It is where $N(y; 0, s^2(K + \lambda I))$ is largest. Under that prior the noise has
        variance $s^2\lambda$, so the ridge is the ratio of noise to scale; predictions are the
        same, and variances are those of :meth:`variance` times $s^2$.
        """
        return float((self._problem.y * self._alpha).sum()) / self._alpha.numel()

    @in_standard_settings
    def loo(self) -> LeaveOneOut:
        r"""What would be predicted for each sample without it, exactly, from the factorization.

        With $G = (K + \lambda I)^{-1}$, the residual of sample $i$ without it is
        $\alpha_i / G_{ii}$. No regression is done again.

        Raises:
            ValueError: If there is no factorization in float64.
        """
        diagonal = self._inverse_diagonal("loo")
        errors = self._alpha / diagonal[:, None]
        predictions = self._problem.y - errors
        one, array = self.coefficients.ndim == 1, isinstance(self.coefficients, np.ndarray)

        def shaped(values: Tensor) -> Any:
            kept = (values[:, 0] if one and values.ndim == 2 else values).to(self._dtype)
            return kept.cpu().numpy() if array else kept

        return LeaveOneOut(
            shaped(predictions),
            shaped(errors),
            shaped(1 / diagonal),
            float(errors.square().mean()),
            agreement(predictions, self._problem.y),
        )

    @in_standard_settings
    def gcv(self) -> float:
        r"""Generalized cross-validation: $n \|\alpha\|^2 / (\operatorname{tr} G)^2$.

        It is the mean squared residual over $(1 - \operatorname{tr} S / n)^2$, where
        $S = K(K + \lambda I)^{-1}$ maps targets to fitted values, and a mean over the columns of
        $y$. In this form it has its limit for $\lambda = 0$ too.

        Raises:
            ValueError: If there is no factorization in float64; :meth:`estimate_gcv` does without.
        """
        return float((self._alpha / self._inverse_diagonal("gcv").mean()).square().mean())

    @in_standard_settings
    @_together
    def estimate_gcv(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        r"""Generalized cross-validation with a random estimate of the trace (Hutchinson 1989).

        Every probe is one more right-hand side. The standard error is that of the trace, carried
        over to first order.

        Args:
            probes: How many random vectors.
            seed: Of these.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        samples = self._solver.quadratic(self._signs(probes, seed)) / self._problem.size
        mean = float(samples.mean())
        error = float(samples.std()) / math.sqrt(probes)
        value = float(self._alpha.square().mean()) / mean**2
        return Estimate(value, 2 * value * error / mean)

    def _inverse_diagonal(self, name: str) -> Tensor:
        if self._solver.factor is None:
            raise ValueError(
                f"{name} needs method='cholesky' in float64, from whose factor it is read; "
                "estimate_gcv() does without"
            )
        return self._solver.inverse_diagonal

    @in_standard_settings
    @_together
    def estimate_log_marginal_likelihood(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        r"""The log marginal likelihood by stochastic Lanczos quadrature, without a factorization.

        The determinant is that of the preconditioner $M$, which is known, times that of
        $M^{-1/2} (K + \lambda I) M^{-1/2}$, whose logarithm is a mean over random vectors
        (Gardner et al. 2018): the better the preconditioner, the smaller the error.

        Args:
            probes: How many random vectors.
            seed: Of these.
        """
        samples = self._solver.logdet_samples(self._signs(probes, seed))
        columns = self._alpha.shape[1]
        error = float(samples.std()) / math.sqrt(probes)
        return Estimate(self._likelihood(float(samples.mean())), columns / 2 * error)

    def _signs(self, probes: int, seed: int) -> Tensor:
        """Columns of random signs."""
        integer("probes", probes, at_least=2)
        room("probes", self._problem.size, probes)
        generator = seeded("seed", seed)
        signs = torch.randint(0, 2, (self._problem.size, probes), generator=generator)
        return (2 * signs - 1).to(self._alpha)

    def _likelihood(self, logdet: float) -> float:
        fit = float((self._problem.y * self._alpha).sum())
        columns = self._alpha.shape[1]
        if not math.isfinite(fit):
            raise AccuracyError("the likelihood of these targets overflows: scale y down")
        constant = self._problem.size * math.log(2 * math.pi)
        return -0.5 * (fit + columns * (logdet + constant))

    def _inputs(self, x: Any) -> Tensor:
        own = self._problem.x
        inputs = checked_points(self._problem.function, "x", as_tensor(x, "x")).detach()
        if inputs.shape[1:] != own.shape[1:]:
            wanted = ", ".join(map(str, own.shape[1:]))
            raise ValueError(f"x must have shape (inputs, {wanted}), got {tuple(inputs.shape)}")
        return inputs.to(own)

    def _like(self, x: Any, values: Tensor) -> Any:
        """Results come as the inputs do."""
        result = values.to(self._dtype)
        return result.cpu().numpy() if isinstance(x, np.ndarray) else result.to(x.device)
