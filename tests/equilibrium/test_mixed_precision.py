"""Cells in half precision: autocast, and gradient scalers that meet an overflow."""

import pytest
import torch
from torch import nn

from equilibrium.foreign_cells import Normalized
from shoal import Equilibrium

BFLOAT16 = 8 * torch.finfo(torch.bfloat16).eps  # of several roundings
STEPS, OVERFLOW = 60, 20
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_autocast():
    torch.manual_seed(0)
    cell, x = Normalized(), torch.randn(3, 4)
    layer = Equilibrium(cell)
    expected = layer(torch.zeros(3, 4), x)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(torch.zeros(3, 4), x)
    assert found.dtype == torch.float32
    assert layer.solution.converged.all()
    torch.testing.assert_close(found, expected, rtol=BFLOAT16, atol=BFLOAT16)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in cell.parameters())


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, z, x):
        return torch.tanh(self.linear(z) / 2 + x)


class Training:
    """A loop with autocast and a gradient scaler, as PyTorch's documentation has it."""

    def __init__(self, device, dtype, *, init_scale, **options):
        torch.manual_seed(0)
        self.device, self.dtype = device, dtype
        self.x = torch.randn(16, 4).to(device)
        self.y = self.x.roll(1, dims=1).sin()
        self.layer = Equilibrium(Cell().to(device), **options)
        self.readout = nn.Linear(4, 4).to(device)
        self.parameters = [*self.layer.parameters(), *self.readout.parameters()]
        self.optimizer = torch.optim.Adam(self.parameters, 1e-2)
        self.scaler = torch.amp.GradScaler(device, init_scale=init_scale)

    def step(self, hook=None):
        """One step: the loss, and whether the scaler has left it out."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device, self.dtype):
            z = self.layer(torch.zeros_like(self.x), self.x)
            loss = (self.readout(z) - self.y).square().mean()
        if hook:
            z.register_hook(hook)
        self.scaler.scale(loss).backward()
        before = [p.detach().clone() for p in self.parameters]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        skipped = all(torch.equal(a, b) for a, b in zip(before, self.parameters, strict=True))
        return float(loss.detach()), skipped


@pytest.mark.parametrize("warm_start", [False, True])
@pytest.mark.parametrize("rows", [slice(None), slice(3, 4)], ids=["all samples", "one sample"])
def test_a_step_whose_gradient_overflows_is_skipped(rows, warm_start):
    """The scale is halved, nothing is said, and training goes on as if there had been no such step.

    Warnings are errors in all tests.
    """

    def overflow(gradient):
        gradient = gradient.clone()
        gradient[rows] *= torch.inf
        return gradient

    options = {"init_scale": 2.0**10, "warm_start": warm_start}
    training = Training("cpu", torch.bfloat16, **options)
    losses = []
    for index in range(STEPS):
        loss, skipped = training.step(overflow if index == OVERFLOW else None)
        assert skipped == (index == OVERFLOW)
        assert training.scaler.get_scale() == (2.0**10 if index < OVERFLOW else 2.0**9)
        losses.append(loss)
    assert losses[-1] < losses[0] / 3  # measured: 5
    log = training.layer.log
    assert not log.failures["forward"]
    assert not log.failures["backward"]
    assert training.layer.solution.adjoint.converged.all()
    undisturbed = Training("cpu", torch.bfloat16, **options)
    expected = [undisturbed.step()[0] for _ in range(STEPS - 1)]
    del losses[OVERFLOW]
    assert losses == pytest.approx(expected, rel=BFLOAT16 if warm_start else 1e-6)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
def test_a_scale_that_is_too_large_for_float16(device):
    """It is halved, and steps are skipped, until gradients fit; then the layer learns."""
    training = Training(device, torch.float16, init_scale=2.0**30)
    losses, skips = zip(*[training.step() for _ in range(STEPS + 30)], strict=True)
    assert skips[0]
    assert not any(skips[30:])
    assert training.scaler.get_scale() == 2.0 ** (30 - sum(skips))
    assert losses[-1] < losses[0] / 4  # measured: 7
    assert not training.layer.log.failures["forward"]
    assert not training.layer.log.failures["backward"]
