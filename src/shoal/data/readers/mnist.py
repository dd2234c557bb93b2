"""MNIST and Fashion-MNIST, from the official IDX files, plain or gzipped."""

import itertools
import math
import os
import struct
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.data.dataset import Dataset
from shoal.data.files import check_official, damaged, read_content
from shoal.data.folders import Files, find
from shoal.data.readers.arrays import check_byte_labels, image_dataset
from shoal.data.readers.registry import reads

__all__: list[str] = []

_SIDE = 28

_FILES = {
    "mnist": Files("MNIST", ("mnist", "MNIST/raw", "MNIST"), "http://yann.lecun.com/exdb/mnist/"),
    "fashion-mnist": Files(
        "Fashion-MNIST",
        ("fashion-mnist", "FashionMNIST/raw", "fashion_mnist"),
        "https://github.com/zalandoresearch/fashion-mnist",
    ),
}
_CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion-mnist": (
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ),
}
_PREFIX = {"train": "train", "test": "t10k"}
# SHA-256 of the decompressed content
_MNIST = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_FASHION_MNIST = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_DIGESTS = {"mnist": _MNIST, "fashion-mnist": _FASHION_MNIST}
# The two datasets name their files alike: say which one a wrong file is.
_MEANINGS = {
    f"sha256:{digest}": f"{_FILES[name].title}, {file}"
    for name, digests in _DIGESTS.items()
    for file, digest in digests.items()
}


def _read(name: str, split: str, folder: str | os.PathLike[str] | None) -> Dataset:
    """One of the two; see :func:`shoal.data.load`."""
    images_name = f"{_PREFIX[split]}-images-idx3-ubyte"
    labels_name = f"{_PREFIX[split]}-labels-idx1-ubyte"
    endings = itertools.product((".gz", ""), repeat=2)
    groups = [(images_name + first, labels_name + second) for first, second in endings]
    images_path, labels_path = find(_FILES[name], [groups[-1], *groups[:-1]], folder)
    images = _array(name, images_name, images_path, axes=3)
    if images.shape[1:] != (_SIDE, _SIDE):
        height, width = images.shape[1:]
        raise damaged(images_path, f"images of {_SIDE}×{_SIDE} pixels", f"{height}×{width}")
    labels = _array(name, labels_name, labels_path, axes=1)
    check_byte_labels(labels_path, labels, len(_CLASSES[name]))
    if len(labels) != len(images):
        raise damaged(labels_path, f"{len(images)} labels, one per image", f"{len(labels)} labels")
    return image_dataset(
        images[:, None],
        labels,
        name=name,
        classes=_CLASSES[name],
        source=f"{images_path}, {labels_path}",
    )


def _array(name: str, official: str, path: Path, *, axes: int) -> NDArray[np.uint8]:
    content = read_content(path)
    check_official(path, content, f"sha256:{_DIGESTS[name][official]}", others=_MEANINGS)
    return _parse_idx(path, content, axes=axes)


def _parse_idx(path: Path, content: bytes, *, axes: int) -> NDArray[np.uint8]:
    """The array in an IDX file: unsigned bytes behind a header with their shape.

    Args:
        path: The file, for messages.
        content: What it holds, decompressed.
        axes: How many axes the array must have: 1 for labels, 3 for images.

    Raises:
        ValueError: If the magic number, the shape or the length is not what it should be.
    """
    magic = struct.pack(">BBBB", 0, 0, 0x08, axes)  # 0x08: unsigned bytes
    header = 4 + 4 * axes
    if content[:4] != magic:
        raise damaged(path, f"the IDX magic number {magic.hex()}", content[:4].hex())
    if len(content) < header:
        raise damaged(path, f"an IDX header of {header} bytes", f"{len(content)} bytes in all")
    shape = struct.unpack(f">{axes}I", content[4:header])
    size = math.prod(shape)
    if size == 0:
        raise damaged(path, "at least one entry", f"the shape {shape}")
    if len(content) - header != size:
        stated = "×".join(map(str, shape))
        raise damaged(
            path, f"{size} bytes behind the header, for {stated}", f"{len(content) - header}"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


for _name in _FILES:
    reads(_name)(partial(_read, _name))
