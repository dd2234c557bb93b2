"""Networks and data to certify, and what actually happens to them."""

import math
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.certificates import Certificate, Conclusion


def data(
    samples: int, size: int, *, norm: float, label: float, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Random directions of one norm, and labels of random signs."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, size, generator=generator, dtype=torch.float64)
    y = torch.randn(samples, generator=generator, dtype=torch.float64).sign() * label
    return x / x.norm(dim=1, keepdim=True) * norm, y


def ling2023(width: int, **options: Any) -> Any:
    """A network of Ling 2023 with ten inputs."""
    deq = shoal.DEQ.ling2023(weight_variance=options.pop("weight_variance", 0.001), in_features=10)
    return shoal.build(deq, in_features=10, width=width, dtype=torch.float64, **options)


def sphere(samples: int, label: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Data for ``ling2023``."""
    return data(samples, 10, norm=math.sqrt(10), label=label, seed=seed)


def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Half the sum of squares."""
    return (net(x) - y.reshape(len(x), -1)).square().sum() / 2


def descend(net: Any, x: Tensor, y: Tensor, step_size: float) -> float:
    """One step of gradient descent; returns the loss before it."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    value = loss(net, x, y)
    gradients = torch.autograd.grad(value, parameters)
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p -= step_size * g
    return float(value.detach())


def conclusion(certificate: Certificate, form: str, dynamics: str) -> Conclusion:
    """What the one theorem of a form says."""
    (found,) = (c for c in certificate.conclusions if (c.form, c.dynamics) == (form, dynamics))
    return found


def keep_promises(
    net: Any, x: torch.Tensor, y: torch.Tensor, found: Conclusion, steps: int
) -> None:
    """Train, and check all that was promised at every step."""
    start = {g: p.detach().clone() for g, p in net.groups.items()}
    factor = net.layer.scale * net.layer.activation.lipschitz
    assert found.step_size is not None
    assert found.rate is not None
    bound = None
    for k in range(steps):
        value = descend(net, x, y, found.step_size)
        bound = value if bound is None else bound * found.rate
        assert value <= bound * (1 + 1e-9) + 1e-25
        if k % 5:
            continue
        for group, p in net.groups.items():
            gone = float((p.detach() - start[group]).norm())
            assert gone <= found.promises.travel[group]
        gain = float(torch.linalg.matrix_norm(net.recurrent.detach(), 2)) * factor
        assert gain <= (found.promises.gain or 0)
        with torch.no_grad():
            features = net.features(x)
            if not isinstance(net.architecture, shoal.DEQ):
                features = torch.cat([features, net.inject(x)], 1)
            least = float(torch.linalg.svdvals(features)[-1])
        assert least >= (found.promises.singular_value or 1e9)
