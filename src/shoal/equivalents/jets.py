r"""Second-order expansions of symmetric kernels at $(a, b, c) = (\tau_0^2, \tau_0^2, 0)$."""

from collections.abc import Callable
from dataclasses import dataclass, fields

__all__ = ["DualTable", "Expansion", "Jet", "Variance", "composed"]

DualTable = Callable[[int, int], float]
r"""$D_{jk} = \mathbb{E}[\varphi^{(j)}(u)\varphi^{(k)}(v)]$ at one covariance of $(u, v)$."""


@dataclass(frozen=True)
class Jet:
    r"""A kernel $\kappa(a, b, c) = \kappa(b, a, c)$ and its derivatives up to second order.

    The derivatives that no equivalent needs, $\kappa_{ac}$, are left out; those that it needs
    do not depend on them.
    """

    value: float = 0.0
    a: float = 0.0
    c: float = 0.0
    aa: float = 0.0
    ab: float = 0.0
    cc: float = 0.0

    def __add__(self, other: "Jet") -> "Jet":
        return Jet(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Jet)))

    def times(self, factor: float) -> "Jet":
        """The jet times a number."""
        return Jet(*(factor * getattr(self, f.name) for f in fields(Jet)))

    def __mul__(self, other: "Jet") -> "Jet":
        f, g = self, other
        return Jet(
            value=f.value * g.value,
            a=f.a * g.value + f.value * g.a,
            c=f.c * g.value + f.value * g.c,
            aa=f.aa * g.value + 2 * f.a * g.a + f.value * g.aa,
            ab=f.ab * g.value + 2 * f.a * g.a + f.value * g.ab,
            cc=f.cc * g.value + 2 * f.c * g.c + f.value * g.cc,
        )

    def mapped(self, value: float, first: float, second: float) -> "Jet":
        """The jet of a function of the kernel, given its value and derivatives."""
        return Jet(
            value=value,
            a=first * self.a,
            c=first * self.c,
            aa=first * self.aa + second * self.a**2,
            ab=first * self.ab + second * self.a**2,
            cc=first * self.cc + second * self.c**2,
        )


@dataclass(frozen=True)
class Variance:
    r"""A variance as a function of the input's squared norm: value, first, second derivative."""

    value: float
    first: float
    second: float


def composed(table: DualTable, order: int, variance: Variance, inner: Jet) -> Jet:
    r"""The jet of $D_{jj}(p(a), p(b), \Lambda(a, b, c))$, $j$ = ``order``.

    By $\partial_p D_{jk} = \tfrac12 D_{j+2,k}$ and $\partial_\Lambda D_{jk} = D_{j+1,k+1}$.
    ``table`` holds the duals at $(p, p, \Lambda)$.
    """

    def dual(j: int, k: int) -> float:
        return table(order + j, order + k)

    slope, bend, p1, p2 = dual(1, 1), dual(2, 2), variance.first, variance.second
    mixed = dual(3, 1) * p1 * inner.a + bend * inner.a**2
    return Jet(
        value=dual(0, 0),
        a=dual(2, 0) * p1 / 2 + slope * inner.a,
        c=slope * inner.c,
        aa=dual(4, 0) * p1**2 / 4 + dual(2, 0) * p2 / 2 + mixed + slope * inner.aa,
        ab=bend * p1**2 / 4 + mixed + slope * inner.ab,
        cc=bend * inner.c**2 + slope * inner.cc,
    )


@dataclass(frozen=True)
class Expansion:
    r"""Both kernels near $(\tau_0^2, \tau_0^2, 0)$, and of an input of norm $\tau_0$ with itself.

    Attributes:
        ck: The jet of the CK.
        ntk: The jet of the NTK.
        own_ck: The CK of an input with itself.
        own_ntk: The NTK of an input with itself.
        growth: $\alpha_4$.
    """

    ck: Jet
    ntk: Jet
    own_ck: float
    own_ntk: float
    growth: float
