"""Tiny files in the official formats, written byte by byte."""

import gzip
import struct
from pathlib import Path

import numpy as np

CIFAR_CODE = b"\x80\x02"  # protocol 2, as the official files


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx(array: np.ndarray, *, kind: int = 0x08) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


def pixels(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def mnist_folder(folder: Path, n: int = 7, *, gz: bool = False, name: str = "mnist") -> np.ndarray:
    ending = ".gz" if gz else ""
    images, labels = pixels(n, 28, 28), np.arange(n) % 10
    for prefix in ("train", "t10k"):
        write(folder / name / f"{prefix}-images-idx3-ubyte{ending}", idx(images))
        write(folder / name / f"{prefix}-labels-idx1-ubyte{ending}", idx(labels))
    return images


def cifar_records(n: int = 4, *, seed: int = 0) -> tuple[bytes, np.ndarray, np.ndarray]:
    images, labels = pixels(n, 3, 32, 32, seed=seed), np.arange(n, dtype=np.uint8) % 10
    content = b"".join(
        bytes([k]) + image.tobytes() for k, image in zip(labels, images, strict=True)
    )
    return content, images, labels


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    if len(value) < 256:
        return b"U" + bytes([len(value)]) + value
    return b"T" + struct.pack("<i", len(value)) + value


def integer(value: int) -> bytes:
    return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)


def integers(values: list[int]) -> bytes:
    return b"](" + b"".join(map(integer, values)) + b"e"


def array(
    values: np.ndarray, *, code: bytes = b"u1", shape: tuple[int, ...] | None = None
) -> bytes:
    """An array as NumPy and Python 2 pickle it."""
    sizes = values.shape if shape is None else shape
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85"
        + text(b"b")
        + b"tR(K\x01("
        + b"".join(map(integer, sizes))
        + b"tcnumpy\ndtype\n("
        + text(code)
        + b"K\x00K\x01tR(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + text(values.tobytes())
        + b"tb"
    )


def dictionary(entries: dict[bytes, bytes]) -> bytes:
    """A pickled dictionary of entries that are pickled already."""
    items = b"".join(text(key) + value for key, value in entries.items())
    return CIFAR_CODE + b"}(" + items + b"u."


def cifar_pickle(images: np.ndarray, labels: list[int]) -> bytes:
    names = b"](" + b"".join(text(b"image_%d.png" % i) for i in range(len(labels))) + b"e"
    return dictionary(
        {
            b"batch_label": text(b"training batch 1 of 5"),
            b"labels": integers(labels),
            b"data": array(images.reshape(len(images), -1)),
            b"filenames": names,
        }
    )
