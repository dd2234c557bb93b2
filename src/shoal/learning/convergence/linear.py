r"""Training of a model that is linear in its weights, which infinitely wide networks are.

With the NTK $\Theta$ and the loss $\frac12\|f(X) - y\|^2$, gradient flow gives

$$f_t(X) = y + e^{-\Theta t}(f_0(X) - y), \qquad
f_t(x) = f_0(x) + \Theta(x, X)\,\Theta^{-1}(1 - e^{-\Theta t})(y - f_0(X)),$$

and $k$ steps of gradient descent of size $\eta$ the same with $(1 - \eta\Theta)^k$. One
eigendecomposition serves for all times.
"""

import math
import warnings
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import float_tensor, one_of, real
from shoal.core.exceptions import AccuracyError, ConvergenceWarning
from shoal.core.settings import in_standard_settings
from shoal.kernels import Kernels
from shoal.kernels.arguments import as_tensor
from shoal.learning.convergence.arguments import (
    Initial,
    checked_kernels,
    checked_labels,
    checked_schedule,
    checked_step_size,
    columns,
    initial_function,
)
from shoal.learning.convergence.dynamics import Descent, Dynamics, Flow
from shoal.learning.convergence.ensemble import Ensemble, TestPrior
from shoal.learning.convergence.first_time import first_step, first_time
from shoal.learning.convergence.spectrum import Spectrum

_KERNELS = 1e-12  # the accuracy of shoal.kernel
_MATTERS = 1e-9  # a share of the initial loss that one is told of


@dataclass(frozen=True, eq=False)
class GradientFlow:
    r"""The training of an infinitely wide network at some times $t_1, \dots, t_T$.

    If the initial function is random, all means and deviations are over the draw of the weights,
    and what is random is Gaussian. Outputs are independent of each other and have the same
    covariances.

    Attributes:
        times: The times, of shape (T,); for gradient descent the number of steps times their size.
        steps: The numbers of steps of gradient descent; ``None`` for gradient flow.
        loss: The (expected) training loss, of shape (T,).
        loss_std: Its standard deviation; ``None`` if the initial function is given.
        train_mean: The (mean) predictions at the training inputs, of shape (T, n) or (T, n, k) as
            the labels have shape (n,) or (n, k).
        test_mean: Those at the test inputs; ``None`` if there are none.
        test_std: The standard deviation of a prediction at each test input, of shape (T, m);
            ``None`` if the initial function is given, or the deviation was not asked for.
        test_covariance: The covariances between test inputs, of shape (T, m, m), if asked for.
        training: What it was computed with: predictions at other times, the time that a loss
            takes, the largest stable step size.
    """

    times: Tensor
    steps: Tensor | None
    loss: Tensor
    loss_std: Tensor | None
    train_mean: Tensor
    test_mean: Tensor | None
    test_std: Tensor | None
    test_covariance: Tensor | None
    training: "LinearTraining" = field(repr=False)


class LinearTraining:
    r"""The training of a model with a given NTK, at all times.

    It holds one eigendecomposition of the NTK, in float64, from which everything follows cheaply.

    Args:
        kernels: CK and NTK of the training inputs, each (n, n).
        y: Labels, of shape (n,) or (n, k); results are NumPy arrays if this is one.
        cross: CK and NTK between test inputs (rows) and training inputs; none by default.
        prior: The CK of the test inputs, of shape (m, m), or its diagonal alone, of shape (m,).
            Needed for the uncertainty of predictions.
        initial: ``"random"``: a Gaussian process of mean zero with the CK as its covariance.
            ``"zero"``, or a pair of tensors: the initial function is known; its values at the
            training and at the test inputs (``None`` without those).
        reduction: ``"sum"``: the loss is $\frac12\sum_{ik}(f_{ik} - y_{ik})^2$. ``"mean"``: that
            divided by n, which makes training n times slower.
        accuracy: The largest error of an entry of the NTK, relative to its diagonal; by default
            1e-12, the accuracy of ``shoal.kernel``, or the unit of a shorter dtype. Eigenvalues
            below n times that cannot be told from zero.

    Raises:
        ValueError: If the shapes do not fit, or the NTK is not positive semidefinite.
        TypeError: If an argument is not of its kind.
        AccuracyError: If the initial loss overflows the dtype of the labels.

    Example:
        >>> import torch, shoal
        >>> from shoal.learning.convergence import LinearTraining
        >>> ck, ntk = torch.eye(2).double(), torch.diag(torch.tensor([1.0, 4.0])).double()
        >>> training = LinearTraining(shoal.kernels.Kernels(ck, ntk), torch.ones(2).double())
        >>> training.max_step_size
        0.5
        >>> training.run([0, 1]).loss
        tensor([2.0000, 0.1357], dtype=torch.float64)
    """

    @in_standard_settings
    def __init__(
        self,
        kernels: Kernels,
        y: Tensor,
        *,
        cross: Kernels | None = None,
        prior: Tensor | None = None,
        initial: Literal["random", "zero"] | Initial = "random",
        reduction: Literal["sum", "mean"] = "sum",
        accuracy: float | None = None,
    ) -> None:
        ck, ntk = checked_kernels("kernels", kernels)
        samples = len(ntk)
        self._arrays = isinstance(y, np.ndarray)
        self._y = checked_labels("y", y, samples)
        if cross is not None:
            rows = len(as_tensor(cross[0], "cross.ck")) if isinstance(cross, tuple) else None
            cross = checked_kernels("cross", cross, rows, samples)
        self._start = _start(initial, self._y, None if cross is None else len(cross.ck))
        one_of("reduction", reduction, ("sum", "mean"))
        self._divisor = float(samples) if reduction == "mean" else 1.0
        self._spectrum = Spectrum.of(
            "kernels.ntk", ntk, _accuracy(accuracy, ntk.dtype), self._divisor
        )
        error = columns(self._y) - (0.0 if self._start is None else columns(self._start[0]))
        self._components = self._spectrum.project(error)
        self._cross: Tensor | None = None
        if cross is not None:
            projected = cross.ntk.to(torch.float64) @ self._spectrum.vectors
            self._cross = self._spectrum.divide(projected / self._divisor)
        self._ensemble: Ensemble | None = None
        if self._start is None:
            test = _test_prior(self._spectrum, cross, prior)
            self._ensemble = Ensemble.of(self._spectrum, ck, test)
        if not self._loss(Flow(), 0.0) <= torch.finfo(self._y.dtype).max:
            raise AccuracyError(f"the initial loss overflows {self._y.dtype}: scale y down")

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the NTK, divided by n if the loss is: the rates of training.

        They ascend; those that cannot be told from zero are zero.
        """
        return self._spectrum.values

    @property
    def resolution(self) -> float:
        """Eigenvalues below it cannot be told from zero."""
        return self._spectrum.resolution

    @property
    def max_step_size(self) -> float:
        """Gradient descent converges for smaller step sizes: 2 by the largest eigenvalue."""
        largest = float(self.eigenvalues[-1])
        return 2 / largest if largest > 0 else math.inf

    @in_standard_settings
    def run(
        self,
        times: Any = None,
        *,
        steps: Any = None,
        step_size: float | None = None,
        covariance: Literal["none", "diagonal", "full"] = "diagonal",
    ) -> GradientFlow:
        """Predict the training; arguments as in :func:`~shoal.learning.convergence.gradient_flow`.

        Raises:
            ValueError: If a time is negative or NaN, or the step size too large.
            TypeError: If not either times, or steps and their size, are given.
        """
        one_of("covariance", covariance, ("none", "diagonal", "full"))
        points = checked_schedule(times, steps, step_size)
        dynamics, scale = self._dynamics(step_size), 1.0 if step_size is None else float(step_size)
        self._warn_of_unresolved(scale * max(points))
        counts = _double(points)
        left, learned = (
            [share(self.eigenvalues, t) for t in points]
            for share in (dynamics.left, dynamics.learned)
        )
        result = GradientFlow(
            times=self._like(counts * scale),
            steps=None if steps is None else self._like(counts),
            loss=self._like(_double([self._loss(dynamics, t) for t in points])),
            loss_std=self._loss_std(left),
            train_mean=self._predictions(0, self._spectrum.vectors, learned),
            test_mean=None if self._cross is None else self._predictions(1, self._cross, learned),
            **self._spread(learned, covariance),
            training=self,
        )
        return _as_arrays(result) if self._arrays else result

    @in_standard_settings
    def time_to(self, loss: float, *, step_size: float | None = None) -> float:
        """The time that the (expected) training loss takes to fall to a value.

        Args:
            loss: The value, positive.
            step_size: Count steps of gradient descent of this size instead.

        Returns:
            The time, or the number of steps; infinity if the loss never falls so far.
        """
        loss = real("loss", loss, above=0)
        curve = partial(self._loss, self._dynamics(step_size))
        if step_size is None:
            return first_time(curve, loss, unit=0.5 * self.max_step_size)
        return first_step(curve, loss)

    def _dynamics(self, step_size: float | None) -> Dynamics:
        if step_size is None:
            return Flow()
        return Descent(checked_step_size(step_size, self.max_step_size))

    def _loss(self, dynamics: Dynamics, time: float) -> float:
        square = dynamics.left(self.eigenvalues, time).square()
        return 0.5 * float(square @ self._energy()) / self._divisor

    def _energy(self) -> Tensor:
        """The expected squared initial error in each direction."""
        energy = self._components.square().sum(1)
        if self._ensemble is not None:
            variances = self._ensemble.train.diagonal().clamp(min=0)
            energy = energy + self._components.shape[1] * variances
        return energy

    def _loss_std(self, left: list[Tensor]) -> Tensor | None:
        if self._ensemble is None:
            return None
        variances = [self._ensemble.loss_variance(share, self._components) for share in left]
        return self._like(_double(variances).clamp(min=0).sqrt() / self._divisor)

    def _predictions(self, place: int, rows: Tensor, learned: list[Tensor]) -> Tensor:
        """The means at the training (0) or the test inputs (1)."""
        start = None if self._start is None else self._start[place]
        known = 0.0 if start is None else columns(start)
        values = [known + rows @ (share[:, None] * self._components) for share in learned]
        return self._like(torch.stack(values).reshape(len(learned), len(rows), *self._y.shape[1:]))

    def _spread(self, learned: list[Tensor], covariance: str) -> dict[str, Tensor | None]:
        """The fields for the uncertainty at the test inputs."""
        nothing: dict[str, Tensor | None] = {"test_std": None, "test_covariance": None}
        if self._ensemble is None or self._cross is None or covariance == "none":
            return nothing
        prior = self._ensemble.test
        if covariance == "full" and (prior is None or prior.own.dim() == 1):
            raise ValueError("covariance='full' needs the whole prior covariance at test inputs")
        if prior is None:
            return nothing
        weights = (self._cross * share for share in learned)
        if covariance == "diagonal":
            variances = torch.stack([self._ensemble.test_variance(a) for a in weights])
            return nothing | {"test_std": self._like(variances.sqrt())}
        matrices = torch.stack([self._ensemble.test_covariance(a) for a in weights])
        deviations = matrices.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        return {"test_std": self._like(deviations), "test_covariance": self._like(matrices)}

    def _like(self, values: Tensor) -> Tensor:
        return values.to(self._y)

    def _warn_of_unresolved(self, time: float) -> None:
        """Say so if directions that cannot be told from null ones matter."""
        null = self.eigenvalues == 0
        energy = self._energy()
        if self.resolution == 0 or not bool(null.any()):
            return
        share = float(energy[null].sum() / energy.sum())
        # had they the largest eigenvalue that they may have, so much would have been learned
        if share * -math.expm1(-2 * self.resolution * time) > _MATTERS:
            warnings.warn(
                f"the NTK is singular within rounding: {int(null.sum())} of its eigenvalues are "
                f"below {self.resolution:g} and taken as zero; the errors in these directions, "
                f"{share:.2g} of the initial loss, are taken never to be learned",
                ConvergenceWarning,
                stacklevel=4,
            )


def _as_arrays(result: GradientFlow) -> GradientFlow:
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    arrays: dict[str, Any] = {n: v.numpy() for n, v in values.items() if isinstance(v, Tensor)}
    return replace(result, **arrays)


def _accuracy(accuracy: float | None, dtype: torch.dtype) -> float:
    if accuracy is None:
        return max(_KERNELS, torch.finfo(dtype).eps)
    return real("accuracy", accuracy, at_least=torch.finfo(torch.float64).eps)


def _double(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _start(initial: object, y: Tensor, tests: int | None) -> Initial | None:
    """The initial function where it is known."""
    if isinstance(initial, str):
        one_of("initial", initial, ("random", "zero"))
        if initial == "random":
            return None
        zeros = None if tests is None else y.new_zeros(tests, *y.shape[1:])
        return torch.zeros_like(y), zeros
    return initial_function(initial, y, tests)


def _test_prior(spectrum: Spectrum, cross: Kernels | None, prior: object) -> TestPrior | None:
    if prior is None:
        return None
    if cross is None:
        raise ValueError("prior is for test inputs: it needs cross")
    own = float_tensor("prior", as_tensor(prior, "prior")).detach()
    tests = len(cross.ck)
    if own.shape not in ((tests,), (tests, tests)):
        raise ValueError(
            f"prior must have shape ({tests},) or ({tests}, {tests}), got {tuple(own.shape)}"
        )
    return TestPrior.of(spectrum, cross.ck, own)
