// Chebyshev series of one variable, and roots of functions: all the numerics that kernels need.

"use strict";

// The value at t in [-1, 1] of the series with these coefficients (Clenshaw).
function chebyshev(coefficients, t) {
  let one = 0, two = 0;
  for (let k = coefficients.length - 1; k > 0; k--) {
    [one, two] = [2 * t * one - two + coefficients[k], one];
  }
  return t * one - two + (coefficients[0] ?? 0);
}

// The series of the derivative in t.
function differentiated(coefficients) {
  const result = new Array(Math.max(coefficients.length - 1, 1)).fill(0);
  for (let k = coefficients.length - 1; k > 0; k--) {
    result[k - 1] = (result[k + 1] ?? 0) + 2 * k * coefficients[k];
  }
  result[0] /= 2;
  return result;
}

// The series of the integral in t that vanishes at t = 0, where the middle of the interval is.
function integrated(coefficients) {
  const at = (k) => coefficients[k] ?? 0;
  const result = [0, at(0) - at(2) / 2];
  for (let k = 2; k <= coefficients.length; k++) {
    result.push((at(k - 1) - at(k + 1)) / (2 * k));
  }
  result[0] = -chebyshev(result, 0);
  return result;
}

const cosineTables = new Map();

// cos(k pi (j + 1/2) / size) for the transform below, kept for later calls.
function cosines(size) {
  if (!cosineTables.has(size)) {
    const table = [];
    for (let k = 0; k < size; k++) {
      table.push(Float64Array.from({ length: size }, (_, j) => Math.cos((k * Math.PI * (j + 0.5)) / size)));
    }
    cosineTables.set(size, table);
  }
  return cosineTables.get(size);
}

// The nodes in [-1, 1] at which `interpolated` wants values.
function nodes(size) {
  return Array.from({ length: size }, (_, j) => Math.cos((Math.PI * (j + 0.5)) / size));
}

// The series through values at the nodes.
function interpolated(values) {
  const size = values.length;
  return cosines(size).map((row, k) => {
    let sum = 0;
    for (let j = 0; j < size; j++) sum += row[j] * values[j];
    return (sum * (k ? 2 : 1)) / size;
  });
}

// A zero of an increasing or decreasing function between two points, to the last bits.
function bisected(f, low, high, steps = 80) {
  const rising = f(high) > f(low);
  for (let i = 0; i < steps; i++) {
    const middle = (low + high) / 2;
    if (middle === low || middle === high) break;
    if (f(middle) > 0 === rising) high = middle;
    else low = middle;
  }
  return (low + high) / 2;
}

// Numbers from low to high, both included, at equal distances or ratios.
function linear(low, high, count) {
  return Array.from({ length: count }, (_, i) => low + ((high - low) * i) / (count - 1));
}
function geometric(low, high, count) {
  return linear(Math.log(low), Math.log(high), count).map(Math.exp);
}
