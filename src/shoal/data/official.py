"""Well-known image datasets, from their official files."""

import math
import os
import struct
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shoal.core.checks import as_path, flag, one_of
from shoal.data.arrays import damaged, read_bytes
from shoal.data.dataset import Dataset

_Parts = tuple[NDArray[Any], NDArray[Any], str]  # images, labels, source

_TRAIN = 1437  # of the 1,797 digits: four fifths, in their order
_CLOTHES = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot"
_OBJECTS = "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"
_CLASSES = {
    "digits": tuple("0123456789"),
    "mnist": tuple("0123456789"),
    "fashion-mnist": tuple(_CLOTHES.split(",")),
    "cifar-10": tuple(_OBJECTS.split(",")),
}
_PLACES = {  # title, publisher, usual subfolders (torchvision's among them)
    "mnist": ("MNIST", "http://yann.lecun.com/exdb/mnist/", ("mnist", "MNIST/raw", "")),
    "fashion-mnist": (
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw", ""),
    ),
    "cifar-10": (
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        ("cifar-10-batches-bin", "cifar-10", ""),
    ),
}


def load(
    name: str = "digits",
    *,
    split: str = "train",
    folder: str | os.PathLike[str] | None = None,
    raw: bool = False,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Load a well-known dataset from its official files, or the digits, which need none.

    Files are searched in ``folder``, or by default in the folder named by the environment variable
    ``SHOAL_DATA`` and in ``~/.cache/shoal``; in each, below the usual subfolders and directly.
    Nothing is ever downloaded.

    Args:
        name: ``"digits"`` (of scikit-learn), ``"mnist"``, ``"fashion-mnist"`` or ``"cifar-10"``.
        split: ``"train"`` or ``"test"``. The digits have no official split: these are the first
            1,437 and the other 360, and ``"all"`` is both.
        folder: Folder with the files.
        raw: Whether to return the bytes of the file instead of numbers in [0, 1].
        dtype: Floating-point dtype of the samples; PyTorch's default dtype by default.

    Returns:
        Images of shape (n, channels, height, width) and their class indices.

    Raises:
        FileNotFoundError: If a file is missing. The message names it, its origin and its place.
        ImportError: If the digits are requested and scikit-learn is not installed.
        ValueError: If ``name`` or ``split`` is unknown, or a file is damaged.

    Warns:
        UserWarning: If some batches of CIFAR-10 are missing.

    Example:
        >>> from shoal import data
        >>> data.load("digits", split="all")
        Dataset('digits', 1797 samples of shape 1×8×8, float32, 10 classes)
    """
    flag("raw", raw)
    one_of("name", name, _CLASSES)
    one_of("split", split, ("train", "test", "all") if name == "digits" else ("train", "test"))
    if name == "digits":
        images, labels, source = _digits(split)
    else:
        read = _cifar if name == "cifar-10" else _mnist
        images, labels, source = read(name, split, folder)
    loaded = Dataset(
        torch.from_numpy(images.copy()),  # writable, and not a view of the file's content
        torch.from_numpy(labels.astype(np.int64)),
        name,
        classes=_CLASSES[name],
        source=source,
        white=16.0 if name == "digits" else 255.0,
    )
    return loaded if raw else loaded.as_floats(dtype)


def _digits(split: str) -> _Parts:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError(
            "the digits come with scikit-learn, which is not installed: pip install scikit-learn, "
            "or shoal with its extra 'cli'"
        ) from error
    bunch = load_digits()
    part = {"all": slice(None), "train": slice(_TRAIN), "test": slice(_TRAIN, None)}[split]
    images = bunch.images[part].astype(np.uint8)[:, None]
    return images, bunch.target[part], f"sklearn.datasets.load_digits, {split}"


def _mnist(name: str, split: str, folder: str | os.PathLike[str] | None) -> _Parts:
    prefix = "train" if split == "train" else "t10k"
    files = [f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"]
    first, second = _find(name, files, folder)
    images, labels = _idx(first, axes=3), _idx(second, axes=1)
    if images.shape[1:] != (28, 28):
        height, width = images.shape[1:]
        raise damaged(first, "images of 28×28 pixels", f"{height}×{width}")
    if len(labels) != len(images):
        raise damaged(second, f"{len(images)} labels, one per image", f"{len(labels)} labels")
    _check_labels(second, labels)
    return images[:, None], labels, f"{first}, {second}"


def _idx(path: Path, *, axes: int) -> NDArray[np.uint8]:
    """Return the array in an IDX file: unsigned bytes behind a header with the shape."""
    content = read_bytes(path)
    magic, header = bytes([0, 0, 8, axes]), 4 + 4 * axes  # 8: unsigned bytes
    if content[:4] != magic:
        raise damaged(path, f"the IDX magic number {magic.hex()}", content[:4].hex())
    if len(content) < header:
        raise damaged(path, f"an IDX header of {header} bytes", f"{len(content)} bytes in all")
    shape = struct.unpack_from(f">{axes}I", content, 4)
    if len(content) - header != math.prod(shape) or 0 in shape:
        stated = "×".join(map(str, shape))
        expected = f"{math.prod(shape)} bytes behind the header, for {stated}"
        raise damaged(path, expected, f"{len(content) - header}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _cifar(name: str, split: str, folder: str | os.PathLike[str] | None) -> _Parts:
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    files = train if split == "train" else ["test_batch.bin"]
    paths = _find(name, files, folder, parts=True)
    images, labels = [], []
    for path in paths:
        content = read_bytes(path)
        if len(content) % 3073:
            expected = "a multiple of 3073 bytes, a label and 3072 pixels per image"
            raise damaged(path, expected, f"{len(content)} bytes")
        records = np.frombuffer(content, np.uint8).reshape(-1, 3073)
        _check_labels(path, records[:, 0])
        images.append(records[:, 1:].reshape(-1, 3, 32, 32))
        labels.append(records[:, 0])
    return np.concatenate(images), np.concatenate(labels), ", ".join(map(str, paths))


def _check_labels(path: Path, labels: NDArray[Any]) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels > 9))
    if len(wrong):
        raise damaged(path, "labels in 0..9", f"label {labels[wrong[0]]} of sample {wrong[0]}")


def _find(
    name: str, files: list[str], folder: str | os.PathLike[str] | None, *, parts: bool = False
) -> list[Path]:
    """Return the paths of files in one folder, plain or gzipped; with ``parts``, of any of them."""
    title, url, subfolders = _PLACES[name]
    if folder is not None:
        roots = [as_path("folder", folder).expanduser()]
        if not roots[0].is_dir():
            raise FileNotFoundError(f"folder must be an existing folder, got {str(roots[0])!r}")
    else:
        variable = os.environ.get("SHOAL_DATA")
        roots = [Path(variable).expanduser()] if variable else []
        roots.append(Path.home() / ".cache" / "shoal")
    best: dict[str, Path] = {}
    place = roots[0] / subfolders[0]
    for candidate in (root / subfolder for root in roots for subfolder in subfolders):
        both = ((file, candidate / f"{file}{end}") for file in files for end in (".gz", ""))
        paths = {file: path for file, path in both if path.is_file()}
        if len(paths) > len(best):
            best, place = paths, candidate
    missing = ", ".join(file for file in files if file not in best)
    if missing and parts and best:
        warnings.warn(f"{place}: only a part of {title}, without {missing}", stacklevel=4)
    elif missing:
        raise FileNotFoundError(
            f"{title} {'is not complete' if best else 'was not found'}: put {missing} from {url} "
            f"into {place}. Looked below {', '.join(map(str, roots))}; the environment variable "
            "SHOAL_DATA names another place, and in Python folder=."
        )
    return list(best.values())
