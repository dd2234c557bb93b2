// Kernels of infinitely wide deep equilibrium models at inputs of one norm, from tables of shoal:
// E(angle, scale), the dual of the activation's derivative, and Hermite coefficients c_k(scale).

"use strict";

const VARIANCE_DEGREE = 96; // of mean squares as functions of log scale
const ANGLE_DEGREE = 64; // added to that of E for E(s) sin s, whose integral is the dual

class Activation {
  constructor(name, table, scales, unit) {
    this.name = name;
    this.source = table.source;
    this.lipschitz = table.lipschitz;
    this.homogeneous = table.homogeneous;
    this.error = table.error;
    this.slopes = table.slopes.map((row) => row.map((value) => value * unit));
    this.hermite = table.hermite.map((row) => row.map((value) => value * unit));
    this.order = this.hermite.length - 1;
    [this.low, this.high] = this.homogeneous ? [0, Infinity] : scales;
    this.bounds = scales.map(Math.log);
    if (!this.homogeneous) this.prepare();
  }

  // Series of the variance of the activation and of E[phi'^2] in log scale: each is asked for often.
  prepare() {
    const at = nodes(VARIANCE_DEGREE).map((t) => this.angles(this.scale(t)));
    this.spreads = interpolated(at.map((one) => one.spread));
    this.steepness = interpolated(at.map((one) => chebyshev(one.slope, -1)));
  }

  scale(t) {
    const [low, high] = this.bounds;
    return Math.exp(low + ((t + 1) / 2) * (high - low));
  }

  place(tau) {
    const [low, high] = this.bounds;
    return (2 * (Math.log(tau) - low)) / (high - low) - 1;
  }

  covers(tau) {
    return tau >= this.low * (1 - 1e-12) && tau <= this.high * (1 + 1e-12);
  }

  // E and the integral of E(s) sin s from the angle to pi/2, both as series in the angle on [0, pi].
  angles(tau) {
    const t = this.homogeneous ? -1 : this.place(tau);
    const width = Math.max(...this.slopes.map((row) => row.length));
    const slope = [];
    for (let k = 0; k < width; k++) slope.push(chebyshev(this.slopes.map((row) => row[k] ?? 0), t));
    const size = width + ANGLE_DEGREE;
    const product = nodes(size).map((s) => chebyshev(slope, s) * Math.sin((Math.PI * (s + 1)) / 2));
    const integral = integrated(interpolated(product)).map((c) => (-c * Math.PI) / 2);
    return { slope, integral, spread: tau * tau * chebyshev(integral, -1) };
  }

  // c_0, ..., c_order at a scale.
  coefficients(tau) {
    if (this.homogeneous) return this.hermite.map((row) => tau * chebyshev(row, 0));
    const t = this.place(tau), size = Math.sqrt(1 + tau * tau);
    return this.hermite.map((row) => size * chebyshev(row, t));
  }

  mean(tau) {
    if (this.homogeneous) return tau * chebyshev(this.hermite[0], 0);
    return Math.sqrt(1 + tau * tau) * chebyshev(this.hermite[0], this.place(tau));
  }

  // The variance of the activation.
  spread(tau) {
    if (this.homogeneous) return this.unit().spread * tau * tau;
    return chebyshev(this.spreads, this.place(tau));
  }

  // Its mean square.
  square(tau) {
    return this.mean(tau) ** 2 + this.spread(tau);
  }

  // E[phi'^2].
  steep(tau) {
    if (this.homogeneous) return chebyshev(this.slopes[0], -1);
    return chebyshev(this.steepness, this.place(tau));
  }

  // The derivative of the variance in the squared scale.
  spreadSlope(tau) {
    if (this.homogeneous) return this.unit().spread;
    const [low, high] = this.bounds;
    this.spreadsChange ??= differentiated(this.spreads);
    return chebyshev(this.spreadsChange, this.place(tau)) / ((high - low) * tau * tau);
  }

  unit() {
    this.atOne ??= this.angles(1);
    return this.atOne;
  }
}

// The first fixed point q = gain * square(sqrt(q)) + injected that the iteration from `injected`
// reaches, or why there is none in the table. `square` is a function of the scale.
function variance(activation, square, gain, injected) {
  if (!activation.covers(Math.sqrt(injected))) return { status: "outside" };
  const step = (q) => gain * square(Math.sqrt(q)) + injected;
  let q = injected;
  for (let i = 0; i < 4000; i++) {
    const next = step(q);
    if (!(next < 1e8) || !activation.covers(Math.sqrt(next))) {
      return { status: activation.homogeneous ? "none" : "outside" };
    }
    if (Math.abs(next - q) <= 1e-15 * next) return { status: "found", value: next };
    // Aitken's step where the differences shrink evenly; it is kept only if it is a better one
    const after = step(next), ratio = (after - next) / (next - q);
    q = after;
    if (Math.abs(ratio) < 1) {
      const jump = next + ((after - next) / (1 - ratio));
      if (activation.covers(Math.sqrt(jump)) && jump >= injected * 0.5) {
        const left = Math.abs(step(jump) - jump);
        if (left < Math.abs(step(after) - after)) q = jump;
        if (left <= 1e-15 * jump) return { status: "found", value: jump };
      }
    }
  }
  return { status: Math.abs(step(q) - q) < 1e-9 * q ? "found" : "none", value: q };
}

// Both kernels of a DEQ at inputs of one norm, or `status` that says why there are none.
// model: { activation, recurrent, input, bias, norm }
function equilibrium(model) {
  const { activation, recurrent, input, bias, norm } = model;
  const injected = input * norm * norm + bias;
  const found = variance(activation, (tau) => activation.square(tau), recurrent, injected);
  const result = { ...found, injected };
  if (found.status !== "found") return result;
  result.tau = Math.sqrt(found.value);
  result.rate = recurrent * activation.steep(result.tau);
  if (!(result.rate < 1)) result.status = "unstable";
  return result;
}

// Functions of the angle between two inputs, given what `equilibrium` found.
function kernels(model, found) {
  const { activation, recurrent, input, bias, norm } = model;
  const { tau } = found, q = tau * tau;
  const section = activation.angles(tau), mean = activation.mean(tau) ** 2;
  // within rounding of 1 the cosine has lost the angle, which is then 0 or pi
  const cosine = (share) => (Math.abs(share) > 1 - 4e-15 ? Math.sign(share) : share);
  const angle = (covariance) => Math.acos(cosine(covariance / q));
  const slope = (theta) => chebyshev(section.slope, (2 * theta) / Math.PI - 1);
  const dual = (theta) => mean + q * chebyshev(section.integral, (2 * theta) / Math.PI - 1);
  const at = (psi) => {
    const injected = input * norm * norm * Math.cos(psi) + bias;
    // contracts, since rate < 1; Newton's derivative is E itself (Price)
    let covariance = psi === 0 ? q : Math.min(q, injected + recurrent * mean);
    for (let i = 0; i < 60 && psi > 0; i++) {
      const theta = angle(covariance);
      const ahead = recurrent * dual(theta) + injected - covariance;
      covariance = Math.min(q, Math.max(-q, covariance + ahead / (1 - recurrent * slope(theta))));
      if (Math.abs(ahead) <= 1e-15 * q) break;
    }
    const theta = psi === 0 ? 0 : angle(covariance), e = slope(theta), ck = dual(theta);
    return { ck, ntk: ck + (covariance * e) / (1 - recurrent * e), covariance };
  };
  return { at, dual, slope, mean };
}

// Steps of the plain iteration until the residual is `tolerance` of what it was: in wide networks
// squared differences shrink by `rate`.
function solverSteps(rate, tolerance = 1e-6) {
  return rate <= 0 ? 1 : Math.max(1, Math.ceil((2 * Math.log(tolerance)) / Math.log(rate)));
}

// The coefficients of the high-dimensional equivalents of the centered DEQ without biases, for
// "ck" and "ntk": gamma2, alpha1, alpha2, alpha3.
function highDimensional(model) {
  const { activation, recurrent, input, norm } = model;
  const injected = input * norm * norm;
  const found = variance(activation, (tau) => activation.spread(tau), recurrent, injected);
  if (found.status !== "found") return { status: found.status };
  const tau = Math.sqrt(found.value), q = found.value;
  const c = activation.coefficients(tau);
  const m1 = c[1] / tau, m2 = (Math.SQRT2 * c[2]) / q;
  const steep = activation.steep(tau), s = 1 - recurrent * m1 * m1;
  if (!(recurrent * steep < 1)) return { status: "unstable" };
  if (m1 * m1 < 1e-8 * steep) return { status: "even" }; // no linear part
  const spread = activation.spread(tau);
  const growth = input / (1 - recurrent * activation.spreadSlope(tau)); // of q in the squared norm
  const first = input / s; // derivatives of the covariance in the inner product
  const second = (recurrent * m2 * m2 * first * first) / s;
  const apart = (m2 * m2 * growth * growth) / (4 * s);
  const ck = {
    gamma2: spread,
    alpha1: m1 * m1 * first,
    alpha2: apart,
    alpha3: (m1 * m1 * second + m2 * m2 * first * first) / 2,
  };
  const turns = (m1 * m1) / s, turnsSlope = (m2 * m2 * first) / (s * s);
  const ntk = {
    gamma2: spread + (q * steep) / (1 - recurrent * steep),
    alpha1: ck.alpha1 + first * turns,
    alpha2: apart * (1 + recurrent * turns),
    alpha3: ck.alpha3 + (second * turns + 2 * first * turnsSlope) / 2,
  };
  return { status: "found", tau, ck, ntk };
}
