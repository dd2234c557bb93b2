"""Computation that does not depend on the caller's settings in PyTorch.

Autocast, TF32, a default device and inference mode are the caller's choices for networks. Kernels
and the Gaussian calculus state their errors, seed their generators and differentiate: under such
settings they would lose digits, mix devices, or find derivatives of zero.
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
        self._saved: list[tuple[Any, str]] = []  # back ends, and their settings

    @contextmanager
    def full(self) -> Iterator[None]:
        """A context in which float32 products have the precision of float32."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                backends: Any = torch.backends  # some have no types
                ends = backends.cuda.matmul, backends.mkldnn.matmul
                all_ends = [(end, end.fp32_precision) for end in ends]
                self._saved = [(e, name) for e, name in all_ends if name not in ("none", "ieee")]
                for end, _ in self._saved:
                    end.fp32_precision = "ieee"
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                for end, name in () if self._users else self._saved:
                    end.fp32_precision = "none"  # inherited again, if it was
                    if end.fp32_precision != name:
                        end.fp32_precision = name


_MATRIX_PRODUCTS = _MatrixProducts()
