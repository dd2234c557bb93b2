"""Save networks and load them, through safetensors: numbers and text, nothing that runs."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal import activations as known_activations
from shoal.activations import Activation
from shoal.architectures import Architecture
from shoal.core.checks import FLOATS, as_path, device_of, items, shown
from shoal.core.fields import plain
from shoal.core.files import checksum, write_whole
from shoal.core.settings import standard_settings
from shoal.equilibrium import Gradient, Solver
from shoal.networks.build import assemble, check_solving, check_spec, shapes
from shoal.networks.network import NETWORK_CLASSES, Network, NetworkSpec

_FORMAT = "shoal network 1"
_SIZES = ("in_features", "width", "out_features", "weights", "readout_scale", "pixel_axes")
_LATER_SIZES = ("pixels",)  # that files from before do not have
_KNOWN: dict[str, type] = {kind.__name__: kind for kind in NETWORK_CLASSES} | {
    name: value
    for name in known_activations.__all__
    if isinstance(value := getattr(known_activations, name), type)
    and issubclass(value, Activation)
    and value is not Activation
}


def save(net: Network[Any], path: str | os.PathLike[str]) -> None:
    """Save a network: its weights, its architecture and what is trained, in one file.

    The file is a safetensors file with a description in its metadata and a checksum of both. It
    appears under its name only when it is complete. Weights come back as they were, bit by bit,
    NaN included, and so does their ``requires_grad``. How a network solves is not saved: say it
    when loading.

    Args:
        net: A network made by ``build`` or ``load``.
        path: Where to.

    Raises:
        TypeError: If ``net`` is none, or its architecture or an activation is of one's own and
            not a dataclass.

    Example:
        >>> import pathlib, tempfile, torch, shoal
        >>> net = shoal.build(shoal.ImplicitNetwork(gamma=0.4), in_features=3, width=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder) / "net.safetensors"
        ...     shoal.save(net, path)
        ...     same = shoal.load(path)
        >>> bool((same(torch.ones(1, 3)) == net(torch.ones(1, 3))).all())
        True
    """
    if not isinstance(net, Network):
        kind = type(net).__name__
        raise TypeError(f"net must be a network made by shoal.build, got {kind}")
    target = as_path("path", path)
    spec = net.spec
    tensors = {
        name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()
    }
    trained = sorted(name for name, p in net.groups.items() if p.requires_grad)
    metadata = {
        "format": _FORMAT,
        "architecture": json.dumps(plain(spec.architecture, "an architecture that is saved")),
        "network": json.dumps({name: getattr(spec, name) for name in (*_SIZES, *_LATER_SIZES)}),
        "trainable": json.dumps(sorted(spec.trainable)),
        "requires_grad": json.dumps(trained),
    }
    metadata["sha256"] = checksum(metadata, tensors)
    write_whole(target, lambda file: save_file(tensors, file, metadata=metadata))


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str | None = None,
    activations: Iterable[type[Activation]] = (),
    architectures: Iterable[type[Architecture]] = (),
    solver: Solver | None = None,
    gradient: Gradient | None = None,
    on_failure: str = "warn",
    warm_start: bool = False,
) -> Network[Any]:
    """Load a network that was saved by :func:`save`.

    Args:
        path: Where from.
        device: Where to put it.
        activations: Classes of one's own that the architecture uses. A file only names them:
            nothing that it says is imported or run.
        architectures: The class of the architecture, if it is one's own.
        solver: As for :func:`~shoal.networks.build`, like the following.
        gradient: How equilibria are differentiated.
        on_failure: What happens if a solve does not converge.
        warm_start: Whether solves in training begin where the last ones ended.

    Raises:
        ValueError: If the file is damaged, or is not a saved network; nothing is loaded then.
        FileNotFoundError: If there is no such file.
    """
    solving = check_solving(solver, gradient, on_failure, warm_start)
    file = as_path("path", path)
    own = [
        *_classes("activations", activations, Activation),
        *_classes("architectures", architectures, Architecture),
    ]
    place = torch.get_default_device() if device is None else device_of("device", device)
    with standard_settings():  # as in build
        metadata, tensors = _read(file)
        spec, trained = _spec(path, metadata, own)
        _check_tensors(path, metadata, tensors, spec)
        weights = {name: tensors[name].to(place) for name in shapes(spec)}
        net = assemble(spec, weights, solving)
    for name, parameter in net.groups.items():
        parameter.requires_grad_(name in trained)
    return net


def _classes(name: str, given: object, base: type) -> list[Any]:
    """Classes of one's own, or what is wrong with them."""
    classes = list(items(name, given))
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, base):
            raise TypeError(f"{name} must be classes of {name}, got {shown(one)}")
    return classes


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """All of the file, or an error that says what it is instead."""
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file, got {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(
                    f"{path} is a safetensors file, but no network of shoal "
                    f"(its format is {metadata.get('format')!r}, not {_FORMAT!r})"
                )
            # clones: the tensors of the file would change, or crash, if the file does
            names = file.keys()  # no iterator
            return metadata, {name: file.get_tensor(name).clone() for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def _spec(
    path: str | os.PathLike[str], metadata: Mapping[str, str], own: Iterable[Any]
) -> tuple[NetworkSpec[Any], list[str]]:
    """What a network is made of, and the names of the weights that require a gradient."""
    try:
        architecture = _decode(metadata["architecture"], own)
        sizes = json.loads(metadata["network"])
        sizes = {name: sizes[name] for name in _SIZES} | {
            name: sizes.get(name) or None for name in _LATER_SIZES
        }
        sizes["pixel_axes"] = sizes["pixel_axes"] or None
        names = json.loads(metadata["trainable"])
        trained = list(json.loads(metadata["requires_grad"]))
        return check_spec(architecture, trainable=names, **sizes), trained
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} has a description that cannot be read: {error}") from error


def _decode(text: str, own: Iterable[type[Activation] | type[Architecture]]) -> Architecture:
    """The architecture of a JSON, which names classes; those that are not shoal's must be given."""
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


def _check_tensors(
    path: str | os.PathLike[str],
    metadata: Mapping[str, str],
    tensors: Mapping[str, Tensor],
    spec: NetworkSpec[Any],
) -> None:
    """See that the numbers are those of the description, and undamaged."""
    wanted = len(spec.architecture.parameter_groups)
    if wanted > len(tensors):  # before a million layers are gone through
        raise ValueError(
            f"{path} holds {len(tensors)} tensors, its description says at least {wanted}"
        )
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        expected = shapes(spec)
    except (RuntimeError, TypeError, OverflowError) as error:  # larger than any tensor
        raise ValueError(f"{path} has a description of impossible sizes: {error}") from error
    if found != expected:
        raise ValueError(f"{path} holds tensors of shapes {found}, its description says {expected}")
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1:
        raise ValueError(f"{path} holds tensors of several dtypes")
    if not dtypes <= FLOATS:
        raise ValueError(f"{path} holds tensors of dtype {dtypes.pop()}, which no network has")
    if metadata.get("sha256") != checksum(metadata, tensors):
        raise ValueError(
            f"{path} is damaged: its weights and its description do not have the checksum they "
            "were given"
        )
