"""A damaged file is an error that names the file, what was expected and what came."""

import gzip
import io
import pickle
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from data.writers import cifar_records, idx, pixels, write
from shoal import data
from shoal.data.files import expansion_limit, read_content

pytestmark = pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")

IMAGES = idx(pixels(5, 28, 28))
LABELS = idx(np.arange(5))
BATCH = cifar_records(4)[0]


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


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_of_an_unofficial_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "run"
    content = pickle.dumps({b"data": Touch(mark), b"labels": []}, protocol)
    pickle.loads(content)
    assert mark.exists()  # what it would do
    mark.unlink()
    write(tmp_path / "data_batch_1", content)
    refused("cifar-10", tmp_path, "the official file, of md5 checksum c99c.*not read", "batch_1")
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [b"whale" * 100, SVHN, SVHN[:5000], b"\x89HDF\r\n\x1a\n"],
    ids=["whale", "whole", "part", "hdf"],  # the header has the time
)
def test_nothing_of_an_unofficial_matlab_file_is_parsed(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(*_: object, **__: object) -> None:
        raise AssertionError("SciPy's reader can end the process")

    monkeypatch.setattr("scipy.io.loadmat", parsed)
    write(tmp_path / "train_32x32.mat", content)
    refused("svhn", tmp_path, "the official file, of md5 checksum e26d.*not read", "32x32.mat")


@pytest.mark.parametrize(
    ("name", "file"), [("cifar-10", "data_batch_1"), ("svhn", "train_32x32.mat")]
)
def test_empty_files(tmp_path: Path, name: str, file: str) -> None:
    write(tmp_path / file, b"")
    refused(name, tmp_path, "expected data, got an empty file", file)
