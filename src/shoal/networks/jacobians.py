"""Derivatives of each sample's outputs with respect to parameters, for any module."""

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn import Module

from shoal.core.checks import items
from shoal.core.torch_compat import named_tensors
from shoal.networks.modules import ModuleInputs, mixing_submodule, names_matching


def chosen_parameters(module: Module, trainable: Iterable[str] | None) -> dict[str, Tensor]:
    """The parameters that patterns select, each once, by its first name.

    Args:
        module: Any module.
        trainable: Names of parameters or of modules, or patterns such as ``"*.bias"``; ``"all"``
            for all; by default those that require a gradient.
    """
    aliases = dict(module.named_parameters(remove_duplicate=False))
    if trainable is None:
        names = {name for name, p in aliases.items() if p.requires_grad}
    elif trainable == "all":
        names = {name for name, p in aliases.items() if p.is_floating_point()}
    else:
        patterns = items("trainable", trainable, "a set of names of parameters")
        names = {*names_matching("trainable", patterns, aliases, "parameters")}
        if not names:
            raise ValueError("trainable must name at least one parameter, got none")
    identities = {id(aliases[name]) for name in names}
    chosen = {n: p.detach() for n, p in module.named_parameters() if id(p) in identities}
    if complex_ones := [name for name, p in chosen.items() if not p.is_floating_point()]:
        raise TypeError(f"trainable must choose real parameters, got {', '.join(complex_ones)}")
    return chosen


class Jacobians:
    """Derivatives of the outputs for each sample, evaluated alone, and their inner products.

    ``torch.func`` computes them for many samples at once; a module that it does not support is
    differentiated sample by sample. Buffers of the module do not change.

    Args:
        module: Any module.
        chosen: The parameters, by name.
        x: Inputs, which determine the shape of the outputs.
        memory: Largest number of bytes of derivatives at a time.
    """

    def __init__(
        self, module: Module, chosen: dict[str, Tensor], x: ModuleInputs, memory: int
    ) -> None:
        self.module, self.chosen, self.memory = module, chosen, memory
        self._batched = True  # until torch.func fails
        named = (*module.named_parameters(), *module.named_buffers())
        self._fixed = {n: p.detach() for n, p in module.named_parameters() if n not in chosen}
        self._buffers = dict(module.named_buffers())
        first = {id(t): n for n, t in named}
        self._first_names = {name: first[id(t)] for name, t in named_tensors(module).items()}
        if (name := mixing_submodule(module)) is not None:
            kind = f"the {type(module).__name__}"
            subject = f"submodule {name!r} of {kind}" if name else kind
            raise ValueError(
                f"each sample's outputs must depend on that sample alone, but {subject} is random "
                "or mixes samples in its present mode; call network.eval() first"
            )
        with torch.no_grad():
            output = self._check_independence(x)
        self.outputs, self.dtype = output.numel(), torch.promote_types(output.dtype, torch.float32)

    def __call__(self, *arguments: Any, **named: Any) -> Tensor:
        """The outputs for samples, with the present parameters."""
        return self._call(self.chosen, ModuleInputs((arguments, named)))

    def _call(self, chosen: dict[str, Tensor], x: ModuleInputs) -> Tensor:
        # copies: modules may write to buffers, as those with spectral norms and counters do
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        unique = {**self._fixed, **buffers, **chosen}
        tensors = {name: unique[first] for name, first in self._first_names.items()}
        output = functional_call(self.module, tensors, *x.arguments, tie_weights=False)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            kind = output.dtype if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(f"model must return a tensor of real numbers, got {kind}")
        if not output.dim() or len(output) != len(x):
            raise ValueError(
                f"model must return a row for each of its samples, {len(x)}, got a tensor of "
                f"shape {tuple(output.shape)}"
            )
        return output

    def _check_independence(self, x: ModuleInputs) -> Tensor:
        """The outputs for one sample, after a check that another sample does not change them."""
        pair = x.map(lambda tensor: torch.cat([tensor[:1], tensor[-1:]]))
        together, first, second = (part.call(self) for part in (pair, pair[:1], pair[1:]))
        alone = torch.cat([first, second])
        if not alone.isfinite().all():
            raise ValueError("model must have finite outputs, got infinity or NaN")
        tolerance = max(1e-3, 8 * torch.finfo(alone.dtype).eps)
        if float((together - alone).abs().max()) > tolerance * float(alone.abs().max()):
            raise ValueError(
                "each sample's outputs must depend on that sample alone, got different outputs "
                "when samples are evaluated together or twice; call network.eval() first, and make "
                "sure that equilibria converge"
            )
        return alone[:1]

    def _sample_outputs(self, chosen: dict[str, Tensor], arguments: Any, outputs: slice) -> Tensor:
        alone = ModuleInputs(arguments).map(lambda tensor: tensor[None])
        return self._call(chosen, alone).flatten()[outputs]

    def evaluate(self, x: ModuleInputs, outputs: slice = slice(None)) -> list[Tensor]:
        """The derivatives with respect to each parameter, of shape (samples, outputs, numbers)."""
        if self._batched:
            try:
                with warnings.catch_warnings(), torch.enable_grad():
                    warnings.filterwarnings("ignore", "There is a performance drop")
                    batched = vmap(jacrev(self._sample_outputs), (None, 0, None))
                    derivatives = batched(self.chosen, x.arguments, outputs)
                return [derivatives[name].flatten(2) for name in self.chosen]
            except (RuntimeError, TypeError, ValueError):  # an error of the module comes again
                self._batched = False
        with torch.enable_grad():
            leaves = {name: p.detach().requires_grad_() for name, p in self.chosen.items()}
            rows = [
                self._rows(leaves, self._call(leaves, sample).flatten()[outputs])
                for sample in x.blocks(1)
            ]
        return [torch.stack(parts).flatten(2) for parts in zip(*rows, strict=True)]

    @staticmethod
    def _rows(leaves: dict[str, Tensor], output: Tensor) -> list[Tensor]:
        """One backward pass for each output."""
        if not output.requires_grad:  # none of the parameters is used
            return [p.new_zeros(len(output), *p.shape) for p in leaves.values()]
        parameters = list(leaves.values())
        rows = [
            torch.autograd.grad(number, parameters, retain_graph=True, materialize_grads=True)
            for number in output
        ]
        return [torch.stack(parts) for parts in zip(*rows, strict=True)]

    def ntk(
        self, x1: ModuleInputs, x2: ModuleInputs | None = None, *, diag: bool = False
    ) -> Tensor:
        r"""$\frac1K\sum_k\langle\nabla f_k(x), \nabla f_k(x')\rangle$: all pairs, or partners."""
        right = x1 if x2 is None else x2
        shape = (len(x1),) if diag else (len(x1), len(right))
        total = torch.zeros(shape, dtype=self.dtype, device=x1.first.device)
        if not self.chosen:
            return total
        samples, count = self._sizes(x1, len(x1), len(right))
        for outputs in (slice(k, k + count) for k in range(0, self.outputs, count)):
            for i, rows in enumerate(x1.blocks(samples)):
                derivatives = self.evaluate(rows, outputs)
                block = slice(i * samples, (i + 1) * samples)
                if diag:
                    partners = derivatives if x2 is None else self.evaluate(x2[block], outputs)
                    products = ((a * b).sum((1, 2)) for a, b in _pairs(derivatives, partners))
                    total[block] += self._sum(products)
                    continue
                for j, columns in enumerate(right.blocks(samples)):
                    if x2 is None and j < i:  # the transpose of an earlier one
                        continue
                    same = x2 is None and i == j
                    partners = derivatives if same else self.evaluate(columns, outputs)
                    products = (
                        a.flatten(1) @ b.flatten(1).T for a, b in _pairs(derivatives, partners)
                    )
                    total[block, j * samples : (j + 1) * samples] += self._sum(products)
        if x2 is None and not diag:
            total = total.triu() + total.triu(1).T
        return total / self.outputs

    def gram(self, x: ModuleInputs) -> Tensor:
        r"""$JJ^\top$ of all outputs, in float64: a row for each sample and each of its outputs."""
        n, k = len(x), self.outputs
        total = torch.zeros(n, k, n, k, dtype=torch.float64, device=x.first.device)
        size = max(1, self._sizes(x, n, n)[0] // k)
        for i, rows in enumerate(x.blocks(size)):
            derivatives = [part.double() for part in self.evaluate(rows)]
            for j, columns in enumerate(x.blocks(size)[: i + 1]):
                partners = (
                    derivatives if i == j else [part.double() for part in self.evaluate(columns)]
                )
                block = sum(
                    torch.einsum("ikp,jlp->ikjl", a, b) for a, b in _pairs(derivatives, partners)
                )
                total[i * size : (i + 1) * size, :, j * size : (j + 1) * size] = block
        whole = total.view(n * k, n * k)
        return whole.tril() + whole.tril(-1).T

    def _sum(self, parts: Iterator[Tensor]) -> Tensor:
        return torch.stack([part.to(self.dtype) for part in parts]).sum(0)

    def _sizes(self, x: ModuleInputs, *lengths: int) -> tuple[int, int]:
        """The numbers of samples and of their outputs whose derivatives fit twice into memory.

        Many samples come first: outputs do not mix in the NTK, while samples are evaluated again
        for each other block.
        """
        room = max(1, self.memory // (2 * self._bytes(x[:1])))
        samples = min(room, max(lengths))
        return samples, min(self.outputs, max(1, room // samples))

    def _bytes(self, x: ModuleInputs) -> int:
        """The memory of the derivatives of one output, with everything that autograd saves."""
        kept = [p.numel() * p.element_size() for p in self.chosen.values()]

        def keep(tensor: Tensor) -> Tensor:
            kept.append(tensor.numel() * tensor.element_size())
            return tensor.detach()  # an operation that keeps its output would keep itself alive

        leaves = {name: p.detach().requires_grad_() for name, p in self.chosen.items()}
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            self._call(leaves, x)
        return max(1, sum(kept))


def _pairs(parts: list[Tensor], partners: list[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(parts, partners, strict=True)
