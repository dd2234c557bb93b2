"""What ``train`` watches, and how often."""

from collections.abc import Iterable
from dataclasses import dataclass

from shoal.core.checks import integer, items, one_of

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
        gram: What the Gram matrix is of, as in :class:`Watch`.

    Example:
        >>> Monitor(every=5).every
        5
    """

    every: int = 10
    promises: frozenset[str] | None = None
    gram: bool | frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "every", integer("every", self.every, at_least=1))
        object.__setattr__(self, "promises", chosen_promises(self.promises))
        if self.gram is not None and not isinstance(self.gram, bool):
            object.__setattr__(self, "gram", frozenset(items("gram", self.gram)))


def chosen_promises(promises: Iterable[str] | None) -> frozenset[str] | None:
    """The promises that an argument names."""
    if promises is None:
        return None
    return frozenset(one_of("promises", name, _KNOWN) for name in items("promises", promises))


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
