"""Kernel ridge regression and Gaussian processes with exact kernels, for many samples."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, Literal, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import flag, function, integer, one_of, room, seeded
from shoal.core.exceptions import AccuracyError, ConvergenceError, ConvergenceWarning
from shoal.core.measuring import now
from shoal.core.processes import Group, fingerprint, processes
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.kernels.arguments import as_tensor
from shoal.learning.decomposition import check_decomposition, decompose
from shoal.learning.problem import RegressionProblem, Which, like_input
from shoal.learning.ridges import Criterion, RidgePath, checked_criterion, evaluate_path
from shoal.learning.systems import (
    Cholesky,
    ConjugateGradients,
    Constant,
    Listener,
    Method,
    Progress,
    System,
    chosen_method,
)

_BATCH = 1024  # inputs whose variances are computed together

_P = ParamSpec("_P")
_R = TypeVar("_R")


@in_standard_settings
def kernel_regression(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    *,
    ridge: float | Criterion = "loo",
    center: bool = True,
    which: Which = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    method: Method = "auto",
    memory: int | str | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_failure: Literal["raise", "warn"] = "raise",
    process_group: Group = "auto",
) -> "KernelRegression":
    r"""Regression with the kernel of an infinitely wide network: $f(x) = k(x, X)\alpha + b$.

    The coefficients minimize $\|y - f(X)\|^2 + \lambda \alpha^T K \alpha$, without a penalty on the
    constant $b$: $\alpha = (K + \lambda I)^{-1}(y - b)$. Leave-one-out errors, generalized
    cross-validation, the likelihood and variances all account for $b$. With ``center=False`` it is
    zero.

    The result is also the posterior of a Gaussian process with covariance $K$, observed
    with noise of variance $\lambda$. With the CK this is the prior of the random network, and with
    the NTK at $\lambda \to 0$ the mean is the function to which training from zero converges.

    A ridge is chosen from one eigendecomposition, which then solves the system too. For a given
    ridge, ``"cholesky"`` forms and factors the matrix in place, in $8n^2$ bytes. ``"cg"`` never
    forms the whole matrix: each step is one product for all right-hand sides, with strips that are
    kept as far as the memory allows and recomputed otherwise. Kernels, residuals and sums are in
    float64, whatever the dtype of ``x``; but entries for images in float32 on a GPU come from a
    fused pass in float32 where there is one, within 2e-5 of the diagonal.

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (n, p), a tensor or a NumPy array; for networks of images, such as a
            ``ConvDEQ``, images of shape (n, channels, pixels...).
        y: Targets of shape (n,) or (n, q); or classes, integers or strings of shape (n,), whose
            indicators are regressed. Floats are real targets, unless each row has a one among zeros
            (or minus ones); ``task`` of the result is ``"regression"`` or ``"classification"``.
        ridge: $\lambda \ge 0$; or a criterion that chooses it: ``"gcv"`` generalized
            cross-validation, ``"loo"`` the mean squared leave-one-out error, ``"likelihood"`` the
            marginal likelihood under the best output scale. The result's ``path`` then has the
            scores of all ridges that were tried.
        center: Whether to fit the constant $b$, which the kernel of a network without biases does
            not include.
        which: Kernel: ``"ck"`` or ``"ntk"``.
        trainable: Groups of parameters that contribute to the NTK; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        method: A :class:`Cholesky` or :class:`ConjugateGradients` with its options, or
            ``"cholesky"`` or ``"cg"`` with the defaults of these. With ``"auto"`` the former, if
            the matrix fits into the memory.
        memory: Memory limit, such as ``"8GiB"``. By default 8 GiB on a CPU, and nine tenths of the
            free memory on a GPU.
        on_progress: Called as the work proceeds; with several processes, in the first one only.
        on_failure: Whether to ``"raise"`` if the tolerance is not met, or to ``"warn"``.
        process_group: Processes that share the work: by default all of ``torch.distributed`` or
            ``torchrun``, with ``None`` only this one. All make this call with the same arguments,
            compute a part of the matrix each, in ``memory`` bytes, and get the result.

    Raises:
        ValueError: If an argument does not fit, or the matrix does not fit into the memory.
        AccuracyError: If the matrix is not positive definite within rounding.
        ConvergenceError: If the tolerance is not met.
        ConnectionError: If another process is gone.

    Warns:
        UserWarning: If columns of ``x`` have very different scales, or the mean of uncentered
            targets is much larger than their spread. The message names a remedy.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(50, 3, generator=torch.manual_seed(0)))
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> fit = shoal.kernel_regression(deq, x.double(), x[:, 0].double() ** 2 + 100)
        >>> fit.predict(torch.tensor([[0.6, 0.0, 0.8]]).double())
        tensor([100.3558], dtype=torch.float64)
    """
    shared = processes(process_group)
    with shared.collective():
        criterion = checked_criterion("ridge", ridge) if isinstance(ridge, str) else None
        first = 0.0 if isinstance(ridge, str) else ridge
        problem = RegressionProblem.from_data(
            architecture,
            x,
            y,
            first,
            which,
            memory,
            center=center,
            trainable=trainable,
            width=width,
        )
        one_of("on_failure", on_failure, ("raise", "warn"))
        function("on_progress", on_progress)
        problem = _agreed(replace(problem, processes=shared), method)
        listener = on_progress if on_progress and shared.first else (lambda _: None)
        chosen = _chosen(method, problem, criterion)
        path = None
        if isinstance(chosen, Cholesky) and criterion is not None:
            problem, path, system = _decomposed(problem, chosen, criterion, listener)
        else:
            system = chosen.prepared(problem, listener)
        begin = now(problem.x.device)
        system, solved = system.fitted(problem, listener)
        seconds = now(problem.x.device) - begin
        if not solved.converged:
            text = f"the regression did not converge: {system.explain(solved)}"
            if on_failure == "raise":
                raise ConvergenceError(text)
            if shared.first:
                warnings.warn(text, ConvergenceWarning, stacklevel=3)
        solution = shared.broadcast(solved.solution)
        intercept = problem.mean
        if system.constant is not None:
            weights, variance = system.constant
            weights, variance = shared.broadcast(weights), shared.of_first(variance)
            system = replace(system, constant=Constant(weights, variance))
            intercept = intercept + weights @ problem.y
    near = chosen.preconditioner if isinstance(chosen, ConjugateGradients) else None
    report = Report(
        chosen.name,
        None if near is None else near.name,
        solved.counts.cpu(),
        solved.residuals.cpu(),
        solved.history.cpu(),
        solved.converged,
        *system.times,
        seconds,
    )
    dtype = as_tensor(x[:1], "x").dtype
    one = getattr(y, "ndim", 1) == 1 and solution.shape[1] == 1
    return KernelRegression(
        like_input(x, solution[:, 0] if one else solution, dtype),
        like_input(x, intercept[0] if one else intercept, dtype),
        report,
        problem,
        system,
        solution,
        intercept,
        dtype,
        path,
    )


def _agreed(problem: RegressionProblem, method: Method) -> RegressionProblem:
    """The problem with the memory that all processes have, if they have the same problem too."""
    if problem.processes.size == 1:
        return problem
    same = {
        "y": fingerprint(torch.cat([problem.y, problem.mean[None]])),
        "center": problem.center,
        "ridge": problem.ridge,
        "which": problem.which,
        "method": method,
    }
    return replace(problem, memory=min(problem.processes.agree(same, problem.memory)))


def _chosen(
    method: Method, problem: RegressionProblem, criterion: Criterion | None
) -> Cholesky | ConjugateGradients:
    """The method, if there is enough memory for it."""
    if criterion is not None:
        check_decomposition(problem)
    chosen = chosen_method(method, problem)
    if criterion is not None and isinstance(chosen, ConjugateGradients):
        raise ValueError(
            f"ridge={criterion!r} requires method='cholesky'. If the memory is too small for it, "
            "pass method='cg' and compare estimate_gcv() for a few ridges"
        )
    chosen.check_room(problem)
    return chosen


def _decomposed(
    problem: RegressionProblem, method: Cholesky, criterion: Criterion, listener: Listener
) -> tuple[RegressionProblem, RidgePath, System]:
    """Choose the ridge and prepare the system, with one matrix and one decomposition."""
    begin = now(problem.x.device)
    listener(Progress("form", 0.0))
    matrix, parts = decompose(problem)
    path = evaluate_path(parts, problem.y, accuracy=problem.accuracy)
    ridge = problem.processes.of_first(path.best(criterion))
    listener(Progress("factor", 1.0))
    near, spent = parts.shifted(ridge), now(problem.x.device) - begin
    system = method.decomposed(problem, matrix, near, spent)
    return replace(problem, ridge=ridge), path, system


@dataclass(frozen=True, eq=False)
class Report:
    r"""How a system was solved.

    Attributes:
        method: ``"cholesky"`` or ``"cg"``.
        preconditioner: Its name, or ``None``.
        iterations: Steps of conjugate gradients, for each right-hand side; for a factorization
            these are steps of refinement, usually one.
        residual: $\|y - b - (K + \lambda I)\alpha\| / \|y - \bar y\|$ for each right-hand side,
            computed anew at the end, in float64; $\bar y$ is zero unless $b$ is fitted.
        history: Relative residuals after each step, of shape (steps, right-hand sides).
        converged: Whether all residuals met the tolerance.
        form_seconds: Time to form the matrix, or the part of it that is kept; the rest is formed
            in every step, as part of ``solve_seconds``.
        prepare_seconds: Time for the factorization or the preconditioner; if the ridge was chosen,
            time for the matrix and for all ridges is included.
        solve_seconds: Time of the iteration.
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
    r"""Predictions for each sample of a regression from all the others.

    Attributes:
        predictions: The predictions, in the shape of the targets.
        residuals: Targets less predictions.
        variance: $1 / G_{ii}$: variance of the left-out observation, noise included, for a Gaussian
            process of scale one.
        mean_squared_error: Mean of all squared residuals.
        accuracy: The share of samples whose class is predicted; ``None`` for real targets.
    """

    predictions: Any = field(repr=False)
    residuals: Any = field(repr=False)
    variance: Any = field(repr=False)
    mean_squared_error: float
    accuracy: float | None


def _collective(
    method: Callable[Concatenate["KernelRegression", _P], _R],
) -> Callable[Concatenate["KernelRegression", _P], _R]:
    """A method that all processes of a regression call, and that fails in all or none."""

    @wraps(method)
    def wrapped(self: "KernelRegression", /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        with self._problem.processes.collective():
            return method(self, *arguments, **options)

    return wrapped


@dataclass(frozen=True, eq=False, repr=False)
class KernelRegression:
    r"""Kernel ridge regression, or a Gaussian process's mean: $f(x) = k(x, X) \alpha + b$.

    If several processes share it, all of them call its methods, with the same arguments.

    Attributes:
        coefficients: $\alpha = (K + \lambda I)^{-1} (y - b)$, in the shape of ``y``.
        intercept: $b$ of each output, or zero.
        report: How the system was solved.
        path: The scores of all ridges, if the ridge was chosen.
    """

    coefficients: Any = field(repr=False)
    intercept: Any = field(repr=False)
    report: Report
    _problem: RegressionProblem = field(repr=False)
    _system: System = field(repr=False)
    _alpha: Tensor = field(repr=False)
    _intercept: Tensor = field(repr=False)
    _dtype: torch.dtype = field(repr=False)
    path: RidgePath | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"KernelRegression({self.task}, ridge={self.ridge:.3g}, {self.report})"

    @property
    def ridge(self) -> float:
        r"""$\lambda$, the variance of the noise."""
        return self._problem.ridge

    @property
    def task(self) -> Literal["regression", "classification"]:
        """How the targets were read."""
        return "regression" if self.classes is None else "classification"

    @property
    def classes(self) -> tuple[int | str, ...] | None:
        """The classes, one a column, or the two of a single column; ``None`` for real targets."""
        return self._problem.classes

    @in_standard_settings
    @_collective
    def predict(self, x: Any, *, return_std: bool = False) -> Any:
        r"""$k(x, X) \alpha + b$: the regression function, or the posterior mean.

        Args:
            x: New inputs of shape (m, p); a NumPy array gives a NumPy array.
            return_std: Whether to return standard deviations of new observations too, noise
                included, under the likeliest output scale of each output; they are then
                $s\sqrt{v(x) + \lambda}$ with the :meth:`variance` $v$.
        """
        samples, block = self._problem.x, self._system.block
        inputs = self._inputs(x)
        rows = max(1, block // 8 // (samples[0].numel() * samples.itemsize))  # with their copies
        values = torch.cat(
            [
                self._problem.cross(some, samples, block // 2) @ self._alpha + self._intercept
                for some in inputs.split(rows)
            ]
        )
        mean = self._shaped(x, values)
        if not flag("return_std", return_std):
            return mean
        squares = (self._variances(inputs, _BATCH) + self.ridge)[:, None] * self._scales
        return mean, self._shaped(x, squares.sqrt())

    def _shaped(self, x: Any, values: Tensor) -> Any:
        one = self.coefficients.ndim == 1 and values.ndim == 2
        return like_input(x, values[:, 0] if one else values, self._dtype)

    @property
    def _scales(self) -> Tensor:
        """The likeliest output scale of each column."""
        return (self._problem.y * self._alpha).sum(0) / max(1, self._problem.contrasts)

    @in_standard_settings
    @_collective
    def variance(self, x: Any, *, batch: int = _BATCH) -> Any:
        r"""$k(x, x) - k(x, X) (K + \lambda I)^{-1} k(X, x)$: the posterior variance of $f(x)$.

        A fitted constant, with a flat prior, adds $(1 - 1^TGk(X, x))^2 / 1^TG1$ with
        $G = (K + \lambda I)^{-1}$. The variance of an observation is larger by $\lambda$. After
        conjugate gradients every input is one more right-hand side, solved to the same tolerance.

        Args:
            x: New inputs of shape (m, p); a NumPy array gives a NumPy array.
            batch: Number of inputs that are treated together at most: that many columns are in
                memory, or fewer, if the regression was given less of it.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        inputs = self._inputs(x)
        return like_input(x, self._variances(inputs, batch), self._dtype)

    def _variances(self, inputs: Tensor, batch: int) -> Tensor:
        block, constant = self._system.block, self._system.constant
        column = self._system.columns * self._alpha.itemsize * len(self._alpha)
        most = max(1, block // 2 // column)
        parts = []
        for some in inputs.split(min(integer("batch", batch, at_least=1), most)):
            cross = self._problem.cross(self._problem.x, some, block // 2).to_dense()
            reduction = self._system.quadratic(cross)
            diagonal = self._problem.kernel_diagonal(some)
            if constant is not None:
                diagonal = diagonal + constant.variance - 2 * constant.weights @ cross
            parts.append((diagonal - reduction).clamp_min(0.0))  # rounding may make it negative
        return torch.cat(parts)

    @property
    @in_standard_settings
    def log_marginal_likelihood(self) -> float:
        r"""$\log N(y; 0, K + \lambda I)$, summed over the columns of $y$.

        With a constant it is the likelihood of $n - 1$ orthonormal differences of targets, which
        do not depend on it (restricted likelihood).

        Raises:
            ValueError: If there is no factorization in float64 to compute the determinant from.
            AccuracyError: If it overflows.
        """
        logdet = self._system.logdet("log_marginal_likelihood")
        fit = float((self._problem.y * self._alpha).sum())
        if not math.isfinite(fit):
            raise AccuracyError("the likelihood of these targets overflows: scale y down")
        free, columns = self._problem.contrasts, self._alpha.shape[1]
        return -0.5 * (fit + columns * (logdet + free * math.log(2 * math.pi)))

    @property
    @in_standard_settings
    def output_scale(self) -> float:
        r"""$s^2 = y^T \alpha / n$, a mean over columns: the likeliest scale.

        It maximizes $N(y; 0, s^2(K + \lambda I))$; with a constant, the likelihood of the $n - 1$
        differences of targets. Under that prior the noise has variance $s^2\lambda$, so the ridge
        is the ratio of noise to scale. Predictions are the same, and each :meth:`variance` is
        multiplied by $s^2$.
        """
        return float(self._scales.mean())

    @in_standard_settings
    def loo(self) -> LeaveOneOut:
        r"""The prediction for each sample from all the others, exactly, from the factorization.

        With $G = (K + \lambda I)^{-1}$, the residual of sample $i$ without it is
        $\alpha_i / G_{ii}$; with a constant, fitted again without it, $G$ is less
        $G11^TG/1^TG1$. No regression is done again.

        Raises:
            ValueError: If there is no factorization in float64, or one sample.
        """
        if self._problem.contrasts == 0:
            raise ValueError("loo needs at least 2 samples, got 1 sample")
        diagonal = self._system.inverse_diagonal("loo")
        errors = self._alpha / diagonal[:, None]
        x = self.coefficients
        return LeaveOneOut(
            self._shaped(x, self._problem.y + self._problem.mean - errors),
            self._shaped(x, errors),
            self._shaped(x, 1 / diagonal),
            float(errors.square().mean()),
            self._problem.accuracy(errors),
        )

    @in_standard_settings
    def gcv(self) -> float:
        r"""Generalized cross-validation: $n \|\alpha\|^2 / (\operatorname{tr} G)^2$.

        It is the mean squared residual over $(1 - \operatorname{tr} S / n)^2$, where
        $S = K(K + \lambda I)^{-1}$ maps targets to fitted values, and a mean over the columns of
        $y$. In this form it has its limit for $\lambda = 0$ too.

        Raises:
            ValueError: If there is no factorization in float64; use :meth:`estimate_gcv` then.
        """
        return float((self._alpha / self._system.inverse_diagonal("gcv").mean()).square().mean())

    @in_standard_settings
    @_collective
    def estimate_gcv(self, *, probes: int = 16, seed: int = 0) -> Estimate:
        r"""Generalized cross-validation with a random estimate of the trace (Hutchinson 1989).

        Every probe is one more right-hand side. The standard error of the trace is propagated to
        first order.

        Args:
            probes: Number of random vectors.
            seed: Seed of the random vectors.

        Raises:
            ConvergenceError: If a system is not solved to the tolerance.
        """
        integer("probes", probes, at_least=2)
        size = self._problem.size
        room("probes", size, probes)
        signs = 2 * torch.randint(0, 2, (size, probes), generator=seeded("seed", seed)) - 1
        samples = self._system.quadratic(signs.to(self._alpha)) / size
        mean = float(samples.mean())
        error = float(samples.std()) / math.sqrt(probes)
        value = float(self._alpha.square().mean()) / mean**2
        return Estimate(value, 2 * value * error / mean)

    def _inputs(self, x: Any) -> Tensor:
        samples = self._problem.x
        inputs = self._problem.function.samples("x", as_tensor(x, "x")).detach()
        if inputs.shape[1:] != samples.shape[1:]:
            expected = ", ".join(map(str, samples.shape[1:]))
            raise ValueError(f"x must have shape (inputs, {expected}), got {tuple(inputs.shape)}")
        return inputs.to(samples)
