"""Official files, written byte by byte and read back; and damaged ones."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shoal import data

CLASSES = {"mnist": "3", "fashion-mnist": "dress", "cifar-10": "cat"}  # the name of label 3


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def idx(array: np.ndarray, *, kind: int = 0x08) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def cifar(images: np.ndarray, labels: list[int]) -> bytes:
    return b"".join(bytes([k]) + image.tobytes() for k, image in zip(labels, images, strict=True))


def mnist_folder(
    folder: Path, n: int = 7, *, prefix: str = "train", ending: str = ""
) -> np.ndarray:
    images = pixels(n, 28, 28)
    write(folder / f"{prefix}-images-idx3-ubyte{ending}", idx(images))
    write(folder / f"{prefix}-labels-idx1-ubyte{ending}", idx(np.arange(n) % 10))
    return images


def same(dataset: data.Dataset, images: np.ndarray, labels: list[int]) -> None:
    expected = torch.from_numpy(images.astype(np.float64) / 255)
    torch.testing.assert_close(dataset.x, expected, rtol=0, atol=1e-16)
    assert dataset.x.dtype == torch.float64
    assert dataset.y.dtype == torch.int64
    assert dataset.y.tolist() == labels
    assert len(dataset.classes) == 10
    assert dataset.classes[3] == CLASSES[dataset.name]


@pytest.mark.parametrize(("split", "prefix"), [("train", "train"), ("test", "t10k")])
@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("mnist", "."),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
    ],
)
def test_mnist(tmp_path: Path, name: str, place: str, split: str, prefix: str, ending: str) -> None:
    images = mnist_folder(tmp_path / place, 12, prefix=prefix, ending=ending)
    found = data.load(name, split=split, folder=tmp_path, dtype=torch.float64)
    same(found, images[:, None], [*range(10), 0, 1])
    assert (found.name, str(tmp_path / place) in found.source) == (name, True)
    assert data.load(name, split=split, folder=tmp_path).x.dtype == torch.get_default_dtype()


def test_cifar(tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    batches = {f"data_batch_{i}.bin": pixels(3, 3, 32, 32, seed=i) for i in range(1, 6)}
    for name, images in {**batches, "test_batch.bin": pixels(3, 3, 32, 32, seed=6)}.items():
        write(place / name, cifar(images, [7, 0, 3]))
    train = data.load("cifar-10", folder=tmp_path, dtype=torch.float64)
    same(train, np.concatenate(list(batches.values())), [7, 0, 3] * 5)
    test = data.load("cifar-10", folder=tmp_path, split="test", dtype=torch.float64)
    same(test, pixels(3, 3, 32, 32, seed=6), [7, 0, 3])


def test_a_part_of_cifar_is_read_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "data_batch_2.bin", cifar(pixels(2, 3, 32, 32), [1, 9]))
    message = "only a part of CIFAR-10, without data_batch_1.bin, data_batch_3.bin, data_batch_4"
    with pytest.warns(UserWarning, match=message):
        found = data.load("cifar-10", folder=tmp_path, dtype=torch.float64)
    same(found, pixels(2, 3, 32, 32), [1, 9])


def test_raw_bytes(tmp_path: Path) -> None:
    images = mnist_folder(tmp_path)
    raw = data.load("mnist", folder=tmp_path, raw=True)
    assert raw.x.dtype == torch.uint8
    assert (raw.x.numpy() == images[:, None]).all()
    few = raw.take(slice(2, 4)).as_floats(torch.float64)
    assert torch.equal(few.x, data.load("mnist", folder=tmp_path, dtype=torch.float64).x[2:4])
    raw.x.zero_()  # a tensor with memory of its own
    with pytest.raises(TypeError, match=r"floating-point samples, got torch\.uint8"):
        data.standardize(raw)


def test_digits() -> None:
    bunch = pytest.importorskip("sklearn.datasets").load_digits()
    everything = data.load(split="all", dtype=torch.float64)
    assert (everything.x.flatten(1).numpy() * 16 == bunch.data).all()
    assert (everything.y.numpy() == bunch.target).all()
    parts = [data.load(split=split, dtype=torch.float64) for split in ("train", "test")]
    assert [len(part) for part in parts] == [1437, 360]
    assert torch.equal(torch.cat([part.x for part in parts]), everything.x)
    assert torch.equal(torch.cat([part.y for part in parts]), everything.y)
    assert data.load(split="all", raw=True).x.max() == 16


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        data.load("digits")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["MNIST was not found", "train-images-idx3-ubyte", "train-labels", "lecun"]),
        ("fashion-mnist", ["Fashion-MNIST", "zalandoresearch"]),
        ("cifar-10", ["data_batch_1.bin", "data_batch_5.bin", "www.cs.toronto.edu/~kriz"]),
    ],
)
def test_missing_files_are_named_with_origin_and_place(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        data.load(name, folder=tmp_path)
    for word in [*words, str(tmp_path), "folder=", "SHOAL_DATA"]:
        assert word in str(error.value)


def test_one_missing_file_is_named_alone(tmp_path: Path) -> None:
    place = tmp_path / "MNIST" / "raw"
    write(place / "train-images-idx3-ubyte.gz", idx(pixels(3, 28, 28)))
    message = "MNIST is not complete: put train-labels-idx1-ubyte from"
    with pytest.raises(FileNotFoundError, match=message) as error:
        data.load("mnist", folder=tmp_path)
    assert f"into {place}." in str(error.value)


def test_default_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"\.cache"):
        data.load("mnist")
    mnist_folder(tmp_path / ".cache" / "shoal" / "mnist", 3)
    assert len(data.load("mnist")) == 3
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "mine"))
    assert len(data.load("mnist")) == 3
    mnist_folder(tmp_path / "mine" / "mnist", 4)
    assert len(data.load("mnist")) == 4
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):  # a given folder is the only one
        data.load("mnist", folder=tmp_path / "empty")


IMAGES, LABELS = idx(pixels(5, 28, 28)), idx(np.arange(5))
BATCH = cifar(pixels(4, 3, 32, 32), [0, 1, 2, 3])
FIRST, SECOND = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

# dataset, file, damaged content, message
DAMAGED = {
    "empty": ("mnist", FIRST, b"", "expected data, got an empty file"),
    "magic": ("mnist", FIRST, b"\x01" + IMAGES[1:], "number 00000803, got 01000803"),
    "labels for images": ("mnist", FIRST, LABELS, "magic number 00000803, got 00000801"),
    "other type": ("mnist", FIRST, idx(pixels(5, 28, 28), kind=0x0D), "got 00000d03"),
    "cut header": ("mnist", FIRST, IMAGES[:10], "header of 16 bytes, got 10 bytes in all"),
    "cut": ("mnist", FIRST, IMAGES[:-1], "3920 bytes behind the header, for 5×28×28, got 3919"),
    "longer": ("fashion-mnist", FIRST, IMAGES + b"\0", "for 5×28×28, got 3921"),
    "no image": ("mnist", FIRST, idx(pixels(0, 28, 28)), "0 bytes behind .* 0×28×28, got 0"),
    "other size": ("mnist", FIRST, idx(pixels(5, 28, 27)), "28×28 pixels, got 28×27"),
    "huge": (
        "mnist", FIRST, struct.pack(">4I", 0x803, *[2**32 - 1] * 3), "for 4294967295×.*, got 0"
    ),
    "fewer labels": ("mnist", SECOND, idx(np.arange(4)), "5 labels, .* got 4 labels"),
    "label of 10": (
        "mnist", SECOND, idx(np.array([0, 1, 10, 3, 4])), r"in 0\.\.9, got label 10 of sample 2"
    ),
    "cut labels": ("mnist", SECOND, LABELS[:-2], "5 bytes behind the header, for 5, got 3"),
    "cut batch": ("cifar-10", "test_batch.bin", BATCH[:-5], "multiple of 3073 .* got 12287 bytes"),
    "cifar label": ("cifar-10", "test_batch.bin", b"\x0a" + BATCH[1:], "got label 10 of sample 0"),
    "empty batch": ("cifar-10", "test_batch.bin", b"", "expected data, got an empty file"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "file", "content", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damaged_files(tmp_path: Path, name: str, file: str, content: bytes, message: str) -> None:
    for sound, whole in ((FIRST, IMAGES), (SECOND, LABELS)):
        write(tmp_path / sound, whole)
    write(tmp_path / file, content)
    with pytest.raises(ValueError, match=message) as error:
        data.load(name, folder=tmp_path, split="test" if name == "cifar-10" else "train")
    assert str(error.value).startswith(str(tmp_path / file))


@pytest.mark.parametrize(
    "content",
    [b"", gzip.compress(IMAGES)[:-100], IMAGES, gzip.compress(IMAGES)[:10] + b"\xff" * 40],
    ids=["empty", "cut", "no gzip", "junk"],
)
def test_damaged_gzip_files(tmp_path: Path, content: bytes) -> None:
    (tmp_path / f"{FIRST}.gz").write_bytes(content)
    write(tmp_path / SECOND, LABELS)
    message = "an intact gzip file" if content else "data, got an empty file"
    with pytest.raises(ValueError, match=rf"ubyte\.gz: expected {message}"):
        data.load("mnist", folder=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "svhn"}, ValueError, "name must be one of 'digits', 'mnist', .* got 'svhn'"),
        ({"name": "my.csv"}, ValueError, "name must be one of"),
        ({"name": "mnist", "split": "all"}, ValueError, "split must be one of 'train', 'test'"),
        ({"name": "mnist", "folder": 3}, TypeError, "folder must be a path, got 3"),
        ({"name": "mnist", "folder": "nowhere"}, FileNotFoundError, "an existing folder"),
        ({"dtype": torch.int64}, TypeError, "dtype must be a floating-point"),
        ({"raw": "yes"}, TypeError, "raw must be True or False, got 'yes'"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        data.load(**arguments)
