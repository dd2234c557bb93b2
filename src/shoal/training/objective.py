"""The loss of a module on its training set, with its gradient."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from shoal.core.checks import one_of
from shoal.core.processes import ALONE
from shoal.equilibrium.gradients import SolveOptions
from shoal.kernels.arguments import as_tensor
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.module_inputs import ModuleInputs
from shoal.networks.ntk.exact import check_whole, exact, solve_options
from shoal.training.problem import Problem, foreign_data

Loss = Callable[[Tensor, Tensor], Tensor]  # of outputs and labels

_DOUBLE = torch.float64


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss at the weights as they are.

    Attributes:
        loss: The loss, in float64.
        gradients: With respect to each trained weight; none if the loss is not finite.
        converged: Whether all equilibria were found, where there are any.
        residual: What their equation leaves, in the norm of all samples together.
        rows: The samples that it is about, if not all.
    """

    loss: float
    gradients: list[Tensor]
    converged: bool
    residual: float = 0.0
    rows: Tensor | None = None

    @property
    def finite(self) -> bool:
        """Whether the loss is a number."""
        return math.isfinite(self.loss)

    @property
    def square_gradient(self) -> float:
        r"""$\|\nabla\Phi\|^2$, in float64."""
        norms = [torch.linalg.vector_norm(g, dtype=_DOUBLE) for g in self.gradients]
        return float(torch.stack(norms).square().sum())


class Objective:
    r"""$\Phi = \frac1{2c}\|f(X) - y\|_F^2$, where $c$ is 1 or the number of samples; or another.

    Args:
        network: What is trained, in place.
        x: Inputs, of a network one tensor.
        y: Labels, of the shape of the outputs.
        divisor: $c$.
        loss: Another loss.

    Attributes:
        processes: Those that share the samples of a step.
    """

    def __init__(
        self,
        network: Module,
        x: ModuleInputs,
        y: Tensor,
        divisor: float = 1.0,
        loss: Loss | None = None,
    ) -> None:
        self.network, self.x, self.y, self.divisor, self.loss = network, x, y, divisor, loss
        self.processes = ALONE
        self.weights: dict[str, Parameter] = {
            name: p for name, p in network.named_parameters() if p.requires_grad
        }
        if not self.weights:
            raise ValueError("net must have weights that require a gradient, got none")
        self.initial = {name: p.detach().clone() for name, p in self.weights.items()}
        self._initial_gain: list[tuple[Tensor, float]] = []  # with the weights that have it

    @classmethod
    def checked(
        cls, net: object, x: object, y: object, *, reduction: str, loss: Loss | None
    ) -> Self:
        """Take the arguments of ``train`` and ``Watch``, or say what is wrong with them."""
        one_of("reduction", reduction, ("sum", "mean"))
        if loss is not None and not callable(loss):
            raise TypeError(f"loss must be a function of outputs and labels, got {loss!r}")
        if loss is not None and reduction != "sum":
            raise ValueError("reduction is for the squared loss, got a loss that has its own")
        if not isinstance(net, Module):
            raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
        if isinstance(net, Network):
            if loss is None:
                _, x, y = Problem.checked(net, x, y)
            else:
                x = net.check_input(as_tensor(x, "x"))
        inputs, labels = foreign_data(x, y)
        check_whole("net", net)
        return cls(net, inputs, labels, float(len(inputs)) if reduction == "mean" else 1.0, loss)

    @property
    def equilibria(self) -> list[EquilibriumNetwork]:  # type: ignore[type-arg]  # of any
        """The network, or those in it, that have an equilibrium."""
        return [one for one in self.network.modules() if isinstance(one, EquilibriumNetwork)]

    @property
    def solves(self) -> list[SolveOptions]:
        """How these, and layers that are no networks, solve for it, with what came of that."""
        found = [solve_options(one) for one in self.network.modules()]
        return [options for options in found if options is not None]

    @property
    def parameters(self) -> list[Tensor]:
        """The trained weights, for steps in place."""
        return list(self.weights.values())

    def exactly(self) -> "Objective":
        """This objective with exact gradients; evaluating it leaves no trace in the network."""
        other = copy.copy(self)
        other.network = exact(self.network, silent=True)
        return other

    def shared(self, rows: Tensor | None = None) -> Evaluation:
        """Like :meth:`evaluate`, where each process has its part of the samples.

        Losses and gradients of the parts estimate the same, and their mean, by the number of
        samples, is that of all. Another loss need not be a mean, and all compute it.
        """
        count = len(self.x) if rows is None else len(rows)
        if self.loss is not None or not 1 < self.processes.size <= count:
            return self.evaluate(rows)
        samples = torch.arange(count, device=self.x.first.device) if rows is None else rows
        places = torch.arange(count).tensor_split(self.processes.size)[self.processes.rank]
        with self.processes.reporting():  # one that finds no equilibrium stops all
            part = self.evaluate(samples[places.to(samples.device)])
            told = self.processes.agree({"samples": count}, part.finite + 2 * part.converged)
        share = len(places) / count
        numbers = torch.tensor([share * part.loss, part.residual**2], dtype=_DOUBLE)
        loss, square = self.processes.sum(numbers).tolist()
        finite = all(number % 2 for number in told)
        gradients = [self._mean(share * g) for g in part.gradients] if finite else []
        converged, residual = all(number >= 2 for number in told), math.sqrt(square)
        return Evaluation(loss, gradients, converged, residual, rows)

    def _mean(self, part: Tensor) -> Tensor:
        return self.processes.sum(part.reshape(-1).clone()).view_as(part)

    def evaluate(self, rows: Tensor | None = None) -> Evaluation:
        r"""One forward and one backward pass.

        Args:
            rows: Some of the samples, for an estimate of $\Phi$: their loss times the number of all
                over theirs. Another loss is taken as it is.

        Raises:
            ConvergenceError: If an equilibrium, or its gradient, is not found and the network was
                built to raise then.
        """
        for one in self.solves:
            one.log.backward = None  # not every gradient takes a solve
        x, y, divisor = self.x, self.y, self.divisor
        if rows is not None:
            x, y, divisor = x[rows], y[rows], divisor * len(rows) / len(x)
        with torch.enable_grad():
            output = x.given_to(self.network)
            if self.loss is None:
                labels = _like(output, y)
                target, seed = output, output.detach() - labels
                loss = 0.5 * float(seed.double().square().sum()) / divisor
                seed = seed / divisor
            else:
                target, seed = _number(self.loss(output, y)), None
                loss = float(target.detach())
            gradients: list[Tensor] = []
            if math.isfinite(loss):
                trained = list(self.weights.values())
                # in this thread: on a GPU it takes longer to hand a pass to another one
                with torch.autograd.set_multithreading_enabled(mode=False):
                    found = torch.autograd.grad(target, trained, seed, materialize_grads=True)
                gradients = list(found)
        return Evaluation(loss, gradients, *self._solved(), rows)

    def _solved(self) -> tuple[bool, float]:
        """Whether all equilibria and adjoints were found, and the residual of the network's own."""
        found = [s for one in self.solves for s in (one.log.forward, one.log.backward)]
        converged = all(s is None or bool(s.converged.all()) for s in found)
        if not isinstance(self.network, EquilibriumNetwork) or self.network.last_solve is None:
            return converged, 0.0
        residual = self.network.last_solve.residual
        return converged, float(torch.linalg.vector_norm(residual, dtype=_DOUBLE))

    def distances(self) -> dict[str, float]:
        """How far each group of weights is from where it began, in the Frobenius norm."""
        return {
            name: float(torch.linalg.vector_norm(p.detach() - self.initial[name], dtype=_DOUBLE))
            for name, p in self.weights.items()
        }

    def gain_upper(self) -> float:
        """A certified bound of the recurrent layer's gain, the same after an interruption.

        It is followed from the initial weights; only if that is not enough to stay below one, it
        is found anew.
        """
        network = self.network
        if not isinstance(network, EquilibriumNetwork):
            return 0.0
        weights, bound = [weight for _, weight in network.recurrent_layers], network.gain_bound()
        if math.inf in bound.factors:
            return math.inf
        bound.known, below_one = self._initial_gain, math.nextafter(1.0, 0.0)
        if not bound.known:
            before = {id(p): self.initial[name] for name, p in self.weights.items()}
            bound.upper([before.get(id(w), w.detach()) for w in weights], below_one)
            self._initial_gain = bound.known
        return bound.upper([w.detach() for w in weights], below_one)

    def feature_error(self, now: Evaluation, gain: float) -> float:
        r"""A bound of how far the features are from those of exact equilibria.

        A residual $r$ of a contraction with gain $g$ leaves an error of at most $r/(1-g)$.

        Args:
            now: The weights as they are.
            gain: $g$, at most; where it is not below one, the residual itself is taken.
        """
        network = self.network
        if not isinstance(network, EquilibriumNetwork) or now.residual == 0:
            return 0.0
        return network.feature_scale * now.residual / (1 - gain if gain < 1 else 1.0)

    def rounding(self, size: float) -> float:
        """What rounding may make of sums over all units, of this size."""
        net = self.network
        if isinstance(net, Network):
            width, dtype = net.spec.width, self.y.dtype
        else:
            width = max(max(p.shape, default=1) for p in net.parameters())
            dtype = next(iter(self.weights.values())).dtype
        return torch.finfo(dtype).eps * math.sqrt(width) * size

    def output_error(self, now: Evaluation) -> float:
        r"""A bound of $\|f - f_*\|$, where $f_*$ has exact equilibria and no rounding."""
        scale = float(self.y.abs().max()) + 1.0
        total = self.rounding(scale) * math.sqrt(self.y.numel())
        if isinstance(self.network, EquilibriumNetwork) and now.residual > 0:
            readout = self.network.readout.detach().double()
            size = float(torch.linalg.matrix_norm(readout, 2))
            total += size * self.feature_error(now, self.gain_upper())
        return total


def _like(output: object, y: Tensor) -> Tensor:
    """Labels in the shape and dtype of outputs."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise TypeError(
            f"net must return a tensor of real numbers, got {type(output).__name__}: give loss= "
            "for outputs of another kind"
        )
    if y.shape == output.shape:
        return y.to(output.dtype)
    if y.numel() != output.numel() or y.numel() != len(y):  # of one output it is clear
        raise ValueError(
            f"y must have the shape of the outputs, {tuple(output.shape)}, got {tuple(y.shape)}: "
            "give loss= for labels of another kind"
        )
    return y.to(output.dtype).view_as(output)


def _number(loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise TypeError(f"loss must return a tensor of one number, got {got}")
    return loss.view(())
