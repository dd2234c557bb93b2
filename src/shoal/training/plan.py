"""What a run is to do and to keep, out of the arguments of ``train``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from shoal.core.checks import one_of, real
from shoal.networks import Network
from shoal.training.bounds import Bounds, Conclusion, limits_of, promises_of
from shoal.training.curvature import largest_eigenvalue
from shoal.training.monitor import Monitor
from shoal.training.objective import Objective
from shoal.training.problem import Problem
from shoal.training.steppers import Descent, Flow, Stepper

__all__ = ["Plan", "make_plan"]

_RTOL = 1e-3  # of the flow


@dataclass(frozen=True)
class Plan:
    r"""How a run moves, and what it is compared with.

    Attributes:
        method: ``"descent"`` or ``"flow"``.
        step_size: The time between two steps.
        rtol: The tolerance of the flow.
        monitor: How often monitors look; ``None`` if they do not.
        promises: What is to be kept.
        eigenvalue: $\lambda_0$, where it is known before.
        rate: That of the loss, where a certificate says it.
        limits: Bounds of monitors, where a certificate says them.
        resolution: The loss that rounding may leave, where a certificate says it.
    """

    method: str
    step_size: float
    rtol: float
    monitor: Monitor | None
    promises: frozenset[str]
    eigenvalue: float | None
    rate: float | None
    limits: Mapping[str, float]
    resolution: float = 0.0

    def stepper(self) -> Stepper:
        """What moves the weights."""
        if self.method == "descent":
            return Descent(self.step_size)
        return Flow(self.step_size, self.rtol)

    def bounds(self, divisor: float, initial_loss: float, eigenvalue: float) -> Bounds:
        """The bounds, given what is known at the start only."""
        return Bounds(
            self.method,
            self.step_size,
            divisor,
            initial_loss,
            eigenvalue,
            rate=self.rate,
            limits=self.limits,
            resolution=self.resolution,
        )

    def identity(self) -> dict[str, str]:
        """All that the numbers of a run depend on, the same in every process."""
        return {
            "method": self.method,
            "step_size": repr(self.step_size),
            "rtol": repr(self.rtol),
            "monitor": repr(self.monitor and self.monitor.every),
            "promises": repr(sorted(self.promises)),
            "least_eigenvalue": repr(self.eigenvalue),
            "certificate": repr((self.rate, self.resolution, sorted(self.limits.items()))),
        }


def make_plan(
    objective: Objective,
    *,
    method: str,
    step_size: object,
    monitor: Monitor | None,
    certificate: Any,
    least_eigenvalue: float | None,
    rtol: float | None,
) -> Plan:
    """Check the arguments, and fill in what they leave open."""
    one_of("method", method, ("descent", "flow"))
    tolerance = _tolerance(rtol, method)
    conclusion = _conclusion(certificate, method, objective)
    size = _step_size(step_size, conclusion, objective)
    if method == "descent" and conclusion is not None and conclusion.step_size != size:
        conclusion = None  # it is about another step size
    rate = None if conclusion is None else conclusion.rate
    eigenvalue = _eigenvalue(least_eigenvalue, rate, monitor)
    net = objective.network
    limits = {} if conclusion is None else limits_of(conclusion.promises, net)
    promises = _promises(monitor, net, eigenvalue, conclusion, limits)
    left = None if conclusion is None else conclusion.promises.resolution
    return Plan(method, size, tolerance, monitor, promises, eigenvalue, rate, limits, left or 0.0)


def _conclusion(certificate: Any, method: str, objective: Objective) -> Conclusion | None:
    """What a certificate concludes for the method; nothing if that is not established."""
    if certificate is None:
        return None
    if objective.divisor != 1:
        raise ValueError("certificate is for reduction='sum', got reduction='mean'")
    conclusion: Conclusion | None = getattr(certificate, f"gradient_{method}", None)
    if conclusion is None:
        kind = type(certificate).__name__
        raise TypeError(f"certificate must be what shoal.certify returned, got a {kind}")
    mine = Problem(objective.network, objective.x, objective.y).fingerprint()
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


def _tolerance(rtol: float | None, method: str) -> float:
    if rtol is None:
        return _RTOL
    if method != "flow":
        raise ValueError("rtol is for method='flow', got method='descent'")
    return real("rtol", rtol, above=0, below=1)


def _eigenvalue(given: float | None, rate: float | None, monitor: Monitor | None) -> float | None:
    r"""$\lambda_0$ where it is known before; NaN where the rate alone is, and is enough."""
    if given is not None:
        return real("least_eigenvalue", given, above=0)
    return math.nan if rate is not None and monitor is None else None


def _promises(
    monitor: Monitor | None,
    net: Network[Any],
    eigenvalue: float | None,
    conclusion: Conclusion | None,
    limits: Mapping[str, float],
) -> frozenset[str]:
    """What is to be kept, as far as it is looked at."""
    promises = promises_of(net)
    if monitor is None:
        return promises & ({"equilibrium"} if eigenvalue is None else {"loss", "equilibrium"})
    if monitor.promises is not None:
        return _measurable(monitor.promises, net)
    if conclusion is not None:
        return promises & {"loss", "gain", "equilibrium"} | set(limits)
    return promises


def _measurable(chosen: frozenset[str], net: Network[Any]) -> frozenset[str]:
    """The promises that a monitor was made for, if this network has what they are about."""
    known = promises_of(net) | {"drift"}  # which is measured also where no theorem promises it
    if other := chosen - known:
        raise ValueError(
            f"promises of monitor must be among {', '.join(sorted(known))} for a "
            f"{type(net.architecture).__name__}, got {', '.join(sorted(other))}: nothing of that "
            "is measured where there is no recurrent layer"
        )
    return chosen
