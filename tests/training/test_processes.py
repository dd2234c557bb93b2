"""Trainings that several processes share give what one alone does, or the same error in all."""

import pytest
import torch

from ranks import run_ranks
from training import shared_training

pytestmark = [
    pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed"),
    pytest.mark.thorough,
]

PARTS = ["ways", "kernels", "failures", "diverged", "wrapped"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes have of each part, from one start of them."""
    folder = tmp_path_factory.mktemp("together")
    outcomes = run_ranks(shared_training.parts, 2, folder, PARTS, str(folder))
    assert [error for _, error in outcomes] == [""] * 2
    return {part: [value[part] for value, _ in outcomes] for part in PARTS}


def assert_trained_as_one(found, folder):
    single = shared_training.ways(0, str(folder))
    for weights in found:
        torch.testing.assert_close(weights, found[0], rtol=0, atol=0)
        torch.testing.assert_close(weights, single, rtol=1e-12, atol=1e-12)


def test_two_processes_train_as_one_does(found, tmp_path):
    assert_trained_as_one(found["ways"], tmp_path)


def test_three_processes_train_as_one_does(tmp_path):
    (tmp_path / "alone").mkdir()
    three = run_ranks(shared_training.parts, 3, tmp_path, ["ways"], str(tmp_path))
    assert [error for _, error in three] == [""] * 3
    assert_trained_as_one([value["ways"] for value, _ in three], tmp_path / "alone")


def test_processes_share_kernels_of_networks(found):
    single, (first, second) = shared_training.kernels(0), found["kernels"]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(first, single, rtol=1e-11, atol=1e-12)
    for pair in first[::4]:
        assert all(torch.equal(matrix, matrix.T) for matrix in pair)


def test_what_fails_in_one_fails_in_all(found):
    first, second = found["failures"]
    assert first == second
    differ, shape, luck, labels, status = first
    assert "ValueError: the 2 processes must make the same call" in differ
    assert "x" in differ.split("differ in: ")[1]
    assert "ValueError: x must" in shape
    assert luck == "RuntimeError: out of luck"
    assert labels.startswith("y. Where each")
    assert status == "finished"


def test_the_first_process_warns_of_a_training_that_diverges(found):
    assert found["diverged"] == [("diverged", ["ConvergenceWarning"]), ("diverged", [])]


def test_distributed_modules_are_averaged_once_and_divided_ones_refused(found):
    (trained, refused), other = found["wrapped"]
    assert refused == other[1]
    torch.testing.assert_close(trained, other[0], rtol=0, atol=0)
    torch.testing.assert_close(trained[3:], trained[:3], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(trained[2], trained[0], rtol=1e-12, atol=1e-12)  # one alone
    assert [text.split(",")[0] for text in refused] == [
        "net must have whole weights",
        "model must have whole weights",
    ]


def test_a_call_that_others_do_not_make_ends_with_a_message(tmp_path):
    (first, error), second = run_ranks(shared_training.one_sided, 2, tmp_path)
    assert (error, second) == ("", ("", ""))
    assert first.startswith("process 0 of 2 waited for others, which have ended or not made")
    assert "process_group=None" in first
