r"""Training of a model that is linear in its weights, which infinitely wide networks are.

With the NTK $\Theta$ and the loss $\frac12\|f(X) - y\|^2$, gradient flow gives

$$f_t(X) = y + e^{-\Theta t}(f_0(X) - y), \qquad
f_t(x) = f_0(x) + \Theta(x, X)\,\Theta^{-1}(1 - e^{-\Theta t})(y - f_0(X)),$$

and $k$ steps of gradient descent of size $\eta$ the same with $(1 - \eta\Theta)^k$. So each
eigendirection of $\Theta$ is learned on its own, and one decomposition serves for all times. A
random initial function is a Gaussian process with covariance $K$, the CK; training maps it linearly
to the trained one (Lee et al. 2019, Eqs. (14) to (16)).
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.checks import float_tensor, items, number, one_of, real, shaped
from shoal.core.exceptions import AccuracyError, ConvergenceWarning
from shoal.core.settings import in_standard_settings
from shoal.kernels import Kernels
from shoal.kernels.arguments import as_tensor
from shoal.learning.decomposition import Decomposition
from shoal.learning.problem import checked_labels

Initial = tuple[Tensor, Tensor | None]  # at the training and at the test inputs

_KERNELS = 1e-12  # the accuracy of shoal.kernel
_MATTERS = 1e-9  # a share of the initial loss that deserves a warning
_INDEFINITE = 1e-3  # a negative eigenvalue of this share of the largest is no rounding
_ASYMMETRY = 1e-5  # relative asymmetry that rounding in float32 explains
_LOWEST = -1e300  # a logarithm of zero that zero steps can multiply


@dataclass(frozen=True, eq=False)
class GradientFlow:
    r"""The training of an infinitely wide network at some times $t_1, \dots, t_T$.

    If the initial function is random, all means and deviations are over the random weights, and
    distributions are Gaussian. Outputs are independent of each other and have the same covariances.

    Attributes:
        times: The times, of shape (T,); for gradient descent the number of steps times their size.
        steps: The numbers of steps of gradient descent; ``None`` for gradient flow.
        loss: The (expected) training loss, of shape (T,).
        loss_std: Its standard deviation; ``None`` if the initial function is given.
        train_mean: The (mean) predictions at the training inputs, of shape (T, n) or (T, n, k) as
            the labels have shape (n,) or (n, k).
        test_mean: The same at the test inputs; ``None`` if there are none.
        test_std: The standard deviation of a prediction at each test input, of shape (T, m);
            ``None`` if the initial function is given, or the deviation was not asked for.
        test_covariance: The covariances between test inputs, of shape (T, m, m), if asked for.
        training: The decomposition behind it: predictions at other times, the time to a loss, the
            largest stable step size.
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
    r"""The training of a model that is linear in its weights, from its kernels.

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

    Raises:
        ValueError: If the shapes do not fit, or the NTK is not positive semidefinite.
        TypeError: If an argument has the wrong type.
        AccuracyError: If the initial loss overflows the dtype of the labels.

    Example:
        >>> import torch, shoal
        >>> from shoal.learning import LinearTraining
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
    ) -> None:
        samples = len(y) if getattr(y, "ndim", 0) else 0
        self._arrays = isinstance(y, np.ndarray)
        self._y = checked_labels("y", y, samples).detach()
        ck, ntk = kernels = _kernels("kernels", kernels, samples, samples)
        for part, matrix in zip(("ck", "ntk"), kernels, strict=True):
            if (matrix - matrix.T).abs().max() > _ASYMMETRY * matrix.abs().max():
                raise ValueError(f"kernels.{part} must be symmetric")
        accuracy = max(_KERNELS, torch.finfo(ntk.dtype).eps)
        if cross is not None:
            cross = _kernels("cross", cross, None, samples)
        self._start = _initial_values(initial, self._y, None if cross is None else len(cross.ck))
        one_of("reduction", reduction, ("sum", "mean"))
        self._divisor = float(samples) if reduction == "mean" else 1.0
        self._decompose(ntk, accuracy)
        self._test: Tensor | None = None  # the map from components to test inputs
        if cross is not None:
            projected = cross.ntk.double() @ self._vectors / self._divisor
            self._test = torch.where(self.eigenvalues > 0, projected / self.eigenvalues, 0.0)
        # covariances of a random initial function along eigenvectors, with test inputs, of these
        self._covariance = self._cross_covariance = self._prior = None
        if self._start is None:
            self._covariance = self._vectors.T @ ck.double() @ self._vectors
        if prior is not None:
            if cross is None:
                raise ValueError(
                    "prior requires cross, the kernels between test and training inputs"
                )
            self._cross_covariance = cross.ck.double() @ self._vectors
            full = getattr(prior, "ndim", 0) == 2
            self._prior = _matrix("prior", prior, *[len(cross.ck)] * (1 + full)).double()
        if not self._loss(0.0, None) <= torch.finfo(self._y.dtype).max:
            raise AccuracyError(f"the initial loss overflows {self._y.dtype}: scale y down")

    def _decompose(self, ntk: Tensor, accuracy: float) -> None:
        """Eigenvalues and components of the initial error.

        Errors of the entries up to ``accuracy``, relative to the diagonal, move eigenvalues by up
        to n times that. A negative eigenvalue shows that it is more.
        """
        parts = Decomposition.from_matrix(ntk.double())
        if parts.negative > _INDEFINITE * float(parts.values[-1]):
            raise ValueError(
                "kernels.ntk must be positive semidefinite, got an eigenvalue of "
                f"{-parts.negative:g}"
            )
        resolution = max(len(ntk) * accuracy * float(ntk.diagonal().max()), parts.negative)
        self._vectors = parts.vectors
        self._resolution = resolution / self._divisor
        values = torch.where(parts.values > resolution, parts.values, 0.0)
        self._eigenvalues = values / self._divisor
        start = 0.0 if self._start is None else _columns(self._start[0])
        self._components = parts.project(_columns(self._y) - start)

    @property
    def eigenvalues(self) -> Tensor:
        """The eigenvalues of the NTK, divided by n if the loss is: the rates of training.

        They ascend; those within rounding of zero are zero.
        """
        return self._eigenvalues

    @property
    def resolution(self) -> float:
        """Eigenvalues below it are within rounding of zero."""
        return self._resolution

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
        """Predict the training; arguments as in :func:`shoal.gradient_flow`.

        Raises:
            ValueError: If a time is negative or NaN, or the step size too large.
            TypeError: If not either times, or steps and their size, are given.
        """
        one_of("covariance", covariance, ("none", "diagonal", "full"))
        points = checked_schedule(times, steps, step_size)
        size = self._checked_step_size(step_size)
        self._warn_of_unresolved((1.0 if size is None else size) * max(points))
        shares = [remaining(self.eigenvalues, point, size) for point in points]
        counts = torch.tensor(points, dtype=torch.float64)
        losses = torch.tensor([self._loss(point, size) for point in points], dtype=torch.float64)
        learned = [share for _, share in shares]
        deviation, covariances = self._spread(learned, covariance)
        result = GradientFlow(
            times=self._like(counts if size is None else counts * size),
            steps=None if steps is None else self._like(counts),
            loss=self._like(losses),
            loss_std=self._loss_deviation([remainder for remainder, _ in shares]),
            train_mean=self._means(0, self._vectors, learned),
            test_mean=None if self._test is None else self._means(1, self._test, learned),
            test_std=deviation,
            test_covariance=covariances,
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
        level, size = real("loss", loss, above=0), self._checked_step_size(step_size)
        unit = 0.5 * self.max_step_size if size is None else 1.0
        return first_time(lambda t: self._loss(t, size), level, unit, whole=size is not None)

    def _checked_step_size(self, step_size: object) -> float | None:
        if step_size is None:
            return None
        size = real("step_size", step_size, above=0)
        if size >= self.max_step_size:
            raise ValueError(
                "step_size must be < 2 divided by the largest eigenvalue of the NTK, "
                f"{self.max_step_size:g}, or gradient descent diverges; got {size:g}"
            )
        return size

    def _loss(self, time: float, step_size: float | None) -> float:
        square = remaining(self.eigenvalues, time, step_size)[0].square()
        return 0.5 * float(square @ self._energy()) / self._divisor

    def _energy(self) -> Tensor:
        """The expected squared initial error in each direction."""
        energy = self._components.square().sum(1)
        if self._covariance is not None:
            variances = self._covariance.diagonal().clamp(min=0)
            energy = energy + self._components.shape[1] * variances
        return energy

    def _loss_deviation(self, shares: list[Tensor]) -> Tensor | None:
        r"""The standard deviation of $\frac12\|g\|^2$, $g$ the remaining errors.

        The variance is $\frac12\mathrm{tr}\,C^2 + \mu^\top C\mu$ for each output, with the mean
        $\mu$ and the covariance $C$ of $g$.
        """
        if self._covariance is None:
            return None
        variances = []
        for share in shares:
            square = share.square()
            means = square[:, None] * self._components
            noise = square @ (self._covariance.square() @ square)
            variance = 0.5 * means.shape[1] * noise + (means * (self._covariance @ means)).sum()
            variances.append(variance.clamp(min=0))
        return self._like(torch.stack(variances).sqrt() / self._divisor)

    def _means(self, place: int, rows: Tensor, learned: list[Tensor]) -> Tensor:
        """Means at the training (0) or the test inputs (1)."""
        start = None if self._start is None else self._start[place]
        initial = 0.0 if start is None else _columns(start)
        values = [initial + rows @ (share[:, None] * self._components) for share in learned]
        return self._like(torch.stack(values).reshape(len(learned), len(rows), *self._y.shape[1:]))

    def _spread(
        self, learned: list[Tensor], covariance: str
    ) -> tuple[Tensor | None, Tensor | None]:
        """Standard deviations and covariances of $f_0(x) - A f_0(X)$ at the test inputs."""
        if self._covariance is None or self._test is None or covariance == "none":
            return None, None
        prior, cross = self._prior, self._cross_covariance
        full = covariance == "full"
        if full and (prior is None or prior.dim() == 1):
            raise ValueError(
                "covariance='full' requires the full prior covariance at the test inputs"
            )
        if prior is None or cross is None:
            return None, None
        maps = [self._test * share for share in learned]
        if full:
            parts = [prior + a @ self._covariance @ a.T - a @ cross.T - cross @ a.T for a in maps]
            matrices = torch.stack(parts)
            variances = matrices.diagonal(dim1=1, dim2=2)
        else:
            diagonal = prior if prior.dim() == 1 else prior.diagonal()
            changes = [((a @ self._covariance - 2 * cross) * a).sum(1) for a in maps]
            matrices, variances = None, diagonal + torch.stack(changes)
        deviation = self._like(variances.clamp(min=0).sqrt())  # rounding may make it negative
        return deviation, None if matrices is None else self._like(matrices)

    def _like(self, values: Tensor) -> Tensor:
        return values.to(self._y)

    def _warn_of_unresolved(self, time: float) -> None:
        """Warn if directions within rounding of null ones matter."""
        null, energy = self.eigenvalues == 0, self._energy()
        if self.resolution == 0 or not bool(null.any()):
            return
        share = float(energy[null].sum() / energy.sum())
        # had they the largest eigenvalue that they may have, so much would have been learned
        if share * -math.expm1(-2 * self.resolution * time) > _MATTERS:
            warnings.warn(
                f"the NTK is singular within rounding: {int(null.sum())} of its eigenvalues are "
                f"below {self.resolution:g} and count as zero. The errors in these directions, "
                f"{share:.2g} of the initial loss, are assumed never to be learned",
                ConvergenceWarning,
                stacklevel=4,
            )


def remaining(
    eigenvalues: Tensor, time: float, step_size: float | None = None
) -> tuple[Tensor, Tensor]:
    r"""The remaining and the learned shares of the initial error, without cancellation.

    Args:
        eigenvalues: $\lambda \ge 0$; a direction with zero is never learned.
        time: The time $t$, with $e^{-\lambda t}$ left; or the number $k$ of steps.
        step_size: $\eta$ of gradient descent, with $(1 - \eta\lambda)^k$ left.

    Example:
        >>> import torch
        >>> remaining(torch.tensor([0.0, 1.0, 3.0]).double(), 2, 0.5)[0]
        tensor([1.0000, 0.2500, 0.2500], dtype=torch.float64)
    """
    if step_size is None:
        rate, negative = -eigenvalues, torch.zeros_like(eigenvalues, dtype=torch.bool)
    else:
        progress = step_size * eigenvalues
        # with progress near 0 or 2, its distance to 1 alone would lose digits
        rate = torch.log1p(-torch.minimum(progress, 2 - progress)).clamp(min=_LOWEST)
        negative = (progress > 1) & (time % 2 == 1)
    exponent = torch.where(eigenvalues > 0, rate * time, 0.0)
    decay = torch.exp(exponent)
    return torch.where(negative, -decay, decay), torch.where(negative, 1 + decay, -exponent.expm1())


def first_time(
    curve: Callable[[float], float], level: float, unit: float, *, whole: bool = False
) -> float:
    """The time at which a falling curve meets a level, or infinity.

    Args:
        curve: A continuous function of time, or one of whole numbers.
        level: The level, positive.
        unit: A time in which the curve changes.
        whole: Whether to return the first whole number at which the curve is not above the level.

    Example:
        >>> import math
        >>> first_time(lambda k: 0.5**k, 0.3, 1.0, whole=True)
        2.0
        >>> round(first_time(lambda t: math.exp(-t), 0.5, 1.0), 9)
        0.693147181
    """
    if curve(0.0) <= level:
        return 0.0
    if not curve(math.inf) < level:
        return math.inf
    before, after = 0.0, unit
    while math.isfinite(after) and curve(after) > level:
        before, after = after, 2 * after
    while not whole or after - before > 1:
        middle = before + (after - before) / 2
        middle = float(math.floor(middle)) if whole else middle
        if middle in (before, after):  # there are no more numbers in between
            break
        before, after = (middle, after) if curve(middle) > level else (before, middle)
    return after


def checked_schedule(times: object, steps: object, step_size: object) -> list[float]:
    """Either the times of gradient flow, or the numbers of steps of gradient descent."""
    if (times is None) == (steps is None):
        came = "neither" if times is None else "both"
        raise TypeError(f"either times or steps must be given, got {came}")
    if (steps is None) != (step_size is None):
        raise TypeError("steps and step_size must be given together; times are for gradient flow")
    return _checked_times("times", times) if steps is None else _checked_times("steps", steps)


def _checked_times(name: str, values: Any) -> list[float]:
    """One number or several as a list of non-negative floats, perhaps infinite; whole steps."""
    values = values.item() if getattr(values, "ndim", None) == 0 else values
    entries = (
        [values] if isinstance(values, Real) else items(name, values, "a number or a sequence")
    )
    if not entries:
        raise ValueError(f"{name} must not be empty")
    numbers = [number(name, value) for value in entries]
    for value in numbers:
        if not value >= 0:  # NaN neither
            raise ValueError(f"{name} must be >= 0, got {value:g}")
        if name == "steps" and math.isfinite(value) and value != int(value):
            raise ValueError(f"{name} must be whole numbers or infinity, got {value:g}")
    return numbers


def _matrix(name: str, values: object, *shape: int | None) -> Tensor:
    return shaped(name, float_tensor(name, as_tensor(values, name)), *shape).detach()


def _kernels(name: str, kernels: object, rows: int | None, columns: int) -> Kernels:
    if not isinstance(kernels, tuple) or len(kernels) != 2:
        raise TypeError(f"{name} must be Kernels, got {type(kernels).__name__}")
    ck = _matrix(f"{name}.ck", kernels[0], rows, columns)
    return Kernels(ck, _matrix(f"{name}.ntk", kernels[1], len(ck), columns))


def _initial_values(initial: object, y: Tensor, tests: int | None) -> Initial | None:
    """The values of the initial function, shaped like the labels, unless it is random."""
    if isinstance(initial, str):
        one_of("initial", initial, ("random", "zero"))
        zeros = None if tests is None else y.new_zeros(tests, *y.shape[1:])
        return None if initial == "random" else (torch.zeros_like(y), zeros)
    if not isinstance(initial, tuple) or len(initial) != 2:
        raise TypeError(
            'initial must be "random", "zero", a network or a pair (at x, at x_test), '
            f"got {initial!r}"
        )
    train = _checked_values("initial[0]", initial[0], len(y), y)
    if (initial[1] is None) != (tests is None):
        raise ValueError(
            "initial[1] must hold the initial values at the test inputs, and be None if there "
            f"are none, got {'None' if initial[1] is None else 'values'}"
        )
    return train, None if tests is None else _checked_values("initial[1]", initial[1], tests, y)


def _checked_values(name: str, values: Any, samples: int, y: Tensor) -> Tensor:
    if y.dim() == 1 and getattr(values, "shape", ()) == (samples, 1):  # a network with one output
        values = values[:, 0]
    return _matrix(name, values, samples, *y.shape[1:])


def _columns(values: Tensor) -> Tensor:
    """Values of shape (n,) or (n, k) as an (n, k) matrix in float64."""
    return values.double()[:, None] if values.dim() == 1 else values.double()


def _as_arrays(result: GradientFlow) -> GradientFlow:
    values = {field.name: getattr(result, field.name) for field in fields(result)}
    arrays: dict[str, Any] = {n: v.numpy() for n, v in values.items() if isinstance(v, Tensor)}
    return replace(result, **arrays)
