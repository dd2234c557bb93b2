"""Promises about a training run, from the convergence theorems or from a certificate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal.core.checks import real
from shoal.networks import EquilibriumNetwork, Network
from shoal.networks.equilibrium import LoopNetwork
from shoal.training.measures import largest_eigenvalue
from shoal.training.objective import Objective, TrainingProblem

LOWER = frozenset({"least_eigenvalue", "pl_ratio"})  # bounded from below, others from above
PROMISES = ("loss", "equilibrium", "gain", "least_eigenvalue", "pl_ratio", "drift")


@dataclass(frozen=True)
class Promises:
    r"""Numbers that hold at every step in exact arithmetic, and the rounding error of a run.

    Attributes:
        travel: For groups of weights, an upper bound of their distance from their start, in the
            Frobenius norm.
        gain: An upper bound of the Lipschitz constant of the recurrent layer.
        singular_value: A lower bound of the least singular value of the features that the trained
            readouts see: of $Z$, of $F$, or of both side by side. For explicit networks, of the
            Jacobian of the outputs.
        resolution: For gradient descent, a loss that may remain because of rounding in the
            network's dtype and the tolerance of equilibria. Computed losses keep
            $\sqrt{\Phi(k)} \le \sqrt{\mathrm{rate}^k\Phi(0)} + \sqrt{\mathrm{resolution}}$.
            An estimate from worst cases.

    Example:
        >>> Promises(travel={"readout": 0.5}, gain=0.9).to_dict()
        {'travel': {'readout': 0.5}, 'gain': 0.9}
    """

    travel: Mapping[str, float] = field(default_factory=dict, hash=False)
    gain: float | None = None
    singular_value: float | None = None
    resolution: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The promises that are made, as plain numbers and dictionaries."""
        everything = {**vars(self), "travel": dict(self.travel)}
        return {name: value for name, value in everything.items() if value not in (None, {})}


@dataclass(frozen=True)
class Guarantees:
    r"""The promises that a run is compared with.

    Attributes:
        step_size: $\eta$ of full-batch gradient descent; ``None`` for any other method, for which
            the loss has no bound.
        promises: The names of all promises.
        eigenvalue: $\lambda_0$, if the user gave it.
        rate: The factor of the loss per step, if a certificate has one.
        limits: Bounds of measured numbers, if a certificate has them.
        resolution: The loss that rounding may leave, if a certificate has one.
    """

    step_size: float | None
    promises: frozenset[str]
    eigenvalue: float | None = None
    rate: float | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    resolution: float = 0.0

    def loss_bound(self, step: int, initial_loss: float, least: float) -> float:
        r"""$(1 - \eta\lambda_0/2)^k \Phi(0)$, or with the rate of the certificate.

        For $\eta > 2/\lambda_0$, which no theorem allows, the power is zero.
        """
        assert self.step_size is not None
        rate = max(1 - self.step_size * least / 2, 0.0) if self.rate is None else self.rate
        return float(initial_loss * rate**step)

    def bounds(self, least: float) -> dict[str, float]:
        r"""The bounds of measured numbers, for $\lambda_0$."""
        constants = {
            "gain": 1.0,
            "least_eigenvalue": least / 2,
            "pl_ratio": 1.0,
            "drift": least / 4,
        }
        return {**constants, **self.limits}


def make_guarantees(
    objective: Objective,
    *,
    step_size: object,
    certificate: Any,
    least_eigenvalue: float | None,
    promises: frozenset[str] | None,
    gram: bool,
) -> Guarantees:
    r"""Check the arguments of ``Watch``, and fill in the defaults.

    Args:
        objective: The loss.
        step_size: Step size of full-batch gradient descent, ``"auto"``, or ``None``: the
            step size of the certificate, or else none, as for another method.
        certificate: A certificate of ``certify``.
        least_eigenvalue: $\lambda_0$, if it is known.
        promises: The names of the promises, if the user chose them.
        gram: Whether the Gram matrix is measured.
    """
    conclusion = None if certificate is None else _conclusion(certificate, objective)
    if step_size is None and certificate is not None:
        if conclusion is None:
            raise ValueError("step_size must be given, or a certificate whose conditions hold")
        step_size = conclusion.step_size
    size = None
    if step_size == "auto":
        size = 1 / largest_eigenvalue(objective)
    elif isinstance(step_size, str):
        raise ValueError(f"step_size must be a number or 'auto', got {step_size!r}")
    elif step_size is not None:
        size = real("step_size", step_size, above=0)
    if conclusion is not None and conclusion.step_size != size:
        conclusion = None  # it holds for another step size
    if least_eigenvalue is not None:
        least_eigenvalue = real("least_eigenvalue", least_eigenvalue, above=0)
    has_gram, squared = gram or least_eigenvalue is not None, objective.loss is None
    possible = {
        "equilibrium": bool(objective.solves),
        "gain": bool(objective.equilibria),
        "least_eigenvalue": has_gram,
        "drift": has_gram,
        "pl_ratio": has_gram and squared,
        "loss": has_gram and squared and size is not None,
    }
    if impossible := [name for name in sorted(promises or ()) if not possible[name]]:
        raise ValueError(
            f"promises must be among those that can be measured here, "
            f"{', '.join(n for n in possible if possible[n]) or '(none)'}, got "
            f"{', '.join(impossible)}"
        )
    default = _theorem_promises(objective, descent=size is not None)
    if conclusion is None:
        return Guarantees(size, default if promises is None else promises, least_eigenvalue)
    limits = _limits(conclusion.promises, objective.network)
    if promises is None:
        promises = default & {"loss", "gain", "equilibrium"} | set(limits)
    resolution = conclusion.promises.resolution or 0.0
    return Guarantees(size, promises, least_eigenvalue, conclusion.rate, limits, resolution)


def _theorem_promises(objective: Objective, *, descent: bool) -> frozenset[str]:
    """The promises of the theorems about a network.

    The theorem of Ling 2023 needs no small drift of the Gram matrix, and promises none.
    """
    net = objective.network
    if not isinstance(net, Network) or objective.loss is not None:
        return frozenset({"equilibrium"} if objective.solves else ())
    promises = {"gain", "equilibrium"} if isinstance(net, EquilibriumNetwork) else set()
    if descent:
        promises |= {"loss", "least_eigenvalue", "pl_ratio"}
        if not isinstance(net, LoopNetwork):
            promises.add("drift")
    return frozenset(promises)


def _limits(promises: Promises, network: object) -> dict[str, float]:
    """The promises of a certificate that can be measured, by the names of the measured numbers.

    Only for a DEQ does the Gram matrix contain all features of trained readouts.
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


def _conclusion(certificate: Any, objective: Objective) -> Any:
    """The conclusion of a certificate about gradient descent; ``None`` if it does not hold."""
    net = objective.network
    if not isinstance(net, Network):
        kind = type(net).__name__
        raise TypeError(f"certificate is for networks made by shoal.build, got net, a {kind}")
    if objective.loss is not None:
        raise ValueError("certificate is for the squared loss, got another loss")
    conclusion = getattr(certificate, "gradient_descent", None)
    if conclusion is None:
        kind = type(certificate).__name__
        raise TypeError(f"certificate must be what shoal.certify returned, got a {kind}")
    present = TrainingProblem(net, objective.x.first, objective.y).fingerprint()
    different = [
        name for name, value in present.items() if certificate.fingerprint.get(name) != value
    ]
    if different:
        raise ValueError(
            "certificate must be of this network, as it is before training, and of these data, "
            f"got one in which {', '.join(different)} differ: certify again"
        )
    return conclusion if conclusion.holds else None
