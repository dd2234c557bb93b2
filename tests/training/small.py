"""Small networks and data for the tests of training."""

import torch

import shoal

LING = shoal.DEQ.ling2023(0.05, 5)
TANH = shoal.DEQ(shoal.activations.Tanh(), recurrent_variance=0.1, input_variance=0.8)
GAO = shoal.ImplicitNetwork(gamma=0.2)
DU = shoal.FullyConnected.du2018(shoal.activations.Softplus(), depth=2)
RESNET = shoal.ResNet(shoal.activations.Softplus(), depth=2, residual_scale=0.5)
CONV = shoal.ConvResNet(shoal.activations.Softplus(), depth=2, residual_scale=0.5)
SHALLOW = shoal.FullyConnected((shoal.activations.ReLU(),))


def data(architecture=TANH, n=6, outputs=None, dtype=torch.float64):
    """Inputs of the norm that an architecture's theory wants, and labels."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True) * (5**0.5 if architecture is LING else 1.0)
    shape = (n,) if outputs is None else (n, outputs)
    y = torch.randn(*shape, generator=generator, dtype=torch.float64)
    if isinstance(architecture, shoal.ConvResNet):
        x = x[:, None]
    return x.to(dtype), y.to(dtype)


def network(architecture=TANH, width=64, outputs=1, dtype=torch.float64, **options):
    """A network for these data."""
    if isinstance(architecture, shoal.DEQ | shoal.ImplicitNetwork):
        options = {"warm_start": True, "on_failure": "raise"} | options
    if isinstance(architecture, shoal.ConvResNet):
        options |= {"in_features": 1, "pixel_axes": 1}
    options = {"in_features": 5} | options
    return shoal.build(architecture, width=width, out_features=outputs, dtype=dtype, **options)
