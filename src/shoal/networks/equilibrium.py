"""What networks with a recurrent layer have in common: how they solve for its equilibrium."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from shoal.architectures import ImplicitArchitecture
from shoal.core.checks import float_tensor
from shoal.core.torch_compat import changed_copy, full_precision, uncompiled
from shoal.equilibrium.driver import drive
from shoal.equilibrium.gradients import SolveOptions
from shoal.equilibrium.problem import FunctionProblem, Problem
from shoal.equilibrium.solution import LastSolution, Solution, SolveLog, handle_failure
from shoal.equilibrium.state import StateLayout
from shoal.networks.gain import (
    GainBound,
    MatrixNorm,
    WeightNorm,
    WellPosedness,
    gain_factor,
    well_posedness,
)
from shoal.networks.network import Network, NetworkSpec
from shoal.networks.recurrent_layers import Layer, RecurrentCell

A = TypeVar("A", bound=ImplicitArchitecture)


class EquilibriumNetwork(Network[A], Generic[A]):
    r"""A network whose features are an equilibrium.

    That is $Z = \varphi(s Z W^\top + U)$ for one recurrent layer; the output of the last one for
    several, the first of which sees $Z$.

    Attributes:
        options: How the equilibrium is solved for and differentiated.
    """

    def __init__(
        self,
        spec: NetworkSpec[A],
        weights: Mapping[str, Tensor],
        options: SolveOptions,
        *,
        warm_start: bool = False,
    ) -> None:
        super().__init__(spec, weights)
        self.options = replace(options, log=SolveLog())
        self.warm_start = warm_start
        self._last = LastSolution()

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
        """$U$, what the inputs add to the first recurrent layer."""

    def injections(self, x: Tensor) -> tuple[Tensor, ...]:
        """What is added to each of them."""
        return (self.inject(x),)

    @property
    @abstractmethod
    def feature_scale(self) -> float:
        """The factor that makes the architecture's $z$ of the equilibrium $Z$."""

    @property
    def last_solve(self) -> Solution | None:
        """The outcome of the last forward pass; its value is $Z$."""
        return self.options.log.forward

    @property
    def last_adjoint(self) -> Solution | None:
        """The outcome of the last backward pass's solve."""
        return self.options.log.backward

    def forget(self) -> None:
        """Let the next solve start cold."""
        self._last.value = None

    def _forward(self, x: Tensor) -> Tensor:
        injections = self.injections(x)
        return self._read(self.equilibrium(injections), injections)

    @abstractmethod
    def _read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:
        """The outputs that an equilibrium $Z$ makes, and what was injected."""

    def features(self, x: Tensor) -> Tensor:
        """The equilibrium $z$ for inputs ``x``, differentiable; shape (samples, width, ...)."""
        x = self.check_input(x)
        return self.equilibrium(self.injections(x)) * self.feature_scale

    def solve(self, x: Tensor) -> Solution:
        """The equilibrium with its status, residual and steps for each sample; no gradient.

        Args:
            x: Inputs, of shape (samples, in_features, ...).

        Raises:
            ConvergenceError: If a sample does not converge and the network was built with
                ``on_failure="raise"``.
        """
        with torch.no_grad():
            injections = self.injections(self.check_input(x))
            with full_precision(x):
                problem, start = self.problem(injections)
                found = drive(problem, self.options.solver, start).solution
            scale, value = self.feature_scale, found.value.view(injections[0].shape)
            solution = replace(found, value=value * scale, residual=found.residual * scale)
        tried = [type(self.options.solver).__name__]
        handle_failure(solution, self.options.on_failure, "The equilibrium", tried=tried)
        return solution

    def problem_at(self, z: Tensor, x: Tensor) -> tuple[Problem, Tensor]:
        """The equation of the recurrent layers near an equilibrium $z$, and that as rows."""
        injections = self.injections(self.check_input(x))
        problem, start = self.problem(injections)
        z, shape = float_tensor("z", z), injections[0].shape
        if z.shape != shape:
            raise ValueError(f"z must have shape {tuple(shape)}, got {tuple(z.shape)}")
        return problem, z.to(start.dtype).flatten(1) / self.feature_scale

    def problem(self, injections: tuple[Tensor, ...]) -> tuple[FunctionProblem, Tensor]:
        """The equation of the recurrent layers for some injections, and where to start."""
        layers, weights = zip(*self.recurrent_layers, strict=True)
        cell = RecurrentCell(layers)
        into = tuple(one.to(weights[0].dtype) for one in injections)
        with torch.no_grad():
            start = cell.from_zero(into, weights).detach()
        layout = StateLayout.of(start)
        return FunctionProblem(cell, layout, (into, weights), separable=True), layout.rows(start)

    @uncompiled
    def equilibrium(self, injections: tuple[Tensor, ...]) -> Tensor:
        """$Z$, differentiable in the injections and the recurrent weights.

        Raises:
            TypeError: If ``torch.export`` calls it: a program has no loop of unknown length.
        """
        if torch.compiler.is_exporting():
            raise TypeError(
                "torch.export must get an explicit network, got one of "
                f"{type(self.architecture).__name__}, whose solver takes as many steps as inputs "
                "need: shoal.design and shoal.distill make explicit ones"
            )
        warm = self.warm_start and self.training and torch.is_grad_enabled()
        warm = warm and self.options.gradient.starts_anywhere
        with full_precision(injections[0]):
            problem, start = self.problem(injections)
            found = self.options.solve(problem, self._last.instead_of(start) if warm else start)
        if warm:
            self._last.keep(found)
        z: Tensor = problem.layout.state(found.value)
        return z

    def exact(self, *, silent: bool = False) -> "EquilibriumNetwork[A]":
        """This network, sharing its weights, with exact gradients, whatever it trains with.

        It starts cold, and leaves :attr:`last_solve` and :attr:`last_adjoint` alone.

        Args:
            silent: Whether it may leave failures to a status, if this network does; else it warns.
        """
        return changed_copy(
            self,
            options=self.options.exact(silent=silent),
            warm_start=False,
            _last=LastSolution(),
            _checked=None,
        )

    def well_posedness(self, *, tightness: float = 1e-3) -> WellPosedness:
        """Say whether the loop of recurrent layers is a contraction, with certified bounds.

        Args:
            tightness: By what fraction the bound of the weights' norm may exceed the norm.

        Example:
            >>> import shoal
            >>> deq = shoal.DEQ("tanh", recurrent_variance=0.2, input_variance=0.8)
            >>> net = shoal.build(deq, in_features=3, width=64, out_features=1)
            >>> net.well_posedness().contraction
            True
        """
        weights = [weight for _, weight in self.recurrent_layers]
        return well_posedness(self.gain_bound(), weights, self.architecture, tightness)

    def gain_bound(self) -> GainBound:
        """What bounds the gain of the recurrent layers while their weights change."""
        layers = [layer for layer, _ in self.recurrent_layers]
        return GainBound([*map(gain_factor, layers)], [self._norm()] * len(layers))

    def _norm(self) -> WeightNorm:
        """How the norm of a recurrent layer's weights is bounded."""
        return MatrixNorm()

    def __getstate__(self) -> dict[str, object]:
        """Without the last solution: copies start cold."""
        return {
            **super().__getstate__(),
            "_last": LastSolution(),
            "options": replace(self.options, log=SolveLog()),
        }
