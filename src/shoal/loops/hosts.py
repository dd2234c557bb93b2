"""Layers that solve for an equilibrium, as plain iterations while a model is traced."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import Module

from shoal.equilibrium import Equilibrium, Solution

_REPEATS = 3  # iterations that are traced in place of a solve
_TORCHDEQ = ("torchdeq.core", "DEQBase"), ("shoal.adapters.torchdeq", "DEQ")


def iterations_of(model: Module, inputs: tuple[Any, ...]) -> int | None:
    """How many iterations a model's own solver makes; ``None`` if the model has no such layer."""
    hosts = _hosts(model)
    if not hosts:
        return None
    if len(hosts) > 1:
        raise ValueError(f"model must have exactly one equilibrium layer, got {len(hosts)}")
    counts: list[int] = []
    (host,) = hosts
    with torch.no_grad():
        if _is_torchdeq(host):
            own = host.forward

            def noted(*arguments: Any, **named: Any) -> Any:
                found = own(*arguments, **named)
                counts.append(int(torch.as_tensor(found[1]["nstep"]).max()))
                return found

            with _instead(host, "forward", noted):
                model(*inputs)
            return max(counts)
        model(*inputs)
    solution = host.solution
    assert isinstance(solution, Solution)
    return max(int(solution.steps.max()), 1)


@contextmanager
def unrolled(model: Module) -> Iterator[None]:
    """A context in which layers that solve make a few plain iterations instead."""
    hosts = _hosts(model)
    if not hosts:
        yield
        return
    (host,) = hosts

    def call(*arguments: Any, **named: Any) -> Any:
        cell, state, finish = _call(host, arguments, named)
        for _ in range(_REPEATS):
            state = cell(state)
        return finish(state)

    with _instead(host, "forward", call):
        yield


def _call(
    host: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Callable[[Any], Any], Any, Callable[[Any], Any]]:
    """The cell of a call, its first state, and what the layer returns for a state."""
    if _is_torchdeq(host):
        call = {**dict(zip(("func", "z_init"), arguments, strict=False)), **named}
        function, start = call["func"], call["z_init"]
        if isinstance(start, list | tuple):
            return lambda z: list(function(*z)), list(start), lambda z: ([z], {})
        return function, start, lambda z: ([z], {})
    given = list(arguments) or [named.pop("z0")]
    start, inputs = given[0], given[1:]
    return lambda z: host.cell(z, *inputs, **named), start, lambda z: z


def _hosts(model: Module) -> list[Module]:
    """The layers of a model that solve for an equilibrium."""
    found = model.modules()
    return [one for one in found if isinstance(one, Equilibrium) or _is_torchdeq(one)]


def _is_torchdeq(module: object) -> bool:
    return any((base.__module__, base.__name__) in _TORCHDEQ for base in type(module).__mro__)


@contextmanager
def _instead(host: Module, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """A context in which a layer has another method."""
    before = {name: host.__dict__[name]} if name in host.__dict__ else {}
    host.__dict__[name] = other
    try:
        yield
    finally:
        del host.__dict__[name]
        host.__dict__.update(before)
