"""Export networks as ONNX programs that run without shoal."""

import os
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from shoal.core.checks import as_path
from shoal.core.files import write_whole
from shoal.networks.layered import ChainNetwork
from shoal.networks.modules import evaluating
from shoal.networks.network import Network


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
