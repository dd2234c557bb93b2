"""The data that an analysis looks at."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal import data
from shoal.data.numpy_sizes import check_size

__all__ = ["NAMES", "Data", "load_data"]

NAMES = ("digits", "mnist", "fashion-mnist", "cifar-10", "svhn")  # of ``shoal.data.load``


@dataclass(frozen=True)
class Data:
    """Inputs and where they come from.

    Attributes:
        name: What they are.
        x: The inputs, of shape (n, p), centered and scaled to a mean squared norm of one.
    """

    name: str
    x: Tensor


def load_data(
    source: str,
    *,
    dtype: torch.dtype,
    device: torch.device,
    n: int | None = None,
    most: int | None = None,
) -> Data:
    """Load inputs, center them, and scale them to a mean squared norm of one.

    Args:
        source: One of ``NAMES``, such as ``"digits"``, for :func:`shoal.data.load`, or a ``.npy``
            file of shape (n, p).
        dtype: Of the inputs.
        device: Where they go.
        n: How many of the first samples to take; all by default.
        most: How many to take at most where ``n`` does not say.

    Raises:
        FileNotFoundError: If the files of a dataset are not there.
        ImportError: If what reads the data is not installed.
        ValueError: If there is no such data, or it is not a matrix of finite numbers.
    """
    if source in NAMES:
        name, raw = source, _named(source)
    elif Path(source).suffix == ".npy":
        name, raw = Path(source).name, torch.as_tensor(_matrix(Path(source)))
    else:
        raise ValueError(
            f"DATA must be one of {', '.join(NAMES)}, or a .npy file of shape (n, p), "
            f"got {source!r}"
        )
    if n is not None and not 2 <= n <= len(raw):
        raise ValueError(f"-n must be between 2 and {len(raw)} for {name}, got {n}")
    x = raw[: most if n is None else n]
    largest = x.abs().max() if x.numel() else torch.zeros(())
    x = x / largest if largest > 0 else x  # so that no square overflows
    x = x - x.mean(dim=0)
    size = x.square().sum(dim=1).mean().sqrt()
    if size == 0:
        raise ValueError(f"{name} must have samples that differ")
    return Data(name, (x / size).to(dtype=dtype, device=device))


def _named(name: str) -> Tensor:
    """All digits, or the training samples of another dataset, as vectors."""
    split = "all" if name == "digits" else "train"
    return data.load(name, split=split, dtype=torch.float64).x.flatten(1)


def _matrix(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            check_size(file)
            raw = np.lib.format.read_array(file, allow_pickle=False)  # no archive either
    except FileNotFoundError:
        raise ValueError(f"DATA must be a file that exists, got {str(path)!r}") from None
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"DATA must be a .npy file of numbers, got {path.name}: {error}") from None
    if raw.ndim != 2 or len(raw) < 2 or not raw.shape[1] or raw.dtype.kind not in "fiu":
        raise ValueError(
            "DATA must be a matrix (n, p) of real numbers with at least two rows, "
            f"got {path.name} of shape {raw.shape} and dtype {raw.dtype}"
        )
    matrix = raw.astype(np.float64)
    outside = np.argwhere(~np.isfinite(matrix))
    if len(outside):
        place = tuple(outside[0].tolist())
        raise ValueError(f"DATA must be finite, got {raw[place]} at {place} of {path.name}")
    return matrix
