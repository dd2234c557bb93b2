"""What is measured of a network on its way through training."""

import math
from collections.abc import Callable, Iterable, Mapping
from operator import mul

import torch
from torch import Tensor

from shoal.networks.ntk.exact import evaluating
from shoal.numerics.norms import Eigenpair, dominant_singular_pair, least_eigenpair
from shoal.training.gram import Gram
from shoal.training.objective import Evaluation, Objective


class Measures:
    """What is measured; each time from where it was measured last.

    Args:
        objective: What is trained.
        gram: What the Gram matrix is of, as in ``Watch``.
    """

    def __init__(self, objective: Objective, gram: bool | Iterable[str] | None) -> None:
        self.gram = Gram.chosen(objective, gram)
        with evaluating(objective.network):  # where weights that are computed are not changed
            self.gain_bounds = [one.gain_bound() for one in objective.equilibria]
        self._initial: Tensor | None = None  # the first Gram matrix
        self._vectors: dict[str, Tensor] = {}

    def measure(self, objective: Objective, now: Evaluation) -> dict[str, float]:
        """Look at the weights that were just evaluated."""
        gains = self._gain(objective)
        found = {**gains, "feature_error": objective.feature_error(now, gains.get("gain_upper", 0))}
        if self.gram is not None:
            gram = self.gram.matrix(objective)
            if self._initial is None:
                self._initial = gram
            size = float(gram.diagonal().sum().clamp_min(0).sqrt())
            found["feature_error"] += objective.rounding(size)
            found["least_eigenvalue"] = self._least(gram)
            found["drift"] = self._norm("drift", gram - self._initial)
        if objective.loss is None:
            found["square_gradient"] = _square_gradient(objective, now)
        return {**found, **{f"distance.{n}": d for n, d in objective.distances().items()}}

    def _gain(self, objective: Objective) -> dict[str, float]:
        """The gain of the recurrent layer; where there are several networks, the largest."""
        gains, uppers = [0.0], [0.0]
        below_one = math.nextafter(1.0, 0.0)
        for number, (one, bound) in enumerate(
            zip(objective.equilibria, self.gain_bounds, strict=True)
        ):
            weights = [weight.detach() for _, weight in one.recurrent_layers]
            if math.inf in bound.factors:
                return {"gain": math.inf, "gain_upper": math.inf}
            uppers.append(bound.upper(weights, below_one))
            norms = (
                self._kept(f"gain{number}.{n}", norm.estimate, weight)
                for n, (norm, weight) in enumerate(zip(bound.norms, weights, strict=True))
            )
            gains.append(math.prod(map(mul, bound.factors, norms)))
        return {"gain": max(gains), "gain_upper": max(uppers)} if self.gain_bounds else {}

    def _least(self, gram: Tensor) -> float:
        value, self._vectors["least"] = least_eigenpair(gram, self._vectors.get("least"))
        return value

    def _norm(self, name: str, matrix: Tensor) -> float:
        return self._kept(name, dominant_singular_pair, matrix)

    def _kept(
        self, name: str, norm: Callable[[Tensor, Tensor | None], Eigenpair], matrix: Tensor
    ) -> float:
        """A norm, from the vector of the last one on."""
        value, self._vectors[name] = norm(matrix, self._vectors.get(name))
        return value

    def state(self) -> dict[str, Tensor]:
        """All that the next look depends on."""
        state = {f"vector.{name}": vector for name, vector in self._vectors.items()}
        if self._initial is not None:
            state["gram"] = self._initial
        for number, gain_bound in enumerate(self.gain_bounds):
            for layer, (weight, bound) in enumerate(gain_bound.known):
                state[f"weight{number}.{layer}"] = weight
                state[f"bound{number}.{layer}"] = torch.tensor(bound, dtype=torch.float64)
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self._initial = state.get("gram")
        self._vectors = {n[7:]: v for n, v in state.items() if n.startswith("vector.")}
        for number, gain_bound in enumerate(self.gain_bounds):
            layers = range(len(gain_bound.factors) if f"weight{number}.0" in state else 0)
            gain_bound.known = [
                (state[f"weight{number}.{n}"], float(state[f"bound{number}.{n}"])) for n in layers
            ]


def _square_gradient(objective: Objective, now: Evaluation) -> float:
    """The square of the exact gradient, which theorems are about."""
    exact = objective.exactly()  # silent: what is not found is a violation already
    if all(a.gradient == b.gradient for a, b in zip(objective.solves, exact.solves, strict=True)):
        return now.square_gradient
    return exact.evaluate().square_gradient
