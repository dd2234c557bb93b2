"""Kernels that several processes share are those of one, or end with the same error in all."""

import pytest
import torch

from networks import shared_kernels
from ranks import run_ranks

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.thorough,
]


def test_processes_share_kernels_and_errors(tmp_path):
    outcomes = run_ranks(shared_kernels.parts, 2, tmp_path)
    assert [error for _, error in outcomes] == [""] * 2
    first, second = (value for value, _ in outcomes)
    torch.testing.assert_close(first["kernels"], second["kernels"], rtol=0, atol=0)
    torch.testing.assert_close(first["kernels"], shared_kernels.kernels(0), rtol=1e-11, atol=1e-12)
    for pair in first["kernels"][::4]:
        assert all(torch.equal(matrix, matrix.T) for matrix in pair)
    assert first["failures"] == second["failures"]
    differ, shape, divided, after = first["failures"]
    assert "ValueError: the 2 processes must make the same call" in differ
    assert "x1" in differ.split("differ in: ")[1]
    assert "ValueError: x1 must" in shape
    assert divided.startswith("ValueError: model must have whole weights")
    assert after == "torch.Size([7, 7])"


def test_a_call_that_others_do_not_make_ends_with_a_message(tmp_path):
    (first, error), second = run_ranks(shared_kernels.one_sided, 2, tmp_path)
    assert (error, second) == ("", ("", ""))
    assert first.startswith("process 0 of 2 waited for others, which have ended or not made")
    assert "process_group=None" in first
