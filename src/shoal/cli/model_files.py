"""Models in files, of which no code is run unless that is asked for, and samples for them."""

import sys
import warnings
from collections.abc import Mapping
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Module

import shoal
from shoal.core.checks import integer
from shoal.data import load_data
from shoal.data.loading import check_file

_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights


def model_in(
    file: Path, factory: str | None, *, trust: bool, argument: str = "FILE", option: str = "--model"
) -> Module:
    """The model in a file, or of a factory with the weights in it.

    Args:
        file: The file.
        factory: ``PATH.py:FACTORY``, what makes the model; that file is run.
        trust: Whether the file is a whole module, pickled, whose code may be run.
        argument: What the file is called in messages.
        option: What the factory is called in them.
    """
    if not file.is_file():
        raise ValueError(f"{argument} must be a file, got {str(file)!r}")
    if factory is not None:
        if trust:
            raise ValueError(f"--trust must be left out with {option}: weights need none")
        net, weights = _made(factory, option), weights_in(argument, file)
        try:
            net.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{argument} must hold the weights of {factory}: {error}") from None
        return net
    return _whole(file, argument, option) if trust else _saved(file, argument, option)


def _whole(file: Path, argument: str, option: str) -> Module:
    """The module that was pickled into a file, with all its code."""
    try:
        found = torch.load(file, map_location="cpu", weights_only=False)
    except Exception as error:  # a file that is none of torch's can fail in any way
        raise ValueError(
            f"{argument} must hold a whole module with --trust, whose classes can be imported, got "
            f"{str(file)!r}: {error}; where a class is not found, save model.state_dict() and give "
            f"{option} PATH.py:FACTORY"
        ) from None
    if not isinstance(found, Module):
        kind = type(found).__name__
        raise TypeError(f"{argument} must hold a whole module with --trust, got a {kind}")
    return found


def _saved(file: Path, argument: str, option: str) -> Module:
    """The network of ``shoal.save`` in a file."""
    try:
        return shoal.load(file, device="cpu", on_failure="status")
    except ValueError as error:
        raise ValueError(
            f"{argument} must be a network of shoal.save ({error}); for the weights of another "
            f"model give {option} PATH.py:FACTORY, for a whole pickled module --trust"
        ) from None


def _made(factory: str, option: str) -> Module:
    """The model that a function of a file returns; the file is run."""
    path, _, name = factory.rpartition(":")
    place = Path(path)
    if not path or not place.is_file():
        raise ValueError(
            f"{option} must be PATH.py:FACTORY of a file that is there, got {factory!r}"
        )
    spec = spec_from_file_location(place.stem, place)
    if spec is None or spec.loader is None:
        raise ValueError(f"{option} must name a Python file, got {path!r}")
    module = module_from_spec(spec)
    sys.modules[place.stem] = module  # so that its classes are found
    sys.path.insert(0, str(place.resolve().parent))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # beside the file
    try:
        spec.loader.exec_module(module)
        make = getattr(module, name, None)
        net = make() if callable(make) else None
    except (Exception, SystemExit) as error:  # code of the user's, which can fail in any way
        raise ValueError(
            f"{option} must run, and {factory} does not: {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.pop(0)
        sys.dont_write_bytecode = writes
    if not callable(make):
        raise TypeError(f"{option} must name a function or class of {path}, got {name!r}")
    if not isinstance(net, Module):
        raise TypeError(f"{option} must make a torch.nn.Module, got a {type(net).__name__}")
    return net


def weights_in(option: str, file: Path) -> Mapping[str, Tensor]:
    """A state dictionary, of which no code is run."""
    if not file.is_file():
        raise ValueError(f"{option} must be a file, got {str(file)!r}")
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # the same
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{option} must hold a state dictionary, as of torch.save(model.state_dict(), ...), "
            f"got {str(file)!r}: {why}"
        ) from None
    if isinstance(found, Mapping):
        nested = [found[key] for key in _NESTED if isinstance(found.get(key), Mapping)]
        found = nested[0] if nested else found
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return dict(found)
    raise ValueError(f"{option} must hold a state dictionary, got a {type(found).__name__}")


def samples_for(
    net: Module, data: str, n: int, label: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Samples in the dtype of a model, and labels; those of an .npy file may be of any shape.

    Args:
        net: The model.
        data: A name or a file, as for ``load_data``.
        n: How many, at most.
        label: Where the labels are; an .npy file beside one.
    """
    integer("-n", n, at_least=1)
    dtype = next((p.dtype for p in net.parameters()), torch.get_default_dtype())
    if not data.endswith(".npy"):
        loaded = load_data(
            data, dtype=dtype, device=torch.device("cpu"), most=n, prepared=False, label=label
        )
        return _fitting(net, loaded.x, data), loaded.y
    x, y = _rows("data", data, n), None if label is None else _rows("label", label, n)
    if x.ndim < 2:
        raise ValueError(f"data must have samples and features, got shape {tuple(x.shape)}")
    if y is not None and len(y) != len(x):
        raise ValueError(f"label must have one entry per sample, {len(x)}, got {len(y)}")
    x, *labels = (t.to(dtype) if t.is_floating_point() else t for t in (x, y) if t is not None)
    return _fitting(net, x, data), labels[0] if labels else None


def _fitting(net: Module, x: Tensor, data: str) -> Tensor:
    """Samples, of which a model takes the first; what it says to others is PyTorch's own."""
    training = net.training
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", shoal.ConvergenceWarning)
            net.eval()(x[:1])
    except shoal.ConvergenceError:
        pass  # it takes them: whether it settles is asked later
    except (RuntimeError, ValueError, IndexError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        shape = tuple(x.shape[1:])
        raise ValueError(
            f"data must have samples that the model takes, got {data!r} of shape {shape}: {why}"
        ) from None
    finally:
        net.train(training)
    return x


def _rows(argument: str, path: str, n: int) -> Tensor:
    """The first rows of an .npy file."""
    if not path.endswith(".npy"):
        raise ValueError(f"{argument} must be an .npy file beside an .npy file, got {path!r}")
    check_file(argument, Path(path))
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{argument} must be an intact .npy file, got {path!r}: {error}") from None
    if array.dtype.kind not in "biuf" or not array.size or not array.ndim:
        raise ValueError(
            f"{argument} must have numbers, got {path!r} of {array.dtype}, shape {array.shape}"
        )
    rows = torch.from_numpy(np.array(array[:n]))
    if not rows.isfinite().all():
        raise ValueError(f"{argument} must have finite numbers, got NaN or infinity in {path!r}")
    return rows
