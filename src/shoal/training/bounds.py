"""What the convergence theorems promise, as numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.loop import LoopNetwork
from shoal.training.promises import Promises

__all__ = ["LOWER", "Bounds", "Conclusion", "limits_of", "promises_of"]

LOWER = frozenset({"least_eigenvalue", "pl_ratio"})  # promised to stay above; the rest, below


def promises_of(network: Network[Any]) -> frozenset[str]:
    r"""What the theorems promise for an architecture.

    That of Ling 2023 keeps the least eigenvalue by another argument than a small drift of the Gram
    matrix, which it does not promise; explicit networks have no equilibrium to keep.
    """
    promises = {"loss", "least_eigenvalue", "pl_ratio"}
    if isinstance(network, EquilibriumNetwork):
        promises |= {"gain", "equilibrium"}
    if not isinstance(network, LoopNetwork):
        promises.add("drift")
    return frozenset(promises)


class Conclusion(Protocol):
    """What a certificate concludes, for gradient descent or for gradient flow."""

    @property
    def holds(self) -> bool:
        """Whether it is established."""
        ...

    @property
    def step_size(self) -> float | None:
        """The step size of gradient descent that it is about."""
        ...

    @property
    def rate(self) -> float | None:
        """The factor of the loss per step; for the flow, the exponent of its decay."""
        ...

    @property
    def promises(self) -> Promises:
        """Other numbers that hold throughout training."""
        ...


def limits_of(promises: Promises, network: Network[Any]) -> dict[str, float]:
    """The promises of a certificate that monitors can see, by the names of the monitors.

    Args:
        promises: What the certificate promises.
        network: What is trained. The Gram matrix that is watched is that of all features that
            trained readouts see only in a DEQ.
    """
    trained = {name for name, p in network.groups.items() if p.requires_grad}
    limits = {f"distance.{g}": far for g, far in promises.travel.items() if g in trained}
    if promises.gain is not None:
        limits["gain"] = promises.gain
    if promises.singular_value is not None and isinstance(network, LoopNetwork):
        root = promises.singular_value * network.feature_scale
        if root > 0 and "readout" in trained:
            limits["least_eigenvalue"] = root * root
    return limits


@dataclass(frozen=True)
class Bounds:
    r"""The bounds that follow from the initial loss and $\lambda_0$, or from a certificate.

    Attributes:
        method: ``"descent"`` or ``"flow"``.
        step_size: $\eta$, or the time between two steps of the flow.
        divisor: What the loss is divided by.
        initial_loss: $\Phi(0)$.
        least_eigenvalue: $\lambda_0$.
        rate: As in ``Conclusion``, where a certificate says it.
        limits: Bounds of monitors, where a certificate says them.
        resolution: The loss that rounding may leave, where a certificate says it.
    """

    method: str
    step_size: float
    divisor: float
    initial_loss: float
    least_eigenvalue: float
    rate: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    resolution: float = 0.0

    def loss(self, step: int) -> float:
        r"""$(1 - \eta\lambda_0/2)^k \Phi(0)$, or $e^{-\lambda_0 t}\Phi(0)$ for the flow.

        For $\eta > 2/\lambda_0$, which no theorem allows, the power is taken as zero.
        """
        scaled = self.least_eigenvalue / self.divisor
        if self.method == "flow":
            rate = scaled if self.rate is None else self.rate
            return self.initial_loss * math.exp(-rate * self.step_size * step)
        rate = max(1 - self.step_size * scaled / 2, 0.0) if self.rate is None else self.rate
        return float(self.initial_loss * rate**step)

    def at(self, name: str, step: int) -> float:
        """The bound of the loss or of a monitor."""
        constants = {
            "gain": 1.0,
            "least_eigenvalue": self.least_eigenvalue / 2,
            "pl_ratio": 1.0,
            "drift": self.least_eigenvalue / 4,
            **self.limits,
        }
        return self.loss(step) if name == "loss" else constants[name]

    def pl_ratio(self, square_gradient: float, loss: float) -> float:
        r"""$\|\nabla\Phi\|^2/(2\lambda\Phi)$ for $\lambda = \lambda_0/2$ (Ling 2023, Theorem 1)."""
        floor = self.least_eigenvalue * loss / self.divisor
        return square_gradient / floor if floor > 0 else math.inf
