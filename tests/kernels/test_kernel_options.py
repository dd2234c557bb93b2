"""Kernel matrices in little memory, in files, and of arrays: always the same ones."""

import errno
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels.points import inputs, norms_between
from shoal import DEQ, ReLU, Tanh, kernel


@pytest.mark.thorough("1]", "7KiB")
@pytest.mark.parametrize("limit", [1, "7KiB", "1GB"])
def test_memory_limits_change_nothing(limit):
    x = norms_between(0.7, 1.6, 70, 6, 5)
    for phi in (ReLU(), Tanh()):
        whole, part = kernel(DEQ(phi, 0.15, 0.8), x), kernel(DEQ(phi, 0.15, 0.8), x, memory=limit)
        for left, right in zip(whole, part, strict=True):
            # each is within 1e-13 of the kernel
            assert (left - right).abs().max() <= 2e-13 * left.max()
            assert torch.equal(right, right.T)


def test_results_in_files(tmp_path):
    x = inputs(30, 4, dtype=torch.float32)
    result = kernel(DEQ(ReLU(), 0.2, 0.8), x, memory="10KiB", out=tmp_path / "kernels")
    stored = np.load(tmp_path / "kernels" / "ntk.npy", mmap_mode="r")
    assert stored.dtype == np.float32
    assert np.array_equal(stored, result.ntk.numpy())
    assert torch.equal(result.ntk, kernel(DEQ(ReLU(), 0.2, 0.8), x, memory="10KiB").ntk)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="out must be a folder"):
        kernel(DEQ(ReLU(), 0.2, 0.8), x, out=tmp_path / "file")


def test_files_have_their_room_before_they_are_mapped(tmp_path):
    """A process that writes to a mapped file on a full disk is killed."""
    sizes = []

    def report(_):
        files = list(tmp_path.rglob("*.npy"))
        sizes.append(min(512 * file.stat().st_blocks - file.stat().st_size for file in files))

    x = inputs(300, 4)
    kernel(DEQ(ReLU(), 0.2, 0.8), x, memory="10KiB", out=tmp_path, on_progress=report)
    assert sizes[0] >= 0


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="files cannot be reserved here")
@pytest.mark.parametrize("culprit", ["fallocate", "free"])
def test_a_full_disk_is_told_of(tmp_path, monkeypatch, culprit):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    if culprit == "fallocate":
        monkeypatch.setattr(os, "posix_fallocate", full)
    else:
        monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    told = r"No space left on device, for a matrix of 128 bytes: '.*kernels/ck\.npy'"
    with pytest.raises(OSError, match=told):
        kernel(DEQ(ReLU(), 0.2, 0.8), inputs(4, 3), out=tmp_path / "a" / "kernels")
    assert list(tmp_path.iterdir()) == []


def test_arrays():
    x = inputs(6, 3)
    found = kernel(DEQ(ReLU(), 0.2, 0.8), x.numpy(), x[:2].numpy())
    assert isinstance(found.ck, np.ndarray)
    assert np.array_equal(found.ntk, kernel(DEQ(ReLU(), 0.2, 0.8), x, x[:2]).ntk.numpy())


@pytest.mark.parametrize(
    ("memory", "message"), [("two", "such as '2GiB'"), (0, "memory must be >= 1, got 0")]
)
def test_bad_limits(memory, message):
    with pytest.raises(ValueError, match=message):
        kernel(DEQ(ReLU(), 0.2, 0.8), torch.ones(2, 2), memory=memory)


def test_files_in_use_are_left_alone(tmp_path):
    x = inputs(300, 3)
    before = kernel(DEQ(ReLU(), 0.2, 0.8), x, out=tmp_path)
    copy = before.ck.clone()
    kernel(DEQ(ReLU(), 0.2, 0.8), x[:4], out=tmp_path)
    assert torch.equal(before.ck, copy)
    assert np.load(tmp_path / "ck.npy").shape == (4, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck.npy", "ntk.npy"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"diag": "no"}, TypeError, "diag must be True or False, got 'no'"),
        ({"diag": True, "out": "folder"}, ValueError, "cannot be combined with diag"),
        ({"out": ""}, ValueError, "out must be a path .* not empty, got ''"),
    ],
)
def test_bad_options(options, error, message):
    with pytest.raises(error, match=message):
        kernel(DEQ(ReLU(), 0.2, 0.8), torch.ones(2, 2), **options)


def test_arrays_that_torch_does_not_know():
    with pytest.raises(TypeError, match="x1 must be float32 or float64"):
        kernel(DEQ(ReLU(), 0.2, 0.8), np.ones((2, 2), dtype=">f8"))
    backwards = np.arange(6.0).reshape(3, 2)[::-1]
    assert kernel(DEQ(ReLU(), 0.2, 0.8), backwards).ck.shape == (3, 3)
