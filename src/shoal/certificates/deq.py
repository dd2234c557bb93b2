"""What is known about the training of deep equilibrium models: those there are, and random ones."""

import math
from contextlib import suppress

import torch
from torch import Tensor

from shoal.architectures import DEQ
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate, Conclusion
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.equilibrium_networks import (
    EquilibriumGeometry,
    MeasuredNetwork,
    measure_equilibrium,
)
from shoal.certificates.evidence.equilibrium import NotContractingError
from shoal.certificates.evidence.rounding import norm_upper
from shoal.certificates.papers.ling2023 import DEQBounds, covers, theorem_1
from shoal.certificates.refusals import not_contracting
from shoal.certificates.width import NO_ROOM, Draw, Law, NoLaw, random_networks
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.kernels import kernel
from shoal.networks.loop import LoopNetwork

SHARPER = "shoal's theorem for deep equilibrium models"


@certify_architecture.register
def certify_deq(architecture: DEQ, question: Question) -> Certificate:
    """Theorem 1 of Ling 2023, where it applies, and the sharper one."""
    net, x, y, step_size = question
    assert isinstance(net, LoopNetwork)
    try:
        measured = measure_equilibrium(net, x, y, net.scales)
    except NotContractingError as error:
        return not_contracting(error.gain, SHARPER)
    sharper = sharper_conclusions(EquilibriumGeometry(measured), SHARPER, step_size=step_size)
    plain = all(scale == 1 for scale in measured.scales.values())
    others: tuple[Conclusion, ...] = ()
    if plain and covers(architecture.activations[0]):
        bounds = DEQBounds(
            weight_norm=measured.equilibrium.weight_norm,
            input_weight_norm=measured.input_weight_norm,
            readout_norm=measured.readout_norm,
            input_frobenius=norm_upper(x),
            singular_value=measured.singular_value,
            error=measured.error,
            rigorous=measured.equilibrium.proved,
        )
        others = theorem_1(bounds, step_size=step_size)
    return Certificate(sharper + others, _measurements(architecture, measured, x))


def _measurements(architecture: DEQ, measured: MeasuredNetwork, x: Tensor) -> dict[str, float]:
    width = measured.equilibrium.features.shape[1]
    least = measured.singular_value * measured.singular_value
    numbers = {
        "norm of the recurrent weights": measured.equilibrium.weight_norm,
        "initial error": measured.error,
        "lambda_0": least,
        "lambda_0 / m": least / width,
    }
    if architecture.kernel_guaranteed:
        with suppress(AccuracyError, ConvergenceError):  # no theorem needs it
            population = float(torch.linalg.eigvalsh(kernel(architecture, x).ck)[0])
            numbers["lambda_*"] = population
            if population > 0:
                numbers["lambda_0 / (m lambda_* / 2)"] = 2 * least / (width * population)
    return numbers


@random_networks.register
def deq_law(architecture: DEQ, draw: Draw) -> Law | NoLaw:
    """Theorem 1 of Ling 2023 for random weights."""
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
        room = max(1 - weight, NO_ROOM)
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
