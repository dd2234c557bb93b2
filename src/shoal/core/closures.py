"""The tensors that a function uses without being given them: found, held, replaced by others.

Transforms of ``torch.func`` see only what a differentiable operation is given. What is found here
is what the operations of PyTorch are called with; those written in other ways are not seen.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from shoal.core.torch_compat import (
    at_level,
    is_wrapped,
    lent_tensors,
    named_tensors,
    pytree,
    transform_level,
)


class Uses(TorchFunctionMode):
    """Notes which tensors are used that may be differentiated by and that were made outside.

    Args:
        known: Tensors to leave out.

    Attributes:
        tensors: Those found, in the order of their use.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.tensors: list[Tensor] = []
        self._known = {id(tensor): tensor for tensor in known}  # held: ids are of the living
        self._level = transform_level()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Look at the arguments, then call the function."""
        self.note((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._known.update(
            (id(leaf), leaf) for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)
        )
        return result

    def note(self, tree: Any) -> None:
        """Note the tensors of a tree: arguments, or what a function returns."""
        for leaf in pytree.tree_leaves(tree):
            if not isinstance(leaf, Tensor) or id(leaf) in self._known:
                continue
            base = at_level(leaf, self._level)  # which a transform inside may have wrapped
            is_new = id(base) not in self._known
            self._known |= {id(leaf): leaf, id(base): base}
            if is_new and (base.requires_grad or is_wrapped(base)):
                self.tensors.append(base)


class Replaced(TorchFunctionMode):
    """Puts other tensors in the place of some wherever they are used.

    Args:
        others: The other tensor for the ``id`` of each.

    Attributes:
        missed: The ids of those that were not used yet.
        hidden: Whether a transform inside the function has wrapped some, which stay what they are.
    """

    def __init__(self, others: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.others, self.missed, self.hidden = others, set(others), False
        self._level = transform_level()

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call the function with the other tensors."""
        args, kwargs = self.instead((tuple(args), kwargs or {}))
        return func(*args, **kwargs)

    def instead(self, tree: Any) -> Any:
        """A tree with the other tensors: arguments, or what a function returns."""

        def other(tensor: Tensor) -> Tensor:
            if id(tensor) not in self.others:
                base = at_level(tensor, self._level)
                self.hidden |= base is not tensor and id(base) in self.others
                return tensor
            self.missed.discard(id(tensor))
            return self.others[id(tensor)]

        return pytree.tree_map_only(Tensor, other, tree)


class HeldModules:
    """The modules that a function belongs to or refers to, as they are now.

    A later call sees the same tensors, whatever the modules have by then: those that
    ``torch.func.functional_call`` lends to a module are gone after it. And it sees them in the same
    mode, of training or of evaluation.

    Args:
        function: A module, a method of one, or a function that refers to some: in its closure, by
            their global names, or as arguments of a ``functools.partial``.

    Attributes:
        modules: The modules, each once.
    """

    def __init__(self, function: Any) -> None:
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
        known = {id(m): m for m in candidates if isinstance(m, nn.Module)}
        self.modules = tuple(known.values())
        self._held = [(module, named_tensors(module)) for module in self.modules]
        self._modes = [(m, m.training) for module in self.modules for m in module.modules()]

    @property
    def tensors(self) -> list[Tensor]:
        """Those that the modules have."""
        return [tensor for _, held in self._held for tensor in held.values()]

    @contextmanager
    def __call__(self, others: Mapping[int, Tensor]) -> Iterator[None]:
        """A context in which the modules have those tensors and modes.

        Args:
            others: Another tensor for the ``id`` of some.
        """
        with ExitStack() as stack:
            for module, tensors in self._held:
                lent = {name: others.get(id(tensor), tensor) for name, tensor in tensors.items()}
                stack.enter_context(lent_tensors(module, lent))
            for module, mode in self._modes:
                if module.training != mode:
                    stack.callback(setattr, module, "training", module.training)
                    module.training = mode
            yield
