"""Load a dataset by its name."""

import os
from collections.abc import Callable

import torch

from shoal.core.checks import one_of
from shoal.data.cifar10 import read_cifar10
from shoal.data.dataset import Dataset
from shoal.data.digits import read_digits
from shoal.data.mnist import read_fashion_mnist, read_mnist
from shoal.data.svhn import read_svhn

__all__ = ["load"]

_READERS: dict[str, Callable[..., Dataset]] = {
    "mnist": read_mnist,
    "fashion-mnist": read_fashion_mnist,
    "cifar-10": read_cifar10,
    "svhn": read_svhn,
}
_READERS_OF_OWN_FILES = {".npz": "read_numpy", ".npy": "read_numpy", ".csv": "read_csv"}


def load(
    name: str = "digits",
    *,
    split: str = "train",
    folder: str | os.PathLike[str] | None = None,
    raw: bool = False,
    dtype: torch.dtype | None = None,
) -> Dataset:
    """Load a well-known dataset from its official files, or the digits, which need none.

    Files are looked for in ``folder``, or, if it is not given, in the folder that the environment
    variable ``SHOAL_DATA`` names and then in the user's cache folder; in each, below the usual
    subfolder and directly. Nothing is ever downloaded. A file is checked as a whole: a damaged one
    is an error, a sound one that is not the official one gives an ``UnofficialDataWarning``.

    Args:
        name: ``"digits"`` (of scikit-learn), ``"mnist"``, ``"fashion-mnist"``, ``"cifar-10"`` or
            ``"svhn"``.
        split: ``"train"`` or ``"test"``; for the digits, which nobody has split, the first 1,437
            or the other 360, or ``"all"``.
        folder: Where to look, instead of the user's folders.
        raw: Whether to return the bytes of the file instead of numbers in [0, 1].
        dtype: Of the samples, unless raw; PyTorch's default dtype by default.

    Returns:
        Images of shape (n, channels, height, width) and their class indices.

    Raises:
        FileNotFoundError: If a file is missing; says which, whence and whither.
        ImportError: If the digits are wanted and scikit-learn is not installed.
        TypeError: If ``dtype`` is no floating-point dtype or ``raw`` no truth value.
        ValueError: If ``name`` or ``split`` is unknown, or a file is damaged.
    """
    suffix = os.path.splitext(name)[1] if isinstance(name, str) else ""
    if suffix in _READERS_OF_OWN_FILES:
        raise ValueError(
            f"name must be the name of a dataset, got {name!r}; "
            f"for a file use shoal.data.{_READERS_OF_OWN_FILES[suffix]}"
        )
    one_of("name", name, ("digits", *_READERS))
    one_of("split", split, ("train", "test", "all") if name == "digits" else ("train", "test"))
    if name == "digits":
        return read_digits(split, raw=raw, dtype=dtype)
    return _READERS[name](split, folder, raw=raw, dtype=dtype)
