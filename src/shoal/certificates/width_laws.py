"""What the theorems say of random networks: their conditions, with a given probability."""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.architectures import DEQ, Architecture, ImplicitNetwork
from shoal.certificates.certificate import Conclusion
from shoal.certificates.evidence.rounding import norm_upper, up
from shoal.certificates.papers.gao2022 import ImplicitBounds, InputBounds, lemma_3_5
from shoal.certificates.papers.ling2023 import DEQBounds, covers, theorem_1
from shoal.kernels import kernel

__all__ = ["Draw", "Law", "NoLaw", "random_networks"]

_NO_ROOM = 1e-9  # instead of less than nothing, where no theorem holds

Law = Callable[[int], tuple[Conclusion, ...]]  # of the width
NoLaw = str  # why there is none


class Draw(NamedTuple):
    """How networks are drawn, and what they are trained on.

    Attributes:
        x: Inputs, in float64.
        y: Labels, of shape (samples, outputs).
        failure: The probability with which the bounds may fail.
        readout_scale: The factor of the readout at initialization.
    """

    x: Tensor
    y: Tensor
    failure: float
    readout_scale: float


@singledispatch
def random_networks(architecture: Architecture, draw: Draw) -> Law | NoLaw:  # noqa: ARG001
    """What the theorems say of networks of each width; a new theorem registers its architecture."""
    return f"there is no theorem about a {type(architecture).__name__}"


@random_networks.register
def _deq(architecture: DEQ, draw: Draw) -> Law | NoLaw:
    if architecture.parametrization != "standard" or not covers(architecture.activations[0]):
        return (
            "Theorem 1 of Ling 2023 is for DEQs with parametrization='standard' and an activation "
            "that is zero at zero, with slopes up to one"
        )
    x, y, failure, scale = draw.x, draw.y, draw.failure / 4, abs(draw.readout_scale)
    # a Gaussian matrix exceeds sqrt(rows) + sqrt(columns) + t with probability exp(-t²/2) at most
    t = math.sqrt(2 * math.log(1 / failure))
    size, outputs = norm_upper(x), y.shape[1]
    rows = math.sqrt(outputs) if outputs > 1 else 0.0  # a vector's norm is below sqrt(columns) + t
    population = max(0.0, float(torch.linalg.eigvalsh(kernel(architecture, x).ck)[0]))

    def law(width: int) -> tuple[Conclusion, ...]:
        root = math.sqrt(width)
        weight = math.sqrt(architecture.recurrent_variance) * (2 + t / root)
        inputs = math.sqrt(architecture.input_variance) * (root + math.sqrt(x.shape[1]) + t)
        room = max(1 - weight, _NO_ROOM)
        # ‖Z‖ ≤ ‖U‖‖X‖/(1 - ‖W‖), E‖aᵀZ‖² = ‖Z‖²/m for each output, and Markov's inequality
        output = scale * inputs * size / room / root * math.sqrt(y.shape[1] / failure)
        bounds = DEQBounds(
            weight_norm=1 - room,
            input_weight_norm=inputs,
            readout_norm=scale * (1 + (rows + t) / root),
            input_frobenius=size,
            singular_value=math.sqrt(width * population / 2) if weight < 1 else 0.0,
            error=norm_upper(y) + output,
            rigorous=False,
        )
        return theorem_1(bounds)

    return law


@random_networks.register
def _implicit(architecture: ImplicitNetwork, draw: Draw) -> Law:
    x, y, failure, scale = draw.x, draw.y, draw.failure / 4, abs(draw.readout_scale)
    t = math.sqrt(2 * math.log(1 / failure))
    inputs = InputBounds(x)
    size = norm_upper(x)

    def law(width: int) -> tuple[Conclusion, ...]:
        root = math.sqrt(width)
        recurrent, first = 2 * root + t, root + math.sqrt(x.shape[1]) + t
        gain = architecture.gamma * recurrent / root
        mapped = first * size / root
        features = mapped / max(1 - gain, _NO_ROOM) + mapped
        output = scale * features * math.sqrt(2 * y.shape[1] / failure)
        bounds = ImplicitBounds(
            gamma=architecture.gamma,
            width=width,
            recurrent_norm=recurrent,
            input_weight_norm=first,
            readout_norm=scale * root * math.sqrt(y.shape[1]),
            gram=up(inputs.least * 3 / 4),  # rounded down, it would fail at every width
            error=norm_upper(y) + output,
            skip_trained=True,
        )
        return lemma_3_5(bounds, inputs)

    return law
