"""Save and load networks as safetensors files, without code; export them as ONNX programs."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from shoal import activations as known_activations
from shoal import architectures as known_architectures
from shoal.activations import Activation
from shoal.architectures import Architecture
from shoal.core.checks import as_device, as_path, items, shown
from shoal.core.files import checksum, plain, write_whole
from shoal.core.settings import standard_settings
from shoal.equilibrium import Gradient, Solver
from shoal.networks.build import assemble, check_spec, shapes
from shoal.networks.equilibrium import Solving
from shoal.networks.layered import ChainNetwork
from shoal.networks.modules import evaluating
from shoal.networks.network import Network, NetworkSpec

_FORMAT = "shoal network 1"
_SIZES = {f.name for f in dataclasses.fields(NetworkSpec)} - {"architecture", "trainable"}
_KNOWN: dict[str, type] = {
    name: value
    for module in (known_activations, known_architectures)
    for name, value in vars(module).items()
    if isinstance(value, type) and issubclass(value, Activation | Architecture)
}


def save(net: Network[Any], path: str | os.PathLike[str]) -> None:
    """Save a network: its weights, its architecture and its trained groups, in one file.

    The file is a safetensors file with a description in its metadata and a checksum of both. It
    appears under its name only when it is complete. Weights, including NaN, and their
    ``requires_grad`` are restored bit by bit. The solver and its options are not saved; choose them
    when loading.

    Args:
        net: A network made by ``build`` or ``load``.
        path: The file.

    Raises:
        TypeError: If ``net`` is not such a network, or its architecture or an activation is a
            custom one and not a dataclass.

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
    tensors = {name: t.detach().cpu().contiguous() for name, t in net.state_dict().items()}
    trained = sorted(name for name, p in net.groups.items() if p.requires_grad)
    metadata = {
        "format": _FORMAT,
        "architecture": json.dumps(plain(spec.architecture, "an architecture that is saved")),
        "network": json.dumps({name: getattr(spec, name) for name in sorted(_SIZES)}),
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
    solver: Solver | Sequence[Solver] | None = None,
    gradient: Gradient | None = None,
    on_failure: str = "warn",
    warm_start: bool = False,
) -> Network[Any]:
    """Load a network that was saved by :func:`save`.

    Args:
        path: The file.
        device: Device of the network.
        activations: Custom activation classes that the architecture uses. A file only names them:
            nothing in it is imported or run.
        architectures: The class of a custom architecture.
        solver: Solver, as for :func:`~shoal.networks.build`, like the next three.
        gradient: Gradient of equilibria.
        on_failure: ``"warn"``, ``"raise"`` or ``"status"``.
        warm_start: Whether solves in training begin where the last ones ended.

    Raises:
        ValueError: If the file is damaged, or is not a saved network.
        FileNotFoundError: If there is no such file.
    """
    solving = Solving(
        solver=solver, gradient=gradient, on_failure=on_failure, warm_start=warm_start
    )
    file = as_path("path", path)
    custom = _classes("activations", activations, Activation)
    custom |= _classes("architectures", architectures, Architecture)
    place = torch.get_default_device() if device is None else as_device("device", device)
    with standard_settings():  # as in build
        metadata, tensors = _read(file)
        try:
            spec = _spec(metadata, custom)
            trained = list(json.loads(metadata["requires_grad"]))
            expected = shapes(spec)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} has a description that cannot be read: {error}") from error
        if (stored := {name: tuple(t.shape) for name, t in tensors.items()}) != expected:
            raise ValueError(f"{path} holds tensors of shapes {stored}, not {expected}")
        weights = {name: tensor.to(place) for name, tensor in tensors.items()}
        net = assemble(spec, weights, solving)
    for name, parameter in net.groups.items():
        parameter.requires_grad_(name in trained)
    return net


def _classes(name: str, value: object, base: type) -> dict[str, Any]:
    """Custom classes by their names."""
    classes = items(name, value)
    for one in classes:
        if not isinstance(one, type) or not issubclass(one, base):
            raise TypeError(f"{name} must be classes of {name}, got {shown(one)}")
    return {one.__name__: one for one in classes}


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The metadata and the tensors of the file."""
    if not path.is_file():
        raise FileNotFoundError(f"path must be a file, got {str(path)!r}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != _FORMAT:
                raise ValueError(
                    f"{path} is a safetensors file, but was not written by shoal.save "
                    f"(its format is {metadata.get('format')!r}, not {_FORMAT!r})"
                )
            # clones: the tensors of the file would change, or crash, if the file does
            names = file.keys()  # no iterator
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error
    if metadata.get("sha256") != checksum(metadata, tensors):
        raise ValueError(f"{path} is damaged: its checksum does not match")
    return metadata, tensors


def _spec(metadata: Mapping[str, str], custom: Mapping[str, type]) -> NetworkSpec[Any]:
    """The description of a network."""
    architecture = _from_plain(json.loads(metadata["architecture"]), custom)
    if not isinstance(architecture, Architecture):
        raise ValueError("it does not describe an architecture")  # noqa: TRY004
    stored = json.loads(metadata["network"])
    sizes = {name: stored[name] for name in _SIZES if name != "pixels"}
    sizes["pixel_axes"] = sizes["pixel_axes"] or None
    sizes["pixels"] = stored.get("pixels") or None  # absent from older files
    return check_spec(architecture, trainable=json.loads(metadata["trainable"]), **sizes)


def _from_plain(value: Any, custom: Mapping[str, type]) -> Any:
    """A value from JSON, which names classes; custom ones by their last name."""
    if isinstance(value, list):
        return tuple(_from_plain(entry, custom) for entry in value)
    if not isinstance(value, dict):
        return value
    fields = dict(value)
    name = fields.pop("class", None)
    kind = custom.get(str(name).rpartition(".")[2]) or _KNOWN.get(str(name))
    if kind is None:
        raise ValueError(
            f"it uses the unknown class {name!r}; pass a custom class as load(..., "
            "activations=[...]) or load(..., architectures=[...])"
        )
    return kind(**{key: _from_plain(entry, custom) for key, entry in fields.items()})


def export(net: Network[Any], path: str | os.PathLike[str]) -> None:
    """Export an explicit network, trained or not, as an ONNX program with the weights inside.

    The program takes any number of samples, and images of any size where the network does. The
    extra ``onnx`` must be installed. PyTorch's exporter rounds constant factors to float32, those
    of float64 networks too, whose results are then accurate to about 1e-7.

    In PyTorch, save a network with :func:`save`, or take its ``state_dict``.

    Args:
        net: A network of a ``FullyConnected`` architecture, such as a design's, of a ``ResNet``, of
            a ``ConvNet`` or ``ConvResNet``, or of a custom explicit architecture. Equilibria are
            not exported: a design or a distilled network is.
        path: The file, which ends in ``.onnx``; at most 1.5 GiB.

    Raises:
        TypeError: If the network is of another kind.
        ValueError: If the path has another ending or no folder, or the network is too large.
        ImportError: If a package is not installed.

    Example:
        >>> import shoal
        >>> net = shoal.build(shoal.FullyConnected(["tanh"]), in_features=3, width=16)
        >>> shoal.export(net, "small.onnx")  # doctest: +SKIP
    """
    target = as_path("path", path)
    if target.suffix != ".onnx":
        raise ValueError(f"path must end in .onnx, got {str(target)!r}")
    if not target.absolute().parent.is_dir() or target.is_dir():
        raise ValueError(f"path must be a file in a folder that exists, got {str(target)!r}")
    if not isinstance(net, Network):
        kind = type(net).__name__
        raise TypeError(f"net must be a network made by shoal.build, got {kind}")
    if not isinstance(net, ChainNetwork):
        raise TypeError(
            "net must be an explicit network, such as one of a ConvNet or a FullyConnected "
            f"architecture, got one of {type(net.architecture).__name__}; shoal.design and "
            "shoal.distill return explicit networks"
        )
    missing = [package for package in ("onnx", "onnxscript") if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"export to ONNX needs {' and '.join(missing)}, not installed here: "
            "pip install 'shoal-deq[onnx]'"
        )
    size = sum(tensor.nbytes for tensor in net.state_dict().values())
    if size > 3 * 2**29:  # PyTorch puts more into a second file
        raise ValueError(f"an ONNX file holds weights of at most 1.5 GiB, got {size:,} bytes")
    spec, free = net.spec, {0: torch.export.Dim("samples")}
    sides = spec.pixels or (3 * getattr(spec.architecture, "patch_size", 1),) * spec.pixel_axes
    if not spec.pixels:
        free |= {2 + k: torch.export.Dim(f"pixels{k}") for k in range(spec.pixel_axes)}
    with evaluating(net):
        program = torch.onnx.export(
            net,
            (net.readout.new_ones(2, spec.in_features, *sides),),
            input_names=["x"],
            output_names=["y"],
            dynamic_shapes=(free,),
            dynamo=True,
            verbose=False,
            custom_translation_table={torch.ops.aten.log_sigmoid.default: _log_sigmoid()},
        )
    assert program is not None  # as dynamo=True returns one
    write_whole(target, program.save)


def _log_sigmoid() -> Callable[[Any], Any]:
    r"""$\min(x, 0) - \log(1 + e^{-|x|})$, where the exporter takes a logarithm of nearly zero."""
    op = import_module("onnxscript").opset18

    def log_sigmoid(x: Any) -> Any:
        one = op.CastLike(op.Constant(value_float=1.0), x)
        log = op.Log(op.Add(one, op.Exp(op.Neg(op.Abs(x)))))
        return op.Neg(op.Add(op.Relu(op.Neg(x)), log))

    return log_sigmoid
