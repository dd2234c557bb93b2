"""Watch any training: measure it at chosen steps, and judge its promises."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import SGD, Optimizer

from shoal.core.checks import function, instance, integer, items, one_of
from shoal.core.exceptions import ConvergenceError, ConvergenceWarning
from shoal.networks.modules import Inputs, evaluating
from shoal.training.measures import Measures
from shoal.training.objective import Evaluation, Loss, Objective
from shoal.training.promises import LOWER, PROMISES, make_guarantees
from shoal.training.records import Records, TrainingError

_WORDS = {
    "loss": "the loss exceeded its bound",
    "gain": "the recurrent layer is no longer certain to be a contraction",
    "equilibrium": "an equilibrium, or its gradient, did not converge",
    "least_eigenvalue": "the least eigenvalue of the Gram matrix fell below its bound",
    "pl_ratio": "the gradient became smaller than the loss allows",
    "drift": "the Gram matrix moved farther than its bound",
}


class Watch:
    r"""An observer of the training of any module by any loop.

    Each :meth:`record` evaluates the loss of all the samples given here with its exact gradient, in
    evaluation mode, and measures the gain of recurrent layers, the least eigenvalue of a Gram
    matrix $G$ and its drift, $\|\nabla\Phi\|^2/\lambda_0\Phi$, and the distance of each parameter
    from its start. It changes neither weights, gradients, buffers, random numbers nor warm starts.

    The theorems (see ``train``) promise properties of full-batch gradient descent of networks made
    by ``build``. To have them checked, declare gradient descent by ``step_size``, by ``optimizer``
    (``torch.optim.SGD`` without momentum or decay), or by a certificate. In any other training
    loop, two promises are checked: recurrent layers stay contractions, and equilibria converge. For
    other modules, only convergence is checked.

    Args:
        net: Any module; parameters that require a gradient are watched.
        x: Inputs: the training set, or a part of it; several inputs as in ``train``.
        y: Labels in the shape of the outputs, or in the form that ``loss`` expects.
        loss: A custom loss, as a function of outputs and labels. The theorems assume
            $\Phi = \frac12\|f - y\|^2$.
        optimizer: The optimizer of the loop. Unless it is gradient descent, a certificate is
            refused.
        step_size: Step size of full-batch gradient descent. ``"auto"``: one over the largest
            eigenvalue of the network's NTK.
        certificate: Result of ``certify`` for this network in its present state and these data. Its
            promises are checked, and it sets the default of ``step_size``.
        least_eigenvalue: $\lambda_0$; by default that of $G$ at the first record.
        promises: The promises to judge, out of ``"loss"``, ``"gain"``, ``"equilibrium"``,
            ``"least_eigenvalue"``, ``"pl_ratio"`` and ``"drift"``.
        gram: Whether to measure $G$. For networks of ``build``, $G$ is the share of one group in
            the NTK, which theorems choose or which is named here as ``{"readout"}``. For other
            modules, $G$ is $JJ^\top$ of all outputs with respect to all trained parameters, or to
            those whose names, prefixes or patterns are given here; by default only if $J$ has up to
            1000 rows and 64 million numbers. With another loss, $G$ is not measured by default.
        on_violation: ``"record"`` a broken promise, or ``"raise"`` a ``TrainingError``.
        also: A function that returns further numbers by name at each record, such as
            ``shoal.loops.LoopMeasures(loop, x)``; ``records.monitors`` has them, too.

    Attributes:
        violations: For each broken promise, the first step at which it was broken.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If shapes do not fit, a promise cannot be measured, or the certificate belongs
            to another network, other data or another optimizer.

    Example:
        >>> import torch, shoal
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> x, y = torch.randn(6, 2), torch.randn(6)
        >>> watch, optimizer = shoal.Watch(net, x, y), torch.optim.Adam(net.parameters())
        >>> for step in range(3):
        ...     row = watch.record(step)
        ...     optimizer.zero_grad()
        ...     torch.nn.functional.mse_loss(net(x)[:, 0], y).backward()
        ...     optimizer.step()
        >>> watch.records.monitors["least_eigenvalue"].shape
        torch.Size([3])
    """

    def __init__(
        self,
        net: Module,
        x: Inputs,
        y: Tensor,
        *,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        step_size: float | Literal["auto"] | None = None,
        certificate: Any = None,
        least_eigenvalue: float | None = None,
        promises: Iterable[str] | None = None,
        gram: bool | Iterable[str] | None = None,
        on_violation: Literal["record", "raise"] = "record",
        also: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        function("also", also)
        self._also: Callable[[], Mapping[str, float]] = also or dict
        self._raises = one_of("on_violation", on_violation, ("record", "raise")) == "raise"
        if promises is not None:
            promises = [one_of("promises", name, PROMISES) for name in items("promises", promises)]
        self.objective = Objective.checked(net, x, y, loss)
        self.measures = Measures(self.objective, gram)
        if optimizer is not None:
            if step_size is not None:
                raise ValueError("step_size and optimizer must not both be given")
            step_size = _plain_step_size(optimizer, self.objective)
            if certificate is not None and step_size is None:
                raise ValueError(
                    "certificate covers full-batch gradient descent of all trained weights, got "
                    f"the optimizer {type(optimizer).__name__}, about which it promises nothing"
                )
        self._guarantees = make_guarantees(
            self.objective,
            step_size=step_size,
            certificate=certificate,
            least_eigenvalue=least_eigenvalue,
            promises=None if promises is None else frozenset(promises),
            gram=self.measures.names is not None,
        )
        self._rows: list[dict[str, float]] = []  # steps and losses; more where all is measured
        self._least = math.nan  # λ_0
        self.violations: dict[str, int] = {}

    @property
    def step_size(self) -> float | None:
        """The step size of full-batch gradient descent; ``None`` for other methods."""
        return self._guarantees.step_size

    def record(self, step: int) -> dict[str, float]:
        """Measure the present weights, and judge the promises.

        Args:
            step: The number of steps made so far, larger than at the last record.

        Returns:
            ``"step"``, ``"loss"``, and the other numbers of ``records``. If the loss is not finite
            or an equilibrium does not converge, only the step, with a ``ConvergenceWarning``.

        Raises:
            TrainingError: If a promise is broken, and ``on_violation`` is ``"raise"``.
        """
        step = integer("step", step, at_least=int(self._rows[-1]["step"]) + 1 if self._rows else 0)
        if (
            not self._rows
            and step
            and (self._guarantees.rate is not None or self._guarantees.limits)
        ):
            raise ValueError(f"step must be 0 at first, where a certificate begins, got {step}")
        broken = len(self.violations)
        row: dict[str, float] = {"step": step}
        try:
            with torch.inference_mode(mode=False):
                row = self.look(step, measure=True)
        except ConvergenceError as error:
            if not self._raises:
                warnings.warn(str(error), ConvergenceWarning, stacklevel=2)
        if self._raises and len(self.violations) > broken:
            raise TrainingError(self.summary, run=self.records)
        return row

    def look(self, step: int, *, measure: bool) -> dict[str, float]:
        """Evaluate the weights exactly, without traces in the network, and note the result."""
        view = self.objective.exactly()
        with evaluating(view.network):
            return self.note(step, self.evaluate(step, view=view), measure=measure, view=view)

    def evaluate(
        self, step: int, rows: Tensor | None = None, *, view: Objective | None = None
    ) -> Evaluation:
        """Evaluate the loss.

        Raises:
            ConvergenceError: If it is not finite, or an equilibrium does not converge.
        """
        try:
            now = (self.objective if view is None else view).evaluate(rows)
        except ConvergenceError as error:
            self.lose("equilibrium", step)
            raise ConvergenceError(f"at step {step}: {error}") from error
        if not math.isfinite(now.loss):
            self.lose("loss", step)
            raise ConvergenceError(f"at step {step}: the loss is {now.loss}")
        return now

    def note(
        self, step: int, now: Evaluation, *, measure: bool, view: Objective | None = None
    ) -> dict[str, float]:
        """Write down an evaluation of all samples, and judge it.

        Args:
            step: The step.
            now: The evaluation.
            measure: Whether to take all measures.
            view: The evaluated objective, if it is a view of the one in training.
        """
        view = self.objective if view is None else view
        row: dict[str, float] = {"step": step, "loss": now.loss}
        self._rows.append(row)
        with evaluating(view.network):  # parametrizations must not change their buffers
            measured = self.measures.measure(view, now) if measure else {}
            if len(self._rows) == 1:
                self._least = self._guarantees.eigenvalue or measured.get(
                    "least_eigenvalue", math.nan
                )
            if measured:
                row |= self._judge_measures(measured, step, now.loss)
                row |= {name: float(value) for name, value in self._also().items()}
            self._judge("equilibrium", step, now.converged)
            if "loss" in self._guarantees.promises and self._loss_is_bounded:
                self._judge_loss(view, step, now)
        return row

    def lose(self, name: str, step: int) -> None:
        """Note that the loss, or an equilibrium, does not exist at a step."""
        if name in self._guarantees.promises and (name != "loss" or self._loss_is_bounded):
            self.violations.setdefault(name, step)

    @property
    def kept(self) -> dict[str, bool]:
        """For each promise that was judged, whether it was kept at all steps."""
        judged = {*self.violations}.union(*self._rows)
        if self._rows:
            judged |= {"equilibrium"}
        if not self._loss_is_bounded:
            judged -= {"loss"}
        return {
            name: name not in self.violations for name in sorted(self._guarantees.promises & judged)
        }

    @property
    def records(self) -> Records:
        """All that was recorded so far, in columns; ``records.plot()`` draws it."""
        steps = [int(row["step"]) for row in self._rows]
        measured = [row for row in self._rows if len(row) > 2]
        columns = {
            name: _column(row.get(name, math.nan) for row in measured)
            for name in dict.fromkeys(name for row in measured for name in row)
        }
        bounds = self._guarantees.bounds(self._least)
        names = self.measures.names
        apart = {f"distance.{group}": group for group in self.objective.weights}
        return Records(
            loss_steps=torch.tensor(steps, dtype=torch.int64),
            losses=_column(row["loss"] for row in self._rows),
            loss_bound=_column(map(self._loss_bound, steps)) if self._loss_is_bounded else None,
            initial_eigenvalue=None if math.isnan(self._least) else self._least,
            gram_group=None if names is None else ", ".join(names),
            monitor_steps=torch.tensor([int(row["step"]) for row in measured], dtype=torch.int64),
            monitors={n: c for n, c in columns.items() if n not in ("step", "loss", *apart)},
            bounds={
                name: torch.full((len(measured),), bound, dtype=torch.float64)
                for name, bound in bounds.items()
                if name in columns
            },
            distances={group: columns[name] for name, group in apart.items() if name in columns},
            kept=self.kept,
            violations=dict(self.violations),
        )

    @property
    def summary(self) -> str:
        """The violations in words."""
        if not self.violations:
            return "no promise was broken"
        return "; ".join(f"{_words(name)} at step {k}" for name, k in self.violations.items())

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"Watch of a {type(self.objective.network).__name__}: {self.records!r}"

    @property
    def _loss_is_bounded(self) -> bool:
        if self._guarantees.step_size is None or self.objective.loss is not None or not self._rows:
            return False
        return self._guarantees.rate is not None or not math.isnan(self._least)

    def _loss_bound(self, step: int) -> float:
        first = self._rows[0]
        return self._guarantees.loss_bound(step - int(first["step"]), first["loss"], self._least)

    def _judge_loss(self, view: Objective, step: int, now: Evaluation) -> None:
        """Judge the loss within the error of its evaluation."""
        bound = self._loss_bound(step)
        if "loss" in self.violations or now.loss <= bound:
            return
        error = math.sqrt(0.5) * view.output_error(now, self.measures.gain_upper())
        resolution = max(error, math.sqrt(self._guarantees.resolution))
        self._judge("loss", step, math.sqrt(now.loss) <= math.sqrt(bound) + resolution)

    def _judge_measures(
        self, measured: dict[str, float], step: int, loss: float
    ) -> dict[str, float]:
        """Judge measured numbers; returns those to record."""
        error, square = measured.pop("feature_error"), measured.pop("square_gradient", math.nan)
        if not math.isnan(square) and not math.isnan(self._least):
            floor = self._least * loss
            measured["pl_ratio"] = square / floor if floor > 0 else math.inf
        bounds = self._guarantees.bounds(self._least)
        for name in sorted(self._guarantees.promises & set(measured)):
            value = measured[name]
            if name == "least_eigenvalue":  # within the error of the features
                value = (math.sqrt(value) + error) ** 2
            holds = value >= bounds[name] if name in LOWER else value <= bounds[name]
            self._judge(name, step, holds)
        if "gain" in measured:  # it must be certain that the layer contracts
            self._judge("gain", step, measured["gain_upper"] < 1)
        return measured

    def _judge(self, name: str, step: int, holds: bool) -> None:
        if name in self._guarantees.promises and not holds:
            self.violations.setdefault(name, step)

    def state_dict(self) -> dict[str, Any]:
        """All that later records depend on, for checkpoints."""
        return {
            "rows": [dict(row) for row in self._rows],
            "least": self._least,
            "violations": dict(self.violations),
            "gram": self.measures.initial,
            "start": dict(self.objective.initial),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state of a watch that was made with the same arguments."""
        self._rows, self._least = [dict(row) for row in state["rows"]], state["least"]
        self.violations = dict(state["violations"])
        device, gram = self.objective.x.first.device, state["gram"]
        self.measures.initial = None if gram is None else gram.to(device)
        self.objective.initial = {name: start.to(device) for name, start in state["start"].items()}


def _column(numbers: Iterable[float]) -> Tensor:
    return torch.tensor([*numbers], dtype=torch.float64)


def _words(name: str) -> str:
    group = name.removeprefix("distance.")
    return _WORDS[name] if group == name else f"the weights {group} traveled too far"


def _plain_step_size(optimizer: Optimizer, objective: Objective) -> float | None:
    """The step size of an optimizer that is gradient descent; ``None`` for any other."""
    groups = instance("optimizer", optimizer, Optimizer).param_groups
    plain = type(optimizer) is SGD and len(groups) == 1
    plain = plain and not any(groups[0][k] for k in ("momentum", "weight_decay", "maximize"))
    moved = {id(p) for group in groups for p in group["params"]}
    plain = plain and moved == {id(p) for p in objective.weights.values()}
    return float(groups[0]["lr"]) if plain else None
