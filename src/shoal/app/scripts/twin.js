// The shallow network with the same kernel: one hidden layer whose Hermite coefficients are the
// roots of the kernel's power series in the cosine (Schoenberg), for inputs of one norm.

"use strict";

// Taylor coefficients at u0 of the dual as a function of the correlation, sum of c_k^2 u^k.
function recentred(squares, u0) {
  const result = squares.slice();
  for (let j = 0; j < result.length; j++) {
    for (let k = result.length - 2; k >= j; k--) result[k] += u0 * result[k + 1];
  }
  return result;
}

// The powers 0, 1, ..., degree of a series without constant term; its terms from 2 on are asked
// for one by one, and may use all that is known of the terms before.
function powersOf(first, degree, next) {
  const w = new Float64Array(degree + 1);
  w[1] = first;
  const powers = Array.from({ length: degree + 1 }, () => new Float64Array(degree + 1));
  powers[0][0] = 1;
  powers[1] = w;
  if (degree > 0) for (let n = 2; n <= degree; n++) {
    for (let j = 2; j <= n; j++) {
      let sum = 0;
      for (let i = 1; i <= n - j + 1; i++) sum += w[i] * powers[j - 1][n - i];
      powers[j][n] = sum;
    }
    w[n] = next(n, powers);
  }
  return powers;
}

function combined(coefficients, powers, degree) {
  const result = new Float64Array(degree + 1);
  for (let j = 0; j <= degree; j++) {
    for (let n = j; n <= degree; n++) result[n] += coefficients[j] * powers[j][n];
  }
  return result;
}

// CK and NTK as power series in the cosine of the angle, as far as the table carries.
function kernelSeries(model, found, right) {
  const { activation, recurrent, input, norm } = model;
  const q = found.tau ** 2, u0 = right.covariance / q;
  const c = activation.coefficients(found.tau);
  const degree = Math.max(4, Math.min(40, Math.floor(0.6 * activation.order * (1 - Math.abs(u0)))));
  const dual = recentred(c.map((value) => value * value), u0);
  const gain = recurrent / q, linearPart = 1 - gain * dual[1];
  const powers = powersOf((input * norm * norm) / q / linearPart, degree, (n, known) => {
    let sum = 0;
    for (let j = 2; j <= n; j++) sum += dual[j] * known[j][n];
    return (gain * sum) / linearPart;
  });
  const ck = combined(dual, powers, degree);
  const slope = combined(dual.slice(1).map((value, j) => ((j + 1) * value) / q).concat(0), powers, degree);
  const covariance = powers[1].map((value, n) => q * (value + (n ? 0 : u0)));
  // M = E/(1 - gain E), term by term from M = E + gain E M
  const turns = new Float64Array(degree + 1);
  for (let n = 0; n <= degree; n++) {
    let sum = slope[n];
    for (let i = 1; i <= n; i++) sum += recurrent * slope[i] * turns[n - i];
    turns[n] = sum / (1 - recurrent * slope[0]);
  }
  const ntk = ck.map((value, n) => {
    let sum = value;
    for (let i = 0; i <= n; i++) sum += covariance[i] * turns[n - i];
    return sum;
  });
  return { degree, natural: c.slice(0, degree + 1), ck, ntk };
}

// h_0, ..., h_degree at x: normalized Hermite polynomials.
function hermitePolynomials(x, degree) {
  const h = [1, x];
  for (let k = 1; k < degree; k++) {
    h.push((x * h[k] - Math.sqrt(k) * h[k - 1]) / Math.sqrt(k + 1));
  }
  return h.slice(0, degree + 1);
}

const TWIN_GRID = linear(-3.5, 3.5, 141);

// The designed activation on TWIN_GRID (in standard deviations of what it sees), and its kernel.
function designedTwin(model, found, functions, match) {
  const ntk = match === "ntk";
  const series = kernelSeries(model, found, functions.at(Math.PI / 2));
  const { degree, natural } = series;
  const wanted = series[match].map((value) => Math.max(0, value));
  const counts = natural.map((_, k) => (ntk ? 1 + k : 1));
  const own = functions.at(0)[match], opposite = functions.at(Math.PI)[match];
  const phi = ACTIVATION_FUNCTIONS[model.activation.name];
  const rows = TWIN_GRID.map((x) => hermitePolynomials(x, degree));
  const rest = TWIN_GRID.map((x, i) => phi(found.tau * x) - dot(natural, rows[i]));
  const values = new Float64Array(TWIN_GRID.length), amounts = [0, 0];
  for (const parity of [0, 1]) {
    const mine = natural.map((_, k) => k).filter((k) => k % 2 === parity);
    const tail = (own + (parity ? -1 : 1) * opposite) / 2 - mine.reduce((sum, k) => sum + wanted[k], 0);
    const carrier = naturalPart(found, functions, 0, parity, ntk)
      - mine.reduce((sum, k) => sum + counts[k] * natural[k] ** 2, 0);
    if (tail > 1e-9 * own && carrier > 1e-9 * own) amounts[parity] = Math.sqrt(tail / carrier);
    let least = Infinity, best = null;
    for (const signs of signPatterns(natural, mine)) {
      const part = TWIN_GRID.map((_, i) => {
        const mirrored = rest[TWIN_GRID.length - 1 - i];
        let sum = (amounts[parity] * signs.direction * (rest[i] + (parity ? -mirrored : mirrored))) / 2;
        for (const k of mine) sum += signs[k] * Math.sqrt(wanted[k] / counts[k]) * rows[i][k];
        return sum;
      });
      let cost = 0;
      for (let i = 1; i < part.length; i++) cost += (part[i] - part[i - 1]) ** 2;
      if (cost < 0.99 * least) [least, best] = [cost, part];
    }
    best.forEach((value, i) => { values[i] += value; });
  }
  const at = (psi) => {
    const rho = Math.cos(psi);
    let sum = 0, power = 1;
    for (let k = 0; k <= degree; k++, power *= rho) {
      sum += (wanted[k] - amounts[k % 2] ** 2 * counts[k] * natural[k] ** 2) * power;
    }
    for (const parity of [0, 1]) {
      sum += amounts[parity] ** 2 * naturalPart(found, functions, psi, parity, ntk);
    }
    return sum;
  };
  return { values, at, degree };
}

// The kernel of the even or odd part of the natural activation in one hidden layer.
function naturalPart(found, functions, psi, parity, ntk) {
  const { dual, slope } = functions, q = found.tau ** 2;
  const sign = parity ? -1 : 1, turned = Math.PI - psi;
  const ck = (dual(psi) + sign * dual(turned)) / 2;
  return ntk ? ck + (q * Math.cos(psi) * (slope(psi) - sign * slope(turned))) / 2 : ck;
}

// Signs for the coefficients of one parity: those of the activation itself, or those of |x| and
// x log |x|; the kernel determines the squares only, and these make tame functions.
function signPatterns(natural, mine) {
  const largest = Math.max(...mine.map((k) => Math.abs(natural[k])), 1e-300);
  const alternating = (k) => (Math.floor(k / 2) % 2 ? 1 : -1) * (k < 2 ? -1 : 1);
  const known = (k) => Math.abs(natural[k]) > 1e-7 * largest && largest > 1e-9;
  return [known, () => false].flatMap((trusted) => {
    return [1, -1].map((direction) => {
      const signs = { direction };
      for (const k of mine) signs[k] = direction * (trusted(k) ? Math.sign(natural[k]) : alternating(k));
      signs[mine[0]] = 1;
      return signs;
    });
  });
}

function dot(a, b) {
  let sum = 0;
  for (let k = 0; k < a.length; k++) sum += a[k] * b[k];
  return sum;
}
