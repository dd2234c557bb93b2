"""Architectures as JSON and back, without running anything that a file says."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from shoal import activations, architectures
from shoal.activations import Activation
from shoal.architectures import Architecture
from shoal.core.fields import plain

__all__ = ["decode", "encode"]

_ARCHITECTURES: dict[str, type] = {
    name: getattr(architectures, name)
    for name in (
        "DEQ",
        "ConvDEQ",
        "ConvNet",
        "ConvResNet",
        "FullyConnected",
        "ImplicitNetwork",
        "ResNet",
    )
}
_KNOWN: dict[str, type] = _ARCHITECTURES | {
    name: value
    for name in activations.__all__
    if isinstance(value := getattr(activations, name), type)
    and issubclass(value, Activation)
    and value is not Activation
}


def encode(architecture: Architecture) -> str:
    """The JSON of an architecture: names of classes, and their fields."""
    return json.dumps(plain(architecture, "an architecture that is saved"))


def decode(text: str, own: Iterable[type[Activation] | type[Architecture]]) -> Architecture:
    """The architecture of a JSON; classes that are not shoal's must be given."""
    architecture = _from_plain(json.loads(text), {kind.__name__: kind for kind in own})
    if not isinstance(architecture, Architecture):
        raise ValueError("it does not describe an architecture")  # noqa: TRY004
    return architecture


def _from_plain(value: Any, given: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(entry, given) for entry in value)
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    name = fields.pop("class", None)
    kind = _class(name, given)
    return kind(**{key: _from_plain(entry, given) for key, entry in fields.items()})


def _class(name: object, given: Mapping[str, type]) -> type:
    """The class of a name: one that is given, whatever its module was, or one of shoal's."""
    last = str(name).rpartition(".")[2]
    if last in given:
        return given[last]
    if not isinstance(name, str) or name not in _KNOWN:
        raise ValueError(
            f"it uses {name!r}, which shoal does not know; a class of one's own is given by "
            "load(..., activations=[...]) or load(..., architectures=[...])"
        )
    return _KNOWN[name]
