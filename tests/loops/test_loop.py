"""Loops from cells: counts, new inputs, steps, and rules that stop samples."""

import copy

import pytest
import torch
from torch import Tensor, nn

import shoal

torch.manual_seed(0)
WEIGHT = 0.3 * torch.randn(5, 5)


def cell(z: Tensor, x: Tensor) -> Tensor:
    return torch.tanh(z @ WEIGHT + x)


def unrolled(x: Tensor, steps: int) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(steps):
        z = cell(z, x)
    return z


class Until:
    """Stops samples after two, three, four, ... iterations, by their places."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def begin(self, output: Tensor, state: Tensor) -> dict[str, Tensor]:
        assert torch.equal(output[:, 0], state[:, 0])
        self.asked.append((1, len(output)))
        return {"limit": 2 + torch.arange(len(output))}

    def update(
        self, memory: dict[str, Tensor], output: Tensor, _state: Tensor, n: int
    ) -> tuple[dict[str, Tensor], Tensor]:
        self.asked.append((n, len(output)))
        return memory, memory["limit"] == n


def test_a_loop_of_one_batch() -> None:
    x = torch.randn(4, 5)
    loop = shoal.Loop(cell, torch.zeros(4, 5), x, head=lambda z: z.sum(1), steps=3)
    outputs = [*loop.outputs(steps=6)]
    for n, output in enumerate(outputs, 1):
        assert torch.equal(output, unrolled(x, n).sum(1))
        assert torch.equal(loop.run(steps=n), output)
    assert torch.equal(loop.run(), outputs[2])
    assert not loop.dynamic
    with pytest.raises(ValueError, match="pass z0 as a function of the inputs"):
        loop.begin(torch.randn(4, 5))


def test_a_loop_of_any_inputs() -> None:
    loop = shoal.Loop(cell, torch.zeros_like, torch.ones(2, 5))
    x = torch.randn(7, 5)
    assert loop.dynamic
    assert torch.equal(loop.run(x, steps=4), unrolled(x, 4))
    assert torch.equal([*loop.states(x, steps=2)][-1], unrolled(x, 2))
    with pytest.raises(ValueError, match="steps is required"):
        loop.run(x)


def test_states_are_trees_and_the_step_is_told() -> None:
    def two(z: dict[str, Tensor], n: int) -> dict[str, Tensor]:
        return {"a": z["a"] + n, "b": z["b"] + z["a"][:, None]}

    start = {"a": torch.zeros(2), "b": torch.zeros(2, 3)}
    loop = shoal.Loop(two, start, uses_step=True, steps=4)
    assert loop.run()["a"].tolist() == [6.0, 6.0]
    assert loop.run()["b"][0].tolist() == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("coupled", [False, True])
def test_samples_stop_one_by_one(coupled: bool) -> None:
    x, rule = torch.randn(4, 5), Until()
    loop = shoal.Loop(cell, torch.zeros_like, x, steps=4, samples_coupled=coupled)
    output, counts = loop.run(until=rule, counts=True)
    assert counts.tolist() == [2, 3, 4, 4]
    for row, count in enumerate(counts):
        torch.testing.assert_close(output[row], unrolled(x, int(count))[row])
    assert rule.asked == [(1, 4), (2, 4), (3, 4 if coupled else 3)]


def test_a_rule_ends_a_loop_once_all_samples_stop() -> None:
    rule = Until()
    loop = shoal.Loop(cell, torch.zeros_like, steps=50)
    x = torch.randn(2, 5)
    output, counts = loop.run(x, until=rule, counts=True)
    assert counts.tolist() == [2, 3]
    assert [n for n, _ in rule.asked] == [1, 2, 3]
    assert output.shape == x.shape


def test_gradients_pass_through_stopped_samples() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    loop = shoal.Loop(cell, torch.zeros_like, steps=4)
    loop.run(x, until=Until()).sum().backward()
    assert x.grad is not None
    expected = torch.autograd.grad(
        sum(unrolled(x[i : i + 1], min(2 + i, 4)).sum() for i in range(3)), x
    )[0]
    torch.testing.assert_close(x.grad, expected)


def test_a_copy_has_parameters_of_its_own() -> None:
    module = nn.Linear(3, 3)
    loop = shoal.Loop(module, torch.ones(2, 3), steps=1)
    other = copy.deepcopy(loop)
    assert loop.modules == (module,)
    assert other.modules[0] is not module
    with torch.no_grad():
        other.modules[0].weight.zero_()
        other.modules[0].bias.zero_()
    assert not bool(other.run().any())
    assert bool(loop.run().any())


def test_bad_starts_and_counts() -> None:
    with pytest.raises(TypeError, match="cell must be callable"):
        shoal.Loop(3, torch.zeros(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="steps must be >= 1"):
        shoal.Loop(cell, torch.zeros(1), steps=0)
    with pytest.raises(TypeError, match="z0 must be a tensor or a tree of tensors"):
        shoal.Loop(cell, torch.tensor(0.0), steps=1).run()
