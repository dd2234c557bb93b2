"""Frozen dataclasses as plain values that JSON knows."""

import dataclasses
from typing import Any


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
        what: What an error calls it.

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
    """What a class is called: shoal's by its name alone, one's own also by its module."""
    own = kind.__module__.partition(".")[0] == "shoal"
    return kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"
