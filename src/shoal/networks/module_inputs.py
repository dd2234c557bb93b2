"""What any module is called with: one tensor, or several that have the same samples."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from shoal.core.checks import as_tensor, float_tensor
from shoal.core.torch_compat import pytree

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]  # as users give them


@dataclass(frozen=True, eq=False)
class ModuleInputs:
    """The arguments of a module for some samples, each a tensor or a tree of tensors.

    Attributes:
        arguments: Those by place, and those by name.
    """

    arguments: tuple[tuple[Any, ...], dict[str, Any]]

    @classmethod
    def checked(cls, name: str, x: object) -> "ModuleInputs":
        """Take inputs as an argument, or say what is wrong with them.

        Args:
            name: Of the argument.
            x: A tensor, a tuple of what the module takes by place, or a dictionary of what it takes
                by name; all tensors have samples in their first dimension.
        """
        if isinstance(x, Mapping):
            if not all(isinstance(key, str) for key in x):
                raise TypeError(f"{name} must have names of arguments as keys, got {list(x)}")
            given = cls(((), dict(x)))
        else:
            given = cls((tuple(x) if isinstance(x, tuple | list) else (x,), {}))
        found = {where: _checked(name, where, leaf) for where, leaf in given.named(name).items()}
        if len({len(tensor) for tensor in found.values()}) != 1:
            shapes = ", ".join(f"{tuple(t.shape)} in {where}" for where, t in found.items())
            raise ValueError(
                f"{name} must have tensors with the same samples in their first dimension, got "
                f"{shapes or 'none'}; what samples share can be buffers of the module"
            )
        return cls(pytree.tree_unflatten(found.values(), pytree.tree_structure(given.arguments)))

    def named(self, name: str) -> dict[str, Tensor]:
        """All tensors: the only one by the name of all, others as ``x[0]`` or ``x['mask']``."""
        found = pytree.tree_flatten_with_path(self.arguments)[0]
        if len(found) == 1:
            return {name: found[0][1]}
        return {name + pytree.keystr(path[1:]): leaf for path, leaf in found}

    @property
    def first(self) -> Tensor:
        """The first tensor: the only one, where there is one."""
        tensor: Tensor = pytree.tree_leaves(self.arguments)[0]
        return tensor

    def __len__(self) -> int:
        """How many samples there are."""
        return len(self.first)

    def __getitem__(self, rows: slice | Tensor) -> "ModuleInputs":
        """Some of the samples."""
        return self.map(lambda tensor: tensor[rows])

    def map(self, function: Callable[[Tensor], Tensor]) -> "ModuleInputs":
        """A function of each tensor."""
        return ModuleInputs(pytree.tree_map(function, self.arguments))

    def given_to(self, function: Callable[..., Any]) -> Any:
        """What a module, or a function, makes of them."""
        by_place, by_name = self.arguments
        return function(*by_place, **by_name)


def _checked(name: str, where: str, leaf: object) -> Tensor:
    tensor = as_tensor(leaf, where)
    if not isinstance(tensor, Tensor):
        place = "" if where == name else f" in {where}"
        raise TypeError(
            f"{name} must be a tensor or an array, or a tuple or a dictionary of such that a "
            f"module is called with, got {type(leaf).__name__}{place}; what else it needs, such as "
            "the edges of a graph, can be buffers of it"
        )
    if tensor.is_floating_point():
        tensor = float_tensor(where, tensor)
    if not tensor.dim() or not len(tensor):
        raise ValueError(
            f"{where} must have samples in its first dimension, at least one, got shape "
            f"{tuple(tensor.shape)}"
        )
    tensor = tensor.detach()
    return tensor.clone() if tensor.is_inference() else tensor  # to be differentiated
