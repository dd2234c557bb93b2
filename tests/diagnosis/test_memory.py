"""Peak memory is that of tensors which can be counted by hand."""

import torch
from torch import nn

import shoal
from shoal.core.measuring import peak_memory
from shoal.core.words import memory_words

CPU = torch.device("cpu")


def test_what_is_alive_at_once_counts_and_nothing_else() -> None:
    x = torch.zeros(1000, dtype=torch.float64)

    def one_after_the_other() -> float:
        return float((x + 1).exp().sum())  # two of 8000 bytes, then the first is gone

    def in_place() -> None:
        x.add_(1)
        x.view(10, 100).mul_(2)

    def all_at_once() -> list[torch.Tensor]:
        return [x + i for i in range(5)]

    assert peak_memory(one_after_the_other, CPU)[1] == 16_000
    assert peak_memory(in_place, CPU)[1] == 0
    found, peak = peak_memory(all_at_once, CPU)
    assert (len(found), peak) == (5, 40_000)


def test_what_a_backward_pass_needs_counts() -> None:
    x = torch.ones(1000, dtype=torch.float64, requires_grad=True)

    def passes() -> torch.Tensor:
        z = x
        for _ in range(6):
            z = z.tanh()
        return torch.autograd.grad(z.sum(), x)[0]

    peak = peak_memory(passes, CPU)[1]
    assert 6 * 8000 < peak <= 9 * 8000  # six outputs, and what the derivative is multiplied by


def test_unrolled_gradients_take_more_the_slower_the_loop() -> None:
    rows = torch.ones(50, 8, dtype=torch.float64)

    def peaks(rate: float) -> dict[str, int]:
        weight = nn.Parameter(rate * torch.eye(8, dtype=torch.float64))
        cell = nn.Linear(8, 8, bias=False, dtype=torch.float64)
        cell.weight = weight
        found = shoal.diagnose(
            lambda z, x: torch.tanh(cell(z) + x / 9), torch.zeros_like(rows), rows
        )
        assert all(cost.peak >= rows.numel() * 8 for cost in found.solvers)
        return {cost.name: cost.peak for cost in found.gradients}

    fast, slow = peaks(0.1), peaks(0.8)
    assert slow["Unrolled"] > 1.3 * fast["Unrolled"]
    assert fast["Unrolled"] > 1.3 * fast["OneStep"]
    assert slow["OneStep"] < 1.3 * fast["OneStep"]


def test_bytes_in_words() -> None:
    assert [memory_words(n) for n in (12, 1010, 2048, 1023.9 * 2**20, 5 * 2**40)] == [
        "12 B", "1010 B", "2 KiB", "1024 MiB", "5120 GiB",
    ]  # fmt: skip
