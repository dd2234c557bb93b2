"""What networks with a recurrent layer have in common: how they solve for its equilibrium."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from shoal.architectures import ImplicitArchitecture
from shoal.core.checks import float_tensor
from shoal.core.torch_compat import changed_copy, full_precision, is_wrapped, uncompiled
from shoal.equilibrium import Solution
from shoal.equilibrium.recurrent.layer import Layer
from shoal.equilibrium.recurrent.layer_equilibrium import equilibrium
from shoal.equilibrium.recurrent.loop import loop_equilibrium, recurrent_problem
from shoal.equilibrium.solve_options import SolveOptions
from shoal.equilibrium.solvers.driver import drive
from shoal.equilibrium.solvers.problem import Problem
from shoal.equilibrium.solvers.solution import SolveLog, handle_failure
from shoal.equilibrium.solvers.warm import Series, WarmStart
from shoal.networks.gain import (
    GainBound,
    MatrixNorm,
    WeightNorm,
    WellPosedness,
    gain_factor,
    well_posedness,
)
from shoal.networks.network import Network, NetworkSpec
from shoal.networks.recurring_passes import recurring_pass

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
        self.options = replace(options, log=SolveLog(), warm=None)
        self.warm_start = warm_start
        self._series = Series()

    @property
    @abstractmethod
    def turn(self) -> list[tuple[Layer, Tensor]]:
        r"""The recurrent layers, one after the other: $\varphi$, $s$ and $W$."""

    @property
    def layer(self) -> Layer:
        """The first of them, in most networks the only one."""
        return self.turn[0][0]

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
        """Let the next solves start cold, whatever came before; frees the memory of graphs."""
        self._series.clear()
        self.options.known.clear()

    def recalled(self) -> dict[str, Tensor]:
        """What warm starts know now, as tensors; to be kept and given to :meth:`recall`."""
        return self._series.state()

    def recall(self, x: Tensor, state: Mapping[str, Tensor]) -> None:
        """Let the next solves for inputs ``x`` start as if all had been solved that was."""
        self._series.resume(WarmStart.of(state), x)

    def forward(self, x: Tensor) -> Tensor:
        """The network's outputs, of shape (samples, outputs).

        Raises:
            TypeError: If ``torch.export`` calls it: a program has no loop of unknown length.
        """
        if torch.compiler.is_exporting():
            raise TypeError(
                "torch.export must get an explicit network, got one of "
                f"{type(self.architecture).__name__}, whose solver takes as many steps as inputs "
                "need: shoal.design and shoal.distill make explicit ones"
            )
        if torch.compiler.is_compiling():
            return super().forward(x)
        return recurring_pass(self, x, super().forward)

    def _forward(self, x: Tensor) -> Tensor:
        injections = self.injections(x)
        return self._read(self.equilibrium(injections, x), injections)

    @abstractmethod
    def _read(self, z: Tensor, injections: tuple[Tensor, ...]) -> Tensor:
        """The outputs that an equilibrium $Z$ makes, and what was injected."""

    def features(self, x: Tensor) -> Tensor:
        """The equilibrium $z$ for inputs ``x``, differentiable; shape (samples, width, ...)."""
        x = self.check_input(x)
        return self.equilibrium(self.injections(x), x) * self.feature_scale

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
                problem, start = recurrent_problem(self.turn, injections)
                found = drive(problem, self.options.solver, start).solution
            scale, value = self.feature_scale, found.value.view(injections[0].shape)
            solution = replace(found, value=value * scale, residual=found.residual * scale)
        tried = [type(self.options.solver).__name__]
        handle_failure(solution, self.options.on_failure, "The equilibrium", tried=tried)
        return solution

    def problem_at(self, z: Tensor, x: Tensor) -> tuple[Problem, Tensor]:
        """The equation of the recurrent layers near an equilibrium $z$, and that as rows."""
        injections = self.injections(self.check_input(x))
        problem, start = recurrent_problem(self.turn, injections)
        z, shape = float_tensor("z", z), injections[0].shape
        if z.shape != shape:
            raise ValueError(f"z must have shape {tuple(shape)}, got {tuple(z.shape)}")
        return problem, z.to(start.dtype).flatten(1) / self.feature_scale

    @uncompiled
    def equilibrium(self, injections: tuple[Tensor, ...], x: Tensor | None = None) -> Tensor:
        """$Z$, from a warm start if this pass is one of a series on the same inputs ``x``."""
        options = self.options.with_recall(self._warm(x))
        turn = self.turn
        if len(turn) > 1 or type(turn[0][0]) is not Layer:
            return loop_equilibrium(turn, injections, options)
        ((layer, weight),) = turn
        return equilibrium(injections[0], weight, layer, options)

    def exact(self, *, silent: bool = False) -> "EquilibriumNetwork[A]":
        """This network, sharing its weights, with exact gradients, whatever it trains with.

        It has no warm starts, and leaves :attr:`last_solve` and :attr:`last_adjoint` alone.

        Args:
            silent: Whether it may leave failures to a status, if this network does; else it warns.
        """
        return changed_copy(
            self,
            options=self.options.exact(silent=silent),
            warm_start=False,
            _series=Series(),
            _checked=None,
        )

    def having(self, weights: Mapping[str, Tensor]) -> "EquilibriumNetwork[A]":
        """A copy of this network that has other tensors in place of its own.

        Args:
            weights: One for each parameter and each buffer, by name.
        """
        return changed_copy(self, tensors=weights)

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
        weights = [weight for _, weight in self.turn]
        return well_posedness(self.gain_bound(), weights, self.architecture, tightness)

    def gain_bound(self) -> GainBound:
        """What bounds the gain of the recurrent layers while their weights change."""
        turn = self.turn
        return GainBound([gain_factor(layer) for layer, _ in turn], [self._norm()] * len(turn))

    def _norm(self) -> WeightNorm:
        """How the norm of a recurrent layer's weights is bounded."""
        return MatrixNorm()

    def _warm(self, x: Tensor | None) -> WarmStart | None:
        if not (self.warm_start and self.training and torch.is_grad_enabled()):
            return None
        if x is None or is_wrapped(x):
            return None
        return self._series.start(x)

    def __getstate__(self) -> dict[str, object]:
        """Without what was recalled: copies start cold."""
        return {
            **super().__getstate__(),
            "_series": Series(),
            "options": replace(self.options, log=SolveLog()),
        }
