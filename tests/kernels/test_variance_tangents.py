"""Derivatives of kernel matrices in variances, entry by entry, against finite differences."""

from dataclasses import dataclass

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
    found = variance_tangents(shoal.kernel_function(shoal.DEQ(shoal.Erf(), 0.6, 0.8)), x, NAMES)
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
        (shoal.ReLU(), "ntk", None, False, 40),  # one series in the angle
        (shoal.ReLU(), "standard", 7, False, 40),
        (shoal.Erf(), "ntk", None, True, 30),
        (shoal.Erf(), "standard", None, True, 30),
        (shoal.Erf(), "ntk", None, False, 8),  # pair by pair
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


@pytest.mark.thorough
def test_each_group_of_parameters() -> None:
    deq, x = shoal.DEQ(shoal.ReLU(), 0.3, 0.8), inputs(10, one_norm=False)
    for group in deq.parameter_groups:
        f = shoal.kernel_function(deq, trainable={group})
        found = variance_tangents(f, x, NAMES)
        for name in NAMES:
            up, down = (
                shoal.kernel(
                    deq,
                    x,
                    trainable={group},
                    variances={name: torch.tensor(getattr(deq, name) + s, dtype=torch.float64)},
                ).ntk
                for s in (1e-4, -1e-4)
            )
            torch.testing.assert_close(found[name].ntk, (up - down) / 2e-4, atol=1e-7, rtol=0)


def test_copies_parallel_inputs_and_zero() -> None:
    deq, x = shoal.DEQ(shoal.Erf(), 0.3, 0.8), inputs(9, one_norm=False)
    x[3], x[7], x[5] = x[1], 2 * x[2], 0
    found = variance_tangents(shoal.kernel_function(deq), x, NAMES)
    for name in NAMES:
        for matrix, expected in zip(
            found[name], differences(deq, x, name, None, 0.01), strict=True
        ):
            torch.testing.assert_close(matrix, expected, atol=1e-6, rtol=0)


def test_sums_against_the_backward_pass() -> None:
    deq, x = shoal.DEQ(shoal.ReLU(), 0.3, 0.8), inputs(50, one_norm=False)
    weights = torch.randn(50, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    leaves = {
        name: torch.tensor(getattr(deq, name), dtype=torch.float64, requires_grad=True)
        for name in NAMES
    }
    (shoal.kernel(deq, x, variances=leaves).ntk * weights).sum().backward()
    found = variance_tangents(shoal.kernel_function(deq), x, NAMES)
    for name, leaf in leaves.items():
        expected = float((found[name].ntk * weights).sum())
        assert leaf.grad.item() == pytest.approx(expected, rel=1e-9)


@dataclass(frozen=True, repr=False)
class TiedLoop(shoal.ImplicitArchitecture):
    """One variance for what comes back and what comes in, and a gain that is not one."""

    activation: shoal.Activation
    spread: float

    def layers(self, width: int | None = None) -> shoal.Layers:  # noqa: ARG002
        recurrent, given = (shoal.Weights(g, self.spread, field="spread") for g in ("w", "u"))
        cell = shoal.Cell(self.activation, recurrent, gain=0.7, bias=shoal.Weights("b", 0.1))
        return shoal.Layers((cell,), injection=given)


@pytest.mark.thorough("True")
@pytest.mark.parametrize("one_norm", [True, False])
def test_a_variance_of_several_weights_of_an_own_loop(one_norm: bool) -> None:
    loop, x = TiedLoop(shoal.Erf(), 0.4), inputs(40, one_norm=one_norm)
    found = variance_tangents(shoal.kernel_function(loop), x, ["spread"])["spread"]
    for matrix, expected in zip(found, differences(loop, x, "spread", None, 1e-3), strict=True):
        scale = expected.abs().max()
        torch.testing.assert_close(matrix, expected, rtol=0, atol=float(1e-8 * scale))


@pytest.mark.parametrize("one_norm", [True, False])
@pytest.mark.parametrize("phi", [shoal.ReLU(), shoal.Tanh()], ids=["relu", "tanh"])
def test_biases_of_explicit_networks_have_a_surface(phi, one_norm, caplog):
    caplog.set_level("INFO")
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(170, 40, dtype=torch.float64, generator=generator) / 40**0.5
    x = torch.nn.functional.normalize(x) if one_norm else x
    i, j = torch.randint(len(x), (2, 60), generator=generator)
    i, j = i[i != j], j[i != j]
    weights = torch.randn(2, len(i), dtype=torch.float64, generator=generator)
    bias = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    network, squares = shoal.FullyConnected([phi] * 2, bias_variance=0.1), (x * x).sum(1)
    both = shoal.kernel(network, x, variances={"bias_variance": bias})
    found = sum((w * k[i, j]).sum() for w, k in zip(weights, both, strict=True))
    function = shoal.kernel_function(network, variances={"bias_variance": bias})
    pairs = function(squares[i], squares[j], (x[i] * x[j]).sum(1))
    exact = sum((w * k).sum() for w, k in zip(weights, pairs, strict=True))
    slopes = [float(torch.autograd.grad(total, bias)[0]) for total in (found, exact)]
    assert abs(slopes[0] - slopes[1]) <= 1e-9 * float(weights.abs().sum())
    assert "pair by pair" not in caplog.text
    tangent = variance_tangents(shoal.kernel_function(network), x, ["bias_variance"])
    pairs = [k[i, j] for k in tangent["bias_variance"]]
    total = sum((w * k).sum() for w, k in zip(weights, pairs, strict=True))
    assert abs(float(total) - slopes[1]) <= 1e-9 * float(weights.abs().sum())
