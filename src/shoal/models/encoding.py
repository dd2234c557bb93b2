"""Architectures as JSON and back, without running anything that a file says."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

from shoal import activations, architectures
from shoal.activations import Activation
from shoal.architectures import Architecture

__all__ = ["decode", "encode"]

_ARCHITECTURES: dict[str, type] = {
    name: getattr(architectures, name)
    for name in ("DEQ", "ConvResNet", "FullyConnected", "ImplicitNetwork", "ResNet")
}
_ACTIVATIONS: dict[str, type] = {
    name: value
    for name in activations.__all__
    if isinstance(value := getattr(activations, name), type)
    and issubclass(value, Activation)
    and value is not Activation
}


def encode(architecture: Architecture) -> str:
    """The JSON of an architecture: names of classes, and their fields."""
    return json.dumps(_to_plain(architecture))


def _to_plain(value: Any) -> Any:
    if isinstance(value, Architecture | Activation):
        fields = {
            field.name: _to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        if isinstance(value, Activation) and set(vars(value)) - set(fields):
            raise TypeError(
                f"{type(value).__name__} cannot be saved: it has attributes that are not fields "
                "of a dataclass"
            )
        return {"class": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [_to_plain(entry) for entry in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"architectures with a {type(value).__name__} in them cannot be saved")


def decode(text: str, custom: Iterable[type[Activation]]) -> Architecture:
    """The architecture of a JSON; activations that are not shoal's must be given."""
    known = {**_ARCHITECTURES, **_ACTIVATIONS, **{cls.__name__: cls for cls in custom}}
    architecture = _from_plain(json.loads(text), known)
    if not isinstance(architecture, Architecture):
        raise ValueError("it does not describe an architecture")  # noqa: TRY004
    return architecture


def _from_plain(value: Any, known: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(entry, known) for entry in value)
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    name = fields.pop("class", None)
    if name not in known:
        raise ValueError(
            f"it uses {name!r}, which shoal does not know; an activation of one's own is given by "
            "load(..., activations=[...])"
        )
    return known[name](**{key: _from_plain(entry, known) for key, entry in fields.items()})
