"""Tiny files in the official formats are read as they were written."""

import dataclasses
import gzip
import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from data.writers import cifar_pickle, cifar_records, idx, mnist_folder, pixels, write
from shoal import data
from shoal.data.files import check_official
from shoal.data.folders import cache_folder

UNOFFICIAL = pytest.mark.filterwarnings("ignore::shoal.data.UnofficialDataWarning")


def same(dataset: data.Dataset, images: np.ndarray, labels: list[int]) -> None:
    expected = torch.from_numpy(images.astype(np.float64) / 255)
    assert dataset.x.dtype == torch.float64
    torch.testing.assert_close(dataset.x, expected, rtol=0, atol=1e-16)
    assert dataset.y.dtype == torch.int64
    assert dataset.y.tolist() == labels
    assert dataset.image_shape == images.shape[1:]
    assert len(dataset.classes) == 10


@UNOFFICIAL
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("gz", [False, True])
def test_idx_files(tmp_path: Path, name: str, split: str, gz: bool) -> None:
    images = mnist_folder(tmp_path, 12, gz=gz, name=name)
    found = data.load(name, split=split, folder=tmp_path, dtype=torch.float64)
    same(found, images[:, None], [*range(10), 0, 1])
    assert found.name == name
    assert str(tmp_path / name) in found.source
    assert data.load(name, split=split, folder=tmp_path).x.dtype == torch.get_default_dtype()


@UNOFFICIAL
def test_raw_bytes(tmp_path: Path) -> None:
    images = mnist_folder(tmp_path)
    raw = data.load("mnist", folder=tmp_path, raw=True)
    assert raw.x.dtype == torch.uint8
    assert (raw.x.numpy() == images[:, None]).all()
    raw.x.zero_()  # its own memory
    with pytest.raises(TypeError, match=r"floating-point samples, got torch\.uint8"):
        data.unit_norm(raw)


@UNOFFICIAL
@pytest.mark.parametrize("place", ["mnist", "MNIST/raw", "."])
def test_one_file_compressed_and_any_usual_folder(tmp_path: Path, place: str) -> None:
    images, labels = pixels(3, 28, 28), np.array([3, 1, 2])
    write(tmp_path / place / "train-images-idx3-ubyte.gz", idx(images))
    write(tmp_path / place / "train-labels-idx1-ubyte", idx(labels))
    same(data.load("mnist", folder=tmp_path, dtype=torch.float64), images[:, None], [3, 1, 2])


@pytest.fixture
def declared_official(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that tests have written count as official."""
    for reader in ("cifar10", "svhn"):
        monkeypatch.setattr(f"shoal.data.readers.{reader}.check_official", lambda *_, **__: None)


@UNOFFICIAL
@pytest.mark.usefixtures("declared_official")
@pytest.mark.parametrize("version", ["bin", "py"])
def test_cifar(tmp_path: Path, version: str) -> None:
    batches = [cifar_records(3, seed=seed) for seed in range(6)]
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for name, (content, images, labels) in zip(names, batches, strict=True):
        file = tmp_path / f"cifar-10-batches-{version}" / name
        if version == "bin":
            write(file.with_suffix(".bin"), content)
        else:
            write(file, cifar_pickle(images, labels.tolist()))
    train = data.load("cifar-10", folder=tmp_path, dtype=torch.float64)
    same(train, np.concatenate([images for _, images, _ in batches[:5]]), [0, 1, 2] * 5)
    test = data.load("cifar-10", folder=tmp_path, split="test", dtype=torch.float64)
    same(test, batches[5][1], [0, 1, 2])
    assert train.classes[6] == "frog"


def test_a_part_of_cifar_is_said_to_be_one(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin", cifar_records(2)[0])
    with pytest.warns(data.UnofficialDataWarning) as warned:
        assert len(data.load("cifar-10", folder=tmp_path)) == 2
    messages = [str(warning.message) for warning in warned]
    assert "without data_batch_1.bin, data_batch_3.bin, data_batch_4.bin" in messages[0]
    assert "it has 2 images, that one 10000" in messages[1]


@UNOFFICIAL
@pytest.mark.usefixtures("declared_official")
def test_all_batches_elsewhere_count_more_than_a_part_here(tmp_path: Path) -> None:
    write(tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin", cifar_records(2)[0])
    for i in range(1, 6):
        _, images, labels = cifar_records(1, seed=i)
        write(tmp_path / f"cifar-10-batches-py/data_batch_{i}", cifar_pickle(images, [*labels]))
    assert len(data.load("cifar-10", folder=tmp_path)) == 5


@UNOFFICIAL
@pytest.mark.usefixtures("declared_official")
@pytest.mark.parametrize("kind", [np.uint8, np.float64])
def test_svhn(tmp_path: Path, kind: type) -> None:
    images = pixels(32, 32, 3, 4)
    labels = np.array([[10], [1], [9], [2]], dtype=kind)
    (tmp_path / "svhn").mkdir()
    for split in ("train", "test"):
        savemat(
            tmp_path / f"svhn/{split}_32x32.mat", {"X": images, "y": labels}, do_compression=True
        )
        found = data.load("svhn", split=split, folder=tmp_path, dtype=torch.float64)
        same(found, images.transpose(3, 2, 0, 1), [0, 1, 9, 2])
    assert found.x[2, 1, 5, 7] == images[5, 7, 1, 2] / 255


def test_sound_files_that_are_not_official_warn(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    with pytest.warns(data.UnofficialDataWarning, match="not the official file") as warned:
        data.load("mnist", folder=tmp_path)
    assert len(warned) == 2  # images and labels


def test_checksums_are_those_of_the_content(tmp_path: Path) -> None:
    digest = f"sha256:{hashlib.sha256(b'whale').hexdigest()}"
    check_official(tmp_path, b"whale", digest)  # no warning
    with pytest.warns(data.UnofficialDataWarning, match=digest.removeprefix("sha256:")):
        check_official(tmp_path, b"shark", digest)
    shark = {f"sha256:{hashlib.sha256(b'shark').hexdigest()}": "Sharks"}
    with pytest.raises(ValueError, match="got the file of Sharks"):
        check_official(tmp_path, b"shark", digest, others=shark)


def test_what_may_harm_must_be_official(tmp_path: Path) -> None:
    digest = f"md5:{hashlib.md5(b'whale').hexdigest()}"
    check_official(tmp_path, b"whale", digest, instead="burn it")
    with pytest.raises(ValueError, match=r"got one of .* which is not read; burn it"):
        check_official(tmp_path, b"shark", digest, instead="burn it")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mnist", ["train-images-idx3-ubyte", "train-labels", "yann.lecun.com"]),
        ("fashion-mnist", ["Fashion-MNIST", "zalandoresearch"]),
        ("cifar-10", ["data_batch_1.bin", "data_batch_5", "www.cs.toronto.edu/~kriz"]),
        ("svhn", ["train_32x32.mat", "ufldl.stanford.edu/housenumbers"]),
    ],
)
def test_a_missing_file_says_which_whence_and_whither(
    tmp_path: Path, name: str, words: list[str]
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        data.load(name, folder=tmp_path)
    for word in [*words, str(tmp_path), "folder=", "SHOAL_DATA"]:
        assert word in str(error.value)


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_one_missing_file_is_named_alone(tmp_path: Path, ending: str) -> None:
    place = tmp_path / "MNIST" / "raw"
    write(place / f"train-images-idx3-ubyte{ending}", idx(pixels(3, 28, 28)))
    message = "MNIST is not complete: put train-labels-idx1-ubyte"
    with pytest.raises(FileNotFoundError, match=f"{message}{ending} from") as error:
        data.load("mnist", folder=tmp_path)
    assert f"into {place}." in str(error.value)
    assert "images" not in str(error.value)


@UNOFFICIAL
def test_where_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.data.folders.cache_folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="cache"):
        data.load("mnist")
    mnist_folder(tmp_path / "cache", 3)
    assert len(data.load("mnist")) == 3
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "mine"))
    assert len(data.load("mnist")) == 3
    mnist_folder(tmp_path / "mine", 4)
    assert len(data.load("mnist")) == 4
    mnist_folder(tmp_path / "here", 5)
    assert len(data.load("mnist", folder=tmp_path / "here")) == 5
    with pytest.raises(FileNotFoundError, match="folder must be an existing folder"):
        data.load("mnist", folder=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError):  # a folder that is given is the only one
        data.load("mnist", folder=tmp_path / "empty")


def test_cache_folders() -> None:
    assert cache_folder("linux", {"XDG_CACHE_HOME": "/c"}) == Path("/c/shoal")
    assert cache_folder("linux", {}) == Path.home() / ".cache" / "shoal"
    assert cache_folder("darwin", {}) == Path.home() / "Library/Caches/shoal"
    assert cache_folder("win32", {"LOCALAPPDATA": "/l"}) == Path("/l/shoal/Cache")
    assert cache_folder("win32", {}).parts[-4:] == ("AppData", "Local", "shoal", "Cache")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"name": "whales"}, ValueError, "name must be one of 'digits', 'cifar-10'"),
        ({"name": "my.npz"}, ValueError, r"use shoal\.data\.read_numpy"),
        ({"name": "my.csv"}, ValueError, r"use shoal\.data\.read_csv"),
        ({"name": "mnist", "split": "all"}, ValueError, "split must be one of 'train', 'test'"),
        ({"name": "mnist", "folder": 3}, TypeError, "folder must be a path, got 3"),
    ],
)
def test_bad_arguments(arguments: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        data.load(**arguments)


@UNOFFICIAL
def test_bad_options(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    with pytest.raises(TypeError, match=r"dtype must be a floating-point .*, got torch\.int64"):
        data.load("mnist", folder=tmp_path, dtype=torch.int64)
    with pytest.raises(TypeError, match="raw must be True or False, got 'yes'"):
        data.load("mnist", folder=tmp_path, raw="yes")


def test_digits() -> None:
    sklearn = pytest.importorskip("sklearn.datasets")
    bunch = sklearn.load_digits()
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


def test_datasets_are_frozen_and_checked() -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    toy = data.Dataset(x, y, "toy", classes=("a", "b"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        toy.x = x
    assert len(toy) == 2
    bad = [
        ((x.tolist(), y, "toy"), TypeError, "x must be a tensor, got list"),
        ((x > 0, y, "toy"), TypeError, "x must hold real numbers"),
        ((x[:0], y[:0], "toy"), ValueError, r"at least one entry, got shape \(0, 3\)"),
        ((x, y.tolist(), "toy"), TypeError, "y must be a tensor"),
        ((x, y.int(), "toy"), TypeError, r"y must be int64 or floating-point, got .*int32"),
        ((x, y[:1], "toy"), ValueError, "y must have 2 rows"),
        ((x, y, "toy", ("a",)), ValueError, r"in 0\.\.0 for 1 classes, got 0\.\.1"),
        ((x, y - 1, "toy", ("a", "b")), ValueError, r"got -1\.\.0"),
        ((x, y, "toy", ("a", "b"), (1, 2, 2)), ValueError, r"image_shape \(1, 2, 2\)"),
    ]
    for arguments, error, message in bad:
        with pytest.raises(error, match=message):
            data.Dataset(*arguments)


def test_compressed_anew_is_the_same(tmp_path: Path) -> None:
    content = idx(np.arange(3))
    levels = [gzip.compress(content, level, mtime=level) for level in (1, 9)]
    assert levels[0] != levels[1]
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    for level in levels:
        check_official(tmp_path, gzip.decompress(level), digest)
