r"""Kernels by brute force: covariances are iterated, with Gaussian integrals on a dense grid.

For a DEQ with recurrent variance $\sigma_a^2$ and input variance $\sigma_b^2$, the covariances of
the pre-activations of two inputs solve

$\Lambda = \sigma_a^2 \mathbb{E}[\varphi(u)\varphi(v)] + \sigma_b^2 \langle x, x'\rangle + \beta,
\qquad (u, v) \sim \mathcal{N}(0, \Lambda),$

with the variance $\beta$ of the biases. The conjugate kernel is $G = \mathbb{E}[\varphi(u)
\varphi(v)]$. With $E = \mathbb{E}[\varphi'(u)\varphi'(v)]$, the NTK of the loop solves
$\Theta = E\,(\sigma_a^2 \Theta + w_a G + w_b \langle x, x'\rangle + w_0)$, with a variance as the
share $w$ of each group that is trained, and the readout adds $G$. Nothing here is fast.
"""

from collections.abc import Collection

import torch
from torch import Tensor

from shoal.activations import Activation
from shoal.architectures import DEQ

_STEPS = 60  # iterations of both equations


def kernels(deq: DEQ, x: Tensor, y: Tensor, trainable: Collection[str]) -> tuple[Tensor, Tensor]:
    """The CK and the NTK of a DEQ with one layer, for one pair of inputs in float64.

    Example:
        >>> import torch, shoal
        >>> x, deq = torch.tensor([1.0, 0.0]).double(), shoal.DEQ("tanh", 0.2, 0.8)
        >>> ck, ntk = kernels(deq, x, x, deq.parameter_groups)
        >>> exact = shoal.kernel(deq, x[None])
        >>> abs(float(ck - exact.ck)) < 1e-12, abs(float(ntk - exact.ntk)) < 1e-12
        (True, True)
    """
    phi, weight, bias = deq.activation, deq.recurrent_variance, deq.bias_variance
    assert isinstance(phi, Activation)
    products = torch.stack([torch.stack([x @ x, x @ y]), torch.stack([x @ y, y @ y])])
    injected = deq.input_variance * products + bias
    covariance = injected
    for _ in range(_STEPS):
        covariance = weight * _expected(phi, covariance, 0) + injected
    ck = _expected(phi, covariance, 0)[0, 1]
    slope = _expected(phi, covariance, 1)[0, 1]
    shares = {
        "recurrent": weight * ck,
        "input": deq.input_variance * products[0, 1],
        "bias": torch.full_like(ck, bias),
    }
    tangent = torch.zeros_like(ck)
    entering = sum((shares[group] for group in shares if group in trainable), tangent)
    for _ in range(_STEPS):
        tangent = slope * (weight * tangent + entering)
    return ck, tangent + ck if "readout" in trainable else tangent


def _expected(phi: Activation, covariance: Tensor, order: int) -> Tensor:
    """E[φ(u)φ(v)], or of derivatives, for all pairs of two Gaussian numbers. shape: (2, 2)."""
    grid = torch.linspace(-9.0, 9.0, 181, dtype=torch.float64)  # standard deviations
    density = torch.exp(-(grid**2) / 2)
    density = density / density.sum()
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp(min=0.0).sqrt()  # of the covariance
    points = torch.cartesian_prod(grid, grid) @ root.T
    weights = torch.outer(density, density).flatten()
    features = phi.derivative(points, order) if order else phi(points)
    return (weights[:, None] * features).T @ features
