"""Computation that does not depend on the caller's settings in PyTorch.

Autocast, TF32, a default device and inference mode are the caller's choices for networks. Kernels
and the Gaussian calculus state their errors, seed their generators and differentiate: under such
settings they would lose digits, mix devices, or find derivatives of zero.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from threading import Lock
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")


@contextmanager
def standard_settings() -> Iterator[None]:
    """A context without autocast, TF32, default devices and inference mode.

    Gradients are recorded as outside, and not in inference mode. The default dtype stays, as it is
    one for all threads; shoal names its dtypes.
    """
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.no_grad())  # which leaving inference mode would end too
        for kind in ("cpu", "cuda"):
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
            values: list[Any] = [
                value.clone() if isinstance(value, Tensor) and value.is_inference() else value
                for value in (*arguments, *options.values())
            ]
            count = len(arguments)
            return function(*values[:count], **dict(zip(options, values[count:], strict=True)))

    return wrapped


class _MatrixProducts:
    """The precision of float32 matrix products, one setting for all threads of the process.

    The first thread to need full precision saves the caller's setting, the last restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._users = 0
        self._word: str | None = None  # one word for all back ends, where there is one
        self._names: list[tuple[Any, str]] = []  # back ends with less than float32

    @contextmanager
    def full(self) -> Iterator[None]:
        """A context in which float32 products have the precision of float32."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._set()
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._restore()

    def _set(self) -> None:
        backends: Any = torch.backends  # some have no types
        ends = [(end, end.fp32_precision) for end in (backends.cuda.matmul, backends.mkldnn.matmul)]
        self._names = [(end, name) for end, name in ends if name not in ("none", "ieee")]
        self._word = None
        if self._names:
            with suppress(RuntimeError):  # back ends were set one by one: there is no word
                self._word = torch.get_float32_matmul_precision()
                torch.set_float32_matmul_precision("highest")  # CUDA compares it with its back end
            for end, _ in self._names:
                end.fp32_precision = "ieee"

    def _restore(self) -> None:
        if self._word is not None:
            torch.set_float32_matmul_precision(self._word)
        for end, name in self._names:
            end.fp32_precision = "none"  # inherited again, if it was
            if end.fp32_precision != name:
                end.fp32_precision = name


_MATRIX_PRODUCTS = _MatrixProducts()
