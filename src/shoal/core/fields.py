"""Fields that values got after others had been published."""

import dataclasses
from typing import Any

__all__ = ["later", "stated_fields"]

_LATER = "later"


def later(default: Any, *, kw_only: bool = False) -> Any:
    """A field of a dataclass that came later.

    At its default it is no part of what identifies a value: texts, fingerprints and seeds of
    earlier values stay what they were.
    """
    return dataclasses.field(default=default, metadata={_LATER: True}, kw_only=kw_only)


def stated_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass and their values, without later ones at their defaults."""
    return {
        field.name: getattr(value, field.name)
        for field in dataclasses.fields(value)
        if _LATER not in field.metadata or getattr(value, field.name) != field.default
    }
