"""What the convergence theorems, or a certificate, promise of a training, as numbers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from shoal.core.checks import one_of, real
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.loop import LoopNetwork
from shoal.training.curvature import largest_eigenvalue
from shoal.training.objective import Objective
from shoal.training.problem import Problem
from shoal.training.promises import Promises

LOWER = frozenset({"least_eigenvalue", "pl_ratio"})  # promised to stay above; the rest, below


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


@dataclass(frozen=True)
class Law:
    r"""What a training is compared with.

    Attributes:
        method: ``"descent"`` or ``"flow"``, of all samples; ``None`` for all others, of whose loss
            nothing is known.
        step_size: That of gradient descent, or the time between two steps of the flow, if any.
        promises: What is to be kept.
        eigenvalue: $\lambda_0$, where it is known before.
        rate: As in ``Conclusion``, where a certificate says it.
        limits: Bounds of what is measured, where a certificate says them.
        resolution: The loss that rounding may leave, where a certificate says it.
    """

    method: str | None
    step_size: float | None
    promises: frozenset[str]
    eigenvalue: float | None = None
    rate: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    resolution: float = 0.0


@dataclass(frozen=True)
class Bounds:
    r"""The bounds that follow from the initial loss and $\lambda_0$, or from a certificate.

    Attributes:
        law: What is promised.
        divisor: What the loss is divided by.
        initial_loss: $\Phi(0)$.
        least_eigenvalue: $\lambda_0$.
    """

    law: Law
    divisor: float
    initial_loss: float
    least_eigenvalue: float

    def loss(self, step: int) -> float:
        r"""$(1 - \eta\lambda_0/2)^k \Phi(0)$, or $e^{-\lambda_0 t}\Phi(0)$ for the flow.

        For $\eta > 2/\lambda_0$, which no theorem allows, the power is taken as zero.
        """
        rate, size, scaled = self.law.rate, self.law.step_size, self.least_eigenvalue / self.divisor
        assert size is not None
        if self.law.method == "flow":
            return self.initial_loss * math.exp(-(scaled if rate is None else rate) * size * step)
        rate = max(1 - size * scaled / 2, 0.0) if rate is None else rate
        return float(self.initial_loss * rate**step)

    def at(self, name: str, step: int) -> float:
        """The bound of the loss or of what is measured."""
        constants = {
            "gain": 1.0,
            "least_eigenvalue": self.least_eigenvalue / 2,
            "pl_ratio": 1.0,
            "drift": self.least_eigenvalue / 4,
            **self.law.limits,
        }
        return self.loss(step) if name == "loss" else constants[name]

    def pl_ratio(self, square_gradient: float, loss: float) -> float:
        r"""$\|\nabla\Phi\|^2/(2\lambda\Phi)$ for $\lambda = \lambda_0/2$ (Ling 2023, Theorem 1)."""
        floor = self.least_eigenvalue * loss / self.divisor
        return square_gradient / floor if floor > 0 else math.inf


def make_law(
    objective: Objective,
    *,
    method: str | None,
    step_size: object,
    certificate: Any,
    least_eigenvalue: float | None,
    promises: frozenset[str] | None,
    gram: bool,
) -> Law:
    r"""Check the arguments of ``train`` or ``Watch``, and fill in what they leave open.

    Args:
        objective: What is trained.
        method: As in ``Law``.
        step_size: A number, ``"auto"``, or ``None`` for that of the certificate.
        certificate: What ``certify`` returned.
        least_eigenvalue: $\lambda_0$, if it is known.
        promises: What is to be kept, if that was chosen.
        gram: Whether the Gram matrix is measured.
    """
    conclusion = None if method is None else _conclusion(certificate, method, objective)
    fixed = method is not None or step_size is not None
    size = _step_size(step_size, conclusion, objective) if fixed else None
    if method == "descent" and conclusion is not None and conclusion.step_size != size:
        conclusion = None  # it is about another step size
    if least_eigenvalue is not None:
        least_eigenvalue = real("least_eigenvalue", least_eigenvalue, above=0)
    possible = _measurable(objective, method, gram=gram or least_eigenvalue is not None)
    if promises is not None and (other := promises - possible):
        raise ValueError(
            f"promises of monitor must be among {', '.join(sorted(possible)) or '(nothing)'} for a "
            f"{_kind(objective)}, got {', '.join(sorted(other))}: nothing of that is measured "
            "here: the gain and equilibria belong to recurrent layers, the loss has a bound for "
            "full-batch gradient descent and flow only, all others need a Gram matrix"
        )
    if conclusion is None:
        kept = promises_of(objective, method) if promises is None else promises
        return Law(method, size, kept, least_eigenvalue)
    limits = _limits(conclusion.promises, objective.network)
    if promises is None:
        promises = promises_of(objective, method) & {"loss", "gain", "equilibrium"} | set(limits)
    left = conclusion.promises.resolution or 0.0
    return Law(method, size, promises, least_eigenvalue, conclusion.rate, limits, left)


def promises_of(objective: Objective, method: str | None) -> frozenset[str]:
    r"""What the theorems promise of a network.

    That of Ling 2023 keeps the least eigenvalue by another argument than a small drift of the Gram
    matrix, which it does not promise; explicit networks have no equilibrium to keep. Where another
    method than gradient descent moves the weights, or in another module, no theorem promises
    anything; that there are equilibria is what everything else takes for granted.
    """
    net = objective.network
    if not isinstance(net, Network) or objective.loss is not None:
        return frozenset({"equilibrium"} if objective.solves else ())
    promises = {"gain", "equilibrium"} if isinstance(net, EquilibriumNetwork) else set()
    if method is not None:
        promises |= {"loss", "least_eigenvalue", "pl_ratio"}
        if not isinstance(net, LoopNetwork):
            promises.add("drift")
    return frozenset(promises)


def _measurable(objective: Objective, method: str | None, *, gram: bool) -> frozenset[str]:
    """What can be promised at all."""
    found = {"equilibrium"} if objective.solves else set()
    if objective.equilibria:
        found.add("gain")
    if gram:
        found |= {"least_eigenvalue", "drift"} | ({"pl_ratio"} if objective.loss is None else set())
        if method is not None and objective.loss is None:
            found.add("loss")
    return frozenset(found)


def _kind(objective: Objective) -> str:
    net = objective.network
    return type(net.architecture if isinstance(net, Network) else net).__name__


def _limits(promises: Promises, network: object) -> dict[str, float]:
    """The promises of a certificate that can be measured, by the names of what is measured.

    The Gram matrix that is watched is that of all features that trained readouts see only in a DEQ.
    """
    assert isinstance(network, Network)
    trained = {name for name, p in network.groups.items() if p.requires_grad}
    limits = {f"distance.{g}": far for g, far in promises.travel.items() if g in trained}
    if promises.gain is not None:
        limits["gain"] = promises.gain
    if promises.singular_value is not None and isinstance(network, LoopNetwork):
        root = promises.singular_value * network.feature_scale
        if root > 0 and "readout" in trained:
            limits["least_eigenvalue"] = root * root
    return limits


def _conclusion(certificate: Any, method: str, objective: Objective) -> Conclusion | None:
    """What a certificate concludes for the method; nothing if that is not established."""
    if certificate is None:
        return None
    net = objective.network
    if not isinstance(net, Network):
        kind = type(net).__name__
        raise TypeError(f"certificate is for networks made by shoal.build, got net, a {kind}")
    if objective.loss is not None:
        raise ValueError("certificate is for the squared loss, got another loss")
    if objective.divisor != 1:
        raise ValueError("certificate is for reduction='sum', got reduction='mean'")
    conclusion: Conclusion | None = getattr(certificate, f"gradient_{method}", None)
    if conclusion is None:
        kind = type(certificate).__name__
        raise TypeError(f"certificate must be what shoal.certify returned, got a {kind}")
    mine = Problem(net, objective.x.first, objective.y).fingerprint()
    other = [name for name, value in mine.items() if certificate.fingerprint.get(name) != value]
    if other:
        raise ValueError(
            "certificate must be of this network, as it is before training, and of these data, "
            f"got one of which {', '.join(other)} differ: certify again"
        )
    return conclusion if conclusion.holds else None


def _step_size(given: object, conclusion: Conclusion | None, objective: Objective) -> float:
    if isinstance(given, str):
        one_of("step_size", given, ("auto",))
        largest = largest_eigenvalue(objective)
        if largest <= 0:
            raise ValueError("step_size='auto' needs a network whose NTK is not zero")
        return objective.divisor / largest
    if given is not None:
        return real("step_size", given, above=0)
    if conclusion is None or conclusion.step_size is None:
        raise ValueError(
            "step_size must be given, or 'auto', unless method='descent' and a certificate holds"
        )
    return conclusion.step_size
