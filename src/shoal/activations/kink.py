"""Places where activations are not smooth."""

from dataclasses import dataclass

from shoal.core.checks import items, real

__all__ = ["Kink"]


@dataclass(frozen=True)
class Kink:
    r"""A place where an activation is not smooth.

    Attributes:
        location: Where.
        jumps: Right minus left limit there, of $\varphi$, $\varphi'$ and $\varphi''$.
    """

    location: float
    jumps: tuple[float, float, float]

    def __post_init__(self) -> None:
        location = real("location", self.location)
        jumps = tuple(real("jumps", jump) for jump in items("jumps", self.jumps))
        if len(jumps) != 3:
            raise ValueError(f"jumps must be three, of the function and two derivatives: {jumps}")
        object.__setattr__(self, "location", location)
        object.__setattr__(self, "jumps", jumps)
