r"""Functions that carry the slow tail of a Hermite series, which no polynomial can.

The kernel of an activation with kinks has coefficients that fall like $k^{-5/2}$. An activation of
which all coefficients of even degree have that size, with alternating signs, has a kink at zero,
like $|x|$; with those of odd degree it behaves like $x \log|x|$. What is left after such a function
is taken off falls faster.

Both are rounded off at $|x| \approx \varepsilon$, which their coefficients notice from degree
$\varepsilon^{-2}$ on: with $w = x + i\varepsilon$, they are $x (1 - \tfrac2\pi \arg w)$ and
$x \log|w|$.
"""

import math

import numpy as np

__all__ = ["EPSILON", "carriers"]

EPSILON = 3e-4


def carriers(x: np.ndarray, order: int) -> np.ndarray:
    """The even and the odd carrier with their derivatives; shape (2, order + 1, *x.shape)."""
    w = np.asarray(x) + 1j * EPSILON
    # those of x g are x g^(n) + n g^(n-1), and those of log w are powers of 1/w
    logs = [np.log(w)]
    logs += [(-1) ** (n - 1) * math.factorial(n - 1) * w**-n for n in range(1, order + 1)]
    even = [-2 / math.pi * log.imag for log in logs]
    even[0] = even[0] + 1.0
    odd = [log.real for log in logs]
    return np.stack(
        [
            np.stack([x * g[n] + (n * g[n - 1] if n else 0.0) for n in range(order + 1)])
            for g in (even, odd)
        ]
    )
