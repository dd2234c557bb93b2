"""The private parts of PyTorch that shoal uses, and contexts that its transforms need.

No other file uses a name of PyTorch that begins with an underscore.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

TESTED = "2.10", "2.15"  # the oldest and the newest version of torch in docs/install.md

try:
    from torch._C._functorch import (
        TransformType,
        _unwrap_for_grad,
        _wrap_for_grad,
        get_unwrapped,
        is_batchedtensor,
        is_functorch_wrapped_tensor,
        is_gradtrackingtensor,
        is_legacy_batchedtensor,
        maybe_get_bdim,
        maybe_get_level,
        peek_interpreter_stack,
    )
    from torch._compile import _disable_dynamo
    from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
    from torch.autograd import _get_sequence_nr  # type: ignore[attr-defined]
    from torch.autograd.forward_ad import _set_fwd_grad_enabled
    from torch.autograd.graph import _engine_run_backward
    from torch.nn.utils.stateless import _reparametrize_module
    from torch.utils import _pytree
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
except ImportError as error:
    raise ImportError(
        f"torch {torch.__version__} lacks a part that shoal uses: {error}. shoal was tested with "
        f"torch {TESTED[0]} to {TESTED[1]}: install one of these, or a newer shoal"
    ) from error

# public names for private parts that are used unchanged
pytree = _pytree
is_wrapped = is_functorch_wrapped_tensor  # by a transform of torch.func
is_batched_by_autograd = is_legacy_batchedtensor  # by is_grads_batched=True
next_operation = _get_sequence_nr  # the number of the next operation in autograd's graph
lent_tensors = _reparametrize_module  # a context in which a module has other tensors
version: Callable[[Tensor], int] = attrgetter("_version")  # the number of changes in place
submodules: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")

_P = ParamSpec("_P")
_R = TypeVar("_R")


def apply(operation: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a differentiable operation.

    Outside of ``torch.func`` this skips the check of the signature of ``forward``, which takes
    longer than a small matrix product.
    """
    if is_transformed(*arguments):
        return operation.apply(*arguments)
    return super(torch.autograd.Function, operation).apply(*arguments)  # type: ignore[misc]


def is_transformed(*arguments: Any) -> bool:
    """Whether a transform of ``torch.func`` is active, or wraps one of the arguments."""
    if peek_interpreter_stack() is not None:
        return True
    return any([isinstance(a, Tensor) and is_wrapped(a) for a in arguments])  # noqa: C419 (short)


def _wrappers(value: Tensor) -> Iterator[Tensor]:
    """A tensor and the tensors inside of it, from the outermost transform to the innermost."""
    while is_wrapped(value):
        yield value
        value = get_unwrapped(value)


def _bare(value: Tensor) -> Tensor:
    """The tensor below all transforms."""
    while is_wrapped(value):
        value = get_unwrapped(value)
    return value


def is_mapped(value: Any) -> bool:
    """Whether ``torch.func.vmap`` maps over a tensor, within any other transforms."""
    return isinstance(value, Tensor) and any(map(is_batchedtensor, _wrappers(value)))


def largest(values: Tensor) -> float:
    """The largest entry as a number, NaN if there is one, below all transforms."""
    return float(_bare(values).max())


def extremes(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest entry as numbers, NaN if there is one, below all transforms."""
    least, most = torch.stack(torch.aminmax(_bare(values))).tolist()  # a GPU is waited for once
    return least, most


def physical(values: Tensor, columns: int = 0) -> Tensor:
    """The numbers of a tensor below all transforms: dimensions that are mapped over become rows.

    Args:
        values: The tensor.
        columns: Number of its dimensions besides rows.
    """
    mapped = [maybe_get_bdim(v) for v in _wrappers(values) if is_batchedtensor(v)]
    values = _bare(values)
    dims = [*range(values.dim())]
    first = [dims.pop(dim) for dim in reversed(mapped)]  # each counts without those inside
    rows = values.detach().permute(first + dims).flatten(0, values.dim() - 1 - columns)
    return _bare(rows)  # an active transform wraps new tensors


def below_unmapped(*tensors: Tensor) -> AbstractContextManager[Any]:
    """A context outside of the innermost ``vmap``, if that maps over none of some tensors.

    A map that draws random numbers is evaluated there: ``vmap`` may allow none.
    """
    innermost = peek_interpreter_stack()
    if innermost is None:
        return nullcontext()
    interpreter, level = retrieve_current_functorch_interpreter(), innermost.level()
    mapped = any(is_batchedtensor(t) and maybe_get_level(t) == level for t in tensors)
    is_vmap = interpreter.key() == TransformType.Vmap
    return interpreter.lower() if is_vmap and not mapped else nullcontext()


def is_followed(value: Tensor) -> bool:
    """Whether derivatives by it are taken outside of the active transform, or later."""
    innermost = peek_interpreter_stack()
    level = 0 if innermost is None else innermost.level()
    outer = (is_gradtrackingtensor(v) and maybe_get_level(v) < level for v in _wrappers(value))
    return any(outer) or _bare(value).requires_grad


def below_transform(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call a function outside of the innermost forward mode of ``torch.func``.

    Inside of it, tangents of custom operations are computed with forward mode turned off for outer
    transforms, too, which would silently treat them as constants.

    Args:
        function: The function.
        arguments: Trees of tensors that this transform does not follow.
    """
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    below = pytree.tree_map_only(Tensor, lambda t: _unwrap_for_grad(t, level), arguments)
    with _set_fwd_grad_enabled(True), interpreter.lower():
        value = function(*below)
    return _wrap_for_grad(value, level)


def without_forward_mode() -> AbstractContextManager[Any]:
    """A context in which forward mode follows nothing."""
    return cast("AbstractContextManager[Any]", _set_fwd_grad_enabled(False))


def in_forward_mode() -> bool:
    """Whether forward mode may follow something, outside of ``torch.func``."""
    return forward_ad._current_level >= 0


def vjp(
    function: Callable[[Tensor], Tensor], point: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The value of a function, and the product with its transposed Jacobian.

    Both are differentiable in everything that the function depends on. Outside of ``torch.func``
    plain autograd computes them, which supports every operation.
    """
    if is_transformed(point):
        outcome = torch.func.vjp(function, point)
        return outcome[0], lambda cotangent: cast("Tensor", outcome[1](cotangent)[0])
    with torch.enable_grad():
        start = point.view_as(point) if point.requires_grad else point.detach().requires_grad_()
        value = function(start)

    def pull(cotangent: Tensor) -> Tensor:
        if not value.requires_grad:
            return torch.zeros_like(start)
        # torch.autograd.grad without its checks, which take as long as a small product
        again = torch.is_grad_enabled()
        (product,) = _engine_run_backward(
            (value,), (cotangent,), True, again, (start,), True, accumulate_grad=False
        )
        return torch.zeros_like(start, requires_grad=again) if product is None else product

    return value, pull


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers of a module, or the tensors that replace them at the moment.

    A layer with two names appears under one, as a tensor that is lent twice would not be returned.
    """
    tensors: dict[str, Tensor] = {}
    visited: set[int] = set()
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for group in (owner._parameters, owner._buffers):  # which copies of a module share
            if id(group) not in visited:
                visited.add(id(group))
                named = {f"{prefix}.{name}".lstrip("."): tensor for name, tensor in group.items()}
                tensors |= {name: tensor for name, tensor in named.items() if tensor is not None}
    return tensors


def changed_copy(
    module: nn.Module, children: dict[str, nn.Module | None], **attributes: object
) -> nn.Module:
    """A copy of a module with other submodules and attributes that shares everything else."""
    copy: nn.Module = object.__new__(type(module))
    copy.__dict__ = {**module.__dict__, **attributes, "_modules": children}
    return copy


def is_called_otherwise(module: nn.Module) -> bool:
    """Whether a call of a module is more than its ``forward``: it has hooks, or is compiled."""
    hooks = (
        *(module._forward_pre_hooks, module._forward_hooks),
        *(module._backward_pre_hooks, module._backward_hooks),
    )
    return any(hooks) or module._compiled_call_impl is not None


def outside_tensors(
    value: Tensor, point: Tensor | None, candidates: Iterable[Tensor], since: int
) -> tuple[Tensor, ...] | None:
    """The tensors that a value was computed from and that autograd follows, except for one point.

    Args:
        value: The value.
        point: A tensor to leave out.
        candidates: Tensors that may be among them.
        since: The number of the first operation that belongs to the computation.

    Returns:
        The tensors, or ``None`` if some are neither leaves nor candidates.
    """
    by_edge = {(t.grad_fn, t.output_nr): t for t in candidates if t.grad_fn is not None}
    sources: dict[int, Tensor] = {}
    visited, pending = set(), [(value.grad_fn, 0)]
    while pending:
        edge = pending.pop()
        node = edge[0]
        if node is None or edge in visited:
            continue
        visited.add(edge)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaf: Tensor = node.variable  # type: ignore[attr-defined]
            if leaf is not point:
                sources[id(leaf)] = leaf
        elif edge in by_edge:
            sources[id(by_edge[edge])] = by_edge[edge]
        elif node._sequence_nr() < since:
            return None
        else:
            pending += node.next_functions
    return tuple(sources.values())


def depends(value: Tensor, point: Tensor) -> bool:
    """Whether autograd follows a value to anything but a leaf."""
    sources = outside_tensors(value, point, (), 0)
    return sources is None or bool(sources)


def is_known(value: Tensor, tensors: Iterable[Tensor], since: int) -> bool:
    """Whether transforms that take gradients follow a value to some tensors alone.

    Args:
        value: The value.
        tensors: The tensors.
        since: The number of the first operation that belongs to the computation.
    """
    candidates = [*tensors]
    while is_wrapped(value):
        level = maybe_get_level(value)
        if value.grad_fn is not None:
            sources = outside_tensors(value, None, candidates, since)
            if sources is None or not {*map(id, sources)} <= {*map(id, candidates)}:
                return False
        value = get_unwrapped(value)
        candidates = [get_unwrapped(t) if maybe_get_level(t) == level else t for t in candidates]
    return True


def kept_buffers() -> AbstractContextManager[Any]:
    """A context in which compiled parts of a map keep the tensors of their backward pass.

    That pass runs many times; compiled for one pass, it overwrites its inputs ("donated buffers").
    """
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is None or not compiler.FRAME_COUNTER:  # nothing has been compiled
        return nullcontext()
    config = importlib.import_module("torch._functorch.config")
    context: AbstractContextManager[Any] = config.patch(donated_buffer=False)
    return context


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a loop of unknown length out of ``torch.compile``; the code around it is compiled.

    Unlike ``torch.compiler.disable``, it imports the compiler with the first call only: that is 40%
    of the time that importing shoal takes.
    """
    return cast("Callable[_P, _R]", _disable_dynamo(function))


@contextmanager
def without_fused_attention() -> Iterator[None]:
    """A context in which attention is computed by products, with derivatives of every order.

    PyTorch's fused attention has no second derivatives and no forward mode, nor has the fast path
    of its multi-head attention.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


_has_autocast = functools.cache(torch.amp.is_autocast_available)  # for a kind of device


def is_autocast(kind: str) -> bool:
    """Whether autocast is on, for a kind of device."""
    return _has_autocast(kind) and torch.is_autocast_enabled(kind)


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the tensor's device."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if is_autocast(kind) else nullcontext()


def in_full_precision(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn autocast off in a function, on the device of its first tensor."""

    @functools.wraps(function)
    def wrapped(*arguments: _P.args, **options: _P.kwargs) -> _R:
        first = next((a for a in arguments if isinstance(a, Tensor)), None)
        with nullcontext() if first is None else full_precision(first):
            return function(*arguments, **options)

    return wrapped
