"""A regressor and a classifier with the kernels of infinitely wide networks."""

from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal.activations import Activation
from shoal.adapters.networks import as_images, described_function
from shoal.architectures import Architecture
from shoal.core.checks import host_array, real_array
from shoal.regression import kernel_regression

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
except ImportError as error:
    raise ImportError(
        "KernelRegressor and KernelClassifier need scikit-learn, which is not installed: "
        "pip install 'shoal[sklearn]'"
    ) from error

__all__ = ["KernelClassifier", "KernelRegressor"]

Array = NDArray[Any]


class _KernelEstimator(BaseEstimator):  # type: ignore[misc]
    """Ridge regression with the kernel of a network that flat parameters describe."""

    def __init__(
        self,
        activation: Activation | str = "relu",
        recurrent_variance: float = 0.2,
        input_variance: float | Literal["scale"] = "scale",
        *,
        ridge: float | Literal["gcv", "loo", "likelihood"] = 1e-3,
        which: Literal["ck", "ntk"] = "ntk",
        trainable: Iterable[str] | None = None,
        fit_intercept: bool = True,
        architecture: Architecture | None = None,
        memory: int | str | None = None,
        image_shape: Sequence[int] | None = None,
    ) -> None:
        self.activation = activation
        self.recurrent_variance = recurrent_variance
        self.input_variance = input_variance
        self.ridge = ridge
        self.which = which
        self.trainable = trainable
        self.fit_intercept = fit_intercept
        self.architecture = architecture
        self.memory = memory
        self.image_shape = image_shape

    def _fit(self, x: Array, y: Array) -> Self:
        """Regress the targets on the inputs."""
        function = described_function(
            self.activation,
            self.recurrent_variance,
            self._input_variance(x),
            architecture=self.architecture,
            which=self.which,
            trainable=self.trainable,
        )
        self.intercept_ = y.mean(axis=0) if self.fit_intercept else np.zeros(y.shape[1:])
        self.architecture_ = function.architecture
        self.regression_ = kernel_regression(
            function.architecture,
            as_images(x, function.architecture, self.image_shape),
            y - self.intercept_,
            ridge=self.ridge,
            which=self.which,
            trainable=function.trainable,
            memory=self.memory,
        )
        self.ridge_ = self.regression_.ridge
        self.dual_coef_ = self.regression_.coefficients
        return self

    def _input_variance(self, x: Array) -> float:
        if not isinstance(self.input_variance, str):
            return self.input_variance
        if self.input_variance != "scale":
            raise ValueError(
                f"input_variance must be a number or 'scale', got {self.input_variance!r}"
            )
        mean = float(np.square(x).sum(axis=1).mean())
        return 1 / mean if mean > 0 else 1.0

    def _values(self, x: Any) -> Array:
        """The regression function."""
        check_is_fitted(self)
        inputs = validate_data(self, _array("X", x), dtype=np.float64, reset=False)
        images = as_images(inputs, self.architecture_, self.image_shape)
        values: Array = self.regression_.predict(images) + self.intercept_
        return values


class KernelRegressor(MultiOutputMixin, RegressorMixin, _KernelEstimator):  # type: ignore[misc]
    r"""Ridge regression with the exact kernel of an infinitely wide network.

    With the NTK and little ridge, predictions are those of the network trained to the end by
    gradient descent, from a function of zero. Inputs are taken as they are: the network has no
    biases, so that inputs of one feature want a constant one beside it.

    Args:
        activation: Of a DEQ: an ``Activation``, or its name, such as ``"tanh"`` or
            ``"leakyrelu:0.1"``.
        recurrent_variance: $\sigma_a^2$.
        input_variance: $\sigma_b^2$; ``"scale"`` is one over the mean squared norm of the training
            inputs, so that units do not matter.
        ridge: $\lambda$ in $(K + \lambda I)^{-1} y$; or ``"gcv"``, ``"loo"`` or ``"likelihood"``,
            by which :func:`shoal.kernel_regression` chooses it, as ``RidgeCV`` does. The mean of
            the targets is then taken as known.
        which: ``"ntk"``, that of a network of which all is trained, or ``"ck"``, that of one whose
            readout alone is trained.
        trainable: The groups of parameters that the NTK counts; all by default.
        fit_intercept: Whether to subtract the mean of the targets first, and to add it at the end.
        architecture: Any architecture, instead of the DEQ; then the activation and the variances
            above are not used.
        memory: See :func:`shoal.kernel_regression`, which chooses the method by it.
        image_shape: For architectures of images, such as a ``ConvDEQ``: channels and pixels along
            each axis, such as ``(1, 28, 28)``. Inputs are rows of numbers as ever.

    Attributes:
        architecture_: The network.
        dual_coef_: $\alpha$, in the shape of the targets.
        intercept_: The mean of the targets, or zeros.
        ridge_: The ridge, as given or chosen.
        regression_: The :class:`shoal.regression.KernelRegression`, which knows variances too.

    Example:
        >>> x = np.linspace(-2, 2, 40)[:, None] ** [0, 1]  # with a constant feature
        >>> model = KernelRegressor("tanh", ridge=1e-6).fit(x, np.sin(2 * x[:, 1]))
        >>> bool(abs(model.predict([[1.0, 0.7]])[0] - np.sin(1.4)) < 1e-2)
        True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit targets of shape (n,) or (n, outputs) at inputs of shape (n, p)."""
        x, targets = validate_data(
            self,
            _array("X", X),
            _array("y", y),
            dtype=np.float64,
            multi_output=True,
            y_numeric=True,
        )
        return self._fit(x, np.asarray(targets, dtype=np.float64))

    def predict(self, X: Any) -> Array:
        """The regression function at inputs of shape (m, p)."""
        return self._values(X)


class KernelClassifier(ClassifierMixin, _KernelEstimator):  # type: ignore[misc]
    """Classification by ridge regression with the exact kernel of an infinitely wide network.

    Classes are regressed as one indicator each, or one of -1 and 1 if there are two, and the
    largest value wins.

    Args:
        activation: This and all other parameters are those of :class:`KernelRegressor`.
        recurrent_variance: See there.
        input_variance: See there.
        ridge: See there.
        which: See there.
        trainable: See there.
        fit_intercept: Whether to subtract the share of a class from its indicator first.
        architecture: See there.
        memory: See there.
        image_shape: See there.

    Attributes:
        classes_: The classes, sorted.
        architecture_: The network; all other attributes are those of :class:`KernelRegressor` too.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> model = KernelClassifier().fit(x[:500], y[:500])
        >>> round(model.score(x[500:], y[500:]), 3)
        0.946
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Fit classes of shape (n,) at inputs of shape (n, p)."""
        classes = column_or_1d(_array("y", y), warn=True)
        x, labels = validate_data(self, _array("X", X), classes, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, places = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have at least two classes, got one class, {labels[0]!r}")
        if len(self.classes_) == 2:
            return self._fit(x, 2.0 * places - 1)
        return self._fit(x, np.eye(len(self.classes_))[places])

    def decision_function(self, X: Any) -> Array:
        """The regressed indicators, of shape (m, classes); (m,) for the second of two classes."""
        return self._values(X)

    def predict(self, X: Any) -> Array:
        """The classes of inputs of shape (m, p)."""
        values = self.decision_function(X)
        places = (values > 0).astype(int) if values.ndim == 1 else values.argmax(axis=1)
        found: Array = self.classes_[places]
        return found


def _array(name: str, values: Any) -> Any:
    """A tensor or numbers beyond all dtypes as an array; scikit-learn checks all else."""
    if isinstance(values, Tensor):
        return host_array(name, values)
    is_plain = isinstance(values, Real | list | tuple)
    return real_array(name, values) if is_plain and np.asarray(values).dtype == object else values
