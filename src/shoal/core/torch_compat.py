"""The private parts of PyTorch that shoal uses, and public ones with the types that they lack.

No other file uses a name of PyTorch that begins with an underscore.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
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

# names without an underscore, for what is used as it is
pytree = _pytree
is_wrapped = is_functorch_wrapped_tensor  # by a transform of torch.func
is_batched_by_autograd = is_legacy_batchedtensor  # as by is_grads_batched=True
next_operation = _get_sequence_nr  # the number that it gets in the graph of autograd
version: Callable[[Tensor], int] = attrgetter("_version")  # how often it was changed in place
submodules: Callable[[nn.Module], dict[str, nn.Module | None]] = attrgetter("_modules")

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Module = TypeVar("_Module", bound=nn.Module)


def apply(operation: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply a differentiable operation.

    Outside of ``torch.func`` this leaves out a look at the signature of its ``forward``, which
    takes longer than some of its matrix products.
    """
    if is_transformed(*arguments):
        return operation.apply(*arguments)
    return super(torch.autograd.Function, operation).apply(*arguments)  # type: ignore[misc]


def is_transformed(*arguments: Any) -> bool:
    """Whether a transform of ``torch.func`` is at work, or has left its mark on a tensor."""
    if peek_interpreter_stack() is not None:
        return True
    return any([isinstance(a, Tensor) and is_wrapped(a) for a in arguments])  # noqa: C419 (short)


def is_mapped(value: Any) -> bool:
    """Whether ``torch.func.vmap`` maps over a tensor, in whatever transforms it is wrapped."""
    while isinstance(value, Tensor) and is_wrapped(value):
        if is_batchedtensor(value):
            return True
        value = get_unwrapped(value)
    return False


def _unwrapped(values: Tensor) -> Tensor:
    """A tensor below all transforms."""
    while is_wrapped(values):
        values = get_unwrapped(values)
    return values


def largest(values: Tensor) -> float:
    """The largest entry as a number, NaN if there is one, below all transforms."""
    return float(_unwrapped(values).max())


def largest_of(first: Tensor, second: Tensor) -> tuple[float, float]:
    """The largest entry of each of two tensors, as ``largest``; a GPU is waited for once."""
    if not first.is_cuda:
        return largest(first), largest(second)
    return _numbers(_unwrapped(first).max(), _unwrapped(second).max())


def extremes(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest entry as numbers, NaN if there is one, below all transforms."""
    return _numbers(*torch.aminmax(_unwrapped(values)))


def _numbers(first: Tensor, second: Tensor) -> tuple[float, float]:
    if not first.is_cuda:
        return float(first), float(second)
    least, most = torch.stack([first, second.to(first.dtype)]).tolist()
    return least, most


def physical(values: Tensor, columns: int = 0) -> Tensor:
    """The numbers of a tensor below all transforms: dimensions that are mapped over become rows.

    Args:
        values: The tensor.
        columns: How many dimensions it has besides rows.
    """
    mapped: list[int] = []
    while is_wrapped(values):
        if is_batchedtensor(values):
            mapped.append(maybe_get_bdim(values))
        values = get_unwrapped(values)
    dims = [*range(values.dim())]
    first = [dims.pop(dim) for dim in reversed(mapped)]  # each counts without those inside
    found = values.detach().permute(first + dims).flatten(0, values.dim() - 1 - columns)
    while is_wrapped(found):  # by a transform that is at work
        found = get_unwrapped(found)
    return found


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
    """Whether derivatives by it are taken around the transform that is at work, or later."""
    innermost = peek_interpreter_stack()
    level = 0 if innermost is None else innermost.level()
    while is_wrapped(value):
        if is_gradtrackingtensor(value) and maybe_get_level(value) < level:
            return True
        value = get_unwrapped(value)
    return value.requires_grad


def below_transform(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call a function where the innermost forward mode of ``torch.func`` does not reach.

    Inside of it, tangents of custom operations are computed with forward mode turned off for the
    transforms around it, too, which would then take them for constants, without a word.

    Args:
        function: What to call.
        arguments: Trees of tensors, of which none is followed by that transform.
    """
    interpreter = retrieve_current_functorch_interpreter()
    level = interpreter.level()
    below = pytree.tree_map_only(Tensor, lambda t: _unwrap_for_grad(t, level), arguments)
    with _set_fwd_grad_enabled(True), interpreter.lower():
        found = function(*below)
    return _wrap_for_grad(found, level)


def full_precision(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast on the tensor's device."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if is_autocast(kind) else nullcontext()


def in_full_precision(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Turn autocast off in a function, on the device of the first tensor that it is given."""

    @functools.wraps(function)
    def wrapped(*arguments: _P.args, **options: _P.kwargs) -> _R:
        first = next((a for a in arguments if isinstance(a, Tensor)), None)
        if first is None or not is_autocast(first.device.type):
            return function(*arguments, **options)
        with full_precision(first):
            return function(*arguments, **options)

    return wrapped


_has_autocast = functools.cache(torch.amp.is_autocast_available)  # for a kind of device


def is_autocast(kind: str) -> bool:
    """Whether autocast is on, for a kind of device."""
    return _has_autocast(kind) and torch.is_autocast_enabled(kind)


def vjp(
    function: Callable[[Tensor], Tensor], point: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """The value of a function, and the product with its transposed Jacobian.

    Both are differentiable in all that the function depends on. Outside of ``torch.func`` they are
    made by plain autograd, which every operation knows.
    """
    if is_transformed(point):
        found = torch.func.vjp(function, point)
        return found[0], lambda cotangent: cast("Tensor", found[1](cotangent)[0])
    with torch.enable_grad():
        start = point.view_as(point) if point.requires_grad else point.detach().requires_grad_()
        value = function(start)

    def pull(cotangent: Tensor) -> Tensor:
        if not value.requires_grad:
            return torch.zeros_like(start)
        # as torch.autograd.grad does after its checks, which take as long as a small product
        keep, again = True, torch.is_grad_enabled()
        (product,) = _engine_run_backward(
            (value,), (cotangent,), keep, again, (start,), True, accumulate_grad=False
        )
        if product is None:
            return torch.zeros_like(start, requires_grad=again)
        return product

    return value, pull


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, or what stands in for them at the moment.

    By one name for each place that holds one: a layer with two names has one, since what is lent to
    it twice would not be taken back.
    """
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for prefix, owner in module.named_modules(remove_duplicate=False):
        for held in (owner._parameters, owner._buffers):  # which copies of a module share
            if held and id(held) not in places:
                places.add(id(held))
                for name, tensor in held.items():
                    if tensor is not None:
                        found[f"{prefix}.{name}" if prefix else name] = tensor
    return found


def changed_copy(
    module: _Module,
    *,
    modules: Mapping[str, nn.Module | None] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
    **attributes: object,
) -> _Module:
    """A copy of a module that shares with it all that is not given, parametrized modules too.

    Args:
        module: The module.
        modules: All of its submodules, by name.
        tensors: One for each of its own parameters and buffers, by name.
        attributes: Any other attributes.
    """
    other = object.__new__(type(module))
    other.__dict__ = {**module.__dict__, **attributes}
    if modules is not None:
        other.__dict__["_modules"] = dict(modules)
    if tensors is not None:
        for held in ("_parameters", "_buffers"):
            other.__dict__[held] = {name: tensors.get(name) for name in module.__dict__[held]}
    return other


def is_called_otherwise(module: nn.Module) -> bool:
    """Whether a call of a module is more than its ``forward``: hooks of its own, or compiled."""
    several = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
    )
    return any(several) or module._compiled_call_impl is not None


def lent_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[Any]:
    """A context in which a module has other parameters and buffers."""
    return _reparametrize_module(module, dict(tensors))


def outside_tensors(
    value: Tensor, point: Tensor | None, known: Iterable[Tensor], since: int
) -> tuple[Tensor, ...] | None:
    """The tensors that a value was computed from and that autograd follows, but for one point.

    Args:
        value: The value.
        point: A tensor to leave out.
        known: Tensors that may be among them.
        since: The number of the first operation that belongs to the computation.

    Returns:
        Them, or ``None`` if there are some that are neither leaves nor known.
    """
    by_edge = {(t.grad_fn, t.output_nr): t for t in known if t.grad_fn is not None}
    found: dict[int, Tensor] = {}
    seen, left = set(), [(value.grad_fn, 0)]
    while left:
        edge = left.pop()
        node = edge[0]
        if node is None or edge in seen:
            continue
        seen.add(edge)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaf: Tensor = node.variable  # type: ignore[attr-defined]
            if leaf is not point:
                found[id(leaf)] = leaf
        elif edge in by_edge:
            found[id(by_edge[edge])] = by_edge[edge]
        elif node._sequence_nr() < since:
            return None
        else:
            left += node.next_functions
    return tuple(found.values())


def depends(value: Tensor, point: Tensor) -> bool:
    """Whether autograd follows a value to anything but a leaf."""
    found = outside_tensors(value, point, (), 0)
    return found is None or bool(found)


def is_known(value: Tensor, tensors: Iterable[Tensor], since: int) -> bool:
    """Whether transforms that take gradients follow a value to some tensors alone.

    Args:
        value: The value.
        tensors: The tensors.
        since: The number of the first operation that belongs to the computation.
    """
    several = [*tensors]
    while is_wrapped(value):
        level = maybe_get_level(value)
        if value.grad_fn is not None:
            found = outside_tensors(value, None, several, since)
            if found is None or not {*map(id, found)} <= {*map(id, several)}:
                return False
        value = get_unwrapped(value)
        several = [get_unwrapped(t) if maybe_get_level(t) == level else t for t in several]
    return True


def kept_buffers() -> AbstractContextManager[Any]:
    """A context in which compiled parts of a map keep what their backward pass is made of.

    It runs many times; a compiler that knows of one overwrites what that needs ("donated buffers").
    """
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    if compiler is None or not compiler.FRAME_COUNTER:  # nothing has been compiled
        return nullcontext()
    config = importlib.import_module("torch._functorch.config")
    context: AbstractContextManager[Any] = config.patch(donated_buffer=False)
    return context


def without_forward_mode() -> AbstractContextManager[Any]:
    """A context in which forward mode follows nothing."""
    return cast("AbstractContextManager[Any]", _set_fwd_grad_enabled(False))


@contextmanager
def without_fused_attention() -> Iterator[None]:
    """Where attention is made of products, which can be differentiated twice and in forward mode.

    PyTorch's fused attention cannot, nor the fast path of its multi-head attention.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def in_forward_mode() -> bool:
    """Whether forward mode may follow something, outside of ``torch.func``."""
    return forward_ad._current_level >= 0


def uncompiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Keep a loop of unknown length out of ``torch.compile``; what surrounds it is compiled.

    Like ``torch.compiler.disable``, which would import the compiler at once: 40% of the time that
    importing shoal takes. This imports it with the first call.
    """
    return cast("Callable[_P, _R]", _disable_dynamo(function))
