"""A model's forward pass as a list of operations, by exporting it."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import Module

from shoal.core.torch_compat import pytree
from shoal.equilibrium import Equilibrium

_IDENTITIES = {  # operations that return their first argument
    *("aten::detach", "aten::detach_", "aten::alias", "aten::lift_fresh_copy"),
    *("aten::lift_fresh", "aten::lift"),
}
HINT = "pass the loop as shoal.Loop(cell, z0, *inputs, head=..., steps=...)"
_TORCHDEQ = ("torchdeq.core", "DEQBase"), ("shoal.adapters.torchdeq", "DEQ")


@dataclass(frozen=True, eq=False)
class OperationTrace:
    """The operations of one forward pass, in their order."""

    nodes: tuple[fx.Node, ...]  # operations, without identities
    sources: dict[fx.Node, fx.Node]  # arguments of identities
    tensors: dict[str, str]  # parameters and buffers by the names of placeholders
    constants: dict[str, Tensor]  # constant tensors by the names of placeholders
    inputs: tuple[fx.Node, ...]  # placeholders of the model's inputs, flattened
    outputs: tuple[Any, ...]  # nodes and constants that the model returns, flattened
    structure: Any  # tree of the outputs
    dynamic: bool  # whether the operations are valid for any batch size

    def source(self, value: Any) -> Any:
        """The operation that computed a value; constants are returned unchanged."""
        while isinstance(value, fx.Node) and value in self.sources:
            value = self.sources[value]
        return value

    @property
    def placeholders(self) -> tuple[fx.Node, ...]:
        """The placeholders of parameters, buffers and constants."""
        nodes = self.nodes[0].graph.nodes if self.nodes else ()
        names = {*self.tensors, *self.constants}
        return tuple(n for n in nodes if n.op == "placeholder" and n.name in names)

    def tensor(self, node: fx.Node, model: Module) -> Tensor:
        """The parameter or buffer of a model, or the constant, that a placeholder stands for."""
        if node.name not in self.tensors:
            return self.constants[node.name]
        owner, _, name = self.tensors[node.name].rpartition(".")
        tensor: Tensor = getattr(model.get_submodule(owner), name)
        return tensor

    def arguments(self, node: fx.Node) -> tuple[list[Any], Any]:
        """The arguments of an operation, flattened, and their tree."""
        leaves, tree = pytree.tree_flatten(
            (node.args, node.kwargs), is_leaf=lambda a: isinstance(a, fx.Node)
        )
        return [self.source(leaf) for leaf in leaves], tree


def batch_of(inputs: tuple[Any, ...]) -> int:
    """The number of samples of a model's inputs: the first dimension of their first tensor."""
    for leaf in pytree.tree_leaves(inputs):
        if isinstance(leaf, Tensor) and leaf.dim():
            return leaf.shape[0]  # which stays symbolic while a program is exported
    raise ValueError("inputs must have a tensor with one entry per sample, got none")


def rows_of_inputs(inputs: tuple[Any, ...], rows: Tensor) -> tuple[Any, ...]:
    """Some samples of a model's inputs."""
    samples = batch_of(inputs)
    selection: tuple[Any, ...] = pytree.tree_map_only(
        Tensor, lambda t: t[rows.to(t.device)] if t.dim() and len(t) == samples else t, inputs
    )
    return selection


def first_samples(inputs: tuple[Any, ...], most: int) -> tuple[Any, ...]:
    """The first samples of a model's inputs, ``most`` or fewer."""
    return rows_of_inputs(inputs, torch.arange(min(most, batch_of(inputs))))


def trace(model: Module, inputs: tuple[Any, ...], *, dynamic: bool) -> OperationTrace:
    """Trace the forward pass of a model in evaluation mode, for one batch size or for all.

    Raises:
        ValueError: If the model cannot be traced.
    """
    samples = batch_of(inputs)
    inputs = pytree.tree_map_only(Tensor, Tensor.detach, inputs)  # the exporter marks its inputs
    size = torch.export.Dim.DYNAMIC if dynamic else None
    sizes = pytree.tree_map(
        lambda leaf: (
            {0: size} if isinstance(leaf, Tensor) and leaf.dim() and len(leaf) == samples else None
        ),
        inputs,
    )
    with torch.no_grad(), _quiet():
        try:
            program = torch.export.export(
                model, inputs, dynamic_shapes=sizes if dynamic else None, strict=False
            )
            if any(map(_mutates, program.graph.nodes)):
                program = program.run_decompositions({})
        except Exception as error:  # the model's own code and the exporter can fail in any way
            raise ValueError(_reason(model, error)) from error
    return _read(program, dynamic=dynamic)


def _read(program: Any, *, dynamic: bool) -> OperationTrace:
    tensors, constants, inputs = {}, {}, []
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    for node, spec in zip(placeholders, program.graph_signature.input_specs, strict=True):
        if spec.kind.name == "USER_INPUT":
            inputs.append(node)
        elif spec.kind.name in ("PARAMETER", "BUFFER"):
            tensors[node.name] = spec.target
        elif spec.kind.name == "CONSTANT_TENSOR":
            constants[node.name] = program.constants[spec.target]
    nodes: list[fx.Node] = []
    sizes: dict[fx.Node, None] = {}
    sources = {}
    for node in program.graph.nodes:
        if node.op != "call_function" or _is_check(node):
            continue
        from_sizes = all(n in sizes or n.op == "placeholder" for n in node.all_input_nodes)
        if _is_identity(node):
            sources[node] = node.args[0]
        elif from_sizes and not isinstance(node.meta.get("val"), Tensor | tuple | list):
            sizes[node] = None  # a number that follows from the size of the batch
        else:
            nodes.append(node)
    nodes = [*sizes, *nodes]
    (final,) = (node for node in program.graph.nodes if node.op == "output")
    pairs = zip(final.args[0], program.graph_signature.output_specs, strict=True)
    outputs = tuple(value for value, spec in pairs if spec.kind.name == "USER_OUTPUT")
    structure = program.call_spec.out_spec
    return OperationTrace(
        *(tuple(nodes), sources, tensors, constants, tuple(inputs), outputs, structure),
        dynamic,
    )


def schema_name(node: fx.Node) -> str:
    """The name of an operation without its overload, such as ``aten::add``."""
    return str(getattr(getattr(node.target, "_schema", None), "name", node.target))


def is_random(node: fx.Node) -> bool:
    """Whether an operation draws random numbers."""
    if schema_name(node) in ("aten::dropout", "aten::feature_dropout", "aten::alpha_dropout"):
        return bool(node.args[1]) and bool(node.args[2])
    seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
    return seeded and "attention" not in schema_name(node)


def _is_identity(node: fx.Node) -> bool:
    if schema_name(node) in ("aten::dropout", "aten::feature_dropout"):
        return not (node.args[1] and node.args[2])
    return schema_name(node) in _IDENTITIES


def _is_check(node: fx.Node) -> bool:
    name = schema_name(node)
    return "_assert" in name or "sym_constrain" in name or "set_grad_enabled" in name


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return bool(schema is not None and schema.is_mutable and not _is_identity(node))


def _reason(model: Module, error: Exception) -> str:
    name, text = type(model).__name__, str(error)
    if "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__:
        return (
            f"the control flow of {name} depends on its data, such as a loop that ends at a "
            f"tolerance; let it run a fixed count, or {HINT}"
        )
    first = next((line for line in text.splitlines() if line.strip()), "")[:200]
    return f"{name} cannot be traced ({type(error).__name__}: {first}); {HINT}"


@contextmanager
def _quiet() -> Iterator[None]:
    """A context in which the exporter logs nothing."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def iterations_of(model: Module, inputs: tuple[Any, ...]) -> int | None:
    """The number of iterations of a model's own solver; ``None`` without one."""
    host: Any = _host(model)
    if host is None:
        return None
    forward, counts = host.forward, [1]

    def count(*arguments: Any, **named: Any) -> Any:
        result = forward(*arguments, **named)
        steps = result[1]["nstep"] if _is_torchdeq(host) else host.solution.steps
        counts.append(int(torch.as_tensor(steps).max()))
        return result

    with torch.no_grad(), _replace_forward(host, count):
        model(*inputs)
    return max(counts)


@contextmanager
def unrolled(model: Module) -> Iterator[None]:
    """A context in which a layer that solves makes three plain iterations instead."""
    host: Any = _host(model)

    def iterate(*arguments: Any, **named: Any) -> Any:
        if not _is_torchdeq(host):
            state, *inputs = arguments or [named.pop("z0")]
            for _ in range(3):
                state = host.cell(state, *inputs, **named)
            return state
        named = {**dict(zip(("func", "z_init"), arguments, strict=False)), **named}
        function, state = named["func"], named["z_init"]
        several = isinstance(state, list | tuple)
        for _ in range(3):
            state = list(function(*state)) if several else function(state)
        return [state], {}

    with nullcontext() if host is None else _replace_forward(host, iterate):
        yield


def _host(model: Module) -> Module | None:
    """The layer of a model that solves for an equilibrium."""
    hosts = [m for m in model.modules() if isinstance(m, Equilibrium) or _is_torchdeq(m)]
    if len(hosts) > 1:
        raise ValueError(f"model must have exactly one equilibrium layer, got {len(hosts)}")
    return hosts[0] if hosts else None


def _is_torchdeq(module: object) -> bool:
    return any((base.__module__, base.__name__) in _TORCHDEQ for base in type(module).__mro__)


@contextmanager
def _replace_forward(host: Module, forward: Callable[..., Any]) -> Iterator[None]:
    attributes = vars(host)
    before = {"forward": attributes["forward"]} if "forward" in attributes else {}
    attributes["forward"] = forward
    try:
        yield
    finally:
        del attributes["forward"]
        attributes.update(before)
