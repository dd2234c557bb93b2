"""Files that appear under their name only when they are complete; plain values for JSON."""

import dataclasses
import errno
import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from torch import Tensor


def write_whole(target: Path, write: Callable[[Path], object]) -> None:
    """Replace a file as a whole: an error or a kill leaves the old one.

    Args:
        target: The file.
        write: A function that writes a file at a path, beside the target.

    Raises:
        OSError: If it cannot be written; the error names the target.
    """
    if target.exists() and not target.is_file():  # a folder, or a device
        raise FileExistsError(errno.EEXIST, "it is not a regular file", str(target))
    part = target.with_name(f".{uuid4().hex}{target.suffix}")
    try:
        part.touch()
        mode = part.stat().st_mode  # which safetensors would narrow
        write(part)
        part.chmod(mode)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except SafetensorError as error:  # a full disk, for example
        raise OSError(errno.EIO, f"it was not written: {error}", str(target)) from error
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        with suppress(OSError):
            part.unlink()


def write_text(target: Path, text: str) -> None:
    """Replace a file by one with a text, as :func:`write_whole` does."""
    write_whole(target, lambda file: file.write_text(text, encoding="utf-8", newline="\n"))


def write_json(target: Path, value: Any) -> None:
    """Replace a file by one with a JSON document, as :func:`write_whole` does."""
    write_text(target, json_text(value))


def checksum(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """A checksum of the bits of tensors on the CPU and of their description."""
    digest = hashlib.sha256()
    texts = {name: text for name, text in metadata.items() if name != "sha256"}
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors.items()}
    digest.update(json.dumps([texts, dtypes], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode())
        flat = torch.empty(tensors[name].numel(), dtype=tensors[name].dtype)
        flat.copy_(tensors[name].detach().reshape(-1))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def stated_fields(value: Any) -> dict[str, Any]:
    """Fields of a dataclass and their values, without those of ``repr=False`` at their defaults."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if field.repr or getattr(value, field.name) != field.default
    }


def plain(value: Any, what: str = "a configuration") -> Any:
    """A value as JSON knows it: dataclasses by the names of their classes and fields.

    Args:
        value: Made of frozen dataclasses, tuples, lists, dictionaries and plain values.
        what: Its name in errors.

    Raises:
        TypeError: If something in it is neither a dataclass nor a plain value.

    Example:
        >>> import shoal
        >>> plain(shoal.DEQ(shoal.activations.LeakyReLU(0.1), 0.2, 0.8))["activation"]
        {'class': 'LeakyReLU', 'slope': 0.1}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if set(getattr(value, "__dict__", ())) - {f.name for f in dataclasses.fields(value)}:
            raise TypeError(
                f"{what} must not have attributes that are no fields of a dataclass, got {value!r}"
            )
        entries = {name: plain(entry, what) for name, entry in stated_fields(value).items()}
        return {"class": _name(type(value)), **entries}
    if isinstance(value, tuple | list):
        return [plain(entry, what) for entry in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: plain(entry, what) for key, entry in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"{what} must be made of frozen dataclasses, tuples, numbers and names, got {value!r}"
    )


def _name(kind: type) -> str:
    """The name of a class; a custom class also has its module."""
    is_ours = kind.__module__.partition(".")[0] == "shoal"
    return kind.__qualname__ if is_ours else f"{kind.__module__}.{kind.__qualname__}"


def finite(value: Any) -> Any:
    """Plain values without infinities and NaN, which JSON does not have; ``None`` instead.

    Example:
        >>> finite({"a": [1.5, float("inf")]})
        {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(document: Any) -> str:
    """A JSON document, with a newline at its end."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
