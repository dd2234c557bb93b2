"""A regressor and a classifier with the kernels of infinitely wide networks."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import softmax
from torch import Tensor

from shoal.activations import Activation
from shoal.adapters.networks import as_images, described_function, kernel_values
from shoal.architectures import Architecture
from shoal.core.checks import host_array, real, real_array
from shoal.core.processes import Group
from shoal.learning import Decomposition, KernelRegression, kernel_regression
from shoal.learning.ridges import Criterion, checked_criterion, evaluate_path

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.preprocessing import StandardScaler
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_sample_weight,
        check_is_fitted,
        column_or_1d,
        validate_data,
    )
except ImportError as error:
    raise ImportError(
        "KernelRegressor and KernelClassifier need scikit-learn, which is not installed: "
        "pip install 'shoal-deq[sklearn]'"
    ) from error

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class WeightedRegression:
    r"""$f(x) = k(x, X) \alpha + b$ with $\alpha = (K + \lambda W^{-1})^{-1} (y - b)$.

    It minimizes $\sum_i w_i (y_i - f(x_i))^2 + \lambda \alpha^T K \alpha$: a weight of two is a
    sample that is there twice, and samples of weight zero are left out. All is as without weights
    for $W^{1/2} K W^{1/2}$, targets $W^{1/2} y$ and $W^{1/2} 1$ in the place of a constant: the
    squared residuals of samples that are left out are those of $y$ times their weights.

    Attributes:
        coefficients: $\alpha$, in the shape of the targets; zero where the weight is.
        intercept: $b$ of each output, or zero.
        ridge: $\lambda$.
        left_out: Leave-one-out predictions, for samples of positive weight.
        targets: Their targets.
        weights: Their weights.
    """

    coefficients: Array = field(repr=False)
    intercept: Array = field(repr=False)
    ridge: float
    left_out: Array = field(repr=False)
    targets: Array = field(repr=False)
    weights: Array = field(repr=False)
    _kernels: Callable[..., torch.Tensor] = field(repr=False)
    _x: Array = field(repr=False)

    @classmethod
    def fit(
        cls,
        kernels: Callable[..., torch.Tensor],
        x: Array,
        y: Array,
        ridge: float | Criterion,
        weights: Array,
        *,
        center: bool,
    ) -> "WeightedRegression":
        """Regress targets on inputs, by one decomposition of the weighted kernel."""
        some = weights > 0
        root = torch.from_numpy(np.sqrt(weights[some]))[:, None]
        free = root[:, 0] / torch.linalg.vector_norm(root) if center else None
        mean = np.average(y, axis=0, weights=weights) if center else np.zeros(y.shape[1:])
        targets = root * torch.from_numpy((y - mean)[some].reshape(len(root), -1))
        parts = Decomposition.from_matrix((kernels(x[some]) * root * root.T).contiguous(), free)
        if isinstance(ridge, str):
            ridge = evaluate_path(parts, targets).best(checked_criterion("ridge", ridge))
        near = parts.shifted(real("ridge", ridge, at_least=0.0))
        solution, inverse = near.solve(targets), near.inverse_diagonal()[:, None]
        shape = (len(root), *y.shape[1:])
        coefficients = np.zeros_like(y)
        coefficients[some] = (root * solution).numpy().reshape(shape)
        errors = (solution / inverse / root).numpy().reshape(shape)
        if free is not None:
            constant = near.along_free()[0] @ targets / torch.linalg.vector_norm(root)
            mean = mean + constant.numpy().reshape(y.shape[1:])
        left_out = y[some] - errors
        return cls(coefficients, mean, ridge, left_out, y[some], weights[some], kernels, x)

    def predict(self, x: Array) -> Array:
        """The regression function at inputs of shape (m, p)."""
        values: Array = self._kernels(x, self._x).numpy() @ self.coefficients + self.intercept
        return values


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """Ridge regression with the kernel of a network that flat parameters describe."""

    def __init__(
        self,
        activation: Activation | str = "relu",
        recurrent_variance: float = 0.2,
        input_variance: float | Literal["scale"] = "scale",
        *,
        standardize: bool = True,
        ridge: float | Literal["gcv", "loo", "likelihood"] = "loo",
        which: Literal["ck", "ntk"] = "ntk",
        trainable: Iterable[str] | None = None,
        fit_intercept: bool = True,
        architecture: Architecture | None = None,
        memory: int | str | None = None,
        image_shape: Sequence[int] | None = None,
        process_group: Group = "auto",
    ) -> None:
        self.activation = activation
        self.recurrent_variance = recurrent_variance
        self.input_variance = input_variance
        self.standardize = standardize
        self.ridge = ridge
        self.which = which
        self.trainable = trainable
        self.fit_intercept = fit_intercept
        self.architecture = architecture
        self.memory = memory
        self.image_shape = image_shape
        self.process_group = process_group

    def _fit(self, x: Array, y: Array, sample_weight: Any) -> Self:
        """Regress the targets on the inputs."""
        weights = _weights(sample_weight, x)
        self.scaler_: StandardScaler | None = None
        if self.standardize and self.image_shape is None:
            self.scaler_ = StandardScaler().fit(x, sample_weight=weights)
            x = self.scaler_.transform(x)
        function = described_function(
            self.activation,
            self.recurrent_variance,
            self._input_variance(x, weights),
            architecture=self.architecture,
            which=self.which,
            trainable=self.trainable,
        )
        self.architecture_ = function.architecture
        inputs = as_images(x, function.architecture, self.image_shape)
        self.regression_: KernelRegression | WeightedRegression
        if weights is None:
            self.regression_ = kernel_regression(
                function.architecture,
                inputs,
                y,
                ridge=self.ridge,
                center=self.fit_intercept,
                which=self.which,
                trainable=function.trainable,
                memory=self.memory,
                process_group=self.process_group,
            )
        else:
            kernels = partial(kernel_values, function, self.which)
            self.regression_ = WeightedRegression.fit(
                kernels, inputs, y, self.ridge, weights, center=self.fit_intercept
            )
        self.ridge_ = self.regression_.ridge
        self.dual_coef_ = self.regression_.coefficients
        self.intercept_ = self.regression_.intercept
        return self

    def _input_variance(self, x: Array, weights: Array | None) -> float:
        if not isinstance(self.input_variance, str):
            return self.input_variance
        if self.input_variance != "scale":
            raise ValueError(
                f"input_variance must be a number or 'scale', got {self.input_variance!r}"
            )
        mean = float(np.average(np.square(x).sum(axis=1), weights=weights))
        return 1 / mean if mean > 0 else 1.0

    def _values(self, x: Any) -> Array:
        """The regression function."""
        check_is_fitted(self)
        inputs = validate_data(self, _array("X", x), dtype=np.float64, reset=False)
        if self.scaler_ is not None:
            inputs = self.scaler_.transform(inputs)
        images = as_images(inputs, self.architecture_, self.image_shape)
        values: Array = self.regression_.predict(images)
        return values


class KernelRegressor(MultiOutputMixin, RegressorMixin, _KernelEstimator):  # type: ignore[misc]
    r"""Ridge regression with the exact kernel of an infinitely wide network.

    With the NTK and little ridge, it predicts like the network after gradient descent to the end,
    from a function of zero. The network has no biases: if inputs have one feature, add a constant
    feature and pass ``standardize=False``.

    Args:
        activation: Activation of a DEQ, or its name, such as ``"tanh"`` or ``"leakyrelu:0.1"``.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$; ``"scale"`` is one over the mean squared norm of the training
            inputs, so that one unit of all columns does not matter.
        standardize: Whether to give each column mean zero and variance one, by the training
            inputs, so that columns may have different units. Constant columns become zero. Rows
            with an ``image_shape`` are never standardized.
        ridge: $\lambda$; or ``"loo"``, ``"gcv"`` or ``"likelihood"``, by which
            :func:`shoal.kernel_regression` chooses it, as ``RidgeCV`` does.
        which: ``"ntk"``, for a network with all weights trained, or ``"ck"``, for one whose
            readout alone is trained.
        trainable: The groups of parameters that the NTK counts; all by default.
        fit_intercept: Whether to fit a constant beside the kernel.
        architecture: Any architecture, instead of the DEQ; then the activation and the variances
            above are not used.
        memory: See :func:`shoal.kernel_regression`, which chooses the method by it.
        image_shape: For architectures of images, such as a ``ConvDEQ``: channels and pixels along
            each axis, such as ``(1, 28, 28)``. Inputs are rows of numbers as ever.
        process_group: See :func:`shoal.kernel_regression`; ``None`` where processes that were
            launched together each fit models of their own, as in a search that one of them makes.

    Attributes:
        architecture_: The network.
        dual_coef_: $\alpha$, in the shape of the targets.
        intercept_: The constant of each output, or zero.
        ridge_: The ridge, as given or chosen.
        scaler_: The ``StandardScaler`` of the inputs, or ``None``. With sample weights, its means
            and variances are weighted.
        regression_: The :class:`shoal.learning.KernelRegression`, which knows variances too, or
            its weighted kind, which does not.

    Example:
        >>> x = np.linspace(-2, 2, 40)[:, None] ** [0, 1]  # with a constant feature
        >>> model = KernelRegressor("tanh", standardize=False, ridge=1e-6)
        >>> model = model.fit(x, np.sin(2 * x[:, 1]))
        >>> bool(abs(model.predict([[1.0, 0.7]])[0] - np.sin(1.4)) < 1e-2)
        True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit targets of shape (n,) or (n, outputs) at inputs of shape (n, p).

        Args:
            X: The inputs.
            y: The targets.
            sample_weight: Number of times that each sample counts, of shape (n,); once by default.
                With weights, one matrix of all samples is factored, whatever ``memory`` is.
        """
        x, targets = validate_data(
            self,
            _array("X", X),
            _array("y", y),
            dtype=np.float64,
            multi_output=True,
            y_numeric=True,
        )
        return self._fit(x, np.asarray(targets, dtype=np.float64), sample_weight)

    def predict(self, X: Any) -> Array:
        """The regression function at inputs of shape (m, p)."""
        return self._values(X)


class KernelClassifier(ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Classification by ridge regression with the exact kernel of an infinitely wide network.

    Classes are regressed as one indicator each, or one of -1 and 1 if there are two, and the
    largest value wins. Probabilities are calibrated by leaving samples out.

    Args:
        activation: This and all other parameters are those of :class:`KernelRegressor`.

    Attributes:
        classes_: The classes, sorted.
        architecture_: The network; all other attributes are those of :class:`KernelRegressor` too.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> model = KernelClassifier(standardize=False)  # pixels have one unit
        >>> model = model.fit(x[:500], y[:500])
        >>> round(model.score(x[500:], y[500:]), 3)
        0.945
        >>> float(model.predict_proba(x[500:501])[0, y[500]].round(2))
        0.93
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit classes of shape (n,) at inputs of shape (n, p); weights as for the regressor."""
        classes = column_or_1d(_array("y", y), warn=True)
        x, labels = validate_data(self, _array("X", X), classes, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"y must have at least two classes, got one class, {labels.tolist()[0]!r}"
            )
        if len(self.classes_) == 2:
            return self._fit(x, 2.0 * places - 1, sample_weight)
        return self._fit(x, np.eye(len(self.classes_))[places], sample_weight)

    def decision_function(self, X: Any) -> Array:
        """The regressed indicators, of shape (m, classes); (m,) for the second of two classes."""
        return self._values(X)

    def predict(self, X: Any) -> Array:
        """The classes of inputs of shape (m, p)."""
        values = self.decision_function(X)
        places = (values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)
        labels: Array = self.classes_[places]
        return labels

    def predict_proba(self, X: Any) -> Array:
        r"""Probabilities of the classes, of shape (m, classes).

        They are $p_c \propto e^{s f_c}$ with the regressed indicators $f_c$ and one scale $s$: that
        under which the training classes are likeliest if each sample is predicted by all the
        others. So that $s$ stays finite where no class is mistaken, labels count as if one sample
        in all had been labeled at random.

        Raises:
            ValueError: If conjugate gradients were used, which leave no sample out.
        """
        values = _each_class(self.decision_function(X))
        probabilities: Array = softmax(self._scale() * values, axis=1)
        return probabilities

    def _scale(self) -> float:
        """The factor of the regressed indicators in the logarithms of probabilities."""
        regression = self.regression_
        if isinstance(regression, WeightedRegression):
            weights, left_out = regression.weights, regression.left_out
            targets = regression.targets
        else:
            loo = regression.loo()
            left_out, targets = loo.predictions, loo.predictions + loo.residuals
            weights = np.ones(len(left_out))
        classes = _each_class(targets).argmax(axis=1)
        return likeliest_scale(_each_class(left_out), classes, weights)


def _weights(sample_weight: Any, x: Array) -> Array | None:
    if sample_weight is None:
        return None
    values = _array("sample_weight", sample_weight)
    checked: Array = _check_sample_weight(values, x, dtype=x.dtype, ensure_non_negative=True)
    return checked


def _each_class(values: Array) -> Array:
    """Values for every class; two classes share one, which tells the second from the first."""
    return np.stack([-values, values], axis=1) / 2 if values.ndim == 1 else values


def likeliest_scale(values: Array, classes: Array, weights: Array) -> float:
    r"""The $s \geq 0$ under which classes are likeliest with probabilities $\propto e^{s f_c}$.

    The likelihood is concave in $s$, so that its slope has one root, or is nowhere positive: then
    $s$ is zero.

    Args:
        values: $f_c$ of each sample. shape: (n, classes)
        classes: Numbers of the classes. shape: (n,)
        weights: Weight of each sample. shape: (n,)
    """
    count, total = values.shape[1], weights.sum()
    shares = (total * np.eye(count)[classes] + 1 / count) / (total + 1)

    def slope(s: float) -> float:
        surplus = (shares - softmax(s * values, axis=1)) * values
        return float(weights @ surplus.sum(axis=1))

    if slope(0.0) <= 0:
        return 0.0
    above = 1.0
    while slope(above) > 0:
        above *= 2
    return float(brentq(slope, 0.0, above, xtol=1e-10 * above))


def _array(name: str, values: Any) -> Any:
    """A tensor or numbers beyond all dtypes as an array; scikit-learn checks all else."""
    if isinstance(values, Tensor):
        return host_array(name, values)
    is_plain = isinstance(values, Real | list | tuple)
    return real_array(name, values) if is_plain and np.asarray(values).dtype == object else values
