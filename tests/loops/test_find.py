"""Loops found inside models that are independent of shoal."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import shoal
from loops import foreign

FOUND = [  # model, samples, iterations, tensors in the state
    (foreign.LoopedTransformer, foreign.tokens, 5, 1),
    (foreign.StepEmbedding, foreign.tokens, 4, 1),
    (foreign.TwoStates, foreign.tokens, 3, 2),
    (foreign.RecurrentDepth, foreign.tokens, 4, 1),
    (foreign.ConvolutionWithRecall, foreign.images, 5, 1),
    (foreign.Vectors, foreign.vectors, 6, 1),
    (foreign.Averaged, foreign.vectors, 6, 1),
    (foreign.Momentum, foreign.vectors, 6, 2),
    (foreign.InPlace, foreign.vectors, 6, 1),
    (foreign.SequenceFirst, foreign.tokens, 3, 1),
]


class Until:
    """Stops samples after two, three or four iterations, by their places."""

    def begin(self, output: Tensor, _state: object) -> Tensor:
        return 2 + torch.arange(len(output)) % 3

    def update(
        self, memory: Tensor, _output: Tensor, _state: object, n: int
    ) -> tuple[Tensor, Tensor]:
        return memory, memory == n


@pytest.mark.parametrize(("make", "samples", "steps", "tensors"), FOUND)
def test_a_loop_is_found_and_runs(
    make: Callable[[], nn.Module], samples: Callable[..., Tensor], steps: int, tensors: int
) -> None:
    torch.manual_seed(0)
    model, x, new = make().eval(), samples(), samples(8)
    loop = shoal.find_loop(model, x)
    assert loop.steps == steps
    assert loop.dynamic
    assert not loop.samples_coupled
    state, _ = loop.begin(x)
    leaves = [state] if isinstance(state, Tensor) else state
    assert [len(one) for one in leaves] == [5] * tensors

    short = copy.deepcopy(model)
    short.steps = short.outer = 2  # type: ignore[assignment]
    for inputs in (x, new, new[:1]):
        torch.manual_seed(1)
        expected = short(inputs)
        torch.manual_seed(1)
        torch.testing.assert_close(loop.run(inputs, steps=2), expected)

    torch.manual_seed(1)
    outputs = [*loop.outputs(new, steps=min(4, loop.max_steps or 4))]
    torch.manual_seed(1)
    stopped, counts = loop.run(new, steps=len(outputs), until=Until(), counts=True)
    for row, count in enumerate(counts):
        torch.testing.assert_close(stopped[row], outputs[count - 1][row], rtol=1e-4, atol=1e-5)


def test_step_indices_end_where_the_model_ends() -> None:
    x = foreign.tokens()
    loop = shoal.find_loop(foreign.StepEmbedding(steps=4, rows=6), x)
    assert (loop.uses_step, loop.max_steps) == (True, 6)
    with pytest.raises(ValueError, match="steps must be at most 6"):
        loop.run(x, steps=7)
    averaged = shoal.find_loop(foreign.Averaged(), foreign.vectors())
    assert averaged.max_steps == 6  # weights that follow no rule are known for these alone


def test_it_follows_training_and_copies() -> None:
    model, x = foreign.Vectors(), foreign.vectors()
    loop = shoal.find_loop(model, x)
    loop.run(x).square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).square().sum().backward()
    for one, parameter in zip(gradients, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)
    other = copy.deepcopy(loop)
    with torch.no_grad():
        for parameter in other.modules[0].parameters():
            parameter.zero_()
    assert not bool(other.run(x).any())
    torch.testing.assert_close(loop.run(x), model(x))


def test_samples_that_depend_on_one_another_are_seen() -> None:
    assert shoal.find_loop(foreign.BatchCentered(), foreign.vectors()).samples_coupled


def test_iterations_outside_of_the_loop_that_is_found_are_noted() -> None:
    class Mean(foreign.Vectors):  # its first iteration has nothing to add to
        def forward(self, x: Tensor) -> Tensor:
            z, total = x, 0
            for _ in range(6):
                z = torch.tanh(self.cell(z))
                total = total + self.readout(z)
            return total / 6

    loop = shoal.find_loop(Mean(), foreign.vectors())
    assert loop.steps == 5
    assert "5 iterations here may be 6 of its own" in loop.note
    assert not shoal.find_loop(foreign.Vectors(), foreign.vectors()).note


def test_of_several_loops_the_longest_is_found() -> None:
    loop = shoal.find_loop(foreign.TwoLoops(), foreign.vectors())
    assert loop.steps == 6
    assert "another loop, of 3 steps with other.bias" in loop.note


def test_layers_that_solve_are_iterated() -> None:
    def cell(z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(0.3 * z.flip(1) + x)

    class Solving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.readout = shoal.Equilibrium(cell), nn.Linear(7, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.layer(torch.zeros_like(x), x))

    deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
    network = shoal.build(deq, in_features=7, width=8, out_features=2, seed=0)
    for model in (Solving(), network):
        x = foreign.vectors()
        loop = shoal.find_loop(model, x)
        assert loop.solves
        torch.testing.assert_close(loop.run(x, steps=50), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "x", "message"),
    [
        (foreign.Plain(), foreign.tokens(), "Plain has no loop"),
        (nn.Linear(7, 2), foreign.vectors(), "Linear has no loop"),
        (foreign.UntilTolerance(), foreign.vectors(), "control flow .* depends on its data"),
        (foreign.Noisy(), foreign.vectors(), "draws random numbers in each step"),
        (foreign.AllOutputs(), foreign.vectors(), "AllOutputs has no loop"),
        (foreign.Vectors(), foreign.vectors(1), "at least 2 samples, got 1"),
        (foreign.Vectors(), 3.0, "must have a tensor with one entry per sample"),
    ],
)
def test_refusals(model: nn.Module, x: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shoal.find_loop(model, x)


def test_other_inputs_are_refused() -> None:
    loop = shoal.find_loop(foreign.LoopedTransformer(), foreign.tokens())
    with pytest.raises(ValueError, match="inputs must match those the loop was found with"):
        loop.run(foreign.tokens(5, 9))
    with pytest.raises(TypeError, match="model must be"):
        shoal.find_loop(torch.tanh, foreign.tokens())  # type: ignore[arg-type]
