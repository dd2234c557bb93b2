"""Export networks as programs that need no shoal."""

import keyword
import os
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn import Module

from shoal.core.checks import as_path
from shoal.core.files import write_text, write_whole
from shoal.networks.chain import ChainNetwork
from shoal.networks.network import Network
from shoal.networks.programs.source import WRITTEN, module_source

_IMPORTED = ("numpy", "safetensors", "torch")  # by the module, which would find itself instead
_ONNX_NEEDS = ("onnx", "onnxscript")
_MOST_IN_ONNX = 3 * 2**29  # PyTorch puts more into a second file


def export(net: Network[Any], path: str | os.PathLike[str]) -> None:
    """Export an explicit network, trained or not, as a program that needs no shoal.

    What comes of it is decided by the ending of ``path``:

    - ``.py``: a short Python module with an ordinary ``torch.nn.Module``, and beside it
      ``*_weights.safetensors`` with the weights and, for designs on the sphere, the table of the
      activation. ``load()`` of the module gives the network. It can be trained further; what was
      frozen is frozen.
    - ``.onnx``: an ONNX program with the weights inside, at most 1.5 GiB of them, for any number of
      samples. The extra ``onnx`` must be installed. Images may have any size where the network
      takes any. PyTorch's exporter rounds constant factors to float32, those of float64 networks
      too, whose results are then accurate to about 1e-7.

    Args:
        net: A network of a ``FullyConnected`` architecture, such as a design's, of a
            ``ResNet``, of a ``ConvNet`` or ``ConvResNet``, or of one's own explicit architecture,
            with shoal's own activations or others that give their ``source``. Equilibria are not
            exported: a design or a distilled network is.
        path: Where to; for ``.py`` its name must be one that Python can import.

    Raises:
        TypeError: If the network is of another kind, or an activation does not give its source.
        ValueError: If the path has another ending, no name for a module, or no folder, or a program
            or weights are there that are of no export.
        ImportError: If a package that the format needs is not installed.

    Example:
        >>> import pathlib, tempfile, shoal
        >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
        >>> d = shoal.design(deq, input_norm=1.0, which="ck")
        >>> net = shoal.build(d.architecture, in_features=3, width=16)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shoal.export(net, pathlib.Path(folder) / "small.py")
        ...     print(*sorted(path.name for path in pathlib.Path(folder).iterdir()))
        small.py small_weights.safetensors
    """
    target = export_target("path", path)
    if not isinstance(net, Network):
        kind = type(net).__name__
        raise TypeError(f"net must be a network made by shoal.build, got {kind}")
    if not isinstance(net, ChainNetwork):
        raise TypeError(
            "net must be an explicit one, such as one of a ConvNet or a FullyConnected "
            f"architecture, got one of {type(net.architecture).__name__}: shoal.design and "
            "shoal.distill make explicit ones"
        )
    if target.suffix == ".py":
        _export_python(net, target)
    else:
        _export_onnx(net, target)


def export_target(name: str, path: str | os.PathLike[str]) -> Path:
    """Return the path of an export, or say why nothing can be exported there."""
    target = as_path(name, path)
    if target.suffix not in (".py", ".onnx"):
        raise ValueError(f"{name} must end in .py or .onnx, got {str(target)!r}")
    if not target.absolute().parent.is_dir():
        raise ValueError(f"{name} must be in a folder that exists, got {str(target)!r}")
    if target.is_dir():
        raise ValueError(f"{name} must be a file, got the folder {str(target)!r}")
    if target.suffix == ".onnx":
        missing = [package for package in _ONNX_NEEDS if find_spec(package) is None]
        if missing:
            raise ImportError(
                f"export to ONNX needs {' and '.join(missing)}, not installed here: "
                "pip install 'shoal[onnx]'"
            )
        return target
    if not target.stem.isidentifier() or keyword.iskeyword(target.stem):
        raise ValueError(f"{name} must have the name of a Python module, got {target.name!r}")
    if target.stem in sys.stdlib_module_names or target.stem in _IMPORTED:
        raise ValueError(f"{name} must have a name of its own, got that of {target.stem!r}")
    exported = target.is_file() and WRITTEN in target.read_text(encoding="utf-8", errors="replace")
    for file in exported_files(target):
        if os.path.lexists(file) and not exported:
            raise ValueError(f"{name} must not replace a file that is no export, got {str(file)!r}")
    return target


def exported_files(target: Path) -> tuple[Path, ...]:
    """What an export writes: a program and its weights, or both in one file.

    The weights do not have the name that a network saved as a whole would have.
    """
    weights = target.with_name(f"{target.stem}_weights.safetensors")
    return (target, weights) if target.suffix == ".py" else (target,)


def _export_python(net: ChainNetwork[Any], target: Path) -> None:
    _, weights = exported_files(target)
    source, state = module_source(net, module=target.stem, weights=weights.name)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    write_whole(weights, lambda file: save_file(tensors, file))
    write_text(target, source)


def _export_onnx(net: ChainNetwork[Any], target: Path) -> None:
    model = plain_module(net, by_bits=False).eval()
    size = sum(tensor.nbytes for tensor in model.state_dict().values())
    if size > _MOST_IN_ONNX:
        raise ValueError(f"an ONNX file holds weights of at most 1.5 GiB, got {size:,} bytes")
    spec, free = net.spec, {0: torch.export.Dim("samples")}
    sides = spec.pixels or tuple(
        3 * spec.architecture.patch_size for _ in range(spec.pixel_axes)
    )  # vectors have none
    if not spec.pixels:
        free |= {2 + k: torch.export.Dim(f"pixels{k}") for k in range(spec.pixel_axes)}
    x = net.readout.new_ones(2, spec.in_features, *sides)
    program = torch.onnx.export(
        model,
        (x,),
        input_names=["x"],
        output_names=["y"],
        dynamic_shapes=(free,),
        dynamo=True,
        verbose=False,
        custom_translation_table={torch.ops.aten.log_sigmoid.default: _log_sigmoid()},
    )
    assert program is not None  # that is what dynamo=True says
    write_whole(target, program.save)


def _log_sigmoid() -> Callable[[Any], Any]:
    r"""$\min(x, 0) - \log(1 + e^{-|x|})$, where the exporter takes a logarithm of nearly zero."""
    op = import_module("onnxscript").opset18

    def log_sigmoid(x: Any) -> Any:
        one = op.CastLike(op.Constant(value_float=1.0), x)
        rest = op.Log(op.Add(one, op.Exp(op.Neg(op.Abs(x)))))
        return op.Neg(op.Add(op.Relu(op.Neg(x)), rest))

    return log_sigmoid


def plain_module(net: ChainNetwork[Any], *, by_bits: bool = True) -> Module:
    """The network as the module that its source defines, with copies of its weights."""
    source, state = module_source(
        net, module="exported", weights="exported.safetensors", by_bits=by_bits
    )
    namespace: dict[str, Any] = {"__name__": "exported", "__file__": "exported.py"}
    exec(compile(source, "exported.py", "exec"), namespace)
    model: Module = namespace["Model"]()
    model.load_state_dict(state)
    return model.to(net.readout.device).train(net.training)
