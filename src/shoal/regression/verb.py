"""Kernel ridge regression and Gaussian processes with exact kernels, for many samples."""

import math
import warnings
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, Literal, get_args

import numpy as np
import torch

from shoal.architectures import Architecture
from shoal.checkpoints import Checkpoint
from shoal.checks import float_tensor, function, integer, one_of, real
from shoal.exceptions import ConvergenceError, ConvergenceWarning
from shoal.kernels import kernel_function
from shoal.kernels.arguments import as_tensor, checked_samples, memory_limit
from shoal.kernels.conjugate_gradients import Iteration, relative
from shoal.kernels.factors import refuse_gradients
from shoal.mixtures.labels import Labels, class_indices, classes_of
from shoal.regression import checkpoints
from shoal.regression.preconditioners import Preconditioner
from shoal.regression.problem import Problem
from shoal.regression.result import KernelRegression, Report
from shoal.regression.solver import (
    Listener,
    Options,
    Progress,
    Solver,
    explain,
    factorized,
    iterative,
    least_memory,
    seconds,
)
from shoal.settings import in_standard_settings

__all__ = ["kernel_regression"]

_DEFAULT_MEMORY = 8 * 2**30
_WORK = {"cpu": 2**29, "cuda": 6 * 2**30}  # besides the matrix: strips and panels
_COPIES = 4  # of the inputs, as they are and as directions
_VECTORS = 12  # of the size of the targets, that conjugate gradients hold

Method = Literal["auto", "cholesky", "cg"]


@in_standard_settings
def kernel_regression(
    architecture: Architecture,
    x: Any,
    y: Any,
    *,
    ridge: float,
    which: Literal["ck", "ntk"] = "ntk",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    method: Method = "auto",
    preconditioner: Preconditioner | None = "nystrom",
    rank: int = 1000,
    labels: Labels | None = None,
    precision: torch.dtype = torch.float64,
    tolerance: float = 1e-6,
    max_steps: int = 1000,
    memory: int | str | None = None,
    checkpoint: str | PathLike[str] | None = None,
    on_progress: Callable[[Progress], object] | None = None,
    on_failure: Literal["raise", "warn"] = "raise",
    seed: int = 0,
) -> KernelRegression:
    r"""Regression with the kernel of an infinitely wide network: $\alpha = (K + \lambda I)^{-1} y$.

    The same numbers are the posterior of a Gaussian process with covariance $K$ that is observed
    with noise of variance $\lambda$. With the CK this is the prior of the random network, and with
    the NTK at $\lambda \to 0$ the mean is the function to which training from zero converges.

    ``"cholesky"`` forms and factors the matrix in place, in $8n^2$ bytes. ``"cg"`` never needs it
    as a whole: each step is one product for all right-hand sides, with strips that are kept as far
    as the memory allows and otherwise computed again. Kernels, residuals and sums are in float64,
    whatever the dtype of ``x``.

    Args:
        architecture: The network.
        x: Inputs of shape (n, p), a tensor or a NumPy array.
        y: Targets of shape (n,) or (n, q).
        ridge: $\lambda \ge 0$.
        which: The kernel.
        trainable: Groups of parameters that the NTK counts; all by default.
        width: See :func:`~shoal.kernels.kernel_function`.
        method: ``"cholesky"``, ``"cg"`` or, with ``"auto"``, the former if the matrix fits into the
            memory and no checkpoint is wanted.
        preconditioner: Of conjugate gradients. ``"equivalent"``: the high-dimensional equivalent of
            the kernel. ``"nystrom"``: the kernel projected to ``rank`` random samples.
            ``"combined"``: the equivalent's part that is linear in the inputs, and a projection of
            the rest. ``"diagonal"``, or none at all with ``None``.
        rank: How many samples ``"nystrom"`` and ``"combined"`` use; at most all.
        labels: Classes of the samples, for the equivalent: of use for mixtures in high dimension,
            and harmful for images, whose inner products do not concentrate.
        precision: The dtype of what is stored: the factor, or the kept part of the matrix. With
            ``torch.float32``, half the memory, solutions are refined in float64.
        tolerance: Largest $\|y - (K + \lambda I)\alpha\| / \|y\|$ of each column.
        max_steps: Most steps of conjugate gradients.
        memory: Most bytes to use, such as ``"8GiB"``, which is the default on a CPU; on a GPU it is
            nine tenths of what is free.
        checkpoint: A file in which conjugate gradients are kept, every half minute and when they
            end in any way, and from which they go on. What cannot be written, to a full disk for
            one, is warned of, and the work goes on.
        on_progress: Called as the work proceeds.
        on_failure: Whether to ``"raise"`` if the tolerance is not met, or to ``"warn"``.
        seed: Of the random samples of the preconditioner.

    Raises:
        ValueError: If an argument does not fit; for one, the matrix into the memory.
        AccuracyError: If the matrix is not positive definite within rounding.
        ConvergenceError: If the tolerance is not met.

    Example:
        >>> import torch, shoal
        >>> x = torch.nn.functional.normalize(torch.randn(50, 3, generator=torch.manual_seed(0)))
        >>> deq = shoal.DEQ(shoal.ReLU(), recurrent_variance=0.2, input_variance=0.8)
        >>> fit = shoal.kernel_regression(deq, x.double(), x[:, 0].double() ** 2, ridge=1e-6)
        >>> fit.predict(torch.tensor([[0.6, 0.0, 0.8]]).double())
        tensor([0.3555], dtype=torch.float64)
    """
    problem = _problem(architecture, x, y, labels, ridge, which, trainable, width)
    options = Options(
        _checked_preconditioner(preconditioner),
        integer("rank", rank, at_least=1),
        integer("seed", seed, at_least=0),
        _checked_precision(precision),
        real("tolerance", tolerance, above=0.0),
        integer("max_steps", max_steps, at_least=1),
        (limit := _limit(problem, memory)) - _data_bytes(problem),
    )
    one_of("on_failure", on_failure, ("raise", "warn"))
    chosen = _method(method, problem, options, checkpoint)
    least = least_memory(problem, options) + _data_bytes(problem)
    if chosen == "cg" and limit < least:
        raise ValueError(
            f"memory must be at least '{math.ceil(least / 2**20)}MiB' for these inputs and targets "
            f"and this preconditioner (a smaller rank takes less), got {limit} bytes"
        )
    function("on_progress", on_progress)
    listener = on_progress or (lambda _: None)
    file = None if checkpoint is None else checkpoints.of_problem(checkpoint, problem, options)
    kept = None if file is None else file.read(problem.y.device)  # refused before the work
    solver = (factorized if chosen == "cholesky" else iterative)(problem, options, listener)
    begin = seconds(problem.x)
    state = Iteration.start(problem.y) if kept is None else checkpoints.resumed(kept)
    found = _run(problem, solver, options, state, file, listener)
    spent = seconds(problem.x) - begin
    if not found.converged:
        text = f"the regression did not converge: {explain(found, problem.y, solver)}"
        if on_failure == "raise":
            raise ConvergenceError(text)
        warnings.warn(text, ConvergenceWarning, stacklevel=3)
    shaped = found.solution if y.ndim == 2 else found.solution[:, 0]
    dtype = as_tensor(x[:1], "x").dtype
    return KernelRegression(
        shaped.to(dtype).cpu().numpy() if isinstance(x, np.ndarray) else shaped.to(dtype),
        _report(chosen, options, found, problem, (*solver.times, spent)),
        problem,
        solver,
        found.solution,
        dtype,
    )


def _report(
    method: Literal["cholesky", "cg"],
    options: Options,
    found: Iteration,
    problem: Problem,
    times: tuple[float, float, float],
) -> Report:
    history = torch.stack(found.history) if found.history else problem.y[:0]
    return Report(
        method,
        options.preconditioner if method == "cg" else None,
        found.counts.cpu(),
        relative(found.residual, problem.y).cpu(),
        history.cpu(),
        found.converged,
        *times,
    )


def _problem(
    architecture: Architecture,
    x: Any,
    y: Any,
    labels: Labels | None,
    ridge: float,
    which: str,
    trainable: Iterable[str] | None,
    width: int | None,
) -> Problem:
    """Checked arguments, in float64."""
    function = kernel_function(architecture, trainable=trainable, width=width)
    inputs = checked_samples("x", as_tensor(x, "x"))
    if inputs.dim() != 2:
        raise ValueError(f"x must have shape (samples, features), got {tuple(inputs.shape)}")
    targets = float_tensor("y", as_tensor(y, "y"))
    if targets.dim() not in (1, 2) or len(targets) != len(inputs):
        raise ValueError(
            f"y must have shape (n,) or (n, outputs) with n = {len(inputs)}, "
            f"got {tuple(targets.shape)}"
        )
    refuse_gradients({"x": inputs, "y": targets}, "a regression is not differentiated; detach() it")
    places = None if labels is None else class_indices(labels, classes_of(labels))
    if places is not None and len(places) != len(inputs):
        raise ValueError(
            f"labels must be as many as inputs, got {len(places)} for {len(inputs)} inputs"
        )
    return Problem(
        architecture,
        inputs.detach().to(torch.float64, copy=True),  # what the caller changes later is not seen
        targets.detach().reshape(len(targets), -1).to(inputs.device, torch.float64, copy=True),
        real("ridge", ridge, at_least=0.0),
        ("ck", "ntk").index(one_of("which", which, ("ck", "ntk"))),
        function.trainable,
        width,
        places,
    )


def _checked_preconditioner(name: Preconditioner | None) -> Preconditioner | None:
    if name is not None:
        one_of("preconditioner", name, get_args(Preconditioner))
    return name


def _checked_precision(precision: torch.dtype) -> torch.dtype:
    if precision not in (torch.float32, torch.float64):
        raise ValueError(f"precision must be torch.float32 or torch.float64, got {precision!r}")
    return precision


def _limit(problem: Problem, memory: int | str | None) -> int:
    """Bytes for all."""
    limit, device = memory_limit(memory), problem.x.device
    if limit is None:
        limit = _DEFAULT_MEMORY
        if device.type == "cuda":
            held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            limit = (torch.cuda.mem_get_info(device)[0] + held) * 9 // 10
    return limit


def _data_bytes(problem: Problem) -> int:
    """What is not for the matrix and the work on it: inputs, their directions, and vectors."""
    return _COPIES * problem.x.nbytes + _VECTORS * problem.y.nbytes


def _method(
    method: Method, problem: Problem, options: Options, checkpoint: object
) -> Literal["cholesky", "cg"]:
    """The method that fits."""
    one_of("method", method, get_args(Method))
    needed = problem.size**2 * options.precision.itemsize
    needed += min(needed, _WORK.get(problem.x.device.type, 0))
    fits = needed <= options.memory
    if method == "cholesky" and checkpoint is not None:
        raise ValueError("checkpoint is for method='cg': a factorization is not kept")
    if method == "cholesky" and not fits:
        raise ValueError(
            f"method='cholesky' needs {needed / 2**30:.3g} GiB besides inputs and targets, and "
            f"memory leaves {options.memory / 2**30:.3g} GiB: give more, take "
            "precision=torch.float32, or method='cg'"
        )
    if method == "auto":
        return "cholesky" if fits and checkpoint is None else "cg"
    return method


def _run(
    problem: Problem,
    solver: Solver,
    options: Options,
    state: Iteration,
    file: Checkpoint | None,
    listener: Listener,
) -> Iteration:
    """Solve for the targets, and keep on file how far it is."""

    def keep(now: Iteration) -> None:
        """Write the file; a full disk must not lose what is solved."""
        if file is None:
            return
        try:
            file.write(checkpoints.snapshot(now))
        except OSError as error:
            warnings.warn(f"checkpoint was not written: {error}", RuntimeWarning, stacklevel=4)

    def on_step(now: Iteration) -> None:
        if file is not None and file.due:
            keep(now)
        largest = float(now.history[-1].max())
        digits = math.log(max(largest, options.rtol)) / math.log(options.rtol)
        listener(Progress("solve", min(max(digits, 0.0), 1.0), now.steps, largest))

    try:
        return solver.run(problem.y, state, on_step)
    finally:
        keep(state)
