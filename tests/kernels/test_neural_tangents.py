"""Kernels of fully connected networks against the library neural-tangents (tests/oracles).

Both sides were compared with the same recursion at 60 digits. neural-tangents' CKs, and its NTKs of
smooth activations, are within 5e-15 of sqrt(K_ii K_jj). (Not of the entry itself: far below that
scale its values for the sine are differences of rounded numbers and have no digits left.)

The NTK of an activation with kinks depends on the angle, which neural-tangents takes from the
covariances of every layer. Where two directions, or one and the other's negative, differ by a small
gap, each layer adds an error of the order of eps/gap: 6e-10 after ten layers for a gap of 1e-6.
shoal.kernel_function works with covariances too, and loses as much (1e-9); shoal.kernel keeps the
angle of homogeneous activations and of inputs of one norm, and is within 2e-13 for all cases here.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal import Activation, FullyConnected, kernel, kernel_function
from shoal.activations import GELU, Cosine, Erf, LeakyReLU, ReLU, Sine
from shoal.kernels import Kernels

VALUES: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "oracles/neural_tangents.json").read_text()
)
INPUTS = torch.tensor(VALUES["inputs"], dtype=torch.float64)
ONE_NORM = INPUTS[:4]
ACTIVATIONS: dict[str, Activation] = {
    "ReLU": ReLU(),
    "LeakyReLU": LeakyReLU(0.1),
    "Abs": LeakyReLU(-1.0),
    "Erf": Erf(),
    "GELU": GELU(),
    "Sine": Sine(),
    "Cosine": Cosine(),
}
KINKED = {"ReLU", "LeakyReLU", "Abs"}


def named(case):
    names = case["activations"]
    kind = names[0] if len(set(names)) == 1 else "mixed"
    trained = "+".join(case["trainable"] or ["all"])
    return f"{kind}-{len(names)}-{trained}"


every_case = pytest.mark.parametrize("case", VALUES["cases"], ids=named)


def network(case):
    return FullyConnected([ACTIVATIONS[name] for name in case["activations"]])


def expected(case, count):
    """The kernels of the first ``count`` inputs, from the rows of their upper triangles."""
    found = []
    for rows in (case["ck"], case["ntk"]):
        matrix = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        for i, row in enumerate(rows):
            matrix[i, i:] = matrix[i:, i] = torch.tensor(row, dtype=torch.float64)
        found.append(matrix[:count, :count])
    return Kernels(*found)


def gaps(x):
    """How far directions are from equal or opposite; infinite where they are so exactly."""
    unit = x / x.norm(dim=1, keepdim=True)
    gap = torch.minimum(*((unit[:, None] - s * unit).norm(dim=-1) for s in (1, -1)))
    return torch.where(gap < 1e-15, torch.inf, gap)


def deviations(found: Kernels, case, x: Tensor):
    """Of CK and NTK, relative to sqrt(K_ii K_jj) and less what small gaps allow the NTK."""
    eps = torch.finfo(torch.float64).eps
    kinks = sum(name in KINKED for name in case["activations"])
    allowances = (0.0, 4 * kinks * eps / gaps(x))
    for value, right, allowance in zip(found, expected(case, len(x)), allowances, strict=True):
        diagonal = right.diagonal().sqrt()
        yield float(((value - right).abs() / (diagonal[:, None] * diagonal) - allowance).max())


@every_case
def test_the_kernel_of_pairs(case):
    norms, products = (INPUTS * INPUTS).sum(1), INPUTS @ INPUTS.T
    products.diagonal().copy_(norms)  # an input and itself, to the last bit
    function = kernel_function(network(case), trainable=case["trainable"])
    found = function(norms[:, None], norms, products)
    assert max(deviations(found, case, INPUTS)) <= 1e-14


@every_case
def test_matrices(case):
    found = kernel(network(case), INPUTS, trainable=case["trainable"])
    homogeneous = network(case).positively_homogeneous  # by a series in the angle, exact to 1e-12
    assert max(deviations(found, case, INPUTS)) <= (1e-12 if homogeneous else 1e-14)


@pytest.mark.thorough("10-all", "1-all", "2-all")
@every_case
def test_matrices_of_inputs_of_one_norm(case):
    """Always by a series in the angle, whose error is below 1e-12 of the diagonal."""
    found = kernel(network(case), ONE_NORM, trainable=case["trainable"])
    assert max(deviations(found, case, ONE_NORM)) <= 1e-12
