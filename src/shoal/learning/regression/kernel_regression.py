"""Kernel ridge regression and Gaussian processes with exact kernels, for many samples."""

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from shoal.architectures import Architecture
from shoal.core.checks import function, one_of, shown
from shoal.core.exceptions import ConvergenceError, ConvergenceWarning
from shoal.core.measuring import now
from shoal.core.processes import Group, fingerprint, processes
from shoal.core.settings import in_standard_settings
from shoal.kernels import KernelFunction
from shoal.kernels.arguments import as_tensor
from shoal.kernels.images.function import chosen_kernels
from shoal.learning.regression.problem import (
    Problem,
    byte_limit,
    check_decomposition,
    check_factor,
    checked_problem,
    data_bytes,
    matrix_bytes,
)
from shoal.learning.regression.result import KernelRegression, Report
from shoal.learning.regression.ridge_path import (
    Criterion,
    RidgePath,
    checked_criterion,
    decomposed,
    path_of,
)
from shoal.learning.regression.solver import (
    Cholesky,
    ConjugateGradients,
    Listener,
    Progress,
    Solver,
    explain,
)
from shoal.numerics.krylov import Iteration, relative

Method = Literal["auto", "cholesky", "cg"] | Cholesky | ConjugateGradients


@in_standard_settings
def kernel_regression(
    architecture: Architecture | KernelFunction,
    x: Any,
    y: Any,
    *,
    ridge: float | Criterion = "loo",
    which: Literal["ck", "ntk"] = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    method: Method = "auto",
    memory: int | str | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_failure: Literal["raise", "warn"] = "raise",
    process_group: Group = "auto",
) -> KernelRegression:
    r"""Regression with the kernel of an infinitely wide network: $\alpha = (K + \lambda I)^{-1} y$.

    The same numbers are the posterior of a Gaussian process with covariance $K$ that is observed
    with noise of variance $\lambda$. With the CK this is the prior of the random network, and with
    the NTK at $\lambda \to 0$ the mean is the function to which training from zero converges.

    ``"cholesky"`` forms and factors the matrix in place, in $8n^2$ bytes. ``"cg"`` never needs it
    as a whole: each step is one product for all right-hand sides, with strips that are kept as far
    as the memory allows and otherwise computed again. Kernels, residuals and sums are in float64,
    whatever the dtype of ``x``; but entries for images in float32 on a GPU come from a fused pass
    in float32 where there is one, within 2e-5 of the diagonal.

    Args:
        architecture: The network, or its kernel function.
        x: Inputs of shape (n, p), a tensor or a NumPy array; for networks of images, such as a
            ``ConvDEQ``, images of shape (n, channels, pixels...).
        y: Targets of shape (n,) or (n, q).
        ridge: $\lambda \ge 0$; or how to choose it, from one eigendecomposition of the matrix:
            ``"gcv"`` by generalized cross-validation, ``"loo"`` by the mean squared error of
            leaving out each sample, ``"likelihood"`` by the marginal likelihood under the best
            output scale. The path that it was chosen from is then the result's ``path``.
        which: The kernel.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        method: A :class:`Cholesky` or :class:`ConjugateGradients` with its options, or
            ``"cholesky"`` or ``"cg"`` with the defaults of these. With ``"auto"`` the former, if
            the matrix fits into the memory.
        memory: Most bytes to use, such as ``"8GiB"``, which is the default on a CPU; on a GPU it is
            nine tenths of what is free.
        on_progress: Called as the work proceeds; of several processes, in the first.
        on_failure: Whether to ``"raise"`` if the tolerance is not met, or to ``"warn"``.
        process_group: The processes that share the work, and all make this call with the same
            arguments: those of ``torch.distributed`` or ``torchrun`` by default, with ``None`` this
            one alone. Each computes its part of the matrix, in ``memory`` bytes, and all have the
            result.

    Raises:
        ValueError: If an argument does not fit; for one, the matrix into the memory.
        AccuracyError: If the matrix is not positive definite within rounding.
        ConvergenceError: If the tolerance is not met.
        ConnectionError: If another process is gone.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(50, 3, generator=torch.manual_seed(0)))
        >>> deq = shoal.DEQ("relu", recurrent_variance=0.2, input_variance=0.8)
        >>> fit = shoal.kernel_regression(deq, x.double(), x[:, 0].double() ** 2, ridge=1e-6)
        >>> fit.predict(torch.tensor([[0.6, 0.0, 0.8]]).double())
        tensor([0.3555], dtype=torch.float64)
    """
    shared = processes(process_group)
    with shared.collective():
        kernels = chosen_kernels(architecture, trainable=trainable, width=width)
        wanted = checked_criterion("ridge", ridge) if isinstance(ridge, str) else None
        problem = checked_problem(kernels, x, y, 0.0 if isinstance(ridge, str) else ridge, which)
        one_of("on_failure", on_failure, ("raise", "warn"))
        function("on_progress", on_progress)
        problem = replace(problem, processes=shared)
        listener = on_progress if on_progress and shared.first else (lambda _: None)
        limit = _agreed(problem, byte_limit(problem, memory), method)
        if wanted is not None:
            check_decomposition(problem, limit)  # the choice takes more than the regression
        chosen = _chosen(method, problem, limit)
        path = _path(problem, chosen, limit, wanted)
        if path is not None and wanted is not None:
            problem = replace(problem, ridge=shared.of_first(path.best(wanted)))
        solver = chosen.prepared(problem, limit - data_bytes(problem), listener)
        begin = now(problem.x.device)
        found = _run(problem, solver, listener)
        spent = now(problem.x.device) - begin
        if not found.converged:
            text = f"the regression did not converge: {explain(found, problem.y, solver)}"
            _fail(text, on_failure, first=shared.first)
        solution = shared.broadcast(found.solution)
    shaped = solution if y.ndim == 2 else solution[:, 0]
    dtype = as_tensor(x[:1], "x").dtype
    return KernelRegression(
        shaped.to(dtype).cpu().numpy() if isinstance(x, np.ndarray) else shaped.to(dtype),
        _report(chosen, found, problem, (*solver.times, spent)),
        problem,
        solver,
        solution,
        dtype,
        path,
    )


def _agreed(problem: Problem, limit: int, method: Method) -> int:
    """The bytes that all processes have, if they have the same problem too."""
    if problem.processes.size == 1:
        return limit
    same = {
        "y": fingerprint(problem.y),
        "ridge": problem.ridge,
        "which": problem.kernel,
        "method": method,
    }
    return min(problem.processes.agree(same, limit))


def _fail(text: str, on_failure: str, *, first: bool) -> None:
    if on_failure == "raise":
        raise ConvergenceError(text)
    if first:
        warnings.warn(text, ConvergenceWarning, stacklevel=4)


def _report(
    method: Cholesky | ConjugateGradients,
    found: Iteration,
    problem: Problem,
    times: tuple[float, float, float],
) -> Report:
    history = torch.stack(found.history) if found.history else problem.y[:0]
    near = method.preconditioner if isinstance(method, ConjugateGradients) else None
    return Report(
        method.name,
        None if near is None else near.name,
        found.counts.cpu(),
        relative(found.residual, problem.y).cpu(),
        history.cpu(),
        found.converged,
        *times,
    )


def _chosen(method: Method, problem: Problem, limit: int) -> Cholesky | ConjugateGradients:
    """What is asked for, if it fits into the memory, or with "auto" what does."""
    if not isinstance(method, Cholesky | ConjugateGradients):
        if not isinstance(method, str):
            raise TypeError(
                "method must be a Cholesky or ConjugateGradients, or the name of one, "
                f"got {shown(method)}"
            )
        if one_of("method", method, ("auto", "cholesky", "cg")) == "auto":
            needed = matrix_bytes(problem, Cholesky().precision)
            fits = needed <= limit - data_bytes(problem)
            method = "cholesky" if fits else "cg"
        method = Cholesky() if method == "cholesky" else ConjugateGradients()
    if isinstance(method, Cholesky):
        check_factor(problem, method.precision, limit)
        return method
    least = method.least_memory(problem) + data_bytes(problem)
    if limit < least:
        raise ValueError(
            f"memory must be at least '{math.ceil(least / 2**20)}MiB' for these inputs and targets "
            f"and this preconditioner (a smaller rank takes less), got {limit} bytes"
        )
    return method


def _path(
    problem: Problem,
    method: Cholesky | ConjugateGradients,
    limit: int,
    wanted: Criterion | None,
) -> RidgePath | None:
    """The ridges to choose from, if one is to be chosen."""
    if wanted is None:
        return None
    if method.name == "cg":
        raise ValueError(
            f"ridge={wanted!r} needs method='cholesky', for which memory may be too small: with "
            "method='cg' compare the estimate_gcv() of a few ridges"
        )
    return path_of(decomposed(problem, limit), None)


def _run(problem: Problem, solver: Solver, listener: Listener) -> Iteration:
    """Solve for the targets, and report how far it is."""

    def on_step(now: Iteration) -> None:
        largest = float(now.history[-1].max())
        digits = math.log(max(largest, solver.rtol)) / math.log(solver.rtol)
        listener(Progress("solve", min(max(digits, 0.0), 1.0), now.steps, largest))

    return solver.run(problem.y, on_step)
