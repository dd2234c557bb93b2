"""Trained models in files, and samples for them."""

import sys
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
from shoal.app.inputs import load_inputs

_NESTED = ("state_dict", "model_state_dict", "model")  # where checkpoints keep the weights


def model_in(file: Path, factory: str | None) -> Module:
    """The model in a file, or of a factory with the weights in it.

    Args:
        file: The file.
        factory: ``PATH.py:FACTORY``, what makes the model; that file is run.
    """
    if not file.is_file():
        raise ValueError(f"the model must be a file, got {str(file)!r}")
    if factory is not None:
        net, weights = _made(factory), weights_in(file)
        try:
            net.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{file} must hold the weights of {factory}: {error}") from None
        return net
    try:
        return shoal.load(file, device="cpu", on_failure="status")
    except ValueError as error:
        raise ValueError(
            f"the model must be a network of shoal.save ({error}); for the weights of another "
            "model give PATH.py:FACTORY"
        ) from None


def _made(factory: str) -> Module:
    """The model that a function of a file returns; the file is run."""
    path, _, name = factory.rpartition(":")
    place = Path(path)
    spec = spec_from_file_location(place.stem, place) if path and place.is_file() else None
    if spec is None or spec.loader is None:
        raise ValueError(
            f"what makes the model must be PATH.py:FACTORY of a file that is there, got {factory!r}"
        )
    module = module_from_spec(spec)
    sys.modules[place.stem] = module  # so that its classes are found
    sys.path.insert(0, str(place.resolve().parent))
    try:
        spec.loader.exec_module(module)
        net = getattr(module, name)()
    except (Exception, SystemExit) as error:  # code of the user's, which can fail in any way
        raise ValueError(f"{factory} does not run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not isinstance(net, Module):
        raise TypeError(f"{factory} must make a torch.nn.Module, got a {type(net).__name__}")
    return net


def weights_in(file: Path) -> Mapping[str, Tensor]:
    """A state dictionary, of which no code is run."""
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        found: Any = torch.load(file, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # the same
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(
            f"{file} must hold a state dictionary, as of torch.save(model.state_dict(), ...): {why}"
        ) from None
    if isinstance(found, Mapping):
        nested = [found[key] for key in _NESTED if isinstance(found.get(key), Mapping)]
        found = nested[0] if nested else found
        if found and all(isinstance(value, Tensor) for value in found.values()):
            return dict(found)
    raise ValueError(f"{file} must hold a state dictionary, got a {type(found).__name__}")


def samples_for(
    net: Module, data: str, n: int, label: str | None = None
) -> tuple[Tensor, Tensor | None]:
    """Samples in the dtype of a model, and labels; those of an .npy file may be of any shape.

    Args:
        net: The model.
        data: A name or a file.
        n: How many, at most.
        label: Where the labels are; an .npy file beside one.
    """
    dtype = next((p.dtype for p in net.parameters()), torch.get_default_dtype())
    if not data.endswith(".npy"):
        loaded = load_inputs(data, dtype=dtype, most=n, prepared=False, label=label)
        return loaded.x, loaded.y
    x, y = _rows(data, n, dtype), None if label is None else _rows(label, n, dtype)
    if y is not None and len(y) != len(x):
        raise ValueError(f"{label} must have one entry per sample, {len(x)}, got {len(y)}")
    return x, y


def _rows(path: str, n: int, dtype: torch.dtype) -> Tensor:
    """The first rows of an .npy file; numbers that are not whole in a dtype."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"DATA must be an intact .npy file, got {path!r}: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf" or not array.size:
        raise ValueError(f"DATA must be an .npy file of numbers, got {path!r}")
    rows = torch.from_numpy(np.array(array[:n]))
    if not rows.isfinite().all():
        raise ValueError(f"DATA must have finite numbers, got NaN or infinity in {path!r}")
    return rows.to(dtype) if rows.is_floating_point() else rows
