"""Cells of equilibrium models in torchdeq, for benchmarks/equilibrium.py.

torchdeq is put on the path by the user (it is no dependency); each solve gets the loosest tolerance
that gives its result a true residual of at most the one that is asked for.
"""

import importlib.util
import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

SOLVERS = ("fixed_point_iter", "anderson")
FACTORS = (16.0, 8.0, 4.0, 3.0, 2.0, 1.5, 1.0, 0.7, 0.5, 0.3)  # of the tolerance
STEPS = 100


def is_installed() -> bool:
    """Whether it can be imported."""
    return importlib.util.find_spec("torchdeq") is not None


def relative_residual(value: Tensor, z: Tensor) -> float:
    """The largest relative residual of a batch, of a map's value at z."""
    off, size = (value - z).flatten(1).norm(dim=1), z.flatten(1).norm(dim=1)
    return float((off / size).max())


class Peer:
    """A cell with torchdeq's solvers and its implicit gradient.

    Args:
        cell: Called with a state and an input.
        x: The input.
        forward: A solver and its tolerance.
        backward: The same for the gradient.
    """

    def __init__(
        self,
        cell: nn.Module,
        x: Tensor,
        forward: tuple[str, float],
        backward: tuple[str, float],
    ) -> None:
        from torchdeq import get_deq

        self.cell, self.x = cell, x
        self.deq = get_deq(
            f_solver=forward[0],
            b_solver=backward[0],
            f_max_iter=STEPS,
            b_max_iter=STEPS,
            f_tol=forward[1],
            b_tol=backward[1],
            f_stop_mode="rel",
            b_stop_mode="rel",
            ift=True,
        )

    def state(self) -> Tensor:
        """The equilibrium."""
        states, _ = self.deq(lambda z: self.cell(z, self.x), torch.zeros_like(self.x))
        return states[-1]

    def residual(self) -> float:
        """The true residual of the forward pass."""
        with torch.no_grad():
            z = self.state()
            return relative_residual(self.cell(z, self.x), z)

    def adjoint_residual(self, loss: Callable[[Tensor], Tensor]) -> float:
        """The true residual of what its backward solver makes of a loss's cotangent."""
        z = self.state().detach().requires_grad_()
        value = self.cell(z, self.x)
        (right,) = torch.autograd.grad(loss(z), z)

        def adjoint(g: Tensor) -> Tensor:
            return torch.autograd.grad(value, z, g, retain_graph=True)[0] + right

        options = {"max_iter": STEPS, "tol": self.deq.b_tol, "stop_mode": "rel"}
        g, _, _ = self.deq.b_solver(adjoint, torch.zeros_like(right), **options)
        return relative_residual(adjoint(g), g)


def candidates(
    cell: nn.Module, x: Tensor, rtol: float, loss: Callable[[Tensor], Tensor]
) -> dict[str, Peer]:
    """Every pair of solvers, with tolerances as loose as may be."""
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    fine = ("fixed_point_iter", 0.3 * rtol)
    for solver, factor in itertools.product(SOLVERS, FACTORS):
        pair = (solver, factor * rtol)
        if solver not in forward and Peer(cell, x, pair, fine).residual() <= rtol:
            forward[solver] = pair[1]
        if solver not in backward and Peer(cell, x, fine, pair).adjoint_residual(loss) <= rtol:
            backward[solver] = pair[1]
    return {
        f"{f[0]} ({f[1]:.1e}), {b[0]} ({b[1]:.1e})": Peer(cell, x, f, b)
        for f, b in itertools.product(forward.items(), backward.items())
    }
