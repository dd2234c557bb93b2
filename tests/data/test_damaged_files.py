"""A damaged file is an error that names the file, what was expected and what came."""

import gzip
import io
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import loadmat, savemat

from data.writers import array, cifar_records, dictionary, idx, integers, pixels, text, write
from shoal import data
from shoal.data.files import expansion_limit, read_content
from shoal.data.matlab import read_matlab

pytestmark = pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")

IMAGES = idx(pixels(5, 28, 28))
LABELS = idx(np.arange(5))
BATCH = cifar_records(4)[0]
FOUR = pixels(4, 3072)


def mat(*, compressed: bool = True, **arrays: object) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays, do_compression=compressed)
    return file.getvalue()


SVHN = mat(X=pixels(32, 32, 3, 4), y=np.array([[10], [1], [9], [2]], dtype=np.uint8))

# file -> its damaged content and the message
MNIST_IMAGES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "wrong magic": (b"\x01" + IMAGES[1:], "magic number 00000803, got 01000803"),
    "labels for images": (LABELS, "magic number 00000803, got 00000801"),
    "other element type": (idx(pixels(5, 28, 28), kind=0x0D), "got 00000d03"),
    "three bytes": (IMAGES[:3], "magic number 00000803, got 000008"),
    "cut header": (IMAGES[:10], "an IDX header of 16 bytes, got 10 bytes in all"),
    "cut data": (IMAGES[:-1], "3920 bytes behind the header, for 5×28×28, got 3919"),
    "trailing bytes": (IMAGES + b"\0\0", "3920 bytes behind the header, for 5×28×28, got 3922"),
    "no image": (idx(pixels(0, 28, 28)), r"at least one entry, got the shape \(0, 28, 28\)"),
    "other size": (idx(pixels(5, 28, 27)), "images of 28×28 pixels, got 28×27"),
    "count too large": (
        struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1),
        "bytes behind the header, for 4294967295×.*, got 0",
    ),
    "fewer images than labels": (idx(pixels(4, 28, 28)), "4 labels, one per image, got 5 labels"),
}
MNIST_LABELS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "images for labels": (IMAGES, "magic number 00000801, got 00000803"),
    "out of range": (
        idx(np.array([0, 1, 10, 3, 4])),
        r"labels in 0\.\.9, got label 10 of sample 2",
    ),
    "cut": (LABELS[:-2], "5 bytes behind the header, for 5, got 3"),
    "too many": (idx(np.arange(6)), "5 labels, one per image, got 6 labels"),
}
GZIPPED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "cut": (gzip.compress(IMAGES)[:-100], "a complete gzip file, got one that is cut off"),
    "no gzip": (IMAGES, "an intact gzip file, got Not a gzipped file"),
    "flipped bit": (
        gzip.compress(IMAGES)[:-8] + b"\0\0\0\0" + gzip.compress(IMAGES)[-4:],
        "an intact gzip file, got CRC check failed",
    ),
    "junk inside": (
        gzip.compress(IMAGES)[:10] + b"\xff" * 40,
        "an intact gzip file, got Error -3",
    ),
    "empty inside": (gzip.compress(b""), "expected data, got an empty file"),
}
CIFAR_BINARY: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "cut": (BATCH[:-5], "a multiple of 3073 bytes, .* got 12287 bytes"),
    "trailing bytes": (BATCH + b"\n", "a multiple of 3073 bytes, .* got 12293 bytes"),
    "label out of range": (b"\x0a" + BATCH[1:], r"labels in 0\.\.9, got label 10 of sample 0"),
}
GOOD_LABELS = integers([1, 2, 3, 4])
CIFAR_PYTHON: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "no pickle": (b"whale", "a pickled dictionary"),
    "cut": (
        dictionary({b"data": array(FOUR), b"labels": GOOD_LABELS})[:-900],
        "a pickled dictionary",
    ),
    "trailing bytes": (
        dictionary({b"data": array(FOUR), b"labels": GOOD_LABELS}) + b"..",
        "got 2 bytes behind its end",
    ),
    "a list": (b"\x80\x02].", "a pickled dictionary .*, got list"),
    "a number as key": (b"\x80\x02}(K\x01K\x02u.", "names as keys, got the key 1"),
    "no data": (dictionary({b"labels": GOOD_LABELS}), "an entry 'data', got the entries labels"),
    "no labels": (dictionary({b"data": array(FOUR)}), "an entry 'labels', got the entries data"),
    "text as data": (
        dictionary({b"data": text(b"whale"), b"labels": GOOD_LABELS}),
        r"data of shape \(n, 3072\), got bytes",
    ),
    "other size": (
        dictionary({b"data": array(pixels(4, 3000)), b"labels": GOOD_LABELS}),
        r"data of shape \(n, 3072\), got \(4, 3000\)",
    ),
    "fewer bytes than the shape says": (
        dictionary({b"data": array(FOUR, shape=(5, 3072)), b"labels": GOOD_LABELS}),
        r"15360 bytes for shape \(5, 3072\), got 12288",
    ),
    "objects": (
        dictionary({b"data": array(FOUR, code=b"O8"), b"labels": GOOD_LABELS}),
        "an array of unsigned bytes, row by row, got an array of type b'O8'",
    ),
    "too few labels": (
        dictionary({b"data": array(FOUR), b"labels": integers([1, 2])}),
        "a list of 4 labels, one per image, got 2",
    ),
    "label out of range": (
        dictionary({b"data": array(FOUR), b"labels": integers([1, 2, 3, 12])}),
        r"labels in 0\.\.9, got label 12 of sample 3",
    ),
    "label that is no integer": (
        dictionary({b"data": array(FOUR), b"labels": b"](K\x01K\x02K\x03Ne"}),
        r"labels in 0\.\.9, got label None of sample 3",
    ),
}
ONE = np.array([[1]], dtype=np.uint8)
SVHN_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "expected data, got an empty file"),
    "no MATLAB file": (b"whale" * 100, "an intact MATLAB file of version 5"),
    "cut": (SVHN[:5000], "version 5, got an element of .* bytes, cut off after 4864"),
    "cut at the end": (SVHN[:-1], "version 5, got an element of .* bytes, cut off after"),
    "trailing bytes": (SVHN + b"whale", "version 5, got an end within an element"),
    "damaged inside": (SVHN[:2000] + b"whale" * 100 + SVHN[2500:], "version 5, got Error -3"),
    "version 7.3": (SVHN[:124] + b"\x00\x02" + SVHN[126:], r"version 5, got version 7\.3"),
    "HDF5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 600, "version 5, got no MATLAB header"),
    "no X": (mat(y=ONE), "an array 'X', got the arrays y"),
    "no y": (mat(X=pixels(32, 32, 3, 1)), "an array 'y', got the arrays X"),
    "other axes": (mat(X=pixels(4, 32, 32, 3), y=ONE), r"X of 32×32×3×n .* shape \(4, 32, 32, 3\)"),
    "other type": (mat(X=np.zeros((32, 32, 3, 2)), y=ONE), "X of 32×32×3×n .* got double"),
    "other count": (mat(X=pixels(32, 32, 3, 2), y=ONE), r"2 labels in y, got the shape \(1, 1\)"),
    "text as labels": (mat(X=pixels(32, 32, 3, 1), y=np.array([["a"]])), "in y, got"),
    "label 0": (
        mat(X=pixels(32, 32, 3, 1), y=0 * ONE),
        r"labels in 1\.\.10, got label 0 of sample 0",
    ),
    "label 11": (mat(X=pixels(32, 32, 3, 1), y=11 * ONE), "got label 11 of sample 0"),
    "half a label": (mat(X=pixels(32, 32, 3, 1), y=np.array([[1.5]])), r"got label 1\.5"),
}


def cases(table: dict[str, tuple[bytes, str]]) -> Callable:
    return pytest.mark.parametrize(("content", "message"), table.values(), ids=table.keys())


def refused(name: str, folder: Path, message: str, file: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        data.load(name, folder=folder)
    assert file in str(error.value)
    assert "expected" in str(error.value)
    assert "got" in str(error.value)


@cases(MNIST_IMAGES)
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_images(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    write(tmp_path / "train-images-idx3-ubyte", content)
    write(tmp_path / "train-labels-idx1-ubyte", LABELS)
    refused(name, tmp_path, message, "train-")


@cases(MNIST_LABELS)
def test_labels(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "train-images-idx3-ubyte", IMAGES)
    write(tmp_path / "train-labels-idx1-ubyte.gz", content)
    refused("mnist", tmp_path, message, "train-labels-idx1-ubyte.gz")


@cases(GZIPPED)
def test_gzip(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
    write(tmp_path / "train-labels-idx1-ubyte", LABELS)
    refused("mnist", tmp_path, message, "train-images-idx3-ubyte.gz")


def test_a_small_file_cannot_expand_without_end(tmp_path: Path) -> None:
    path = write(tmp_path / "bomb.gz", b"\0" * 10_000)
    assert path.stat().st_size < 100
    with pytest.raises(ValueError, match="at most 500 bytes, got more"):
        read_content(path, limit=500)


def test_files_of_zeros_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are refused before they are expanded: here beyond 1 MiB, by default 64."""
    assert expansion_limit(2**10) == 2**26
    assert expansion_limit(2**20) == 200 * 2**20
    monkeypatch.setattr("shoal.data.files._ALWAYS", 2**20)
    table, archive = tmp_path / "zeros.csv.gz", tmp_path / "zeros.npz"
    table.write_bytes(gzip.compress(b"0,0\n" * 2**18))
    assert data.read_csv(table, label=1).x.shape == (2**18, 1)
    table.write_bytes(gzip.compress(b"0,0\n" * (2**18 + 1)))
    with pytest.raises(
        ValueError, match=r"zeros\.csv\.gz: expected at most 1048576 bytes, got more"
    ):
        data.read_csv(table, label=1)
    np.savez_compressed(archive, X=np.zeros((2**10, 2**7)), y=np.zeros(2**10))
    with pytest.raises(ValueError, match=r"expands from \d+ to more than 1048576 bytes; np\.savez"):
        data.read_numpy(archive)
    np.savez(archive, X=np.zeros((2**10, 2**7)), y=np.zeros(2**10))
    assert data.read_numpy(archive).x.shape == (2**10, 2**7)
    half = np.zeros((2**9, 2**10 + 1), dtype=np.uint8)  # one passes, two do not
    assert set(read_matlab(mat(X=half))) == {"X"}
    with pytest.raises(ValueError, match="compressed data that expand to too many bytes"):
        read_matlab(mat(X=half, Y=half))


def test_numbers_of_tables_take_the_memory_of_numbers(tmp_path: Path) -> None:
    """Not that of their text as objects, nor a long label once a row."""
    path = tmp_path / "table.csv"
    path.write_text("0.25,1.5,2.125,a\n" * 20_000 + f"1,2,3,{'b' * 10_000}\n")
    tracemalloc.start()
    found = data.read_csv(path, label=3, dtype=torch.float64)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.x.shape == (20_001, 3)
    assert float(found.x[:-1].sum()) == 20_000 * 3.875
    assert found.y.tolist() == [0] * 20_000 + [1]
    assert peak < 12 * path.stat().st_size


@cases(CIFAR_BINARY)
def test_cifar_binary(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "data_batch_1.bin", content)
    refused("cifar-10", tmp_path, message, "data_batch_1.bin")


@cases(CIFAR_PYTHON)
def test_cifar_python(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "data_batch_1", content)
    refused("cifar-10", tmp_path, message, "data_batch_1")


@cases(SVHN_FILES)
def test_svhn(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path / "train_32x32.mat", content)
    refused("svhn", tmp_path, message, "train_32x32.mat")


def test_no_changed_byte_crashes_the_reader_of_svhn() -> None:
    # SciPy's reader ends the process on some of these
    arrays = {"X": pixels(32, 32, 3, 4), "y": np.array([[10], [1], [9], [2]], dtype=np.uint8)}
    rng = np.random.default_rng(0)
    whole = mat(compressed=False, **arrays)
    places = [*range(124, 260), *range(len(whole) - 80, len(whole))]
    refusals = 0
    for place in places:
        for value in (0, 1, 127, 255, int(rng.integers(256))):
            changed = bytearray(whole)
            changed[place] = value
            try:
                found = read_matlab(bytes(changed))
            except ValueError:
                refusals += 1
            else:
                assert all(array.kind for array in found.values())
    assert refusals > len(places)


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_files_are_read_as_scipy_reads_them(compressed: bool) -> None:
    rng = np.random.default_rng(1)
    arrays = {
        "doubles": rng.normal(size=(3, 4)),
        "bytes": pixels(2, 3, 4, 5),
        "few": np.array([[1, 2]], dtype=np.int16),
        "empty": np.zeros((0, 3)),
        "complex": rng.normal(size=(2, 2)) + 1j,
        "text": "whale",
        "cells": np.array([[np.ones(2), np.ones(3)]], dtype=object),
    }
    content = mat(compressed=compressed, **arrays)
    found, expected = read_matlab(content), loadmat(io.BytesIO(content))
    for name in ("doubles", "bytes", "few", "empty"):
        values = found[name].values
        assert values is not None
        np.testing.assert_array_equal(values, expected[name])
    assert [found[name].kind for name in ("doubles", "bytes", "few", "text", "cells")] == [
        "double",
        "uint8",
        "int16",
        "char",
        "cell",
    ]
    assert found["complex"] == ("complex double", (2, 2), None)
