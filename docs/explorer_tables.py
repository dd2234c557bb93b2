r"""The numbers from which a page computes kernels by itself: two small tables for each activation.

At inputs of one norm, everything that shoal says of a DEQ follows from two functions of the scale
$\tau$ of what the activation sees: the dual $E(\theta; \tau)$ of $\varphi'$ at the angle $\theta$,
and the Hermite coefficients $c_k(\tau)$. By Price's theorem the dual of $\varphi$ is
$D(\theta) = c_0^2 + \tau^2 \int_\theta^{\pi/2} E(s) \sin s\,ds$, so that mean squares, variances,
kernels and their derivatives need no table of their own. In the angle and in $\log\tau$ both
functions are smooth, kinks or not, and Chebyshev series of a few hundred terms have them to seven
digits; where $\varphi$ is positively homogeneous, $\tau$ drops out.

``python docs/explorer_tables.py`` computes the file ``tables.json`` of the package anew.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import shoal.app
from shoal.activations import (
    ELU,
    GELU,
    Activation,
    Cosine,
    Erf,
    HardTanh,
    LeakyReLU,
    Mish,
    ReLU,
    Sigmoid,
    Sine,
    Softplus,
    Swish,
    Tanh,
)
from shoal.core.files import write_text
from shoal.gaussian import dual_derivative, hermite
from shoal.numerics import chebyshev_nodes, coefficients_from_values, fit

ACTIVATIONS: dict[str, Activation] = {
    "tanh": Tanh(),
    "relu": ReLU(),
    "leakyrelu:0.1": LeakyReLU(0.1),
    "hardtanh": HardTanh(),
    "erf": Erf(),
    "gelu": GELU(),
    "swish": Swish(),
    "mish": Mish(),
    "elu": ELU(),
    "softplus": Softplus(),
    "sigmoid": Sigmoid(),
    "sine": Sine(),
    "cosine": Cosine(),
}
"""The activations of the page, by the names that commands give them."""
SCALES = (0.05, 8.0)  # of τ
ORDER = 64  # Hermite coefficients of the table, less one
_TOLERANCE = 1e-7
_UNIT = 1e-10  # in which coefficients are written; a fraction of the tolerance
_DEGREE = 256
_SCALES = 64  # degree of the nodes at which the angle is resolved


@dataclass(frozen=True)
class ActivationTable:
    r"""What a page knows of an activation.

    Attributes:
        source: How it is made in Python, as in ``"shoal.activations.Tanh()"``.
        lipschitz: Its Lipschitz constant.
        homogeneous: Whether it is positively homogeneous; the table is then that at $\tau = 1$, and
            $c_k$ is proportional to $\tau$.
        slopes: Chebyshev coefficients of $E$, in units of 1e-10: rows are degrees in $\log\tau$,
            columns are degrees in the angle, zeros at the ends left out.
        hermite: Those of $c_k(\tau)/\sqrt{1 + \tau^2}$ in $\log\tau$, a row for each $k$.
        error: The largest error of both that was bounded or seen.
    """

    source: str
    lipschitz: float
    homogeneous: bool
    slopes: list[list[int]]
    hermite: list[list[int]]
    error: float

    def document(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return dict(vars(self))


def activation_table(phi: Activation) -> ActivationTable:
    """Compute the table of an activation; takes seconds.

    Args:
        phi: The activation.

    Raises:
        AccuracyError: If it is too rough for series of degree 256.

    Example:
        >>> import shoal
        >>> activation_table(shoal.activations.ReLU()).slopes  # (π - θ)/2π, for every τ
        [[2500000000, -2500000000]]
    """
    same = phi.positively_homogeneous
    low, high = (1.0, 2.0) if same else SCALES  # where τ drops out, one value is enough
    span, angles = (math.log(low), math.log(high)), (0.0, math.pi)

    def slope(scale: Tensor, angle: Tensor) -> Tensor:
        variance = (2 * scale).exp()[:, None].expand(-1, len(angle))
        return dual_derivative(phi, variance, variance, variance * angle.cos())

    def coefficients(scale: Tensor) -> Tensor:
        tau = scale.exp()
        size = tau if same else (1 + tau**2).sqrt()
        return hermite(phi, tau, ORDER).T / size

    some = chebyshev_nodes(_SCALES, *span)
    around = fit(lambda t: slope(some, t), angles, tolerance=_TOLERANCE / 2, max_degree=_DEGREE)
    nodes = chebyshev_nodes(around.degree, *angles)
    across = fit(lambda t: slope(t, nodes).T, span, tolerance=_TOLERANCE / 2, max_degree=_DEGREE)
    slopes = coefficients_from_values(across.coefficients.T)
    series = fit(coefficients, span, tolerance=_TOLERANCE, max_degree=_DEGREE)
    error = max(around.error + across.error, series.error) + _UNIT / 2 * slopes.numel()
    return ActivationTable(
        source=f"shoal.activations.{phi!r}",
        lipschitz=phi.lipschitz,
        homogeneous=same,
        slopes=_integers(slopes),
        hermite=_integers(series.coefficients),
        error=float(f"{error:.1e}"),
    )


def _integers(coefficients: Tensor) -> list[list[int]]:
    """The rows of coefficients in units, without the zeros that end them."""
    rows = (coefficients / _UNIT).round().to(torch.int64).tolist()
    for row in rows:
        while row and row[-1] == 0:
            row.pop()
    return rows


def _write() -> None:
    """Compute all tables and write them."""
    tables = {name: activation_table(phi).document() for name, phi in ACTIVATIONS.items()}
    document = {"scales": list(SCALES), "unit": _UNIT, "activations": tables}
    text = json.dumps(document, separators=(",", ":")).replace('},"', '},\n"') + "\n"
    write_text(Path(shoal.app.__file__).with_name("tables.json"), text)


if __name__ == "__main__":
    _write()
