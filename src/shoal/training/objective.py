"""The loss of a module on its training set, with its gradient."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from shoal.activations.names import description
from shoal.core.checks import as_tensor, float_tensor, function, instance
from shoal.core.files import checksum
from shoal.equilibrium.gradients import SolveOptions
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.modules import ModuleInputs, check_whole, exact, solve_options

Loss = Callable[[Any, Tensor], Tensor]  # (outputs, labels) -> loss


class TrainingProblem(NamedTuple):
    """A network made by ``build``, and the data to train it on.

    Attributes:
        net: The network.
        x: Inputs, in its dtype.
        y: Labels, in its dtype, of shape (samples, outputs).
    """

    net: Network[Any]
    x: Tensor
    y: Tensor

    @classmethod
    def checked(cls, net: object, x: object, y: object) -> Self:
        """Check a network and its data."""
        if not isinstance(net, Network):
            raise TypeError(f"net must be a network made by shoal.build, got {type(net).__name__}")
        inputs = net.check_input(as_tensor(x, "x")).detach()
        numbers = float_tensor("y", as_tensor(y, "y"))
        labels = float_tensor(f"y in {inputs.dtype}", numbers.to(inputs))  # may overflow
        labels = labels[:, None] if labels.dim() == 1 else labels
        samples, outputs = len(inputs), net.spec.out_features
        if labels.shape != (samples, outputs):
            raise ValueError(
                f"y must have shape (n,) or (n, outputs) with n = {samples}, with one column for "
                f"each of the network's {outputs} outputs, got {tuple(numbers.shape)}"
            )
        return cls(net, inputs, labels)

    def fingerprint(self) -> dict[str, str]:
        """Checksums of everything that a certificate depends on.

        A network in float32 and its copy in float64 have the same checksums.
        """
        groups = self.net.groups.items()
        method: dict[str, str] = {}
        if isinstance(self.net, EquilibriumNetwork):
            options = self.net.equilibrium.options
            method["gradient method"] = description(options.gradient)
            method["solver"] = description(options.solver)
        return {
            **method,
            "architecture": description(self.net.architecture),
            "weights": _checksum(self.net.state_dict()),
            "trained groups": " ".join(sorted(n for n, p in groups if p.requires_grad)),
            "x": _checksum({"x": self.x}),
            "y": _checksum({"y": self.y}),
        }


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss at the present weights.

    Attributes:
        loss: The loss, in float64.
        gradients: Its gradient with respect to each trained weight; empty if it is not finite.
        converged: Whether all equilibria and their adjoints converged.
        residual: The residual of the network's equilibria, in the norm of all samples together.
        rows: The samples that were evaluated, if not all.
    """

    loss: float
    gradients: list[Tensor]
    converged: bool
    residual: float = 0.0
    rows: Tensor | None = None

    @property
    def square_gradient(self) -> float:
        r"""$\|\nabla\Phi\|^2$, in float64."""
        norms = [torch.linalg.vector_norm(g, dtype=torch.float64) for g in self.gradients]
        return float(torch.stack(norms).square().sum())


class Objective:
    r"""$\Phi = \frac12\|f(X) - y\|_F^2$, or another loss, of a module's trained weights.

    Args:
        network: The module, which is trained in place.
        x: Inputs.
        y: Labels.
        loss: A custom loss.

    Attributes:
        weights: The trained weights by name.
        initial: Copies of their initial values.
    """

    def __init__(
        self, network: Module, x: ModuleInputs, y: Tensor, loss: Loss | None = None
    ) -> None:
        self.network, self.x, self.y, self.loss = network, x, y, loss
        self.weights: dict[str, Parameter] = {
            name: p for name, p in network.named_parameters() if p.requires_grad
        }
        if not self.weights:
            raise ValueError("net must have weights that require a gradient, got none")
        self.initial = {name: p.detach().clone() for name, p in self.weights.items()}

    @classmethod
    def checked(cls, net: Any, x: Any, y: object, loss: Loss | None) -> Self:
        """Check the arguments of ``train`` and ``Watch``."""
        function("loss", loss)
        instance("net", net, Module)
        if isinstance(net, Network):
            if loss is None:
                _, x, y = TrainingProblem.checked(net, x, y)
            else:
                x = net.check_input(as_tensor(x, "x"))
        check_whole("net", net)
        inputs, labels = ModuleInputs.checked("x", x), as_tensor(y, "y")
        if not isinstance(labels, Tensor):
            raise TypeError(f"y must be a tensor or an array, got {type(labels).__name__}")
        if labels.is_floating_point():
            float_tensor("y", labels)
        if labels.shape[:1] != (len(inputs),):
            raise ValueError(
                f"y must have the same samples as x in its first dimension, {len(inputs)}, got "
                f"shape {tuple(labels.shape)}"
            )
        return cls(net, inputs, labels.detach(), loss)

    @property
    def equilibria(self) -> list[EquilibriumNetwork]:  # type: ignore[type-arg]  # of any
        """The networks with an equilibrium: the module itself, or those in it."""
        modules = self.network.modules()
        return [module for module in modules if isinstance(module, EquilibriumNetwork)]

    @property
    def solves(self) -> list[SolveOptions]:
        """The solver options of all modules with an equilibrium, with their logs."""
        candidates = map(solve_options, self.network.modules())
        return [options for options in candidates if options is not None]

    def exactly(self) -> "Objective":
        """This objective with exact gradients; evaluating it leaves no trace in the network."""
        view = copy.copy(self)
        view.network = exact(self.network, silent=True)
        return view

    def evaluate(self, rows: Tensor | None = None) -> Evaluation:
        r"""One forward and one backward pass.

        Args:
            rows: Some of the samples, for an estimate of $\Phi$: their loss divided by their share
                of all samples. A custom loss is not scaled.

        Raises:
            ConvergenceError: If an equilibrium, or its gradient, does not converge and the network
                was built to raise then.
        """
        for options in self.solves:
            options.log.backward = None  # not every gradient takes a solve
        x, y, share = self.x, self.y, 1.0
        if rows is not None:
            x, y, share = x[rows], y[rows], len(x) / len(rows)
        with torch.enable_grad():
            output = x.call(self.network)
            if self.loss is None:
                labels = _like(output, y)
                target, seed = output, output.detach() - labels
                loss = 0.5 * float(seed.double().square().sum()) * share
                seed = seed * share
            else:
                target, seed = _number(self.loss(output, y)), None
                loss = float(target.detach())
            gradients: list[Tensor] = []
            if math.isfinite(loss):
                trained = list(self.weights.values())
                gradients = [*torch.autograd.grad(target, trained, seed, materialize_grads=True)]
        logs = [options.log for options in self.solves]
        solutions = [solution for log in logs for solution in (log.forward, log.backward)]
        converged = all(s is None or bool(s.converged.all()) for s in solutions)
        return Evaluation(loss, gradients, converged, self._residual(), rows)

    def _residual(self) -> float:
        network = self.network
        if not isinstance(network, EquilibriumNetwork) or network.last_solve is None:
            return 0.0
        return float(torch.linalg.vector_norm(network.last_solve.residual, dtype=torch.float64))

    def distances(self) -> dict[str, float]:
        """How far each group of weights is from its start, in the Frobenius norm."""
        return {
            name: float(
                torch.linalg.vector_norm(p.detach() - self.initial[name], dtype=torch.float64)
            )
            for name, p in self.weights.items()
        }

    def feature_error(self, now: Evaluation, gain: float) -> float:
        r"""A bound of the error of the features, compared with exact equilibria.

        A residual $r$ of a contraction with gain $g$ leaves an error of at most $r/(1-g)$.

        Args:
            now: The present weights.
            gain: An upper bound of $g$; if it is not below one, the residual itself is returned.
        """
        network = self.network
        if not isinstance(network, EquilibriumNetwork) or now.residual == 0:
            return 0.0
        return network.feature_scale * now.residual / (1 - gain if gain < 1 else 1.0)

    def rounding(self, size: float) -> float:
        """The rounding error of sums of this size over all units."""
        width = max(max(p.shape, default=1) for p in self.network.parameters())
        dtype = next(iter(self.weights.values())).dtype
        return torch.finfo(dtype).eps * math.sqrt(width) * size

    def output_error(self, now: Evaluation, gain: float) -> float:
        r"""A bound of $\|f - f_*\|$, where $f_*$ has exact equilibria and no rounding."""
        total = self.rounding(float(self.y.abs().max()) + 1.0) * math.sqrt(self.y.numel())
        if isinstance(self.network, EquilibriumNetwork):
            size = float(torch.linalg.matrix_norm(self.network.readout.detach().double(), 2))
            total += size * self.feature_error(now, gain)
        return total


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    shapes = {name: repr(tuple(tensor.shape)) for name, tensor in tensors.items()}
    return checksum(shapes, {n: t.detach().double().cpu() for n, t in tensors.items()})


def _like(output: object, y: Tensor) -> Tensor:
    """Labels in the shape and dtype of outputs."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise TypeError(
            f"net must return a tensor of real numbers, got {type(output).__name__}: give loss= "
            "for outputs of another kind"
        )
    if y.shape == output.shape:
        return y.to(output.dtype)
    if y.numel() != output.numel() or y.numel() != len(y):  # one output is unambiguous
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
