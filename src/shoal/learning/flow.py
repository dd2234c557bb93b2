"""Training and prediction of infinitely wide networks, without training them."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from shoal.architectures import Architecture
from shoal.core.checks import one_of, real
from shoal.core.settings import in_standard_settings
from shoal.kernels import Kernels, kernel
from shoal.kernels.arguments import as_tensor
from shoal.kernels.function import chosen_kernels
from shoal.learning.linear_training import (
    GradientFlow,
    Initial,
    LinearTraining,
    checked_schedule,
)
from shoal.learning.problem import checked_labels
from shoal.networks import Network

_READOUTS = frozenset({"readout", "skip"})  # groups that the output is linear in


@in_standard_settings
def gradient_flow(
    architecture: Architecture,
    x: Tensor,
    y: Tensor,
    x_test: Tensor | None = None,
    times: Any = None,
    *,
    steps: Any = None,
    step_size: float | None = None,
    initial: Literal["random", "zero"] | Network[Any] | Initial = "random",
    trainable: Iterable[str] | None = None,
    width: int | None = None,
    readout_scale: float | None = None,
    reduction: Literal["sum", "mean"] = "sum",
    covariance: Literal["none", "diagonal", "full"] = "diagonal",
) -> GradientFlow:
    r"""Predict the training of an infinitely wide network, and its predictions.

    With the NTK $\Theta$ of the trained weights, full-batch gradient flow gives
    $f_t(X) = y + e^{-\Theta t}(f_0(X) - y)$, and $k$ steps of gradient descent of size $\eta$ the
    same with $(1 - \eta\Theta)^k$. Over random initial weights the trained network is a
    Gaussian process (Lee et al. 2019, Eqs. (14) to (16)); with ``trainable={"readout"}`` and
    infinite time it is the posterior of the Gaussian process whose prior is the CK (NNGP).

    No constant is fitted: a network without biases has none to train. Subtract the mean of the
    labels first, if it is large. From zero, at infinite time, predictions are those of
    :func:`shoal.kernel_regression` with ``ridge=0`` and ``center=False``.

    All results are computed in float64 from one eigendecomposition of $\Theta$, in n³ operations.
    The result keeps it, so that ``result.training.run(...)`` returns other times at little cost.
    Eigenvalues within rounding of zero count as zero.

    Args:
        architecture: The network.
        x: Training inputs, of shape (n, p): a tensor, or a NumPy array. For networks of images,
            such as a ``ConvDEQ``, images of shape (n, channels, pixels...).
        y: Labels, of shape (n,) or (n, k).
        x_test: Test inputs, of shape (m, p).
        times: Times of gradient flow, one or several in any order, including ``math.inf``.
        steps: Instead of times, numbers of steps of gradient descent, including ``math.inf``.
        step_size: Size of these steps, below 2 divided by the largest eigenvalue of $\Theta$:
            ``result.training.max_step_size``.
        initial: The function that training starts from. ``"random"``: that of random weights; means
            and deviations over them are returned. ``"zero"``: zero, as if the network's initial
            function were subtracted from it. A pair of tensors: its values at ``x`` and at
            ``x_test`` (or ``None``). A network made by ``build``: the function it is now; then
            ``trainable``, ``readout_scale`` and, if needed, ``width`` are the network's by default.
        trainable: Groups of parameters that are trained; all by default.
        width: Only for a ``DEQ`` in the standard parametrization, whose NTK grows with the width
            $m$. By default time is measured in units of $1/m$.
        readout_scale: The factor of the initial readout, as in ``build``; 1 by default. It scales
            the initial function, and the contributions of all other groups to the NTK.
        reduction: ``"sum"``: the loss is $\frac12\sum_{ik}(f_{ik} - y_{ik})^2$. ``"mean"``: that
            divided by n. (The mean of *all* squares, as in ``torch.nn.MSELoss``, is $2/k$ times the
            latter: multiply its step size by $2/k$ here.)
        covariance: Covariance of the test predictions: only standard deviations (``"diagonal"``),
            all (``"full"``) or ``"none"``.

    Returns:
        Losses and predictions at these times, in the dtype and on the device of ``x``; NumPy arrays
        if ``x`` is one.

    Raises:
        ValueError: If shapes do not fit, a time is negative, or the step size is too large.
        TypeError: If an argument has the wrong type, or the architecture has no kernel.
        AccuracyError: If the initial loss overflows the dtype of the labels.

    Warns:
        ConvergenceWarning: If the answer depends on directions in which $\Theta$ is singular
            within rounding.

    Example:
        >>> import math, torch, shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        >>> x, x_test = torch.eye(2).double(), torch.tensor([[0.8, 0.6]]).double()
        >>> y = torch.tensor([1.0, -1.0]).double()
        >>> curve = shoal.gradient_flow(deq, x, y, x_test, [0, 1, math.inf])
        >>> curve.loss
        tensor([1.3699, 0.2537, 0.0000], dtype=torch.float64)
        >>> torch.cat([curve.test_mean, curve.test_std], 1)
        tensor([[0.0000, 0.6082],
                [0.1200, 0.3116],
                [0.2106, 0.1610]], dtype=torch.float64)
        >>> round(curve.training.time_to(0.01), 6)
        2.917167
    """
    if isinstance(initial, Network):
        trainable, width, readout_scale = _of_network(
            architecture, initial, trainable, width, readout_scale
        )
    function = chosen_kernels(architecture, trainable=trainable, width=width)
    scale = real("readout_scale", 1.0 if readout_scale is None else readout_scale)
    inputs = function.samples("x", as_tensor(x, "x")).detach()
    labels = _like(checked_labels("y", y, len(inputs)).detach(), inputs, "y")
    one_of("covariance", covariance, ("none", "diagonal", "full"))
    checked_schedule(times, steps, step_size)  # before the work
    tests = cross = prior = None
    if x_test is not None:
        tests = function.samples("x_test", as_tensor(x_test, "x_test")).detach()
        tests = _like(tests, inputs, "x_test")
        if tests.shape[1:] != inputs.shape[1:]:
            expected = " by ".join(map(str, inputs.shape[1:]))
            got = " by ".join(map(str, tests.shape[1:]))
            raise ValueError(f"x_test must have the {expected} features of x, got {got}")
    if isinstance(initial, Network):
        with torch.no_grad():
            initial = initial(inputs), None if tests is None else initial(tests)
    evaluate = partial(scaled_kernels, architecture, function.trainable, width, scale)
    if tests is not None:
        cross = evaluate(tests, inputs)
        if initial == "random" and covariance != "none":
            full = covariance == "full"
            prior = kernel(architecture, tests.double(), diag=not full).ck * scale**2
    training = LinearTraining(
        evaluate(inputs),
        labels.numpy() if isinstance(x, np.ndarray) else labels,
        cross=cross,
        prior=prior,
        initial=initial,
        reduction=reduction,
    )
    return training.run(times, steps=steps, step_size=step_size, covariance=covariance)


def scaled_kernels(
    architecture: Architecture,
    trainable: frozenset[str],
    width: int | None,
    readout_scale: float,
    x1: Tensor,
    x2: Tensor | None = None,
) -> Kernels:
    r"""The kernels of a network whose initial readout has a factor $s$, in float64.

    The covariance of the initial function has the factor $s^2$, and so has the part of the NTK that
    reaches its weights through the readout: all but the readout's own share.
    """
    second, square = None if x2 is None else x2.double(), readout_scale**2
    evaluate = partial(kernel, architecture, x1.double(), second, width=width)
    ck, ntk = evaluate(trainable=trainable)
    if square == 1:
        return Kernels(ck, ntk)
    readouts, scaled = trainable & _READOUTS, ntk * square
    if readouts:
        scaled += (1 - square) * evaluate(trainable=readouts).ntk
    return Kernels(ck * square, scaled)


def _of_network(
    architecture: Architecture,
    network: Network[Any],
    trainable: Iterable[str] | None,
    width: int | None,
    readout_scale: float | None,
) -> tuple[Iterable[str], int | None, float]:
    """The options that a network has, unless others are given."""
    if network.architecture != architecture:
        raise ValueError(
            f"initial must be a network of {architecture!r}, got one of {network.architecture!r}"
        )
    if trainable is None:
        trainable = [name for name, p in network.groups.items() if p.requires_grad]
    if width is None and architecture.width_matters:
        width = network.spec.width
    return trainable, width, network.spec.readout_scale if readout_scale is None else readout_scale


def _like(values: Tensor, x: Tensor, name: str) -> Tensor:
    if (values.dtype, values.device) != (x.dtype, x.device):
        raise TypeError(
            f"{name} must have the dtype and device of x, {x.dtype} on {x.device}, "
            f"got {values.dtype} on {values.device}"
        )
    return values
