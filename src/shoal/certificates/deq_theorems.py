"""What is known about the training of deep equilibrium models."""

from contextlib import suppress

import torch
from torch import Tensor

from shoal.architectures import DEQ
from shoal.certificates.argument import sharper_conclusions
from shoal.certificates.certificate import Certificate, Conclusion
from shoal.certificates.certify import Question, certify_architecture
from shoal.certificates.deq import DEQGeometry, MeasuredDEQ, measure_deq
from shoal.certificates.evidence.equilibrium import NotContractingError
from shoal.certificates.papers.ling2023 import DEQBounds, covers, theorem_1
from shoal.certificates.refusals import not_contracting
from shoal.core.exceptions import AccuracyError, ConvergenceError
from shoal.kernels import kernel
from shoal.networks.loop import LoopNetwork

__all__ = ["certify_deq"]

SHARPER = "shoal's theorem for deep equilibrium models"


@certify_architecture.register
def certify_deq(architecture: DEQ, question: Question) -> Certificate:
    """Theorem 1 of Ling 2023, where it applies, and the sharper one."""
    net, x, y, step_size = question
    assert isinstance(net, LoopNetwork)
    try:
        measured = measure_deq(net, x, y)
    except NotContractingError as error:
        return not_contracting(error.gain, SHARPER)
    sharper = sharper_conclusions(DEQGeometry(measured), SHARPER, step_size=step_size)
    plain = all(scale == 1 for scale in measured.scales.values())
    others: tuple[Conclusion, ...] = ()
    if plain and covers(architecture.activations[0]):
        others = theorem_1(_bounds(measured), step_size=step_size)
    return Certificate(sharper + others, _measurements(architecture, measured, x))


def _measurements(architecture: DEQ, measured: MeasuredDEQ, x: Tensor) -> dict[str, float]:
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


def _bounds(measured: MeasuredDEQ) -> DEQBounds:
    return DEQBounds(
        weight_norm=measured.equilibrium.weight_norm,
        input_weight_norm=measured.input_weight_norm,
        readout_norm=measured.readout_norm,
        input_frobenius=measured.input_frobenius,
        singular_value=measured.singular_value,
        error=measured.error,
        rigorous=measured.equilibrium.proved,
    )
