"""Networks and data to certify, and runs that must keep what is promised."""

import math
from typing import Any

import torch
from torch import Tensor

import shoal
from shoal.certificates import Conclusion, plain

DOUBLE: Any = {"dtype": torch.float64}


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
    return shoal.build(deq, in_features=10, width=width, **DOUBLE | options)


def implicit(width: int, gamma: float = 0.1, **options: Any) -> Any:
    """A network of Gao 2022 with ten inputs, and a zero readout unless said otherwise."""
    options = {"readout_scale": 0.0} | options
    return shoal.build(
        shoal.ImplicitNetwork(gamma), in_features=10, width=width, **DOUBLE, **options
    )


def sphere(samples: int, label: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Data for ``ling2023``."""
    return data(samples, 10, norm=math.sqrt(10), label=label, seed=seed)


def keep_promises(net: Any, x: Tensor, y: Tensor, found: Conclusion, steps: int) -> None:
    """Train with dense Jacobians, and check all promises at every step."""
    assert found.step_size is not None
    assert found.rate is not None
    looped, slack = "recurrent" in net.groups, 1 + 1e-9
    groups = {"readout", "skip"} if looped else None
    scale = getattr(net, "feature_scale", 1.0)
    run = plain.descend(net, x, y, found.step_size, steps, groups)
    for k, step in enumerate(run):
        bound = run[0].loss * found.rate**k * slack + 1e-25
        assert math.sqrt(step.loss) <= math.sqrt(bound) + math.sqrt(found.promises.resolution or 0)
        for group, distance in step.traveled.items():
            assert distance <= found.promises.travel[group] * slack
        assert step.singular_value >= (found.promises.singular_value or 1e9) * scale / slack
    if looped:
        factor = net.layer.scale * net.layer.activation.lipschitz
        gain = float(torch.linalg.matrix_norm(net.recurrent.detach(), 2)) * factor
        assert gain <= (found.promises.gain or 0)


SAMPLES, WIDTH = 3, 24

EXPLICIT: dict[str, Any] = {
    "tanh": shoal.FullyConnected.du2018(shoal.activations.Tanh(), 1),
    "softplus, 3 layers": shoal.FullyConnected.du2018(shoal.activations.Softplus(), 3),
    "readout, mixed": shoal.FullyConnected(
        (shoal.activations.Sigmoid(), shoal.activations.Affine(shoal.activations.Tanh(), 1.5, 0.2))
    ),
    "elu, swish": shoal.FullyConnected((shoal.activations.ELU(), shoal.activations.Swish())),
    "resnet": shoal.ResNet(shoal.activations.Softplus(), 3, residual_scale=0.6),
    "convolutional": shoal.ConvResNet(shoal.activations.Tanh(), 2, residual_scale=0.5),
    "circular": shoal.ConvResNet(
        shoal.activations.Softplus(), 3, residual_scale=0.4, padding="circular"
    ),
}


def inputs(name: str, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    """Inputs of norm one for an explicit network: vectors, pixels in a row, or images."""
    shape = {"convolutional": (2, 4), "circular": (1, 3, 2)}.get(name, (5,))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    return x / x.flatten(1).norm(dim=1).reshape(-1, *(1 for _ in shape))


def explicit(name: str, outputs: int = 1, seed: int = 0, width: int = WIDTH) -> Any:
    """An explicit network for these inputs."""
    x = inputs(name)
    options: dict[str, Any] = {"pixel_axes": x.dim() - 2} if x.dim() > 2 else {}
    options |= {"in_features": x.shape[1], "width": width, "out_features": outputs, "seed": seed}
    return shoal.build(EXPLICIT[name], **options, **DOUBLE)
