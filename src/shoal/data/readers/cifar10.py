"""CIFAR-10, from the official files of the binary or of the Python version."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import check_official, damaged, read_content, warn_unofficial
from shoal.data.folders import Files, find
from shoal.data.readers.arrays import check_byte_labels, image_dataset
from shoal.data.readers.registry import reads

_Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]

_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_BATCH = 10_000  # images in each official file

_FILES = Files(
    "CIFAR-10",
    ("cifar-10-batches-bin", "cifar-10-batches-py", "cifar10", "cifar-10"),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
)
_BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
# of the Python version; none are published for the binary one
_DIGESTS = {
    "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
    "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
    "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "md5:40351d587109b95175f43aff81a1287e",
}


@reads("cifar-10")
def read_cifar10(split: str, folder: str | os.PathLike[str] | None) -> Dataset:
    """CIFAR-10; see :func:`shoal.data.load`."""
    paths = _find(split, folder)
    read: Callable[[Path], _Batch] = _binary if paths[0].suffix == ".bin" else _python
    batches = [read(path) for path in paths]
    return image_dataset(
        np.concatenate([images for images, _ in batches]),
        np.concatenate([labels for _, labels in batches]),
        name="cifar-10",
        classes=_CLASSES,
        source=", ".join(map(str, paths)),
    )


def _find(split: str, folder: str | os.PathLike[str] | None) -> tuple[Path, ...]:
    """All files of the split, or, with a warning, as many as there are."""
    python = _BATCHES[split]
    binary = tuple(f"{name}.bin" for name in python)
    try:
        return find(_FILES, [binary, python], folder)
    except FileNotFoundError as missing:
        try:
            (first,) = find(_FILES, [(name,) for name in (*binary, *python)], folder)
        except FileNotFoundError:
            raise missing from None
    names = binary if first.suffix == ".bin" else python
    there = [name for name in names if (first.parent / name).is_file()]
    absent = ", ".join(name for name in names if name not in there)
    warn_unofficial(f"{first.parent}: this is a part of CIFAR-10 only: without {absent}")
    return tuple(first.parent / name for name in there)


def _binary(path: Path) -> _Batch:
    """One label and 3,072 pixels for each image, with nothing between them."""
    content = read_content(path)
    count, rest = divmod(len(content), 1 + _PIXELS)
    if rest:
        raise damaged(
            path,
            f"a multiple of {1 + _PIXELS} bytes, a label and {_PIXELS} pixels per image",
            f"{len(content)} bytes",
        )
    records = np.frombuffer(content, dtype=np.uint8).reshape(count, 1 + _PIXELS)
    check_byte_labels(path, records[:, 0], len(_CLASSES))
    if count != _BATCH:
        warn_unofficial(
            f"{path}: this is not the official file: it has {count} images, that one {_BATCH}"
        )
    return records[:, 1:].reshape(count, *_SHAPE), records[:, 0]


def _python(path: Path) -> _Batch:
    """A pickled dictionary with the array ``data`` and the list ``labels``.

    A pickle is a program, so only the official ones are run.
    """
    content = read_content(path, limit=2**26)
    check_official(
        path, content, _DIGESTS[path.name], instead="the binary version is, whatever it holds"
    )
    batch = pickle.loads(content, encoding="bytes")
    images = np.asarray(batch[b"data"], dtype=np.uint8)
    return images.reshape(-1, *_SHAPE), np.array(batch[b"labels"], dtype=np.uint8)
