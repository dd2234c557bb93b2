"""Pickles of plain values and byte arrays, read without running what is in them.

A pickle is a program: its instructions may call any function that can be imported. Here the
instructions are scanned first, and all but the few that plain values need are refused; and the
three NumPy names that an array needs are answered with stand-ins, which only take notes. No
function that a file names is ever looked up, and NumPy sees the notes only after they are checked.
"""

import io
import math
import pickle
import pickletools
import reprlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shoal.data.files import damaged

__all__ = ["read_plain_pickle"]

_VALUES = {
    *("NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
    *("EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"),
    *("EMPTY_LIST", "LIST", "APPEND", "APPENDS"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
}
_STRUCTURE = {"PROTO", "FRAME", "STOP", "MARK"}
_MEMORY = {"PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"}
_ARRAYS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
_ADMITTED = _VALUES | _STRUCTURE | _MEMORY | _ARRAYS
_DICTIONARIES = {"EMPTY_DICT", "DICT", "SETITEM", "SETITEMS"}
_LISTS = {"EMPTY_LIST", "LIST", "APPEND", "APPENDS"}
_TUPLES = {"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
_CONTAINERS = _DICTIONARIES | _LISTS | _TUPLES
# far more than an official file has
_MOST_INSTRUCTIONS, _MOST_TUPLES = 10**6, 1000


class _Notes:
    """Takes note of how an array or a dtype is described, and makes neither."""

    def __init__(self, *arguments: object) -> None:
        self.arguments = arguments
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Array(_Notes):
    """Notes on an array."""


class _StandIn:
    """Stands for a NumPy name; calling it gives notes, and nothing can be set on it."""

    __slots__ = ("_kind",)

    def __init__(self, kind: type[_Notes]) -> None:
        self._kind = kind

    def __call__(self, *arguments: object) -> _Notes:
        return self._kind(*arguments)

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("state for a function")


class _Unpickler(pickle.Unpickler):
    """Knows no name but those of an array."""

    def find_class(self, module: str, name: str, /) -> object:
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }:
            return _StandIn(_Array)
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return _StandIn(_Notes)
        raise pickle.UnpicklingError(f"the name {module}.{name}")


def read_plain_pickle(path: Path, content: bytes) -> dict[str, object]:
    """The dictionary in a pickle of plain values; byte arrays come as NumPy arrays.

    Args:
        path: The file, for messages.
        content: What it holds.

    Returns:
        Its entries by name. Text that Python 2 wrote comes as bytes.

    Raises:
        ValueError: If the pickle holds anything but dictionaries, lists, tuples, text, bytes,
            integers and arrays of bytes, or is damaged. Nothing in it has been run.
    """
    expected = "a pickled dictionary of plain values and byte arrays"
    try:
        _check_instructions(content)
        value: object = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can fail in any way
        raise damaged(path, expected, str(error) or type(error).__name__) from error
    if not isinstance(value, dict):
        raise damaged(path, expected, type(value).__name__)
    return {
        _text(path, key): _array(path, item) if isinstance(item, _Notes | _StandIn) else item
        for key, item in value.items()
    }


def _check_instructions(content: bytes) -> None:
    """Refuse any instruction that plain values do not need, and anything behind the last one."""
    end, tuples, memory = 0, 0, _Memory(len(content))
    for count, (instruction, argument, position) in enumerate(pickletools.genops(content)):
        name = instruction.name
        if name not in _ADMITTED:
            raise pickle.UnpicklingError(f"the instruction {name} at byte {position}")
        tuples += name in _TUPLES  # they are hashed as deep as they go
        if count > _MOST_INSTRUCTIONS or tuples > _MOST_TUPLES:
            raise pickle.UnpicklingError("more instructions than plain values need")
        memory.follow(name, argument)
        end = (position or 0) + 1
    if end != len(content):
        raise pickle.UnpicklingError(f"{len(content) - end} bytes behind its end")


class _Memory:
    """What a pickle keeps for use again: no containers, which would multiply in each other.

    A tuple of a tuple twice, 45 times, is 2⁴⁵ entries to whoever looks at them.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.places: dict[int, bool] = {}  # whether a container is there
        self.container = False  # whether the value on top is one

    def follow(self, name: str, argument: object) -> None:
        """See an instruction."""
        if name not in _MEMORY:
            self.container = name in _CONTAINERS
            return
        place = len(self.places) if argument is None else int(str(argument))
        # a place beyond the file's size would allocate at will
        if not 0 <= place <= self.most:
            raise pickle.UnpicklingError(f"the memory place {place}")
        if not name.endswith("GET"):
            self.places[place] = self.container
        elif self.places.get(place, False):
            raise pickle.UnpicklingError("a container in two places")
        else:
            self.container = False


def _text(path: Path, key: object) -> str:
    if isinstance(key, bytes):
        return key.decode("latin1")
    if isinstance(key, str):
        return key
    raise damaged(path, "names as keys", f"the key {reprlib.repr(key)}")


def _array(path: Path, notes: _Notes | _StandIn) -> NDArray[np.uint8]:
    """The array that was described: unsigned bytes in rows, as many as its shape says."""
    expected = "an array of unsigned bytes, row by row"
    state = notes.state if isinstance(notes, _Array) else None
    if not isinstance(state, tuple) or len(state) != 5:
        raise damaged(path, expected, "something else")
    _, shape, kind, fortran, content = state
    code = kind.arguments[0] if isinstance(kind, _Notes) and kind.arguments else None
    if code not in (b"u1", "u1"):
        raise damaged(path, expected, f"an array of type {reprlib.repr(code)}")
    if fortran not in (False, 0) or not isinstance(content, bytes):
        raise damaged(path, expected, "another order of its entries")
    sizes = shape if isinstance(shape, tuple) else ()
    if not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise damaged(path, expected, f"the shape {reprlib.repr(shape)}")
    if math.prod(sizes) != len(content):
        raise damaged(path, f"{math.prod(sizes)} bytes for shape {sizes}", str(len(content)))
    return np.frombuffer(content, dtype=np.uint8).reshape(sizes)
