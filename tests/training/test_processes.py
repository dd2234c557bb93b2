"""Trainings that several processes share give what one alone does, or the same error in all."""

import pytest
import torch

from ranks import run_ranks
from training import shared_training

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="needs torch.distributed"
)


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.thorough)])
def test_processes_train_as_one_does(ranks, tmp_path):
    (tmp_path / "alone").mkdir()
    (tmp_path / "together").mkdir()
    single = shared_training.ways(0, str(tmp_path / "alone"))
    found = run_ranks(shared_training.ways, ranks, tmp_path, str(tmp_path / "together"))
    assert [error for _, error in found] == [""] * ranks
    for weights, _ in found:
        torch.testing.assert_close(weights, found[0][0], rtol=0, atol=0)
        torch.testing.assert_close(weights, single, rtol=1e-12, atol=1e-12)


def test_processes_share_kernels_of_networks(tmp_path):
    single = shared_training.kernels(0)
    first, second = run_ranks(shared_training.kernels, 2, tmp_path)
    assert first[1] == second[1] == ""
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    torch.testing.assert_close(first[0], single, rtol=1e-11, atol=1e-12)
    for pair in first[0][::4]:
        assert all(torch.equal(matrix, matrix.T) for matrix in pair)


def test_what_fails_in_one_fails_in_all(tmp_path):
    first, second = run_ranks(shared_training.failures, 2, tmp_path)
    assert first == second
    differ, shape, luck, status = first[0]
    assert "ValueError: the 2 processes must do the same" in differ
    assert "x" in differ.split("differ in: ")[1]
    assert "ValueError: x must" in shape
    assert luck == "RuntimeError: out of luck"
    assert status == "finished"
