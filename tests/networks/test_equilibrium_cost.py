"""Implicit networks: what a pass costs, and that saving it changes no values."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from networks.small import inputs, network


@pytest.mark.parametrize("width", [64, 300])
def test_samples_that_are_done_keep_their_values(width):
    """In small networks they stay in the batch, in large ones they are dropped."""
    net, alone = network(width=width), inputs(3)
    x = torch.cat([torch.zeros(30, 4).double(), alone, 1e-6 * inputs(20), 3 * inputs(10)])
    solution = net.solve(x)
    assert len(set(solution.steps.tolist())) > 2
    z = solution.value
    layer = math.sqrt(0.2) * z @ net.recurrent.T + math.sqrt(0.8) * x @ net.input.T
    off = (torch.tanh(layer) / math.sqrt(width) - z).norm(dim=1)
    torch.testing.assert_close(solution.residual, off, rtol=1e-2, atol=1e-15)
    torch.testing.assert_close(z[30:33], net.solve(alone).value, rtol=1e-10, atol=1e-11)


class Operations(TorchDispatchMode):
    """Counts what is computed, not views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        del types
        self.count += not function.is_view and function is not torch.ops.aten.detach.default
        return function(*args, **(kwargs or {}))


def test_a_pass_is_little_more_than_its_steps():
    """Two operations per step, and some per look and per solve."""
    x = inputs(32, 8, dtype=torch.float32)
    for warm_start, most in ((False, (60, 80)), (True, (60, 75))):
        net = network(features=8, width=256, dtype=torch.float32, warm_start=warm_start)
        for _ in range(6):
            with Operations() as forward:
                loss = net(x).square().mean()
            with Operations() as backward:
                loss.backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    parameter.sub_(0.05 * parameter.grad)
        assert forward.count <= most[0]
        assert backward.count <= most[1]


def test_inputs_that_changed_are_checked_again():
    net, x = network(), inputs()
    net(x)
    x[0, 0] = math.nan
    with pytest.raises(ValueError, match="x must be finite"):
        net(x)
    net.float()
    with pytest.raises(TypeError, match="dtype"):
        net(inputs())
