"""High-precision reference values for Gaussian expectations of activations.

    python tests/oracles/generate.py OUT.json            # everything
    python tests/oracles/generate.py OUT.json --only moments hermite

Needs python-flint >= 0.7 (Arb ball arithmetic); imports nothing of shoal.  Takes about
9 minutes of CPU time on one core (moments 1, Hermite 2, duals 5, derivatives 1); each
section is written as it is finished, and OUT.json's other sections are kept.

Structure of the JSON
---------------------
All inputs are JSON numbers that round-trip to the exact float64 used (the oracle
works with that exact number; the activations' parameters 0.1, 0.7, ... are also the
exact float64).  All values are decimal strings of 20 digits, ``"0"`` for a value
that is zero or below 1e-400 in magnitude, or ``null`` where the quantity is not
defined.  ``float(s)`` is always finite, and 0.0 where the value underflows.

``activations``
    name -> ``{"definition": ..., "params": {...}, "jumps": bool, "kinks": [...]}``.
``moments``
    ``{"tau": [...], "quantities": [...], "values": {name: [[...] per tau]}}`` with
    quantities, xi ~ N(0,1), everything evaluated at tau*xi,

    * ``phi, d1, d2, d3``: E phi^(k), distributional: E[phi(tau xi) He_k(xi)]/tau^k
    * ``phi_sq``: E phi^2
    * ``d1_sq``: E phi'^2, phi' pointwise almost everywhere (null if phi jumps)
    * ``phi_sq_d2``: E (phi^2)'' = E[phi^2 He_2]/tau^2

    A whole row is null where the activation is not tabulated at that tau.
``hermite``
    ``{"tau": [...], "k": [...], "values": {name: [[c_k per k] per tau]}}``,
    c_k(tau) = E[phi(tau xi) h_k(xi)], h_k = He_k/sqrt(k!).
``duals``
    ``{"triples": [{"a", "b", "c", "rho"}], "values": {name: {"D": [...], "Dp": [...]}}}``
    D = E[phi(u)phi(v)], Dp = E[phi'(u)phi'(v)], (u,v) ~ N(0,[[a,c],[c,b]]), one entry
    per triple.  ``c`` is the float64 nearest to rho*sqrt(ab) that does not exceed it in
    modulus; the exact float64 a, b, c define the value, ``rho`` is only the nominal
    label.  Dp is null if phi jumps, and at a = 0 if phi has a kink at 0.
``dual_derivatives``
    ``{"triples": [...], "quantities": ["a","b","c","cc","ac","ab","aa"],
    "values": {name: [[...] per triple]}}``: dD/da, dD/db, dD/dc, d2D/dc2, d2D/dadc,
    d2D/dadb, d2D/da2 with a, b, c as independent variables (c is the one off-diagonal
    parameter).

How each number is obtained and certified
-----------------------------------------
1-D integrals (moments, Hermite coefficients, duals at c^2 = ab) use Arb's rigorous
adaptive integration, split at the kinks, with a proven bound on the truncated tails
(Cramer: |h_k(x)| <= 1.0865 exp(x^2/4)) added to the ball; working precision and
range are raised until the ball is narrower than 1e-21 of the value (or proves
|value| < 1e-400).  Every number is then computed again at a higher precision, a
longer range and a different splitting, and both balls must overlap.

Duals of all activations whose conditional expectation E[phi(v)|u] is elementary
(piecewise polynomial/exponential, erf, GELU, sin, cos, polynomials) are a rigorous
1-D Arb integral over u of phi(u) E[phi(v)|u], certified as above; the second
computation also exchanges u and v.

Duals of Tanh, Sigmoid, Softplus, Swish and Mish are two-dimensional trapezoidal sums
in ball arithmetic (exponentially convergent: the integrand is analytic in a strip),
on a lattice in (u, v) for moderate and in (u, v - E[v|u]) for strong correlation.
They are computed twice with different steps, offsets and ranges, which must agree to
1e-23 of sqrt(E phi(u)^2 E phi(v)^2).

Second-order derivatives differentiate the bivariate *density* (dp/dc = d2p/dudv,
dp/da = d2p/du2 / 2), i.e. are expectations of phi(u)phi(v) times a polynomial.
They are certified like the duals (Tanh, Softplus: two lattices, 1e-21 of each value).
"""

import argparse
import json
import math
import re
import sys
import time

from balls.activations import build_activations, tabulated
from balls.derivatives import DERIVATIVES, derivatives_easy, derivatives_lattice
from balls.duals import degenerate, easy_dual, triple
from balls.lattices import agreeing, lattice_duals
from balls.moments import HERMITE_KS, MOMENTS, hermite_of, moments_of

TAUS = [1e-3, 0.03, 0.5, 1.0, 2.7, 30.0]
HERMITE_TAUS = [1e-3, 0.5, 1.0, 2.7, 30.0]

NEAR8, NEAR12 = 1 - 1e-8, 1 - 1e-12
TRIPLES = (
    [(1.0, 1.0, r) for r in (-1.0, -NEAR12, -0.99, 0.0, 0.3, 0.9999, NEAR12, 1.0)]
    + [(1e-4, 1e-4, r) for r in (-1.0, -0.999999, 0.9, NEAR8, 1.0)]
    + [(100.0, 100.0, r)
       for r in (-1.0, -NEAR8, -0.999, -0.5, 0.3, 0.999, NEAR8, NEAR12, 1.0)]
    + [(1e-4, 100.0, r) for r in (-0.99, 0.0, 0.9999)]
    + [(0.5, 2.0, r) for r in (-0.5, -1e-3, 0.99, NEAR8)]
    + [(100.0, 3.0, r) for r in (-0.999999, 0.3, 0.99)]
    + [(0.02, 0.7, r) for r in (-0.99, -0.5, 0.9, NEAR12)]
    + [(0.0, 1.0, 0.0)]
)  # fmt: skip
DERIVATIVE_TRIPLES = [
    (1.0, 1.0, 0.3), (1.0, 1.0, -0.99), (0.5, 2.0, -0.7), (0.02, 0.7, 0.9), (100.0, 3.0, 0.5),
]  # fmt: skip
DERIVATIVE_NAMES = ["ReLU", "LeakyReLU", "HardTanh", "Tanh", "ELU_0.5", "Softplus", "ShiftedReLU"]


def describe():
    return {
        name: {"definition": activation.definition, "params": activation.params,
               "kinks": list(activation.kinks), "jumps": activation.jumps}
        for name, activation in build_activations().items()
    }  # fmt: skip


def section_moments():
    values = {}
    for name in build_activations():
        values[name] = [moments_of(name, tau) for tau in TAUS]
        progress("moments", name)
    return {"tau": TAUS, "quantities": MOMENTS, "values": values}


def section_hermite():
    values = {}
    for name in build_activations():
        values[name] = [hermite_of(name, tau) for tau in HERMITE_TAUS]
        progress("hermite", name)
    return {"tau": HERMITE_TAUS, "k": HERMITE_KS, "values": values}


def listed(entries):
    return [dict(zip("abc", triple(*entry), strict=True), rho=entry[2]) for entry in entries]


def section_duals():
    triples = [triple(*entry) for entry in TRIPLES]
    values = {name: {"D": [], "Dp": []} for name in build_activations()}
    for a, b, c in triples:
        hard = {}
        if a and not degenerate(a, b, c):
            hard = lattice_duals(a, b, c)
        for name, activation in build_activations().items():
            for order, key in enumerate(("D", "Dp")):
                if name in hard:
                    value = hard[name][order]
                elif not tabulated(activation, math.sqrt(a), math.sqrt(b)):
                    value = None
                else:
                    value = easy_dual(name, a, b, c, order)
                values[name][key].append(value)
        progress("duals", f"a={a} b={b} c={c!r}")
    return {"triples": listed(TRIPLES), "values": values}


def section_derivatives():
    triples = [triple(*entry) for entry in DERIVATIVE_TRIPLES]
    values = {name: [] for name in DERIVATIVE_NAMES}
    for a, b, c in triples:
        hard = derivatives_lattice(a, b, c)
        for name in DERIVATIVE_NAMES:
            values[name].append(hard[name] if name in hard else derivatives_easy(name, a, b, c))
        progress("derivatives", f"a={a} b={b} c={c!r}")
    return {"triples": listed(DERIVATIVE_TRIPLES), "quantities": DERIVATIVES, "values": values}


SECTIONS = {
    "moments": section_moments,
    "hermite": section_hermite,
    "duals": section_duals,
    "dual_derivatives": section_derivatives,
}
START = time.time()


def progress(*what):
    print(f"{time.time() - START:8.1f}s", *what, file=sys.stderr, flush=True)  # noqa: T201


def compact(result):
    """JSON with every innermost list or object on one line."""

    def join(match):
        return re.sub(r"\s+", " ", match[0]).replace("[ ", "[").replace(" ]", "]")

    text = json.dumps(result, indent=1)
    return re.sub(r"\[\s[^\[\]{}]*\]|\{\s[^\[\]{}]*\}", join, text) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    arguments = parser.parse_args()
    try:
        with open(arguments.out) as handle:
            result = json.load(handle)
    except FileNotFoundError:
        result = {}
    result["activations"] = describe()
    for name in arguments.only:
        result[name] = SECTIONS[name]()
        with open(arguments.out, "w") as handle:
            handle.write(compact(result))
    progress("done; worst disagreement of the lattice sums", agreeing.worst)


if __name__ == "__main__":
    main()
