"""What decides the numbers of functions and modules that shoal did not make, as text.

The name of a function does not say it: that of every lambda is the same, and two closures of one
function differ in the values they use.
"""

import dis
import hashlib
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.activations import Activation
from shoal.activations.description import description
from shoal.core.fields import stated_fields
from shoal.core.files import checksum
from shoal.core.torch_internals import submodules

_SETTINGS = (bool, int, float, str)
_OTHERS = (complex, bytes, range, slice, Enum, type(None), type(...))
_OF_ARRAYS = (np.number, np.ufunc, torch.dtype, torch.device, torch.layout, torch.memory_format)
_PLAIN: tuple[type, ...] = _SETTINGS + _OTHERS + _OF_ARRAYS
_FUNCTIONS = (FunctionType, MethodType, BuiltinFunctionType, MethodDescriptorType, partial)
_NAMED = ("torch", "numpy", "shoal")  # packages whose functions are known by their names


class Describer:
    """Makes texts of functions: of their code and of the values that they use.

    Texts are the same in every process of one version of Python. Values are those of closures,
    defaults and global names; a global function of another package is named, and nothing else.
    So is the class of an object that is no plain value, tensor, module, function, dataclass or
    tree of these.

    Attributes:
        unknown: The names of those classes.

    Example:
        >>> def power(p):
        ...     return lambda x: x**p
        >>> square, cube = (Describer().text(power(p)) for p in (2, 3))
        >>> square == cube, square == Describer().text(power(2))
        (False, True)
    """

    def __init__(self) -> None:
        self.unknown: list[str] = []
        self._met: dict[int, tuple[int, object]] = {}  # held: ids are of the living

    def text(self, value: object) -> str:
        """What decides the numbers that a value leads to."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if isinstance(value, ModuleType):
            return value.__name__
        if isinstance(value, type):
            return _name(value)
        if isinstance(value, Tensor | np.ndarray | Activation):
            return description(value)
        if isinstance(value, tuple):
            return self._tree(value)
        if id(value) in self._met:
            return f"number {self._met[id(value)][0]}"
        self._met[id(value)] = len(self._met), value
        if isinstance(value, nn.Module):
            return self._module(value)
        return self._function(value) if isinstance(value, _FUNCTIONS) else self._object(value)

    def _module(self, module: nn.Module) -> str:
        """The classes and settings of a module and all in it, and its tensors."""
        parts = {
            name: f"{_name(type(one))} {self._settings(one)}"
            for name, one in module.named_modules()
        }
        state = module.state_dict().items()
        return checksum(parts, {n: t.detach().cpu() for n, t in state if isinstance(t, Tensor)})

    def _settings(self, module: nn.Module) -> str:
        """The attributes that are numbers, names or functions; others may change in any call."""
        compiled = "_orig_mod" in submodules(module)  # whose functions lead to that module
        return self._tree(
            {
                name: value
                for name, value in vars(module).items()
                if isinstance(value, _SETTINGS) or (not compiled and _is_function(name, value))
            }
        )

    def _tree(self, value: Mapping[Any, object] | list[Any] | tuple[Any, ...]) -> str:
        if isinstance(value, Mapping):
            entries = [f"{self.text(key)}: {self.text(entry)}" for key, entry in value.items()]
        else:
            entries = [self.text(entry) for entry in value]
        return f"{type(value).__name__}({', '.join(entries)})"

    def _object(self, value: Any) -> str:
        """What is neither plain nor a function."""
        name = _name(type(value))
        if isinstance(value, dict | list):
            return self._tree(value)
        if isinstance(value, set | frozenset) and all(isinstance(v, _PLAIN) for v in value):
            return f"{name}({', '.join(sorted(map(repr, value)))})"
        if is_dataclass(value):
            return f"{name} {self._tree(stated_fields(value))}"
        if isinstance(value, SimpleNamespace | Namespace) or (
            callable(value) and hasattr(value, "__dict__")
        ):
            return f"{name} {self._tree(vars(value))}"
        if name not in self.unknown:
            self.unknown.append(name)
        return name

    def _function(self, function: Any) -> str:
        if isinstance(function, partial):
            return self._tree(("partial", function.func, function.args, function.keywords))
        if isinstance(function, MethodType):
            return self._tree(("method", function.__func__, function.__self__))
        if (compiled := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
            return self._tree(("compiled", compiled))
        if not isinstance(function, FunctionType):
            return self._tree((_name(function), getattr(function, "__self__", None)))
        name, package = _name(function), _package(function)
        if package in _NAMED and "<" not in name:
            return name
        captured = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        used = {n: function.__globals__.get(n) for n in _global_names(function.__code__)}
        uses = {
            "defaults": (function.__defaults__, function.__kwdefaults__),
            "captured": {n: _contents(cell) for n, cell in captured},
            "globals": {n: _name(v) if _foreign(v, package) else v for n, v in used.items()},
        }
        return f"{name} {self._code(function.__code__)} {self._tree(uses)}"

    def _code(self, code: CodeType) -> str:
        """A checksum of what is done, whatever file and line it stands in."""
        constants = [
            self._code(one) if isinstance(one, CodeType) else self.text(one)
            for one in code.co_consts
        ]
        names = (code.co_names, code.co_varnames, code.co_freevars, constants)
        done = repr((code.co_code, code.co_exceptiontable, names))
        return hashlib.sha256(done.encode()).hexdigest()


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{value.__qualname__}"


def _package(function: Callable[..., object]) -> str:
    return str(function.__module__).partition(".")[0]


def _foreign(value: object, package: str) -> bool:
    """Whether a value is a function of another package, which its name stands for."""
    return isinstance(value, FunctionType) and _package(value) != package


def _global_names(code: CodeType) -> list[str]:
    """The global names that code looks up, and the code of functions made in it."""
    found = [i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"]
    for one in code.co_consts:
        found += _global_names(one) if isinstance(one, CodeType) else []
    return sorted(set(found))


def _contents(cell: Any) -> object:
    """What a cell of a closure holds; ``...`` if that is still to come."""
    try:
        return cell.cell_contents
    except ValueError:
        return ...


def _is_function(name: str, value: object) -> bool:
    """Whether an attribute is a function of the user's, not an object that is kept of a call."""
    kept = name.startswith("_") and not isinstance(value, (*_FUNCTIONS, nn.Module))
    return callable(value) and not kept
