"""Independent checks of the reference values; nothing here is needed by the test-suite.

    python tests/oracles/check.py tests/oracles/reference.json

Needs mpmath (with gmpy2 for speed), numpy, and python-flint for the finite differences
only.  Prints the largest disagreement of every check and fails if one is too large.
Takes about 9 minutes; names after the file (closed_duals price monte_carlo mehler hermite
moments derivatives) choose single checks.

* moments: mpmath quadrature of its own definitions of the activations;
* Hermite coefficients: closed forms (ReLU, squared ReLU, |x|^3, erf, sin, cos, step,
  shifted ReLU, identity), mpmath quadrature for the others;
* duals: closed forms (arc-cosine kernels, arcsine, GELU, exponentials, Isserlis);
  Mehler series with coefficients by mpmath for the lattice activations at moderate
  variances; Price's theorem towards rho = +-1; softplus' = sigmoid; Monte Carlo for all;
* second-order derivatives: Richardson-extrapolated finite differences of D at exact
  float64 steps, and dD/dc = Dp (Price).
"""

import json
import sys

from checks.derivatives import check_derivatives
from checks.duals import check_closed_duals, check_mehler, check_monte_carlo, check_price
from checks.expectations import check_hermite, check_moments


def main():
    with open(sys.argv[1]) as handle:
        data = json.load(handle)
    chosen = sys.argv[2:]
    checks = [check_closed_duals, check_price, check_monte_carlo, check_mehler, check_hermite,
              check_moments, check_derivatives]  # fmt: skip
    for check in checks:
        if not chosen or check.__name__.removeprefix("check_") in chosen:
            check(data)


if __name__ == "__main__":
    main()
