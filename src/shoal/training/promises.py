"""What a certificate promises of a training run, and monitors watch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Promises:
    r"""Numbers that hold at every step, in exact arithmetic, and what is left of it in a run.

    What is not promised is left out.

    Attributes:
        travel: For groups of weights, how far these parameters are from where they start, at most,
            in the Frobenius norm.
        gain: The Lipschitz constant of the recurrent layer, at most.
        singular_value: The least singular value, at least, of the features that the trained
            readouts see: of $Z$, of $F$, or of both side by side. For explicit networks, that of
            the Jacobian of the outputs.
        resolution: A loss, for gradient descent: what rounding in the network's dtype, and
            equilibria solved to their tolerance, may leave in a run, whatever is proved for exact
            arithmetic. Computed losses keep
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
        """What is promised, as plain numbers and dictionaries."""
        everything = {**vars(self), "travel": dict(self.travel)}
        return {name: value for name, value in everything.items() if value not in (None, {})}
