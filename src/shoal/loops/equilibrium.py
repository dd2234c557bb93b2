"""The equilibrium of a loop: solvers, uniqueness near its start, the Jacobian, gradients."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from shoal.core.checks import seeded
from shoal.core.measuring import timed
from shoal.core.torch_compat import pytree, without_fused_attention
from shoal.core.words import Row
from shoal.equilibrium import (
    Anderson,
    Broyden,
    DampedPicard,
    Equilibrium,
    Gradient,
    Implicit,
    Neumann,
    NewtonKrylov,
    OneStep,
    Picard,
    Solver,
    Unrolled,
)
from shoal.equilibrium.state import StateLayout
from shoal.loops.loop import Loop, State, rows_of
from shoal.numerics.krylov import RowSpaces
from shoal.numerics.norms import norms_from_below

_SOLVERS = (
    *(Picard(max_steps=500), DampedPicard(max_steps=500)),
    *(Anderson(), Broyden(), NewtonKrylov()),
)
_GRADIENTS = Implicit(), OneStep(), Neumann(1), Neumann(5), Neumann(20), Unrolled()
_STARTS = 3  # states near the model's own start
_APART = 1e-2  # relative distance from which two equilibria count as different
_FORMED = 128  # entries of a state up to which the Jacobian is formed
_STEPS = 48  # products in each Krylov space

Product = Callable[[Tensor], Tensor]


class JacobianSpectrum(NamedTuple):
    r"""The Jacobian $J$ of a loop at the equilibria of some samples.

    Attributes:
        samples: Places of these samples.
        norms: Norms $\|J\|$; lower bounds, unless ``exact``.
        radii: Spectral radii; largest Ritz values, unless ``exact``.
        exact: Whether the Jacobian was formed.
    """

    samples: tuple[int, ...]
    norms: tuple[float, ...]
    radii: tuple[float, ...]
    exact: bool

    @property
    def norm(self) -> float:
        """The largest norm."""
        return max(self.norms)

    @property
    def radius(self) -> float:
        """The largest spectral radius."""
        return max(self.radii)


class SolverCost(NamedTuple):
    """The cost of solving with one method, from the model's own start.

    Attributes:
        solver: The method.
        converged: Number of samples that converged.
        evaluations: Evaluations of the cell, or products with its Jacobian, for the whole batch.
        seconds: Time of one solve.
        accuracy: Quality of the output there, as in the curve; ``None`` if unknown.
        agreement: Share of decisions that agree with the model as it runs.
    """

    solver: Solver
    converged: int
    evaluations: int
    seconds: float
    accuracy: float | None
    agreement: float

    @property
    def name(self) -> str:
        """The name of the method."""
        return type(self.solver).__name__


class GradientCost(NamedTuple):
    """The cost and the error of a gradient method.

    Attributes:
        gradient: The method.
        relative: Norm of its error, relative to the exact gradient.
        cosine: Cosine of the angle to the exact gradient; below zero, steps increase the loss.
        seconds: Time of a forward and a backward pass.
    """

    gradient: Gradient
    relative: float
    cosine: float
    seconds: float

    @property
    def name(self) -> str:
        """The name of the method."""
        terms = f"({self.gradient.terms})" if isinstance(self.gradient, Neumann) else ""
        return type(self.gradient).__name__ + terms


@dataclass(frozen=True, eq=False)
class EquilibriumReport:
    """The equilibria of a loop, one or several for each sample.

    Attributes:
        states: Distinct equilibria of each sample near the model's own start, in rows.
        starts: Number of starts.
        contraction: ``"certified"`` if a bound proves that the loop contracts, ``"refuted"`` if its
            Jacobian has a norm of one or more at an equilibrium, else ``"unknown"``.
        spectrum: Norms and radii of the Jacobian at equilibria; ``None`` without any.
        solvers: Cost of each solver.
        gradients: Cost and error of each gradient method; empty if nothing requires a gradient.
    """

    states: tuple[Tensor, ...]
    starts: int
    contraction: str
    spectrum: JacobianSpectrum | None
    solvers: tuple[SolverCost, ...]
    gradients: tuple[GradientCost, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of equilibria for each sample."""
        return tuple(map(len, self.states))

    @property
    def solved(self) -> int:
        """The number of samples with an equilibrium."""
        return sum(count > 0 for count in self.counts)

    @property
    def unique(self) -> bool | None:
        """Whether each sample has one: proved, disproved by a second one, or unknown."""
        if any(count > 1 for count in self.counts):
            return False
        return True if self.contraction == "certified" else None

    def rows(self) -> Iterator[Row]:
        """The table of a page."""
        unique = {True: "unique: proved", False: "not unique", None: "no second one was found"}
        yield Row(
            "found",
            f"{self.solved} of {len(self.states)} samples",
            unique[self.unique] if self.solved else "",
        )
        if self.spectrum is not None:
            yield Row("‖J‖", f"{self.spectrum.norm:.4g}", f"contraction: {self.contraction}")
            yield Row("spectral radius", f"{self.spectrum.radius:.4g}",
                      "below 1, the plain iteration converges near it")  # fmt: skip
        for cost in self.solvers:
            value = f"{cost.evaluations} evaluations, {1e3 * cost.seconds:.3g} ms"
            score = "" if cost.accuracy is None else f", score {cost.accuracy:.4g}"
            yield Row(cost.name, value, f"{cost.converged} of {len(self.states)} converged, agrees "
                      f"in {cost.agreement:.1%}{score}")  # fmt: skip
        for one in self.gradients:
            yield Row(one.name, f"{1e3 * one.seconds:.3g} ms",
                      f"error {one.relative:.2g}, cosine {one.cosine:.3f}")  # fmt: skip

    def document(self) -> dict[str, Any]:
        """Everything except the states as plain values."""
        names = ("counts", "starts", "contraction", "unique")
        return {
            **{name: getattr(self, name) for name in names},
            "jacobian": self.spectrum and self.spectrum._asdict(),
            "solvers": [{**c._asdict(), "solver": repr(c.solver)} for c in self.solvers],
            "gradients": [{**c._asdict(), "gradient": c.name} for c in self.gradients],
        }


def equilibrium_of(
    loop: Loop,
    inputs: tuple[Any, ...],
    judge: Callable[[Any], tuple[float | None, float]],
    *,
    certified: bool,
    seed: int,
) -> EquilibriumReport:
    """Solve for the equilibria of a loop, and measure the loop near them.

    ``judge`` returns the quality and the agreement of an output; ``certified`` means that a bound
    proves that the loop contracts.
    """
    with torch.no_grad():
        state, context = loop.begin(*inputs)
    step = _RowMap(loop, state, context)
    start = rows_of(state).detach()
    costs, solutions = [], []
    with without_fused_attention():  # fused attention has no second derivatives
        for solver in _SOLVERS:
            layer = step.layer(solver=solver)
            with torch.no_grad():
                rows, seconds = timed(lambda: layer(start, *step.tensors), start.device)  # noqa: B023
                score, agreement = judge(loop.head(step.layout.state(rows), context))
            solution = layer.solution
            assert solution is not None
            numbers = int(solution.converged.sum()), solution.evaluations, seconds
            costs.append(SolverCost(solver, *numbers, score, agreement))
            solutions.append(_where_converged(layer, rows))
        finite = torch.stack(solutions)
        finite = finite[finite.isfinite()]
        spread = float(finite.square().mean().sqrt()) if len(finite) else 1.0
        generator = seeded("seed", seed)
        for _ in range(_STARTS):
            noise = torch.randn(start.shape, generator=generator, dtype=torch.float64).to(start)
            layer = step.layer(solver=(Anderson(), NewtonKrylov()))
            with torch.no_grad():
                rows = layer(start + spread * noise, *step.tensors)
                solutions.append(_where_converged(layer, rows))
        states = tuple(map(_distinct, torch.stack(solutions, 1)))
        solved = torch.tensor([len(one) > 0 for one in states])
        spectrum = None
        if bool(solved.any()):
            first = torch.stack([one[0] if len(one) else 0 * start[0] for one in states])
            places = solved.nonzero()[:, 0].to(start.device)
            spectrum = _jacobian_spectrum(lambda rows: step(rows, *step.tensors), first, places)
        gradients = _gradient_costs(step, start, solved, seed)
    contraction = "certified" if certified else "unknown"
    if not certified and spectrum is not None and spectrum.norm >= 1:
        contraction = "refuted"
    return EquilibriumReport(states, 1 + _STARTS, contraction, spectrum, tuple(costs), gradients)


class _RowMap(nn.Module):
    """A step of a loop as a map of rows, with its modules and tensors."""

    def __init__(self, loop: Loop, state: State, context: Any) -> None:
        super().__init__()
        self.parts, self.coupled = nn.ModuleList(loop.modules), loop.samples_coupled
        self.layout = StateLayout.from_state(pytree.tree_map(Tensor.detach, state))
        self.cell, tensors = loop.as_cell(context)
        self.tensors = [t.detach() for t in tensors]

    def forward(self, rows: Tensor, *tensors: Tensor) -> Tensor:
        return self.layout.rows(self.cell(self.layout.state(rows), *tensors))

    def layer(self, **options: Any) -> Equilibrium:
        """An equilibrium layer; it treats coupled samples as a single one."""
        return Equilibrium(self, on_failure="status", batched=not self.coupled, **options)


def _where_converged(layer: Equilibrium, rows: Tensor) -> Tensor:
    """The rows of equilibria; NaN where a solve did not converge."""
    assert layer.solution is not None
    return torch.where(layer.solution.converged.expand(len(rows))[:, None], rows, torch.nan)


def _distinct(states: Tensor) -> Tensor:
    """The distinct finite states of a sample, in rows."""
    states = states[states.isfinite().all(1)]
    kept: list[int] = []
    sizes = torch.linalg.vector_norm(states, dim=1).clamp_min(1e-3)
    for i, z in enumerate(states):
        apart = torch.linalg.vector_norm(z - states[kept], dim=1)
        if bool((apart > _APART * torch.maximum(sizes[i], sizes[kept])).all()):
            kept.append(i)
    return states[kept]


def _gradient_costs(
    step: _RowMap, start: Tensor, solved: Tensor, seed: int
) -> tuple[GradientCost, ...]:
    """Gradient methods compared with the exact one, for a random linear loss of the state."""
    tensors = [t.detach().requires_grad_() for t in step.tensors]
    variables = [*tensors, *(p for p in step.parameters() if p.requires_grad)]
    noise = torch.randn(start.shape, generator=seeded("seed", seed), dtype=torch.float64)
    weights = (noise * solved[:, None]).to(start)
    costs: list[GradientCost] = []
    exact: Tensor | None = None
    for gradient in _GRADIENTS:
        solver = Picard(max_steps=100) if isinstance(gradient, Unrolled) else None
        layer = step.layer(gradient=gradient, solver=solver)

        def passes(layer: Equilibrium = layer) -> Tensor | None:
            with torch.enable_grad():
                total = (layer(start, *tensors) * weights).sum()
                if not total.requires_grad:
                    return None
                gradients = torch.autograd.grad(
                    total, variables, allow_unused=True, materialize_grads=True
                )
            return torch.cat([one.double().flatten() for one in gradients])

        flat, seconds = timed(passes, start.device)
        exact = flat if exact is None else exact
        if flat is None or exact is None or not 0 < float(exact.norm()) < math.inf:
            return ()
        size = exact.norm()
        cosine = float(torch.dot(flat, exact) / (flat.norm() * size).clamp_min(1e-300))
        costs.append(GradientCost(gradient, float((flat - exact).norm() / size), cosine, seconds))
    return tuple(costs)


def _jacobian_spectrum(function: Product, z: Tensor, rows: Tensor) -> JacobianSpectrum:
    """Norms and eigenvalues of the Jacobian of a map of rows, at some of the rows of ``z``."""
    size = z.shape[1]
    most = min(len(rows), 16, max(1, 2**24 // (_STEPS * size)))  # limits the Krylov spaces
    chosen = rows[torch.linspace(0, len(rows) - 1, most).round().long()]
    push, pull = _products(function, z, chosen)
    if size <= _FORMED:
        units = torch.eye(size, dtype=torch.float64, device=z.device)
        matrix = torch.stack([pull(unit.expand(most, size)) for unit in units], 1)
        matrix = matrix.cpu()  # some devices lack eigenvalues
        norms = torch.linalg.matrix_norm(matrix, 2)
        radii = torch.linalg.eigvals(matrix).abs().amax(1)
    else:
        generator = torch.Generator().manual_seed(size)
        start = torch.randn(most, size, generator=generator, dtype=torch.float64).to(z.device)
        rounding = 500 * torch.finfo(z.dtype).eps
        norms = norms_from_below(push, pull, start, _STEPS, rounding=rounding)
        # the transposed Jacobian has the same eigenvalues, and needs no second derivatives
        radii = _ritz_radii(pull, start, rounding)
    samples, lengths, largest = (tuple(t.tolist()) for t in (chosen, norms, radii))
    return JacobianSpectrum(samples, lengths, largest, size <= _FORMED)


def _products(function: Product, z: Tensor, rows: Tensor) -> tuple[Product, Product]:
    """Products with the Jacobians of some samples and with their transposes, in float64."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = function(z)
        weights = torch.zeros_like(value).requires_grad_()
        (back,) = torch.autograd.grad(
            value, z, weights, create_graph=True, materialize_grads=True, allow_unused=True
        )

    def product(output: Tensor, variable: Tensor, v: Tensor) -> Tensor:
        weights = torch.zeros_like(z)
        weights[rows] = v.to(z)
        if not output.requires_grad:
            return torch.zeros_like(v)
        (gradient,) = torch.autograd.grad(
            output, variable, weights, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        return gradient[rows].double()

    return partial(product, back, weights), partial(product, value, z)


def _ritz_radii(pull: Product, start: Tensor, rounding: float) -> Tensor:
    """The largest modulus of each sample's Ritz values, by Arnoldi.

    A Krylov space that contains its image ends there, with exact eigenvalues.
    """
    spaces = RowSpaces(start)
    counts, grows = torch.zeros(len(start)).long(), torch.ones(len(start)).bool()
    for _ in range(_STEPS):
        image = pull(spaces.basis[-1])
        counts += grows
        new = spaces.add(image) > rounding * torch.linalg.vector_norm(image, dim=1)
        grows &= new.cpu()
        if not bool(grows.any()):
            break
    pairs = zip(spaces.coordinates.cpu(), counts, strict=True)
    return torch.stack([torch.linalg.eigvals(m[:count, :count]).abs().max() for m, count in pairs])
