"""How large variances may be that an optimizer chooses."""

import math

from shoal.activations import Activation

__all__ = ["GUARANTEES", "recurrent_limit"]

GUARANTEES = {"kernel": 1.0, "contraction": 0.25}


def recurrent_limit(activation: Activation, guarantee: str) -> float:
    r"""The recurrent variance up to which a DEQ is well-posed.

    Args:
        activation: Of the DEQ, with Lipschitz constant $L$.
        guarantee: ``"kernel"``, that the kernel exists: $\sigma_a^2 L^2 < 1$; or
            ``"contraction"``, that wide networks are contractions: $4 \sigma_a^2 L^2 < 1$.

    Raises:
        ValueError: If the activation is not Lipschitz.

    Example:
        >>> from shoal.activations import LeakyReLU, Tanh
        >>> recurrent_limit(Tanh(), "kernel"), recurrent_limit(LeakyReLU(2.0), "contraction")
        (1.0, 0.0625)
    """
    share = GUARANTEES[guarantee]
    constant = activation.lipschitz
    if not math.isfinite(constant):
        raise ValueError(
            f"recurrent_variance must be fixed or get bounds of its own: {activation!r} is not "
            "Lipschitz, so that no limit guarantees a kernel"
        )
    return share / constant**2 if constant > 0 else math.inf
