"""What is measured during training, and how."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from operator import mul

import torch
from torch import Tensor

from shoal.core.checks import integer, items, one_of
from shoal.linalg.norms import least_eigenvalue, spectral_norm
from shoal.networks import EquilibriumNetwork
from shoal.networks.gain import GainBound, gain_factor
from shoal.training.gram import gram_group, gram_matrix
from shoal.training.objective import Evaluation, Objective

__all__ = ["Monitor", "Watch", "as_monitor"]

_KNOWN = ("loss", "gain", "equilibrium", "least_eigenvalue", "pl_ratio", "drift")


@dataclass(frozen=True)
class Monitor:
    """What to watch, and how often.

    Args:
        every: After how many steps the monitors look. The last step is always looked at, and the
            loss at every step.
        promises: What counts as a violation, out of ``"loss"``, ``"gain"``, ``"equilibrium"``,
            ``"least_eigenvalue"``, ``"pl_ratio"`` and ``"drift"``; by default what the
            architecture's theorem promises. ``"gain"`` and ``"equilibrium"`` are for networks with
            a recurrent layer; ``train`` refuses them for others.

    Example:
        >>> Monitor(every=5).every
        5
    """

    every: int = 10
    promises: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "every", integer("every", self.every, at_least=1))
        if self.promises is not None:
            names = [one_of("promises", name, _KNOWN) for name in items("promises", self.promises)]
            object.__setattr__(self, "promises", frozenset(names))


def as_monitor(value: object) -> Monitor | None:
    """The monitor that an argument means."""
    if value is None or value is False:
        return None
    if value is True:
        return Monitor()
    if isinstance(value, Monitor):
        return value
    if isinstance(value, int):
        return Monitor(every=integer("monitor", value, at_least=1))
    raise TypeError(f"monitor must be a bool, a number of steps or a Monitor, got {value!r}")


class Watch:
    """The monitors of a run; they go on from where they looked last.

    Args:
        objective: What is trained.
    """

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.group = gram_group(objective.network)
        network = objective.network
        turn = network.turn if isinstance(network, EquilibriumNetwork) else []
        self.gain_bound = GainBound([gain_factor(layer) for layer, _ in turn])
        self._initial: Tensor | None = None  # the first Gram matrix
        self._vectors: dict[str, Tensor] = {}

    def measure(self, evaluation: Evaluation) -> dict[str, float]:
        """Look at the weights that were just evaluated."""
        objective = self.objective
        gram = gram_matrix(objective.network, objective.x, self.group)
        if self._initial is None:
            self._initial = gram
        gains = self._gain()
        error = objective.feature_error(evaluation, gains.get("gain_upper", 0.0))
        error += objective.rounding(float(gram.diagonal().sum().clamp_min(0).sqrt()))
        distances = {f"distance.{n}": d for n, d in objective.distances().items()}
        return {
            **gains,
            "feature_error": error,
            "least_eigenvalue": self._least(gram),
            "drift": self._norm("drift", gram - self._initial),
            "square_gradient": self._square_gradient(evaluation),
            **distances,
        }

    def _gain(self) -> dict[str, float]:
        network = self.objective.network
        if not isinstance(network, EquilibriumNetwork):
            return {}
        factors, weights = self.gain_bound.factors, [w.detach() for _, w in network.turn]
        if math.inf in factors:
            return {"gain": math.inf, "gain_upper": math.inf}
        below_one = math.nextafter(1.0, 0.0)
        upper = self.gain_bound.upper(weights, below_one)
        norms = (self._norm(f"gain{layer}", weight) for layer, weight in enumerate(weights))
        return {"gain": math.prod(map(mul, factors, norms)), "gain_upper": upper}

    def _square_gradient(self, evaluation: Evaluation) -> float:
        """That of the exact gradient, which theorems are about, whatever the weights move along."""
        now = self.objective
        network = now.network
        exact = network.exact(silent=True)  # what is not found is a violation already
        if not (isinstance(network, EquilibriumNetwork) and isinstance(exact, EquilibriumNetwork)):
            return evaluation.square_gradient
        if network.options.gradient == exact.options.gradient:
            return evaluation.square_gradient
        return Objective(exact, now.x, now.y, now.divisor).evaluate().square_gradient

    def _least(self, gram: Tensor) -> float:
        value, self._vectors["least"] = least_eigenvalue(gram, self._vectors.get("least"))
        return value

    def _norm(self, name: str, matrix: Tensor) -> float:
        value, self._vectors[name] = spectral_norm(matrix, self._vectors.get(name))
        return value

    def state(self) -> dict[str, Tensor]:
        """All that the next look depends on."""
        state = {f"vector.{name}": vector for name, vector in self._vectors.items()}
        if self._initial is not None:
            state["gram"] = self._initial
        for layer, (weight, bound) in enumerate(self.gain_bound.known):
            state[f"weight{layer}"] = weight
            state[f"bound{layer}"] = torch.tensor(bound, dtype=torch.float64)
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        self._initial = state.get("gram")
        self._vectors = {n[7:]: v for n, v in state.items() if n.startswith("vector.")}
        layers = range(len(self.gain_bound.factors) if "weight0" in state else 0)
        self.gain_bound.known = [
            (state[f"weight{layer}"], float(state[f"bound{layer}"])) for layer in layers
        ]
