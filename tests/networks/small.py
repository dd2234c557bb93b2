"""Small implicit networks and their inputs."""

import torch

from shoal import DEQ, build
from shoal.activations import Tanh


def inputs(count=5, features=4, seed=0, dtype=torch.float64):
    x = torch.randn(
        count, features, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return (x / x.norm(dim=1, keepdim=True)).to(dtype)


def network(architecture=None, *, features=4, width=32, **options):
    architecture = architecture or DEQ(Tanh(), 0.2, 0.8)
    options = {"dtype": torch.float64, **options}
    return build(architecture, in_features=features, width=width, **options)
