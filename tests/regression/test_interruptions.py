"""Regressions that are interrupted anywhere, and checkpoints of other problems."""

import sys

import pytest
import torch

import shoal
from shoal.linalg.krylov import Iteration, conjugate_gradients, step


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


def interrupt_at(event: int):
    """Trace conjugate gradients, and interrupt them at a certain line that they come to."""
    seen = 0

    def local(_frame, what, _):
        nonlocal seen
        if what == "line":
            seen += 1
            if seen == event:
                raise KeyboardInterrupt
        return local

    codes = (conjugate_gradients.__code__, step.__code__)
    return lambda frame, *_: local if frame.f_code in codes else None


def test_an_interruption_anywhere_loses_nothing() -> None:
    """Wherever Ctrl-C comes, the state is that before a step or after it, with its record."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    true = half @ half.T / 6 + torch.eye(6, dtype=torch.float64)
    rounded = true.float().double()  # so that the iteration starts again from true residuals
    b = torch.randn(6, 2, generator=generator, dtype=torch.float64)

    def solve(state):
        return conjugate_gradients(
            lambda v: rounded @ v,
            b,
            precondition=lambda r: r / true.diagonal()[:, None],
            rtol=1e-10,
            max_steps=50,
            exact=lambda v: true @ v,
            state=state,
        )

    whole, event, ended, before = solve(None), 0, False, sys.gettrace()
    assert whole.converged
    assert whole.steps > 6
    while not ended:
        event, state = event + 1, Iteration.start(b)
        sys.settrace(interrupt_at(event))
        try:
            solve(state)
            ended = True
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert len(state.history) == state.steps
        torch.testing.assert_close(state.residual, b - true @ state.solution, rtol=0, atol=1e-6)
        again = solve(state)
        assert again.converged
        assert again.steps == whole.steps == len(again.history)
        torch.testing.assert_close(again.solution, whole.solution, rtol=1e-9, atol=1e-12)
    assert event > 50
