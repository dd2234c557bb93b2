"""Networks with a loop: an injection, the equilibrium of recurrent layers, and a readout."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, TypedDict, TypeVar

import torch
from torch import Tensor

from shoal.activations import Activation, Affine
from shoal.architectures import Cell, ImplicitArchitecture
from shoal.core.checks import float_tensor
from shoal.core.torch_compat import full_precision, uncompiled
from shoal.equilibrium import Equilibrium, Gradient, Solution, Solver
from shoal.equilibrium.problem import FunctionProblem
from shoal.equilibrium.state import State, StateLayout
from shoal.networks.gain import (
    ConvolutionNorm,
    GainBound,
    MatrixNorm,
    WellPosedness,
    gain_factor,
    well_posedness,
)
from shoal.networks.layered import LayeredNetwork
from shoal.networks.modules import exact
from shoal.networks.network import LinearMap, Network, NetworkSpec, NetworkTrace
from shoal.networks.recorded_passes import RecordedPasses
from shoal.networks.recurrent_layers import Layer, Padding, RecurrentCell

A = TypeVar("A", bound=ImplicitArchitecture)


class Solving(TypedDict, total=False):
    """The keywords of ``build`` and ``load`` that go to the ``Equilibrium`` of a network."""

    solver: Solver | Sequence[Solver] | None
    gradient: Gradient | None
    on_failure: str
    warm_start: bool


class RecurrentEquilibrium(Equilibrium):
    """The equilibrium of recurrent layers, whose samples do not depend on each other.

    It is called with a start, the injections and the weights, which a network owns.
    """

    cell: RecurrentCell

    def problem(self, z0: State, *inputs: Any, **named: Any) -> tuple[FunctionProblem, Tensor]:
        """The equation of a state and inputs, as solvers see it, and where to start."""
        layout = StateLayout.from_state(z0)
        problem = FunctionProblem(self.cell, layout, (*inputs, *named.values()), separable=True)
        return problem, layout.rows(z0)


class EquilibriumNetwork(Network[A], Generic[A]):
    r"""A network whose features are an equilibrium.

    For one recurrent layer it is $Z = \varphi(s Z W^\top + U)$. For several, the first layer sees
    $Z$, and $Z$ is the output of the last.

    Attributes:
        equilibrium: The layer that solves, with its options, the last solution and a log.
    """

    def __init__(self, spec: NetworkSpec[A], weights: Mapping[str, Tensor], **solving: Any) -> None:
        super().__init__(spec, weights)
        layers = tuple(layer for layer, _ in self.recurrent_layers)
        self.equilibrium = RecurrentEquilibrium(RecurrentCell(layers), **solving)
        self.passes = RecordedPasses()

    @property
    @abstractmethod
    def recurrent_layers(self) -> list[tuple[Layer, Tensor]]:
        r"""The recurrent layers, one after the other: $\varphi$, $s$ and $W$."""

    @property
    def layer(self) -> Layer:
        """The first of them, in most networks the only one."""
        return self.recurrent_layers[0][0]

    @abstractmethod
    def inject(self, x: Tensor) -> Tensor:
        """$U$, the term of the inputs in the first recurrent layer."""

    def injections(self, x: Tensor) -> tuple[Tensor, ...]:
        """The terms of inputs and biases in all recurrent layers."""
        return (self.inject(x),)

    @property
    @abstractmethod
    def feature_scale(self) -> float:
        """The ratio of the architecture's $z$ to the equilibrium $Z$."""

    @property
    def last_solve(self) -> Solution | None:
        """The solution of the last forward pass; its value is $Z$."""
        return self.equilibrium.solution

    @property
    def last_adjoint(self) -> Solution | None:
        """The solution of the last backward pass."""
        return self.equilibrium.log.backward

    def forget(self) -> None:
        """Let the next solve start cold."""
        self.equilibrium.forget()

    def _forward(self, x: Tensor) -> Tensor:
        output = self.passes(self, x)
        if output is None:
            output = self.ordinary_pass(x)
            self.passes.learn(self, x)
        return output

    def ordinary_pass(self, x: Tensor) -> Tensor:
        """The outputs for inputs that were checked, step by step."""
        injections = self.injections(x)
        return self.read(self.state(injections), injections)

    @abstractmethod
    def read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:
        """The outputs for an equilibrium $Z$ and its injections."""

    @uncompiled
    def state(self, injections: tuple[Tensor, ...]) -> Tensor:
        """$Z$, differentiable in the injections and the recurrent weights."""
        with full_precision(injections[0]):
            z: Tensor = self.equilibrium(*self._start(injections))
        return z

    def start(self, injections: tuple[Tensor, ...]) -> tuple[FunctionProblem, Tensor]:
        """The equation of the state for some injections, and where to start, as rows."""
        return self.equilibrium.problem(*self._start(injections))

    def _start(
        self, injections: tuple[Tensor, ...]
    ) -> tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]:
        """A start, the injections in the dtype of the weights, and the weights."""
        weights = tuple(weight for _, weight in self.recurrent_layers)
        into = tuple(one.to(weights[0].dtype) for one in injections)
        with torch.no_grad():
            return self.equilibrium.cell.from_zero(into, weights), into, weights

    def features(self, x: Tensor) -> Tensor:
        """The equilibrium $z$ for inputs ``x``, differentiable; shape (samples, width, ...)."""
        return self.state(self.injections(self.check_input(x))) * self.feature_scale

    def solve(self, x: Tensor) -> Solution:
        """The equilibrium with its status, residual and steps for each sample; no gradient.

        Args:
            x: Inputs, of shape (samples, in_features, ...).

        Raises:
            ConvergenceError: If a sample does not converge and the network was built with
                ``on_failure="raise"``.
        """
        view, scale = exact(self, silent=True), self.feature_scale  # last_solve stays
        with torch.no_grad():
            view.features(x)
        solution: Solution = view.last_solve
        return replace(solution, value=solution.value * scale, residual=solution.residual * scale)

    def problem_at(self, z: Tensor, x: Tensor) -> tuple[FunctionProblem, Tensor]:
        """The equation of the recurrent layers near an equilibrium $z$, and $z$ as rows."""
        start, *inputs = self._start(self.injections(self.check_input(x)))
        z = float_tensor("z", z)
        if z.shape != start.shape:
            raise ValueError(f"z must have shape {tuple(start.shape)}, got {tuple(z.shape)}")
        return self.equilibrium.problem_at(z.to(start.dtype) / self.feature_scale, *inputs)

    def well_posedness(self, *, tightness: float = 1e-3) -> WellPosedness:
        """Report whether the loop of recurrent layers is a contraction, with certified bounds.

        Args:
            tightness: Largest relative excess of the upper bound of the weights' norm.

        Example:
            >>> import shoal
            >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
            >>> net = shoal.build(deq, in_features=3, width=64, out_features=1)
            >>> net.well_posedness().contraction
            True
        """
        return well_posedness(self.gain_bound(), self.architecture, tightness)

    def gain_bound(self) -> GainBound:
        """A bound of the gain of the recurrent layers that follows changes of their weights."""
        layers = [layer for layer, _ in self.recurrent_layers]
        norm: MatrixNorm | ConvolutionNorm = MatrixNorm()
        if axes := self.spec.pixel_axes:
            positions = self.recurrent_layers[0][1].shape[2] ** axes
            norm = ConvolutionNorm(layers[0].padding, positions, self.spec.pixels)
        return GainBound(
            [*map(gain_factor, layers)], norm, lambda: [w for _, w in self.recurrent_layers]
        )


class LoopNetwork(LayeredNetwork[A], EquilibriumNetwork[A], Generic[A]):
    r"""A loop of cells, as the architecture's ``layers`` say; for a DEQ mostly of one.

    $z = k\,m^{-1/2}\varphi(\sigma_a A z + \sigma_b B x + b)$ and $f = a^\top z$, solved for
    $Z = \sqrt{m} z$. With more cells, each acts on the output of the one before it. For images $A$
    and $B$ are convolutions. In the standard parametrization the weights are
    $W = \sigma_a A/\sqrt m$, $U = \sigma_b B$ and $a/\sqrt m$, the features are $Z$, and the
    gradients of one cell are those of Ling 2023, Lemma 2.
    """

    @property
    def recurrent_layers(self) -> list[tuple[Layer, Tensor]]:
        """The recurrent layers, one after the other, with their weights."""
        architecture: Any = self.architecture
        padding: Padding = architecture.padding if self.spec.pixel_axes else "zeros"
        groups = [cell.weights.group for cell in self.layers.cells]
        return [
            (Layer(_activation(cell), self.scales[group], padding), self._weight(group))
            for cell, group in zip(self.layers.cells, groups, strict=True)
        ]

    @property
    def feature_scale(self) -> float:
        r"""$z = Z/\sqrt m$ in the NTK parametrization, $Z$ in the standard one."""
        return self.scales["readout"]

    def inject(self, x: Tensor) -> Tensor:
        r"""$U = \sigma_b x B^\top + b$, the input of the first layer besides the features."""
        injection = self.layers.injection
        assert injection is not None
        group = injection.group
        term = self._linear(x, self._weight(group)).mul(self.scales[group])
        return self._with_bias(self.layers.cells[0], term)

    def injections(self, x: Tensor) -> tuple[Tensor, ...]:
        """The terms of inputs and biases in all layers."""
        first = self.inject(x)
        zeros = first.new_zeros(()).expand_as(first)
        biases = (self._with_bias(cell, zeros) for cell in self.layers.cells[1:])
        return first, *biases

    def read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:  # noqa: ARG002
        """The outputs for an equilibrium."""
        return torch.mm(self.pooled(z), self.readout.t()).mul(self.feature_scale)

    def trace(self, x: Tensor) -> NetworkTrace:
        """A pass that keeps the equilibrium, and the terms of the input and of each layer."""
        x = self.check_input(x).detach().requires_grad_()
        injections = tuple(
            u if u.requires_grad else u.detach().requires_grad_() for u in self.injections(x)
        )
        z = exact(self, silent=True).state(injections)
        output, pooled, scales = self.read(z, injections), self.pooled(z), self.scales
        maps = {"readout": LinearMap(pooled[:, None], output, scales["readout"])}
        injection, readout = self.layers.injection, self.layers.readout
        assert injection is not None
        maps[injection.group] = LinearMap(self.patches(x), injections[0], scales[injection.group])
        weights = tuple(weight for _, weight in self.recurrent_layers)
        states = self.equilibrium.cell.states(z, injections, weights)[:-1]
        for cell, state, injected in zip(self.layers.cells, states, injections, strict=True):
            maps |= self._maps(cell, state, injected)
        deviation = 1.0 if readout is None else math.sqrt(readout.variance)
        return NetworkTrace(output, pooled * (deviation / math.sqrt(self.spec.width)), maps)


def _activation(cell: Cell) -> Activation:
    """The activation of a cell with its gain."""
    return cell.activation if cell.gain == 1 else Affine(cell.activation, cell.gain)
