"""The loop of a model: its cell, where it starts, and what the model makes of its state."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from shoal.adapters import torchdeq
from shoal.core.checks import flag, function
from shoal.core.torch_compat import pytree, without_fused_attention
from shoal.equilibrium import Equilibrium
from shoal.equilibrium.state import State, StateLayout
from shoal.networks.equilibrium import EquilibriumNetwork
from shoal.networks.modules import evaluating

Head = Callable[[State], Tensor]
_TAKE = ", or output= take one of what it returns"


@dataclass(frozen=True, eq=False)
class ModelLoop:
    """The loop of a model, as all measurements see it.

    Attributes:
        layer: The cell as a layer that returns its equilibrium.
        z0: Where it starts.
        inputs: What the cell is called with besides the state.
        head: What the model makes of a state; ``None`` if the state is the output.
        modules: Those whose parameters it depends on.
        whole: The model, if it is one of inputs and not a cell.
        network: The network of ``build`` that the loop is of, if it is one.
    """

    layer: Equilibrium
    z0: State
    inputs: tuple[Any, ...]
    head: Head | None = None
    modules: tuple[Module, ...] = ()
    whole: Module | None = None
    network: EquilibriumNetwork[Any] | None = None
    layout: StateLayout = field(init=False)

    def __post_init__(self) -> None:
        """The layout of the state."""
        layout = StateLayout.of(self.z0, batched=self.layer.batched)
        object.__setattr__(self, "layout", layout)

    def output(self, rows: Tensor) -> Tensor:
        """What the model makes of states in rows; one row for each sample."""
        state = self.layout.state(rows)
        if self.head is None:
            return rows
        value = self.head(state)
        if not isinstance(value, Tensor):
            who, instead = ("output", "") if self.whole is None else ("model", _TAKE)
            raise TypeError(f"{who} must return a tensor{instead}, got {type(value).__name__}")
        if self.layout.batched and (not value.dim() or len(value) != len(rows)):
            raise ValueError(
                f"output must return one entry per sample, {len(rows)}, got {tuple(value.shape)}"
            )
        return value.reshape(len(rows), -1)

    def as_one_sample(self) -> "ModelLoop":
        """This loop with all of its state as one sample."""
        layer = Equilibrium(self.layer.cell, on_failure="status", batched=False)
        return replace(self, layer=layer)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """A context with every module in evaluation mode, neither random nor learning.

        Fused attention is off, since products with the Jacobian are made by two derivatives.
        """
        held = torch.nn.ModuleList(self.modules)
        with evaluating(held), without_fused_attention():
            yield

    @property
    def parameters(self) -> list[Tensor]:
        """What requires a gradient: parameters, and inputs that do."""
        found: list[Tensor] = [p for m in self.modules for p in m.parameters() if p.requires_grad]
        leaves = [t for t in pytree.tree_leaves(self.inputs) if isinstance(t, Tensor)]
        found += [t for t in leaves if t.requires_grad and t.is_leaf]
        return list({id(tensor): tensor for tensor in found}.values())


def loop_of(
    model: Callable[..., Any],
    z0: State | None,
    inputs: tuple[Any, ...],
    *,
    output: Head | None = None,
    batched: bool = True,
) -> ModelLoop:
    """The loop of a cell, of a layer, or inside of a model.

    Args:
        model: A cell or an ``Equilibrium``, if there is a start; else a model that has one inside.
        z0: The start of a cell or a layer.
        inputs: What it is called with.
        output: What the state is for, where that is not known.
        batched: Whether the first dimension of a cell's state counts samples.
    """
    function("model", model)
    flag("batched", batched)
    if output is not None:
        function("output", output)
    if z0 is None:
        return _inside(model, inputs, output)
    if isinstance(model, EquilibriumNetwork) or _of_torchdeq(model):
        raise TypeError(f"z0 must be None for a {type(model).__name__}, which starts by itself")
    own = model if isinstance(model, Equilibrium) else None
    if own is None and _parts(model) and not _takes(model, (z0, *inputs)):
        raise ValueError(
            "z0 must be None for a model with an equilibrium inside, got a state; call "
            "shoal.diagnose(model, None, x)"
        )
    cell = model if own is None else own.cell
    layer = Equilibrium(cell, on_failure="status", batched=batched if own is None else own.batched)
    held = [*_modules_of(cell), *_modules_of(output)]
    modules = tuple({id(module): module for module in held}.values())
    return ModelLoop(layer, z0, inputs, output, modules)


def _modules_of(function: Any) -> list[Module]:
    """The modules that a function is, is a method of, or refers to."""
    candidates: list[Any] = []
    while isinstance(function, partial):
        candidates += [*function.args, *function.keywords.values()]
        function = function.func
    candidates += [function, getattr(function, "__self__", None)]
    names = getattr(getattr(function, "__code__", None), "co_names", ())
    candidates += [getattr(function, "__globals__", {}).get(name) for name in names]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # of a cell that is still empty
            candidates += [cell.cell_contents, getattr(cell.cell_contents, "__self__", None)]
    return [one for one in candidates if isinstance(one, Module)]


def _inside(model: Callable[..., Any], inputs: tuple[Any, ...], output: Head | None) -> ModelLoop:
    """The loop inside of a model, found by calling it."""
    host = _host(model)
    assert isinstance(model, Module)
    with evaluating(model), torch.enable_grad():
        arguments, named = _captured(model, host, inputs)
        cell, start, given, back, batched = _call(host, arguments, named)

    def head(state: State) -> Tensor:
        with _instead(host, _Returns(back(state))):
            value = model(*inputs)
        return value if output is None else output(value)

    layer = Equilibrium(cell, on_failure="status", batched=batched)
    networks = (one for one in model.modules() if isinstance(one, EquilibriumNetwork))
    network = next((one for one in networks if one.equilibrium is host), None)
    return ModelLoop(layer, start, given, head, (model,), model, network)


def _takes(model: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    """Whether a module is called with a state and so many inputs, as a cell is."""
    function = model.forward if isinstance(model, Module) else model
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    return len(arguments) > 1


def _parts(model: object) -> list[Module]:
    """The parts of a model that have equilibria."""
    modules = model.modules() if isinstance(model, Module) else ()
    return [one for one in modules if isinstance(one, Equilibrium) or _of_torchdeq(one)]


def _of_torchdeq(module: object) -> bool:
    """Whether it is a layer of torchdeq, itself or on shoal's adapter; torchdeq is not imported."""
    bases = ((base.__module__, base.__name__) for base in type(module).__mro__)
    return isinstance(module, torchdeq.DEQ) or ("torchdeq.core", "DEQBase") in bases


def _host(model: object) -> Module:
    """The part of a model whose equilibrium it uses."""
    hosts = _parts(model)
    if not hosts:
        raise ValueError(
            "model must have an equilibrium inside, a shoal.Equilibrium, a network of shoal.build "
            f"or a torchdeq layer, got a {type(model).__name__} without: put "
            "shoal.Equilibrium(cell)(z0, *inputs) where its forward has a loop, or diagnose the "
            "cell alone, shoal.diagnose(cell, z0, *inputs)"
        )
    if len(hosts) > 1:
        raise ValueError(
            f"model must have one equilibrium inside, got {len(hosts)}: diagnose each of them as "
            "shoal.diagnose(layer, z0, *inputs)"
        )
    return hosts[0]


@contextmanager
def solved_by(model: Module, solve: Callable[[ModelLoop], State]) -> Iterator[None]:
    """A context in which a function solves the loop of a model in place of its own solver."""
    host = _host(model)

    def call(*arguments: Any, **named: Any) -> Any:
        cell, start, given, back, batched = _call(host, arguments, named)
        layer = Equilibrium(cell, batched=batched)
        return back(solve(ModelLoop(layer, start, given)))

    with _instead(host, call):
        yield


class _ReachedError(Exception):
    """Thrown out of a model when it has come to its equilibrium."""


def _captured(
    model: Module, host: Module, inputs: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a model calls its layer with; the layer is not run."""
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def note(*arguments: Any, **named: Any) -> Any:
        calls.append((arguments, named))
        raise _ReachedError

    with _instead(host, note):
        try:
            model(*inputs)
        except _ReachedError:
            return calls[0]
    raise ValueError("model must use its equilibrium when it is called, got one that does not")


def _call(
    host: Module, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Callable[..., State], State, tuple[Any, ...], Callable[[State], Any], bool]:
    """The cell, the start, the inputs, what the layer returns for a state, and if in samples."""
    if _of_torchdeq(host):
        call = {**dict(zip(("func", "z_init"), arguments, strict=False)), **named}
        cell, state = call["func"], pytree.tree_map(Tensor.detach, call["z_init"])
        if isinstance(state, list | tuple):
            return lambda z: list(cell(*z)), list(state), (), _as_torchdeq, True
        return cell, state, (), _as_torchdeq, True
    assert isinstance(host, Equilibrium)
    given = list(arguments) or [named["z0"]]
    start, others = given.pop(0), {name: value for name, value in named.items() if name != "z0"}
    own = host.cell
    cell = own if not others else lambda z, *rest: own(z, *rest, **others)
    return cell, pytree.tree_map(Tensor.detach, start), tuple(given), lambda z: z, host.batched


def _as_torchdeq(state: State) -> tuple[list[State], torchdeq.SolverInfo]:
    """What a layer of torchdeq returns for a state."""
    return [state], torchdeq.SolverInfo()


class _Returns:
    """A layer that returns the same state, once."""

    def __init__(self, value: Any) -> None:
        self.value, self.calls = value, 0

    def __call__(self, *_arguments: Any, **_named: Any) -> Any:
        self.calls += 1
        if self.calls > 1:
            raise ValueError(
                "model must call its equilibrium once, got one that calls it again: diagnose the "
                "layer itself as shoal.diagnose(layer, z0, *inputs)"
            )
        return self.value


@contextmanager
def _instead(host: Module, other: Callable[..., Any]) -> Iterator[None]:
    """A context in which a layer does something else when it is called."""
    before = {"forward": host.__dict__["forward"]} if "forward" in host.__dict__ else {}
    host.__dict__["forward"] = other
    try:
        yield
    finally:
        del host.__dict__["forward"]
        host.__dict__.update(before)
