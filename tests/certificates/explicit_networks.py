"""Explicit networks to certify, their derivatives, and how to move them."""

from typing import Any

import torch
from torch import Tensor

import shoal

SAMPLES, WIDTH = 3, 24

ARCHITECTURES: dict[str, Any] = {
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
    """Inputs of norm one: vectors, pixels in a row, or images."""
    shape = {"convolutional": (2, 4), "circular": (1, 3, 2)}.get(name, (5,))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, *shape, generator=generator, dtype=torch.float64)
    return x / x.flatten(1).norm(dim=1).reshape(-1, *(1 for _ in shape))


def network(name: str, outputs: int = 1, seed: int = 0, width: int = WIDTH) -> Any:
    x = inputs(name)
    options = {"pixel_axes": x.dim() - 2} if x.dim() > 2 else {}
    return shoal.build(
        ARCHITECTURES[name],
        in_features=x.shape[1],
        width=width,
        out_features=outputs,
        seed=seed,
        dtype=torch.float64,
        **options,
    )


def jacobians(net: Any, x: Tensor) -> dict[str, Tensor]:
    """The derivatives of all outputs, sample by sample, in each trained group, by autograd."""
    groups = {name: p for name, p in net.groups.items() if p.requires_grad}
    rows: dict[str, list[Tensor]] = {name: [] for name in groups}
    for value in net(x).reshape(-1):
        gradients = torch.autograd.grad(value, list(groups.values()), retain_graph=True)
        for name, gradient in zip(groups, gradients, strict=True):
            rows[name].append(gradient.reshape(-1))
    return {name: torch.stack(found) for name, found in rows.items()}


def move(net: Any, x: Tensor, reach: float, generator: torch.Generator) -> None:
    """Move each group by a distance: at random, or where it changes outputs or gradients most."""
    steepest = jacobians(net, x)
    for name, p in net.groups.items():
        if not p.requires_grad:
            continue
        kind = int(torch.randint(3, (1,), generator=generator))
        direction = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        if kind == 1:
            mix = torch.randn(len(steepest[name]), generator=generator, dtype=torch.float64)
            direction = (mix @ steepest[name]).reshape(p.shape)
        elif kind == 2:  # of rank one along the input of a sample: moves its preactivations most
            row = steepest[name][0].reshape(p.shape).flatten(1)
            _, _, right = torch.linalg.svd(row, full_matrices=False)
            signs = torch.randn(len(row), generator=generator, dtype=torch.float64)
            direction = (signs[:, None] * right[:1]).reshape(p.shape)
        with torch.no_grad():
            p += reach * direction / direction.norm()
