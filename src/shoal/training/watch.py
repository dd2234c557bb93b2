"""Watch any training: what is measured on the way, and which promises are kept."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from shoal.core.checks import instance, integer, one_of
from shoal.core.exceptions import ConvergenceError, ConvergenceWarning
from shoal.networks.module_inputs import Inputs
from shoal.networks.ntk.exact import evaluating
from shoal.training.laws import LOWER, Bounds, Law, make_law
from shoal.training.measures import Measures
from shoal.training.monitor import chosen_promises
from shoal.training.objective import Evaluation, Loss, Objective
from shoal.training.optimizers import plain_step_size
from shoal.training.result import Records, TrainingError

_WORDS = {
    "loss": "the loss exceeded its bound",
    "gain": "the recurrent layer is no longer certain to be a contraction",
    "equilibrium": "an equilibrium, or its gradient, was not found",
    "least_eigenvalue": "the least eigenvalue of the Gram matrix fell below its bound",
    "pl_ratio": "the gradient became smaller than the loss allows",
    "drift": "the Gram matrix moved farther than its bound",
}
_BOUNDED = ("gain", "least_eigenvalue", "pl_ratio", "drift")


class Watch:
    r"""Observes the training of any module by any loop.

    Each :meth:`look` evaluates the loss of all the samples given here with its exact gradient, in
    evaluation mode, and measures what there is to measure: the gain of recurrent layers, the
    least eigenvalue of a Gram matrix $G$ and its drift, $\|\nabla\Phi\|^2/\lambda_0\Phi$, how far
    each parameter has come. It changes nothing: neither weights, gradients, buffers, random
    numbers nor warm starts.

    Promises are judged where they are made. Those of the theorems (see ``train``) are about
    full-batch gradient descent, or flow, of networks made by ``build``: say so by ``step_size``, by
    an ``optimizer`` that is one (``torch.optim.SGD`` without momentum or decay), or by a
    certificate. In other loops the recurrent layer is promised to stay a contraction, and to have
    its equilibria, in other modules only the latter, if there are any. Others can be chosen.

    Args:
        net: Any module; parameters that require a gradient are watched.
        x: Inputs: the training set, or a part of it; several as in ``train``.
        y: Labels, of the shape of the outputs, or whatever ``loss`` takes.
        loss: Another loss, as a function of outputs and labels. Theorems are about the squared one,
            $\Phi = \frac12\|f - y\|^2$.
        reduction: ``"sum"``, or ``"mean"``: $\Phi$ divided by n.
        optimizer: What moves the weights; one that is no gradient descent has no certificate.
        step_size: That of full-batch gradient descent; the time between two steps of the flow.
        method: ``"descent"`` or ``"flow"``.
        certificate: What ``certify`` says of this network, as it is now, and of these data; its
            promises are judged. Without ``step_size`` or ``optimizer`` its own step size is taken.
        least_eigenvalue: $\lambda_0$; by default that of $G$ at the first look.
        promises: What is to be kept, as in ``Monitor``.
        gram: Whether to measure $G$: for networks of ``build`` the share of one group in the NTK,
            which theorems choose or which is named here as ``{"readout"}``. For other modules
            $JJ^\top$ of all outputs with respect to all trained parameters, or those whose names,
            prefixes or patterns are given here; by default if $J$ has up to 1000 rows and
            64 million numbers. With another loss it is not measured by default.
        on_violation: ``"record"`` a broken promise, or ``"raise"`` a ``TrainingError``.

    Raises:
        TypeError: If an argument is not of its kind.
        ValueError: If shapes do not fit, a promise cannot be measured, or the certificate is of
            something else, or not about this optimizer.

    Example:
        >>> import torch, shoal
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> x, y = torch.randn(6, 2), torch.randn(6)
        >>> watch, optimizer = shoal.Watch(net, x, y), torch.optim.Adam(net.parameters())
        >>> for step in range(3):
        ...     row = watch.look(step)
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
        reduction: Literal["sum", "mean"] = "sum",
        optimizer: Optimizer | None = None,
        step_size: float | None = None,
        method: Literal["descent", "flow"] = "descent",
        certificate: Any = None,
        least_eigenvalue: float | None = None,
        promises: Iterable[str] | None = None,
        gram: bool | Iterable[str] | None = None,
        on_violation: Literal["record", "raise"] = "record",
    ) -> None:
        one_of("method", method, ("descent", "flow"))
        one_of("on_violation", on_violation, ("record", "raise"))
        objective = Objective.checked(net, x, y, reduction=reduction, loss=loss)
        measures = Measures(objective, gram)
        if optimizer is not None:
            instance("optimizer", optimizer, Optimizer)
            if step_size is not None:
                raise ValueError("step_size and optimizer must not both be given")
            step_size = plain_step_size(optimizer, objective, certificate)
        law = make_law(
            objective,
            method=None if step_size is None and certificate is None else method,
            step_size=step_size,
            certificate=certificate,
            least_eigenvalue=least_eigenvalue,
            promises=chosen_promises(promises),
            gram=measures.gram is not None,
        )
        self._begin(objective, law, measures, arrays=isinstance(y, np.ndarray))
        self._raises = on_violation == "raise"

    def _begin(
        self, objective: Objective, law: Law, measures: Measures | None, *, arrays: bool
    ) -> None:
        self.objective, self.law, self.measures = objective, law, measures
        self._arrays, self._raises = arrays, False
        self._loss_steps: list[int] = []
        self._losses: list[float] = []
        self._looks: list[int] = []
        self._columns: dict[str, list[float]] = {}
        self._bounds: Bounds | None = None
        self.violations: dict[str, int] = {}

    @classmethod
    def following(
        cls, objective: Objective, law: Law, measures: Measures | None, *, arrays: bool
    ) -> "Watch":
        """The watch of a loop that shows its evaluations itself."""
        watch = cls.__new__(cls)
        watch._begin(objective, law, measures, arrays=arrays)
        return watch

    def look(self, step: int) -> dict[str, float]:
        """Measure the weights as they are, and judge the promises.

        Args:
            step: How many steps were made; later ones must be larger.

        Returns:
            What was found: ``"step"``, ``"loss"``, and what ``records`` holds in columns. If the
            loss is not finite or an equilibrium is not found, the step alone, with a
            ``ConvergenceWarning``.

        Raises:
            TrainingError: If a promise is broken, and ``on_violation`` is ``"raise"``.
        """
        last = self._loss_steps[-1] if self._loss_steps else -1
        step = integer("step", step, at_least=last + 1)
        if last < 0 and step and (self.law.rate is not None or self.law.limits):
            raise ValueError(f"step must be 0 at first, where a certificate begins, got {step}")
        broken = len(self.violations)
        with torch.inference_mode(mode=False):
            try:
                row = self.see(step, measure=True)
            except ConvergenceError as error:
                row = {"step": step}
                if not self._raises:
                    warnings.warn(f"at step {step}: {error}", ConvergenceWarning, stacklevel=2)
        if self._raises and len(self.violations) > broken:
            raise TrainingError(describe(self.violations), run=self.records)
        return row

    def see(self, step: int, *, measure: bool) -> dict[str, float]:
        """Evaluate the weights as they are, and write down what is found.

        Raises:
            ConvergenceError: If the loss is not finite, or an equilibrium is not found.
        """
        view = self.objective.exactly()
        with evaluating(view.network):
            try:
                now = view.evaluate()
            except ConvergenceError:
                self.lose("equilibrium", step)
                raise
            if not now.finite:
                self.lose("loss", step)
                raise ConvergenceError(f"the loss is {now.loss}")
            return self.note(step, now, view, measure=measure)

    def note(
        self,
        step: int,
        now: Evaluation,
        objective: Objective,
        *,
        measure: bool,
        step_error: Callable[[Objective, Evaluation], float] | None = None,
    ) -> dict[str, float]:
        """Write down an evaluation.

        Args:
            step: The step.
            now: The weights as they are.
            objective: What was evaluated.
            measure: Whether to measure all that there is to measure.
            step_error: What steps may have made wrong, in the norm of all outputs.
        """
        self._loss_steps.append(step)
        self._losses.append(now.loss)
        found: dict[str, float] = {}
        if measure and self.measures is not None:
            with evaluating(objective.network):  # where weights that are computed are not changed
                found = self.measures.measure(objective, now)
        if self._bounds is None:
            least = self.law.eigenvalue or found.get("least_eigenvalue", math.nan)
            self._bounds = Bounds(self.law, objective.divisor, now.loss, least)
        if found:
            self._judge_measures(found)
        self._judge("equilibrium", now.converged)
        if "loss" in self.law.promises and self._loss_is_bounded and self._exceeds():
            error = objective.output_error(now)
            error += 0.0 if step_error is None else step_error(objective, now)
            self._judge_loss(error)
        return {"step": step, "loss": now.loss, **found}

    def lose(self, name: str, step: int) -> None:
        """There is no loss, or no equilibrium, at a step: a promise of one is broken."""
        if name in self.law.promises and (name != "loss" or self._loss_is_bounded):
            self.violations.setdefault(name, step)

    @property
    def kept(self) -> dict[str, bool]:
        """For each promise that was looked at, whether it was kept at all steps."""
        seen = {*self._columns, *self.violations}
        if self._losses:
            seen |= {"equilibrium", "loss"} if self._loss_is_bounded else {"equilibrium"}
        return {name: name not in self.violations for name in sorted(self.law.promises & seen)}

    @property
    def records(self) -> Records:
        """All that was seen so far, in columns; ``records.plot()`` draws it."""
        return Records(**self.columns())

    def columns(self) -> dict[str, Any]:
        """The fields of the records."""
        bounds, looks = self._bounds, self._looks
        limits: dict[str, Any] = {}
        loss_bound = None
        if bounds is not None:
            first = self._loss_steps[0]
            if self._loss_is_bounded:
                loss_bound = self.column([bounds.loss(k - first) for k in self._loss_steps])
            limits = {
                name: self.column([bounds.at(name, k - first) for k in looks])
                for name in (*_BOUNDED, *sorted(set(self.law.limits) - set(_BOUNDED)))
                if name in self._columns
            }
        least = math.nan if bounds is None else bounds.least_eigenvalue
        gram = None if self.measures is None else self.measures.gram
        groups = [g for g in self.objective.weights if f"distance.{g}" in self._columns]
        seen = [name for name in (*_BOUNDED, "gain_upper") if name in self._columns]
        return {
            "loss_steps": self.column(self._loss_steps, torch.int64),
            "losses": self.column(self._losses),
            "loss_bound": loss_bound,
            "initial_eigenvalue": None if math.isnan(least) else least,
            "gram_group": None if gram is None else ", ".join(gram.names),
            "monitor_steps": self.column(looks, torch.int64),
            "monitors": {name: self.column(self._columns[name]) for name in seen},
            "bounds": limits,
            "distances": {g: self.column(self._columns[f"distance.{g}"]) for g in groups},
            "kept": self.kept,
            "violations": dict(self.violations),
        }

    def column(self, numbers: list[Any], dtype: torch.dtype = torch.float64) -> Any:
        """Numbers as a tensor, or as an array if labels were one."""
        tensor = torch.tensor(numbers, dtype=dtype)
        return tensor.numpy() if self._arrays else tensor

    def __repr__(self) -> str:
        """One line, without the values."""
        return f"Watch of a {type(self.objective.network).__name__}: {self.records!r}"

    @property
    def _loss_is_bounded(self) -> bool:
        bounds = self._bounds
        if bounds is None or self.law.method is None or self.objective.loss is not None:
            return False
        return self.law.rate is not None or not math.isnan(bounds.least_eigenvalue)

    @property
    def _bound(self) -> float:
        """The bound of the loss now."""
        assert self._bounds is not None
        return self._bounds.loss(self._loss_steps[-1] - self._loss_steps[0])

    def _exceeds(self) -> bool:
        """Whether the loss is above its bound as it stands, for the first time it matters."""
        return "loss" not in self.violations and not self._losses[-1] <= self._bound

    def _judge_loss(self, output_error: float) -> None:
        r"""See whether the loss kept its bound, within what is known of it.

        Args:
            output_error: A bound of the error of all outputs, as a vector.
        """
        # of the loss's root: what its evaluation leaves open, or the rounding of all steps before
        resolution = math.sqrt(0.5 / self.objective.divisor) * output_error
        resolution = max(resolution, math.sqrt(self.law.resolution))
        self._judge("loss", math.sqrt(self._losses[-1]) <= math.sqrt(self._bound) + resolution)

    def _judge_measures(self, found: dict[str, float]) -> None:
        """Write down what was measured, and see whether it kept its bounds."""
        assert self._bounds is not None
        error, square = found.pop("feature_error"), found.pop("square_gradient", math.nan)
        if not math.isnan(square) and not math.isnan(self._bounds.least_eigenvalue):
            found["pl_ratio"] = self._bounds.pl_ratio(square, self._losses[-1])
        self._looks.append(self._loss_steps[-1])
        for name, value in found.items():
            self._columns.setdefault(name, []).append(value)
        for name in sorted(self.law.promises & set(found)):
            value = found[name]
            if name == "least_eigenvalue":  # features are known so well, and so their values
                value = (math.sqrt(value) + error) ** 2
            bound = self._bounds.at(name, 0)
            self._judge(name, value >= bound if name in LOWER else value <= bound)
        if "gain" in found:  # it must be certain that the layer contracts
            self._judge("gain", found["gain_upper"] < 1)

    def _judge(self, name: str, holds: bool) -> None:
        if name in self.law.promises and not holds:
            self.violations.setdefault(name, self._loss_steps[-1])

    def state_dict(self, *, start: bool = True) -> dict[str, Any]:
        """All that the next look depends on: tensors, and the violations; for one's checkpoints.

        Args:
            start: Whether the weights at the start are in it, which distances are measured from.
        """
        double = torch.float64
        state: dict[str, Any] = {
            "violations": dict(self.violations),
            "losses": torch.tensor(self._losses, dtype=double),
            "loss_steps": torch.tensor(self._loss_steps, dtype=torch.int64),
            "looks": torch.tensor(self._looks, dtype=torch.int64),
        }
        if self._bounds is not None:
            state["eigenvalue"] = torch.tensor(self._bounds.least_eigenvalue, dtype=double)
        for name, values in self._columns.items():
            state[f"column.{name}"] = torch.tensor(values, dtype=double)
        if self.measures is not None:
            state |= {f"measures.{name}": t for name, t in self.measures.state().items()}
        if start:
            state |= {f"start.{name}": t for name, t in self.objective.initial.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, of a watch that was made with the same arguments."""
        self.violations = dict(state["violations"])
        self._losses, self._loss_steps = state["losses"].tolist(), state["loss_steps"].tolist()
        self._looks = state["looks"].tolist()
        self._columns = {n: v.tolist() for n, v in _part(state, "column").items()}
        if "eigenvalue" in state:
            least = float(state["eigenvalue"])
            self._bounds = Bounds(self.law, self.objective.divisor, self._losses[0], least)
        if self.measures is not None:
            self.measures.restore(_part(state, "measures"))
        self.objective.initial |= _part(state, "start")


def _part(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The entries below a name, without it."""
    begin = f"{name}."
    return {key.removeprefix(begin): v for key, v in state.items() if key.startswith(begin)}


def describe(violations: Mapping[str, int]) -> str:
    """The violations in words."""
    if not violations:
        return "no promise was broken"
    return "; ".join(f"{_words(name)} at step {step}" for name, step in violations.items())


def _words(name: str) -> str:
    group = name.removeprefix("distance.")
    return _WORDS[name] if group == name else f"the weights {group} traveled too far"
