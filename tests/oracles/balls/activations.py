"""Activations as analytic pieces between kinks.

An activation is a list of kinks t_1 < ... < t_m and m+1 analytic pieces; a piece is a
pair (phi, phi') of functions of (z, analytic) with z an acb.  ``conditional(m, s2, d)``
is E[phi^(d)(v)], v ~ N(m, s2), where elementary.  ``terms`` (piecewise
exponential-polynomials only): for every piece a list of (coefficient, power, rate).
"""

from typing import ClassVar

from flint import acb, arb


class Activation:
    jumps = False
    kinks = ()
    params: ClassVar = {}
    small = False  # tabulate at tau (or sqrt a, sqrt b) in [0.5, 2] only
    # phi = polynomial of degree ``degree`` + a function of parity ``parity`` (0 even,
    # 1 odd, None neither, -1 nothing), from which exact zeros follow.
    degree, parity = -1, None

    def __init__(self, name, definition, **attributes):
        self.name, self.definition = name, definition
        for key, value in attributes.items():
            setattr(self, key, value)

    def hermite_vanishes(self, k):
        if k <= self.degree or self.parity is None:
            return False
        return self.parity == -1 or k % 2 != self.parity


def exponential_polynomial(name, definition, kinks, terms, **attributes):
    """Activation with pieces sum coef * x^power * exp(rate x)."""

    def differentiate(piece):
        out = []
        for coef, power, rate in piece:
            if power:
                out.append((coef * power, power - 1, rate))
            if rate:
                out.append((coef * rate, power, rate))
        return out

    both = (terms, [differentiate(p) for p in terms])

    def evaluate(piece):
        def f(z, _):
            total = acb(0)
            for coef, power, rate in piece:
                term = arb(coef) * z**power if power else acb(coef)
                total += term * (z * rate).exp() if rate else term
            return total

        return f

    def conditional(m, s2, d, extra=0):
        """E[phi^(d)(v) v^j] for j = 0..extra (a list if extra), v ~ N(m, s2)."""
        out = [acb(0)] * (extra + 1)
        for i, piece in enumerate(both[d]):
            lo = kinks[i - 1] if i else None
            hi = kinks[i] if i < len(kinks) else None
            for rate in {term[2] for term in piece}:
                group = [t for t in piece if t[2] == rate]
                top = max(t[1] for t in group) + extra
                mean = m + rate * s2
                partial = truncated_moments(mean, s2, lo, hi, top)
                scale = (m * rate + s2 * rate * rate / 2).exp() if rate else 1
                for coef, power, _ in group:
                    for j in range(extra + 1):
                        out[j] += arb(coef) * scale * partial[power + j]
        return out if extra else out[0]

    pieces = [(evaluate(p), evaluate(q)) for p, q in zip(*both, strict=True)]
    return Activation(name, definition, kinks=kinks, pieces=pieces, conditional=conditional,
                      **attributes)  # fmt: skip


def truncated_moments(m, s2, lo, hi, top):
    """[E[v^j; lo < v < hi] for j <= top], v ~ N(m, s2); None is infinite."""
    s = s2.sqrt()

    def density(t):
        return (-((m - t) ** 2) / (2 * s2)).exp() / (s * (2 * arb.pi()).sqrt())

    r = s * arb(2).sqrt()
    if lo is None and hi is None:
        zeroth = acb(1)
    elif hi is None:
        zeroth = ((lo - m) / r).erfc() / 2
    elif lo is None:
        zeroth = ((m - hi) / r).erfc() / 2
    else:
        zeroth = (((hi - m) / r).erf() - ((lo - m) / r).erf()) / 2
    ends = []
    if lo is not None:
        ends.append((lo, s2 * density(arb(lo))))
    if hi is not None:
        ends.append((hi, -s2 * density(arb(hi))))
    moments = [zeroth]
    for j in range(1, top + 1):
        value = m * moments[j - 1]
        if j > 1:
            value += (j - 1) * s2 * moments[j - 2]
        for t, weight in ends:
            value += arb(t) ** (j - 1) * weight
        moments.append(value)
    return moments


def normal_cdf(z):
    return (-z / arb(2).sqrt()).erfc() / 2


def normal_pdf(z):
    return (-z * z / 2).exp() / (2 * arb.pi()).sqrt()


def gelu_conditional(m, s2, d):
    v = 1 + s2
    z = m / v.sqrt()
    if d == 0:
        return m * normal_cdf(z) + s2 * normal_pdf(z) / v.sqrt()
    return normal_cdf(z) + m / v * normal_pdf(z) / v.sqrt()


def erf_conditional(m, s2, d):
    v = 1 + 2 * s2
    if d == 0:
        return (m / v.sqrt()).erf()
    return 2 / (arb.pi() * v).sqrt() * (-m * m / v).exp()


def sigmoid(z):
    return 1 / (1 + (-z).exp())


def mish_parts(z):
    """tanh(softplus(z)) and its derivative."""
    if z.real > 0:
        w = (-z).exp()
        d = 1 + 2 * w * (1 + w)
        return (1 + 2 * w) / d, 4 * w * w * (1 + w) / (d * d)
    e = z.exp()
    n = e * (e + 2)
    return n / (n + 2), 4 * e * (e + 1) / (n + 2) ** 2


def mish_derivative(z, _):
    t, dt = mish_parts(z)
    return t + z * dt


def softplus(z, analytic):
    # On the right half-plane log(1+e^z) = z + log(1+e^-z) keeps the ball narrow.
    if z.real > 0:
        return z + (1 + (-z).exp()).log(analytic=analytic)
    w = z.exp()
    plain = (1 + w).log(analytic=analytic)  # not finite if the ball meets the branch cut
    return w.log1p() if plain.is_finite() else plain


def hermite_coefficients(k, normalised=True):
    """Integer coefficients (low to high) of He_k, as an arb list, divided by sqrt(k!)."""
    previous, current = [0], [1]
    for j in range(k):
        following = [0, *current]
        for i, value in enumerate(previous):
            following[i] -= j * value
        previous, current = current, following
    scale = arb.fac_ui(k).rsqrt() if normalised else arb(1)
    return [arb(value) * scale for value in current]


HERMITE_SERIES = (0.1, 0.7, -0.3, 0.2)


def build_activations():
    """All activations; to be called again after a change of precision."""
    series = [arb(0)] * 4
    for k, coefficient in enumerate(HERMITE_SERIES):
        for i, value in enumerate(hermite_coefficients(k)):
            series[i] += arb(coefficient) * value
    slope = arb(0.1)
    shift = 0.7
    out = [
        exponential_polynomial(
            "ReLU", "max(x, 0)", (0.0,), [[], [(1, 1, 0)]], degree=1, parity=0),
        exponential_polynomial(
            "LeakyReLU", "max(x, 0) + slope*min(x, 0)", (0.0,), [[(slope, 1, 0)], [(1, 1, 0)]],
            degree=1, parity=0, params={"slope": 0.1}),
        Activation(
            "Tanh", "tanh(x)", parity=1,
            pieces=[(lambda z, _: z.tanh(), lambda z, _: z.sech() ** 2)]),
        exponential_polynomial(
            "HardTanh", "clip(x, -1, 1)", (-1.0, 1.0), [[(-1, 0, 0)], [(1, 1, 0)], [(1, 0, 0)]],
            parity=1),
        Activation(
            "Swish", "x*sigmoid(x)", degree=1, parity=0,
            pieces=[(lambda z, _: z * sigmoid(z),
                     lambda z, _: sigmoid(z) * (1 + z * sigmoid(-z)))]),
        Activation(
            "GELU", "x*Phi(x), Phi the standard normal distribution function", degree=1, parity=0,
            pieces=[(lambda z, _: z * normal_cdf(z),
                     lambda z, _: normal_cdf(z) + z * normal_pdf(z))],
            conditional=gelu_conditional),
        Activation(
            "Erf", "erf(x)", parity=1,
            pieces=[(lambda z, _: z.erf(), lambda z, _: 2 * (-z * z).exp() / arb.pi().sqrt())],
            conditional=erf_conditional),
        Activation(
            "Softplus", "log(1 + exp(x))", degree=1, parity=0,
            pieces=[(softplus, lambda z, _: sigmoid(z))]),
        Activation(
            "Sigmoid", "1/(1 + exp(-x))", degree=0, parity=1,
            pieces=[(lambda z, _: sigmoid(z), lambda z, _: sigmoid(z) * sigmoid(-z))]),
        exponential_polynomial(
            "ELU_1", "x if x > 0 else alpha*(exp(x) - 1)", (0.0,),
            [[(1, 0, 1), (-1, 0, 0)], [(1, 1, 0)]], params={"alpha": 1.0}),
        exponential_polynomial(
            "ELU_0.5", "x if x > 0 else alpha*(exp(x) - 1)", (0.0,),
            [[(0.5, 0, 1), (-0.5, 0, 0)], [(1, 1, 0)]], params={"alpha": 0.5}),
        Activation(
            "Sine", "sin(x)", parity=1,
            pieces=[(lambda z, _: z.sin(), lambda z, _: z.cos())],
            conditional=lambda m, s2, d: (-s2 / 2).exp() * (m.cos() if d else m.sin())),
        Activation(
            "Cosine", "cos(x)", parity=0,
            pieces=[(lambda z, _: z.cos(), lambda z, _: -z.sin())],
            conditional=lambda m, s2, d: (-s2 / 2).exp() * (-m.sin() if d else m.cos())),
        exponential_polynomial("Identity", "x", (), [[(1, 1, 0)]], degree=1, parity=-1),
        exponential_polynomial(
            "HermiteSeries", "sum_k coefficients[k]*h_k(x), h_k = He_k/sqrt(k!)", (),
            [[(value, i, 0) for i, value in enumerate(series)]], degree=3, parity=-1, small=True,
            params={"coefficients": list(HERMITE_SERIES)}),
        Activation(
            "Mish", "x*tanh(log(1 + exp(x)))",
            pieces=[(lambda z, _: z * mish_parts(z)[0], mish_derivative)]),
        exponential_polynomial(
            "ShiftedReLU", "max(x - shift, 0)", (shift,), [[], [(1, 1, 0), (-arb(shift), 0, 0)]],
            params={"shift": shift}),
        exponential_polynomial(
            "Step", "1 if x > threshold else 0", (0.3,), [[], [(1, 0, 0)]], jumps=True,
            params={"threshold": 0.3}),
        exponential_polynomial(
            "SquaredReLU", "max(x, 0)**2", (0.0,), [[], [(1, 2, 0)]], degree=2, parity=1),
        exponential_polynomial(
            "AbsCubed", "abs(x)**3", (0.0,), [[(-1, 3, 0)], [(1, 3, 0)]], parity=0),
    ]  # fmt: skip
    return {activation.name: activation for activation in out}


def piece_at(activation, t):
    """The piece of the activation that holds the float (or Fraction) t, not a kink."""
    return activation.pieces[sum(t > kink for kink in activation.kinks)]


def tabulated(activation, *taus):
    return not activation.small or all(0.5 <= tau <= 2 for tau in taus)


def fresh(name):
    """The activation with its constants at the present precision."""
    return build_activations()[name]
