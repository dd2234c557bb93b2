"""Whole passes of networks with an equilibrium on a GPU, recorded as CUDA graphs.

A recorded forward pass holds the injection, the solve and the readout; a recorded backward pass,
the adjoint solve and the gradients of all weights. Each makes as many steps as the last solves
took. Ordinary passes serve the other cases: solves that need more steps, derivatives of
derivatives, transforms of ``torch.func`` and autocast.
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
from shoal.equilibrium.recording import Kinds, capture, iterate_picard, place
from shoal.equilibrium.verdict import PLAIN

if TYPE_CHECKING:
    from shoal.networks.equilibrium import EquilibriumNetwork


class RecordedPasses:
    """The recorded passes of one network."""

    def __init__(self) -> None:
        self._forward: Kinds[_RecordedForward] = Kinds()
        self._backward: Kinds[_RecordedBackward] = Kinds()

    def __call__(self, net: EquilibriumNetwork[Any], x: Tensor) -> Tensor | None:
        """The outputs of a recorded pass; ``None`` if there is none or it did not converge."""
        key = _key(net, x)
        if key is None or (kind := self._forward.get(key)) is None:
            return None
        solver = net.equilibrium.options.solver
        recording = kind.recording(lambda steps: _RecordedForward(net, x, steps), solver.max_steps)
        if recording is None:
            return None
        recording.x.copy_(x.detach())
        recording.graph.replay()
        solution = recording.buffers.solution(kind)
        if solution is None:
            return None
        output = recording.output.clone()
        z, net.equilibrium.solution = solution.value, recording.with_state(solution, net)
        net.equilibrium.options.report("forward", net.equilibrium.solution, converged=True)
        parameters = tuple(net.parameters())
        if not torch.is_grad_enabled() or not any(t.requires_grad for t in (x, *parameters)):
            return output
        result: Tensor = _RecordedOutput.apply(net, output, z, x, *parameters)  # type: ignore[no-untyped-call]
        return result

    def learn(self, net: EquilibriumNetwork[Any], x: Tensor) -> None:
        """Record the number of steps of an ordinary forward pass."""
        solution, key = net.equilibrium.solution, _key(net, x)
        if (
            key is not None
            and solution is not None
            and (kind := self._forward.find_or_add(key)) is not None
        ):
            kind.learn(_steps(solution))

    def gradients(
        self,
        net: EquilibriumNetwork[Any],
        saved: Sequence[Tensor],
        needed: Sequence[bool],
        cotangent: Tensor,
    ) -> list[Tensor | None] | None:
        """The gradients by a recorded pass of the inputs and parameters; ``None`` if it failed."""
        x, z = saved[:2]
        options = net.equilibrium.options
        base = _key(net, x)
        if base is None or (kind := self._backward.find_or_add((base, tuple(needed)))) is None:
            return None
        if not kind.steps:  # the adjoint equation converges as fast as the equation
            forward = options.log.forward
            kind.learn(0 if forward is None else _steps(forward))
        recording = kind.recording(
            lambda steps: _RecordedBackward(net, x, z, cotangent, needed, steps),
            options.adjoint_solvers[0].max_steps,
        )
        if recording is None:
            return None
        for mine, tensor in zip(recording.inputs, (x, z, cotangent), strict=True):
            mine.copy_(tensor.detach())
        recording.graph.replay()
        solution = recording.buffers.solution(kind)
        if solution is None:
            kind.learn(kind.steps + 2)
            return None
        options.report("backward", solution, converged=True)
        return [None if g is None else g.clone() for g in recording.gradients]


def _steps(solution: Solution) -> int:
    """The largest number of steps of a solution; 0 if a sample failed."""
    return int(solution.steps.max()) if bool(solution.converged.all()) else 0


def _key(net: EquilibriumNetwork[Any], x: Tensor) -> Hashable:
    """Everything that recordings depend on but values of tensors; ``None`` if there can be none."""
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
    addresses = tuple([(tensor.data_ptr(), tensor.requires_grad) for tensor in tensors])
    return x.shape, x.dtype, addresses, solvers, place(x.device)


class _RecordedForward:
    """A recorded forward pass."""

    def __init__(self, net: EquilibriumNetwork[Any], x: Tensor, steps: int) -> None:
        self.x, solver = x.detach().clone(), net.equilibrium.options.solver

        def run() -> tuple[Any, Tensor]:
            injections = net.injections(self.x)
            problem, start = net.start(injections)
            self._layout = problem.layout
            buffers = iterate_picard(problem.evaluate, solver, start, steps)
            return buffers, net.read(problem.layout.state(buffers.z), injections)

        with torch.cuda.device(x.device):
            self.graph, (self.buffers, self.output) = capture(run, watched=False)

    def with_state(self, solution: Solution, net: EquilibriumNetwork[Any]) -> Solution:
        """A solution whose value is a state."""
        return solution.with_value(self._layout.state(solution.value), net.equilibrium.log)


class _RecordedBackward:
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
            x, z, cotangent = self.inputs
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
            (right,) = grad(output, point, cotangent, retain_graph=True)
            size = right.abs().amax(1, keepdim=True)
            zero, size = size[:, 0] == 0, size.clamp_min(torch.finfo(size.dtype).tiny)
            unit = right / size

            def adjoint(g: Tensor) -> Tensor:
                return unit + grad(value, point, g, retain_graph=True)[0]

            buffers = iterate_picard(adjoint, solver, unit, steps, zero)
            leaves = zip((leaf, *weights.values()), needed, strict=True)
            targets = [tensor for tensor, need in leaves if need]
            cotangents = [cotangent, buffers.z * size]
            gradients = iter(grad([output, value], targets, cotangents, allow_unused=True))
            return buffers, [next(gradients) if need else None for need in needed]

        with torch.cuda.device(x.device):
            self.graph, (self.buffers, self.gradients) = capture(run, watched=False)


class _RecordedOutput(torch.autograd.Function):
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
        gradients = None
        if not torch.is_grad_enabled() and not is_batched_by_autograd(cotangent):
            gradients = ctx.net.passes.gradients(ctx.net, saved, needed, cotangent)
        if gradients is None:
            gradients = _ordinary_gradients(ctx.net, saved[0], saved[2:], needed, cotangent)
        return None, None, None, *gradients


def _ordinary_gradients(
    net: EquilibriumNetwork[Any],
    x: Tensor,
    parameters: Sequence[Tensor],
    needed: Sequence[bool],
    cotangent: Tensor,
) -> list[Tensor | None]:
    """The gradients by an ordinary forward and backward pass."""
    followed = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = x if followed else x.detach().requires_grad_(needed[0])
        output = net.ordinary_pass(leaf)
    leaves = zip((leaf, *parameters), needed, strict=True)
    targets = [tensor for tensor, need in leaves if need]
    gradients = iter(
        torch.autograd.grad(output, targets, cotangent, create_graph=followed, allow_unused=True)
    )
    return [next(gradients) if need else None for need in needed]
