"""Numeric arrays in MATLAB files of version 5, as SVHN has them.

SciPy reads such files too, but its compiled reader can crash on one that is damaged.
"""

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.data.files import expansion_limit

__all__ = ["MatlabArray", "read_matlab"]

_HEADER = 128  # bytes
_MATRIX, _COMPRESSED = 14, 15  # types of elements
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8"}
_NUMBERS |= {12: "i8", 13: "u8"}
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_NUMERIC = ("double", "single", *_INTEGERS)
_KINDS = ("", "cell", "struct", "object", "char", "sparse", *_NUMERIC)
_COMPLEX = 0x0800  # a flag


class MatlabArray(NamedTuple):
    """An array: MATLAB's name for its kind, its shape, and its values if they are real numbers.

    MATLAB keeps small integers in few bytes whatever their kind, hence the dtype of the values says
    nothing of it.
    """

    kind: str
    shape: tuple[int, ...]
    values: NDArray[Any] | None


class _Element(NamedTuple):
    kind: int
    data: memoryview


def read_matlab(content: bytes) -> dict[str, MatlabArray]:
    """The arrays of a file by their names.

    Raises:
        ValueError: If it is no intact MATLAB file of version 5; the message says what it is.
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None:
        raise ValueError("no MATLAB header")
    (version,) = struct.unpack_from(f"{order}H", content, 124)
    if version != 0x0100:
        raise ValueError("version 7.3 (HDF5)" if version == 0x0200 else f"version {version:#06x}")
    found: dict[str, MatlabArray] = {}
    left = expansion_limit(len(content))
    for element in _elements(memoryview(content)[_HEADER:], order):
        inner = element
        if element.kind == _COMPRESSED:
            inner = _decompressed(element.data, order, left)
            left -= len(inner.data)
        if inner.kind == _MATRIX:
            name, array = _array(inner.data, order)
            found[name] = array
    return found


def _elements(data: memoryview, order: str) -> Iterator[_Element]:
    """The elements one after the other, to the last byte."""
    position = 0
    while position < len(data):
        if position + 8 > len(data):
            raise ValueError("an end within an element")
        kind, size = struct.unpack_from(f"{order}2I", data, position)
        if kind >> 16:  # at most four bytes, kept in the place of the size
            kind, size, start, end = kind & 0xFFFF, kind >> 16, position + 4, position + 8
            if size > 4:
                raise ValueError(f"{size} bytes in an element for four")
        else:
            start = position + 8
            end = start + size + (0 if kind == _COMPRESSED else -size % 8)
        if end > len(data):
            raise ValueError(f"an element of {size} bytes, cut off after {len(data) - start}")
        yield _Element(kind, data[start : start + size])
        position = end


def _decompressed(data: memoryview, order: str, limit: int) -> _Element:
    unpacker = zlib.decompressobj()
    try:
        content = unpacker.decompress(data, limit + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(content) > limit:
        raise ValueError("compressed data that expand to too many bytes")
    if not unpacker.eof:
        raise ValueError("compressed data that are cut off")
    inner = list(_elements(memoryview(content), order))
    if len(inner) != 1:
        raise ValueError(f"{len(inner)} elements where one is compressed")
    return inner[0]


def _array(data: memoryview, order: str) -> tuple[str, MatlabArray]:
    """The array of a matrix element: its flags, shape, name and values are elements in turn."""
    parts = list(_elements(data, order))
    if len(parts) < 3 or len(parts[0].data) != 8:
        raise ValueError("an array without flags, shape and name")
    (flags,) = struct.unpack_from(f"{order}I", parts[0].data)
    number = flags & 0xFF
    if not 0 < number < len(_KINDS):
        raise ValueError(f"an array of unknown kind {number}")
    shape = tuple(int(size) for size in _numbers(parts[1], order))
    if len(shape) < 2 or min(shape) < 0:
        raise ValueError(f"an array of shape {shape}")
    kind, name = _KINDS[number], bytes(parts[2].data).decode("latin-1")
    if kind not in _NUMERIC or flags & _COMPLEX:
        return name, MatlabArray(f"complex {kind}" if flags & _COMPLEX else kind, shape, None)
    values = _numbers(parts[3], order) if len(parts) == 4 else np.empty(0)
    if len(values) != math.prod(shape):
        raise ValueError(f"{len(values)} values in an array of shape {shape}")
    return name, MatlabArray(kind, shape, values.reshape(shape, order="F"))


def _numbers(element: _Element, order: str) -> NDArray[Any]:
    code = _NUMBERS.get(element.kind)
    if code is None:
        raise ValueError(f"an element of type {element.kind} where numbers are expected")
    dtype = np.dtype(f"{order}{code}")
    if len(element.data) % dtype.itemsize:
        raise ValueError(f"{len(element.data)} bytes for numbers of {dtype.itemsize}")
    return np.frombuffer(element.data, dtype)
