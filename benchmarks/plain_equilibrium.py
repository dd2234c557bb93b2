"""The twenty lines that a user would write instead of shoal.Equilibrium: the peer to beat."""

import torch
from torch import Tensor, nn


class PlainEquilibrium(nn.Module):
    """Iterate a cell without a graph, evaluate it once with one, iterate the adjoint in a hook."""

    def __init__(self, cell: nn.Module, rtol: float = 1e-4, max_steps: int = 100) -> None:
        super().__init__()
        self.cell, self.rtol, self.max_steps = cell, rtol, max_steps

    def forward(self, z: Tensor, *inputs: Tensor) -> Tensor:
        """The equilibrium, with an implicit gradient."""
        with torch.no_grad():
            z = self.iterate(lambda z: self.cell(z, *inputs), z)
        if not torch.is_grad_enabled():
            return z
        start = z.requires_grad_()
        value = self.cell(start, *inputs)

        def adjoint(grad: Tensor) -> Tensor:
            handle.remove()  # the products below pass through the same tensor
            return self.iterate(
                lambda g: torch.autograd.grad(value, start, g, retain_graph=True)[0] + grad, grad
            )

        handle = value.register_hook(adjoint)
        return value

    def iterate(self, step, z: Tensor) -> Tensor:
        """Take steps until each row's change is small."""
        for _ in range(self.max_steps):
            last, z = z, step(z)
            if bool(((z - last).norm(dim=1) <= self.rtol * z.norm(dim=1)).all()):
                break
        return z
