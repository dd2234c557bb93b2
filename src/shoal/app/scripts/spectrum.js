// The limiting spectrum of X'X for columns of one second moment, and what follows from it:
// isolated eigenvalues, training curves and learning curves.
//
// With n = ratio * p columns of dimension p and second moment S/p, everything is a function of the
// solution v of x(v) = v + sum_j share_j s_j v / (v - ratio s_j) = z (Silverstein and Choi 1995):
// the Stieltjes transform is -1/v, the support ends where x'(v) = 0, a direction of strength w has
// an isolated eigenvalue x(w) where x'(w) > 0, and at z = -ridge the solution is -n times the
// effective ridge of the regression.

"use strict";

class Law {
  // population: { values, shares, signal, noise, size }; signal: what share of the target's variance
  // is linear along these directions
  constructor(population, ratio) {
    this.population = population;
    this.ratio = ratio;
    const kept = population.values.map((_, j) => j).filter((j) => population.values[j] > 0);
    this.values = Float64Array.from(kept, (j) => population.values[j]);
    this.shares = Float64Array.from(kept, (j) => population.shares[j]);
    this.signal = Float64Array.from(kept, (j) => population.signal[j]);
    this.poles = this.values.map((value) => ratio * value);
    this.weights = this.values.map((value, j) => this.shares[j] * ratio * value * value);
    this.atom = Math.max(0, 1 - this.shares.reduce((sum, share) => sum + share, 0) / ratio);
  }

  at(v) {
    let sum = v;
    for (let j = 0; j < this.poles.length; j++) {
      sum += (this.shares[j] * this.values[j] * v) / (v - this.poles[j]);
    }
    return sum;
  }

  // 1 - x'(v), which is below one outside of the support
  excess(v) {
    let sum = 0;
    for (let j = 0; j < this.poles.length; j++) sum += this.weights[j] / (v - this.poles[j]) ** 2;
    return sum - 1;
  }

  // Pairs of edges [x, v], in increasing order: a bulk lies between each two.
  edges() {
    if (this.found) return this.found;
    const { poles, weights } = this, last = poles.length - 1;
    const reach = Math.sqrt(weights.reduce((sum, weight) => sum + weight, 0));
    const total = this.shares.reduce((sum, share) => sum + share, 0);
    const excess = (v) => this.excess(v);
    const places = [Math.abs(total - this.ratio) < 1e-12 ? 0
      : bisected(excess, poles[0] - reach, poles[0] - Math.sqrt(weights[0]))];
    for (let j = 0; j < last; j++) {
      const [low, high] = [poles[j], poles[j + 1]];
      const roots = Math.cbrt(weights[j]) + Math.cbrt(weights[j + 1]);
      if (!(roots ** 3 < (high - low) ** 2)) continue;
      const slope = (v) => {
        let sum = 0;
        for (let k = 0; k <= last; k++) sum -= weights[k] / (v - poles[k]) ** 3;
        return sum;
      };
      const lowest = bisected(slope, low + 1e-12 * (high - low), high - 1e-12 * (high - low));
      if (excess(lowest) < 0) places.push(bisected(excess, low, lowest), bisected(excess, lowest, high));
    }
    places.push(bisected(excess, poles[last] + Math.sqrt(weights[last]), poles[last] + reach));
    this.found = places.map((v) => [Math.abs(this.at(v)), v]);
    return this.found;
  }

  // x(v) - z and its derivative at a complex v.
  residual(re, im, x, y) {
    let fr = re - x, fi = im - y, dr = 1, di = 0;
    for (let j = 0; j < this.poles.length; j++) {
      const a = re - this.poles[j], size = a * a + im * im;
      const ir = a / size, ii = -im / size; // 1/(v - pole)
      const load = this.shares[j] * this.values[j];
      fr += load * (re * ir - im * ii);
      fi += load * (re * ii + im * ir);
      dr -= this.weights[j] * (ir * ir - ii * ii);
      di -= this.weights[j] * 2 * ir * ii;
    }
    return [fr, fi, dr, di];
  }

  newton(re, im, x, y, steps) {
    const scale = Math.abs(x) + Math.abs(y);
    for (let i = 0; i < steps; i++) {
      const [fr, fi, dr, di] = this.residual(re, im, x, y);
      const size = dr * dr + di * di;
      const [sr, si] = [(fr * dr + fi * di) / size, (fi * dr - fr * di) / size];
      re -= sr;
      im -= si;
      if (!(im > 0)) return null;
      if (Math.hypot(sr, si) < 1e-11 * scale) return [re, im];
    }
    return null;
  }

  // The solution in the upper half-plane at a point of the support: from far above, downwards.
  descended(x) {
    let height = 8 * (x + this.poles[this.poles.length - 1] + 1), [re, im] = [x, height];
    for (let i = 0; i < 200 && height > 0; i++) {
      const y = height < 1e-9 * x ? 0 : height;
      const next = this.newton(re, im, x, y, 30);
      if (next) {
        [re, im] = next;
        if (y === 0) return next;
        height *= 0.5;
      } else height *= 1.25;
    }
    return [re, im];
  }

  // Bulks with nodes for integrals: x, and weights of the spectrum and of the target's spectrum.
  bulks() {
    if (this.made) return this.made;
    const edges = this.edges(), result = [];
    const wide = Math.max(...edges.map(([x], k) => (k % 2 ? x - edges[k - 1][0] : 0))) / 4;
    for (let k = 0; k < edges.length; k += 2) {
      const [low, high] = [edges[k][0], edges[k + 1][0]];
      const count = high - low >= wide ? 160 : 24;
      const points = [];
      let v = null;
      for (let i = count - 1; i >= 0; i--) {
        const phi = (Math.PI * (i + 0.5)) / count;
        const x = low + (high - low) * Math.sin(phi / 2) ** 2;
        const width = ((high - low) / 2) * Math.sin(phi) * (Math.PI / count);
        v = (v && this.newton(v[0], v[1], x, 0, 12)) || this.descended(x);
        points.unshift(this.point(x, v, width));
      }
      const mass = points.reduce((sum, point) => sum + point.weight, 0);
      result.push({ low, high, points, mass });
    }
    this.made = result;
    return result;
  }

  point(x, [re, im], width) {
    const size = re * re + im * im, density = im / size / Math.PI; // Im(-1/v)
    let target = this.population.noise * density;
    for (let j = 0; j < this.poles.length; j++) {
      // Im(-1/(v - pole))
      target += ((this.signal[j] / Math.PI) * im) / ((re - this.poles[j]) ** 2 + im * im);
    }
    return { x, density, weight: density * width, target: target * width };
  }

  // Whether a bulk has the mass of a single eigenvalue, and lies above most of the others.
  single(bulk) {
    const one = 1.5 / (this.ratio * this.population.size);
    const main = this.bulks().reduce((best, other) => (other.mass > best.mass ? other : best));
    return bulk.mass < one && bulk.low > main.high;
  }

  // Where eigenvalues stand alone.
  isolated() {
    return this.bulks().filter((bulk) => this.single(bulk)).map((bulk) =>
      bulk.points.reduce((sum, point) => sum + point.x * point.weight, 0) / bulk.mass);
  }

  // The isolated eigenvalue of a direction that knows nothing of X, or null.
  detached(strength) {
    const least = 1e-6 * this.poles[this.poles.length - 1]; // less is rounding, as of odd activations
    return strength > least && this.excess(strength) < 0 ? this.at(strength) : null;
  }

  // The real solution at z = -ridge < 0.
  below(ridge) {
    // x(v) increases for v < 0, and v - trace is below it
    const trace = this.values.reduce((sum, value, j) => sum + value * this.shares[j], 0);
    return bisected((v) => this.at(v) + ridge, -ridge - trace, -ridge);
  }
}

// What the kernel makes of a spectrum in units of the squared norm: slope and shift of eigenvalues.
function scaled(coefficients, norm) {
  const slope = coefficients.alpha1 * norm * norm;
  return { slope, shift: Math.max(0, coefficients.gamma2 - slope) };
}

// Isolated eigenvalues: of the second moment, and of the two directions of squared norms.
function spikes(law, coefficients, norm) {
  const { slope, shift } = scaled(coefficients, norm);
  const { values, shares } = law;
  const square = values.reduce((sum, value, j) => sum + shares[j] * value * value, 0);
  const found = law.isolated().map((x) => ({ x: slope * x + shift, of: "data" }));
  const strength = (law.ratio * square * norm * norm) / coefficients.alpha1;
  for (const [of, w] of [["mean", strength * coefficients.alpha3], ["norms", 2 * strength * coefficients.alpha2]]) {
    const x = law.detached(w);
    if (x !== null) found.push({ x: slope * x + shift, of });
  }
  return found;
}

// Mean squared error on the training samples after each time of gradient flow from zero.
function trainingCurve(law, coefficients, norm, times) {
  const { slope, shift } = scaled(coefficients, norm);
  const points = law.bulks().flatMap((bulk) => bulk.points);
  const rest = Math.max(0, 1 - points.reduce((sum, point) => sum + point.target, 0));
  return times.map((t) => {
    let sum = rest * Math.exp(-2 * t * shift);
    for (const { x, target } of points) sum += target * Math.exp(-2 * t * (slope * x + shift));
    return sum;
  });
}

// Mean squared errors of regression, on new samples and on those given, for targets of variance one.
function regressionError(population, ratio, coefficients, norm, ridge) {
  const { slope, shift } = scaled(coefficients, norm);
  const total = (ridge + shift) / slope;
  const law = new Law(population, ratio);
  const v = law.below(total);
  let bias = population.noise, load = 0;
  for (let j = 0; j < law.poles.length; j++) {
    const left = v / (v - law.poles[j]);
    bias += law.signal[j] * left * left;
    load += (law.shares[j] * (1 - left) ** 2) / ratio;
  }
  const test = bias / (1 - load);
  return { test, train: test * (ridge / slope / v) ** 2 };
}
