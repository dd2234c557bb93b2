"""Regressions that are interrupted anywhere, and checkpoints of other problems."""

import pytest
import torch

import shoal


class Scaled(shoal.Activation):
    """A plain class, the repr of which is ``Scaled()`` whatever the factor is."""

    def __init__(self, factor: float) -> None:
        object.__setattr__(self, "factor", factor)

    def function(self, x):
        return self.factor * torch.tanh(x)


def test_checkpoints_of_another_activation_are_refused(tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=1, keepdim=True)
    options = {"ridge": 0.1, "method": "cg", "checkpoint": tmp_path / "state"}
    shoal.kernel_regression(shoal.FullyConnected((Scaled(1.0),)), x, x[:, 0], **options)
    shoal.kernel_regression(shoal.FullyConnected((Scaled(1.0),)), x, x[:, 0], **options)
    with pytest.raises(ValueError, match="of another regression: architecture differ"):
        shoal.kernel_regression(shoal.FullyConnected((Scaled(1.5),)), x, x[:, 0], **options)
