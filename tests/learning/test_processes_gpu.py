"""Regressions that two processes share on one GPU, against one process on a CPU."""

import pytest
import torch

from learning import shared_work
from ranks import run_ranks

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_two_processes_share_a_gpu(tmp_path):
    single = shared_work.regression(0)
    first, second = run_ranks(shared_work.regression, 2, tmp_path, "cuda")
    assert first[1] == second[1] == ""
    torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    # entries of both devices agree to 2e-12 of the diagonal; solutions are moved by more
    torch.testing.assert_close(first[0], single, rtol=1e-9, atol=1e-10)
