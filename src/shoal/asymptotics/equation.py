r"""The equation of the limiting spectrum of XᵀX, solved with a certificate at every point.

For X of p rows whose n_a columns of class a are N(0, C_a/p), c_a = n_a/p, the diagonal of
(XᵀX − z)^{-1} tends to u_a = −1/v_a on class a, where

    v_a = z − (1/p) tr C_a R,  R = (I + Σ_b c_b u_b C_b)^{-1}.

In the notation of Ling 2024, v_a = z(1 + δ_a). Exactly one solution has Im v_a > 0 for all a if
Im z > 0, so a candidate is checked, not trusted. On the real axis a complex solution with all
Im v_a > 0, or a real one at which the Jacobian's nonnegative part has spectral radius below one,
continues to such a solution above the axis, so it is the right one as well: the first kind lies
inside the support, the second outside.

The density is Σ_a w_a Im u_a/π, w_a = n_a/n. Its integral needs no quadrature. The potential

    (1/n) log det (XᵀX − z) → −Σ_a w_a log u_a + (1/n) log det R^{-1} − z Σ_a w_a u_a

is stationary in u, so the share of eigenvalues below x is −1/π times its imaginary part: every
logarithm there is a principal one. Covariances must have common eigenvectors, so that traces are
sums over their eigenvalues.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.core.exceptions import ConvergenceError

Array = NDArray[np.float64]
Values = NDArray[Any]  # real or complex
Mask = NDArray[np.bool_]

_EPS = float(np.finfo(float).eps)
_HEIGHTS = (1e-6, 1e-9, 1e-12, 1e-14)  # above the axis, relative, where solutions are continued


class AxisSolutions(NamedTuple):
    """Solutions v at real points, and which points lie inside the support."""

    v: Values
    inside: Mask


class Equation:
    """The equation of classes with common eigenvectors.

    Attributes:
        values: The distinct tuples of eigenvalues, of shape (tuples, classes).
        shares: Their shares, of sum one.
        ratios: The c_a = n_a/p.
    """

    def __init__(self, values: Array, shares: Array, ratios: Array) -> None:
        self.values, self.shares, self.ratios = values, shares, ratios
        self._first = shares[:, None] * values
        self._second = (self._first[:, :, None] * values[:, None, :]).reshape(len(values), -1)
        self.traces = self._first.sum(0)
        norm = float(values.max(initial=0.0))
        # the support does not reach this number
        self.bound = 1.01 * norm * (1 + float(np.sqrt(ratios.sum()))) ** 2

    def resolvent(self, v: Values) -> tuple[Values, Values]:
        """(1/p) tr C_a R and (1/p) tr C_a R C_b R."""
        inverse = 1 / (1 - (self.ratios / v) @ self.values.T)
        second = (inverse * inverse) @ self._second
        classes = self.values.shape[1]
        return inverse @ self._first, second.reshape(*v.shape[:-1], classes, classes)

    def residual(self, v: Values, z: Values) -> tuple[Values, Values, Array]:
        """The residual of the equation, its Jacobian, and the size of its rounding errors."""
        first, second = self.resolvent(v)
        jacobian = np.eye(v.shape[1]) - second * (self.ratios / v**2)[:, None, :]
        noise = _EPS * (np.abs(v) + np.abs(z)[:, None] + np.abs(first))
        return v - z[:, None] + first, jacobian, noise

    def mass_below(self, v: Values, x: Array) -> Array:
        """p/n times the share of eigenvalues below real points, from the solutions there."""
        u, weights = -1 / v, self.ratios
        directions = _argument(1 + (weights * u) @ self.values.T) @ self.shares
        total = _argument(u) @ weights - directions + x * (u.imag @ weights)
        return np.asarray(total / np.pi)

    def newton(self, v: Values, z: Values, *, steps: int = 40) -> tuple[Values, Mask]:
        """Newton's iteration from ``v``, which stays real or in the upper half-plane."""
        v = v.copy()
        converged = np.zeros(len(z), bool)
        active = np.arange(len(z))
        for _ in range(steps):
            current = v[active]
            with np.errstate(all="ignore"):
                difference, jacobian, noise = self.residual(current, z[active])
                step, usable = _solved(jacobian, difference)
                if np.iscomplexobj(v):  # never lose more than 9/10 of an imaginary part
                    fall = step.imag / np.maximum(0.9 * current.imag, 1e-300)
                    step /= np.maximum(1, fall.max(axis=1))[:, None]
                change = (np.abs(step) / np.abs(current)).max(axis=1)
                # convergence is quadratic at the scale of the distance to the real axis
                near = (np.abs(step) < 1e-8 * current.imag).all(axis=1)
            small = (np.abs(difference) <= 4 * noise).all(axis=1) | (change < 1e-13) | near
            v[active[usable]] = (current - step)[usable]
            converged[active[usable & small]] = True
            active = active[usable & ~small]
            if not len(active):
                break
        return v, converged

    def solve_upper(self, z: Values) -> Values:
        """The solution at points of the upper half-plane, by continuation from far above."""
        target = z.imag
        height = np.maximum(target, 2 * self.bound)
        start = z.real + 1j * height
        v, converged = self.newton(start[:, None] + self.traces, start)
        factor = np.full(len(z), 0.25)
        while not (converged & (height <= target)).all():
            active = np.flatnonzero(~(converged & (height <= target)))
            lower = np.maximum(height[active] * factor[active], target[active])
            lowered, ok = self.newton(v[active], z.real[active] + 1j * lower, steps=12)
            ok &= (lowered.imag > 0).all(axis=1)
            v[active[ok]] = lowered[ok]
            height[active[ok]] = lower[ok]
            converged[active[ok]] = True
            factor[active] = np.where(
                ok, np.maximum(factor[active] ** 1.5, 0.02), np.sqrt(factor[active])
            )
            if (factor > 0.999).any():
                point = z[np.argmax(factor)]
                raise ConvergenceError(
                    f"the limiting spectrum's equation was not solved at {point}"
                )
        return v

    def stability(self, v: Array) -> Array:
        """One less the spectral radius at real solutions: positive at limits from above."""
        _, second = self.resolvent(v)
        scale = np.sqrt(self.ratios) / np.abs(v)
        form = np.eye(v.shape[1]) - second * scale[:, :, None] * scale[:, None, :]
        form[~np.isfinite(form).all(axis=(1, 2))] = -np.eye(v.shape[1])
        return np.asarray(np.linalg.eigvalsh(form)[:, 0])

    def polish(self, v: Values, x: Array) -> tuple[AxisSolutions, Mask]:
        """The solutions at real ``x`` that are near ``v``, and where one was certified."""
        result = v.astype(complex)
        inside = np.zeros(len(x), bool)
        outside = np.zeros(len(x), bool)
        # a clearly complex start seldom leads to a real solution, a nearly real one often
        clear = (v.imag > 1e-3 * np.abs(v)).any(axis=1)
        for complex_turn in (clear, None, ~clear):
            if complex_turn is None:
                turn = np.flatnonzero(~inside)
                real, ok = self.newton(v[turn].real.copy(), x[turn], steps=15)
                with np.errstate(all="ignore"):
                    ok &= self.stability(real) > 0
                result[turn[ok]], outside[turn[ok]] = real[ok], True
                continue
            turn = np.flatnonzero(complex_turn & ~outside & (v.imag > 0).all(axis=1))
            solutions, ok = self.newton(v[turn].astype(complex), x[turn].astype(complex))
            # a merely real solution, approached from above, is none
            ok &= (solutions.imag > 1e-11 * np.abs(solutions)).all(axis=1)
            result[turn[ok]], inside[turn[ok]] = solutions[ok], True
        return AxisSolutions(result, inside), outside | inside

    def on_axis(self, x: Array, guess: Values | None = None) -> AxisSolutions:
        """The certified solutions at real points, ``guess`` being solutions of nearby points."""
        v = np.zeros((len(x), len(self.ratios)), complex)
        inside = np.zeros(len(x), bool)
        remaining = np.arange(len(x))
        for height in _HEIGHTS if guess is None else (None, *_HEIGHTS):
            if height is None:
                start = np.asarray(guess)
            else:
                start = self.solve_upper(
                    x[remaining] + 1j * height * np.where(x == 0, 1, np.abs(x))[remaining]
                )
            points, ok = self.polish(start, x[remaining])
            v[remaining[ok]], inside[remaining[ok]] = points.v[ok], points.inside[ok]
            remaining = remaining[~ok]
            if not len(remaining):
                return AxisSolutions(v, inside)
        raise ConvergenceError(
            f"no certified solution of the spectrum's equation at {x[remaining[0]]}"
        )


def _argument(z: Values) -> Array:
    """The argument of numbers on or above the real axis."""
    return np.asarray(np.arctan2(np.maximum(z.imag, 0.0) + 0.0, z.real))


def _solved(jacobian: Values, difference: Values) -> tuple[Values, Mask]:
    """The steps jacobian⁻¹·difference, and where they are numbers."""
    usable = np.asarray(
        np.isfinite(jacobian).all(axis=(1, 2)) & np.isfinite(difference).all(axis=1)
    )
    if jacobian.shape[1] == 1:
        step = difference / jacobian[:, :, 0]
    else:
        safe = np.where(usable[:, None, None], jacobian, np.eye(jacobian.shape[1]))
        singular = np.abs(np.linalg.det(safe)) == 0
        safe[singular] = np.eye(jacobian.shape[1])
        usable &= ~singular
        step = np.linalg.solve(safe, difference[:, :, None])[:, :, 0]
    return step, usable & np.isfinite(step).all(axis=1)
