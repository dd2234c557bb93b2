"""Random inputs of kernels."""

import torch


def inputs(count, features, seed=0, *, one_norm=False, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, dtype=dtype, generator=generator)
    return x / x.norm(dim=1, keepdim=True) if one_norm else x


def norms_between(low, high, count, features, seed):
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(count, 1, dtype=torch.float64, generator=generator)
    return inputs(count, features, seed, one_norm=True) * low * (high / low) ** share
