"""Whole passes of networks with an equilibrium on a GPU, recorded as CUDA graphs.

A recording of a forward pass holds the injection, the solve and the readout; of a backward pass
the adjoint solve and the gradients of all weights. Each makes as many steps as the last solves
took. The ordinary passes do all else: solves that need more steps, derivatives of derivatives,
transforms of ``torch.func`` and autocast.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shoal.core.torch_compat import (
    in_forward_mode,
    is_autocast,
    is_batched_by_autograd,
    is_called_otherwise,
    is_transformed,
    lent_tensors,
)
from shoal.equilibrium import Implicit, Picard, Solution
from shoal.equilibrium.recording import Kinds, captured, place, solved
from shoal.equilibrium.verdict import PLAIN

if TYPE_CHECKING:
    from shoal.networks.equilibrium import EquilibriumNetwork


class RecordedPasses:
    """The recorded passes of one network."""

    def __init__(self) -> None:
        self._forward: Kinds[_Forward] = Kinds()
        self._backward: Kinds[_Backward] = Kinds()

    def __call__(self, net: EquilibriumNetwork[Any], x: Tensor) -> Tensor | None:
        """The outputs, if a recording has them."""
        key = _key(net, x)
        if key is None or (kind := self._forward.get(key)) is None:
            return None
        solver = net.equilibrium.options.solver
        recording = kind.recording(lambda steps: _Forward(net, x, steps), solver.max_steps)
        if recording is None:
            return None
        recording.x.copy_(x.detach())
        recording.graph.replay()
        solution = recording.solved.solution(kind)
        if solution is None:
            return None
        output = recording.output.clone()
        z, net.equilibrium.solution = solution.value, recording.with_state(solution, net)
        net.equilibrium.options.report("forward", net.equilibrium.solution, converged=True)
        parameters = tuple(net.parameters())
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in (x, *parameters)):
            return output
        result: Tensor = _Pass.apply(net, output, z, x, *parameters)  # type: ignore[no-untyped-call]
        return result

    def learn(self, net: EquilibriumNetwork[Any], x: Tensor) -> None:
        """Take in the steps of an ordinary forward pass."""
        solution, key = net.equilibrium.solution, _key(net, x)
        if key is not None and solution is not None and (kind := self._forward.of(key)) is not None:
            kind.learn(_steps(solution))

    def gradients(
        self,
        net: EquilibriumNetwork[Any],
        saved: Sequence[Tensor],
        needed: Sequence[bool],
        cotangent: Tensor,
    ) -> list[Tensor | None] | None:
        """The gradients of the inputs and the parameters, if a recording has them."""
        x, z = saved[:2]
        options = net.equilibrium.options
        base = _key(net, x)
        if base is None or (kind := self._backward.of((base, tuple(needed)))) is None:
            return None
        if not kind.steps:  # the adjoint equation converges as fast as the equation
            forward = options.log.forward
            kind.learn(0 if forward is None else _steps(forward))
        recording = kind.recording(
            lambda steps: _Backward(net, x, z, cotangent, needed, steps),
            options.adjoint_solvers[0].max_steps,
        )
        if recording is None:
            return None
        for mine, tensor in zip(recording.inputs, (x, z, cotangent), strict=True):
            mine.copy_(tensor.detach())
        recording.graph.replay()
        solution = recording.solved.solution(kind)
        if solution is None:
            kind.learn(kind.steps + 2)
            return None
        options.report("backward", solution, converged=True)
        return [None if g is None else g.clone() for g in recording.gradients]


def _steps(solution: Solution) -> int:
    """The largest number of steps of a solution; 0 if a sample failed."""
    return int(solution.steps.max()) if bool(solution.converged.all()) else 0


def _key(net: EquilibriumNetwork[Any], x: Tensor) -> Hashable:
    """What recordings depend on but the values of tensors; ``None`` if there can be none."""
    if torch.compiler.is_compiling() or not x.is_cuda or x.dtype not in PLAIN or not len(x):
        return None
    layer = net.equilibrium
    solvers = layer.options.solver, layer.options.adjoint_solvers[0]
    ordinary = not isinstance(layer.options.gradient, Implicit) or layer.warm_start
    if ordinary or any(not isinstance(s, Picard) or s.atol for s in solvers):
        return None
    if is_called_otherwise(layer) or is_autocast("cuda") or in_forward_mode():
        return None
    tensors = [*net.parameters(), *net.buffers()]
    if is_transformed(x, *tensors) or torch.cuda.is_current_stream_capturing():
        return None
    held = tuple([(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors])
    return x.shape, x.dtype, held, solvers, place(x.device)


class _Forward:
    """A recorded forward pass."""

    def __init__(self, net: EquilibriumNetwork[Any], x: Tensor, steps: int) -> None:
        self.x, solver = x.detach().clone(), net.equilibrium.options.solver

        def run() -> tuple[Any, Tensor]:
            injections = net.injections(self.x)
            problem, start = net.start(injections)
            self._layout = problem.layout
            found = solved(problem.evaluate, solver, start, steps)
            return found, net.read(problem.layout.state(found.z), injections)

        with torch.cuda.device(x.device):
            self.graph, (self.solved, self.output) = captured(run, watched=False)

    def with_state(self, solution: Solution, net: EquilibriumNetwork[Any]) -> Solution:
        """A solution whose value is a state."""
        return solution.with_value(self._layout.state(solution.value), net.equilibrium.log)


class _Backward:
    """A recorded backward pass."""

    def __init__(
        self,
        net: EquilibriumNetwork[Any],
        x: Tensor,
        z: Tensor,
        cotangent: Tensor,
        needed: Sequence[bool],
        steps: int,
    ) -> None:
        self.inputs = [tensor.detach().clone() for tensor in (x, z, cotangent)]
        solver = net.equilibrium.options.adjoint_solvers[0]
        grad = torch.autograd.grad

        def run() -> tuple[Any, list[Tensor | None]]:
            x, z, above = self.inputs
            # as leaves of this stream: autograd waits for the stream on which a leaf was first used
            weights = {
                name: p.detach().requires_grad_(p.requires_grad)
                for name, p in net.named_parameters()
            }
            with torch.enable_grad(), lent_tensors(net, weights):
                leaf, point = x.detach().requires_grad_(needed[0]), z.detach().requires_grad_()
                injections = net.injections(leaf)
                problem, _ = net.start(injections)
                value = problem.evaluate(point)
                output = net.read(problem.layout.state(point), injections)
            (right,) = grad(output, point, above, retain_graph=True)
            size = right.abs().amax(1, keepdim=True)
            zero, size = size[:, 0] == 0, size.clamp_min(torch.finfo(size.dtype).tiny)
            unit = right / size

            def adjoint(g: Tensor) -> Tensor:
                return unit + grad(value, point, g, retain_graph=True)[0]

            found = solved(adjoint, solver, unit, steps, zero)
            leaves = zip((leaf, *weights.values()), needed, strict=True)
            wanted = [tensor for tensor, need in leaves if need]
            both = [above, found.z * size]
            gradients = iter(grad([output, value], wanted, both, allow_unused=True))
            return found, [next(gradients) if need else None for need in needed]

        with torch.cuda.device(x.device):
            self.graph, (self.solved, self.gradients) = captured(run, watched=False)


class _Pass(torch.autograd.Function):
    """A recorded output, with the derivative of the network."""

    @staticmethod
    def forward(
        ctx: Any, net: Any, output: Tensor, z: Tensor, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.net = net
        ctx.save_for_backward(x, z, *parameters)
        return output

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        found = None
        if not torch.is_grad_enabled() and not is_batched_by_autograd(cotangent):
            found = ctx.net.passes.gradients(ctx.net, saved, needed, cotangent)
        if found is None:
            found = _ordinary_gradients(ctx.net, saved[0], saved[2:], needed, cotangent)
        return None, None, None, *found


def _ordinary_gradients(
    net: EquilibriumNetwork[Any],
    x: Tensor,
    parameters: Sequence[Tensor],
    needed: Sequence[bool],
    cotangent: Tensor,
) -> list[Tensor | None]:
    """The gradients by an ordinary forward and backward pass."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = x if again else x.detach().requires_grad_(needed[0])
        output = net.ordinary_pass(leaf)
    leaves = zip((leaf, *parameters), needed, strict=True)
    wanted = [tensor for tensor, need in leaves if need]
    gradients = iter(
        torch.autograd.grad(output, wanted, cotangent, create_graph=again, allow_unused=True)
    )
    return [next(gradients) if need else None for need in needed]
