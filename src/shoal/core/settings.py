"""Computation that does not depend on what the caller has set in PyTorch.

Autocast, TF32, a default device and inference mode are the caller's choices for networks. Kernels
and the Gaussian calculus state their own errors, seed their own generators, and differentiate on
the way: under such settings they would lose digits, mix devices, or find derivatives of zero.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")

_AUTOCAST = ("cpu", "cuda")
_FULL = ("none", "ieee")  # names of a float32 that is one


@contextmanager
def standard_settings() -> Iterator[None]:
    """A context without autocast, TF32, default devices and inference mode.

    Gradients are recorded or not as outside, and not in inference mode; the default dtype stays, as
    it is one for all threads, and what is computed here names its dtypes.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.no_grad())  # which leaving inference mode would end too
        for kind in _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(_MATRIX_PRODUCTS.full())
        yield


def in_standard_settings(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Run a function in :func:`standard_settings`; tensors of inference mode come as copies.

    (Autograd refuses to keep such tensors, and derivatives may be taken on the way.)
    """

    @wraps(function)
    def wrapped(*arguments: _P.args, **options: _P.kwargs) -> _R:
        with standard_settings():
            return function(
                *(_ordinary(a) for a in arguments),
                **{name: _ordinary(value) for name, value in options.items()},
            )

    return wrapped


def _ordinary(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


class _MatrixProducts:
    """The precision of float32 matrix products, one setting for all threads of the process.

    The first thread to need full precision saves the caller's setting, the last restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._saved: tuple[str | None, list[str]] = (None, [])

    @contextmanager
    def full(self) -> Iterator[None]:
        """A context in which float32 products have the precision of float32."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._saved = _set_full()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    _restore(*self._saved)


def _back_ends() -> tuple[Any, Any]:
    every: Any = torch.backends  # some of which have no types
    return every.cuda.matmul, every.mkldnn.matmul


def _set_full() -> tuple[str | None, list[str]]:
    """Set full precision; return what was set, as one word and for each back end."""
    before = [end.fp32_precision for end in _back_ends()]
    if all(name in _FULL for name in before):
        return None, []
    try:
        word = torch.get_float32_matmul_precision()
    except RuntimeError:  # back ends were set one by one, for which there is no word
        word = None
    if word is not None:
        torch.set_float32_matmul_precision("highest")
    for end in _back_ends():
        if end.fp32_precision not in _FULL:
            end.fp32_precision = "ieee"
    return word, before


def _restore(word: str | None, names: list[str]) -> None:
    if word is not None:
        torch.set_float32_matmul_precision(word)
    for end, name in zip(_back_ends(), names, strict=False):
        end.fp32_precision = "none"  # as inherited, where that is what it was
        if end.fp32_precision != name:
            end.fp32_precision = name


_MATRIX_PRODUCTS = _MatrixProducts()
