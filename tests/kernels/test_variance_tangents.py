"""Derivatives of kernel matrices in variances, entry by entry, against finite differences."""

import numpy as np
import pytest
import torch

import shoal
from shoal.kernels.gradients.variance_tangents import variance_tangents

NAMES = ("recurrent_variance", "input_variance")


def inputs(n: int, *, one_norm: bool, seed: int = 0) -> torch.Tensor:
    x = torch.randn(n, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return 1.3 * torch.nn.functional.normalize(x) if one_norm else x


def differences(deq: shoal.DEQ, x: torch.Tensor, name: str, width: int | None, step: float):
    """Central differences of fourth order."""
    total = [0.0, 0.0]
    for k, weight in ((1, 8 / 12), (-1, -8 / 12), (2, -1 / 12), (-2, 1 / 12)):
        value = torch.tensor(getattr(deq, name) + k * step, dtype=torch.float64)
        found = shoal.kernel(deq, x, width=width, variances={name: value})
        total = [t + weight * m / step for t, m in zip(total, found, strict=True)]
    return total


def erf_deq(x: np.ndarray, recurrent: float, injection: float) -> tuple[np.ndarray, np.ndarray]:
    """CK and NTK of the DEQ with erf, by its arcsine (Williams 1996) and plain iteration."""
    product, own = injection * x @ x.T, np.zeros(len(x))
    for _ in range(400):
        own = recurrent * 2 / np.pi * np.arcsin(2 * own / (1 + 2 * own)) + np.diag(product)
    size, covariance = np.sqrt(np.outer(1 + 2 * own, 1 + 2 * own)), np.zeros_like(product)
    for _ in range(400):
        ck = 2 / np.pi * np.arcsin(2 * covariance / size)
        covariance = recurrent * ck + product
    slope = 4 / np.pi / np.sqrt(size**2 - 4 * covariance**2)
    return ck, ck + covariance * slope / (1 - recurrent * slope)


def test_entries_in_closed_form() -> None:
    at, h = {"recurrent_variance": 0.6, "input_variance": 0.8}, 1e-4
    x = inputs(8, one_norm=False)
    found = variance_tangents(
        shoal.kernel_function(shoal.DEQ(shoal.activations.Erf(), 0.6, 0.8)), x, NAMES
    )
    for name in NAMES:
        up, down = (erf_deq(x.numpy(), *(at | {name: at[name] + s}).values()) for s in (h, -h))
        for matrix, more, less in zip(found[name], up, down, strict=True):
            expected = (more - less) / (2 * h)
            scale = np.abs(expected).max()
            np.testing.assert_allclose(matrix, expected, rtol=0, atol=1e-7 * scale)


@pytest.mark.thorough("activation1", "activation2", "activation3")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("activation", "parametrization", "width", "one_norm", "n"),
    [
        (shoal.activations.ReLU(), "ntk", None, False, 40),  # one series in the angle
        (shoal.activations.ReLU(), "standard", 7, False, 40),
        (shoal.activations.Erf(), "ntk", None, True, 30),
        (shoal.activations.Erf(), "standard", None, True, 30),
        (shoal.activations.Erf(), "ntk", None, False, 8),  # pair by pair
    ],
)
def test_entries_are_those_of_finite_differences(
    activation, parametrization: str, width: int | None, one_norm: bool, n: int, name: str
) -> None:
    deq = shoal.DEQ(activation, 0.3, 0.8, parametrization=parametrization)
    x = inputs(n, one_norm=one_norm)
    found = variance_tangents(shoal.kernel_function(deq, width=width), x, [name])[name]
    for matrix, expected in zip(found, differences(deq, x, name, width, 0.01), strict=True):
        assert torch.equal(matrix, matrix.T)
        scale = expected.abs().max()
        torch.testing.assert_close(matrix, expected, atol=float(2e-7 * scale), rtol=0)
