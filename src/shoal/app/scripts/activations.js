// The activations themselves, to be drawn; all numbers come from tables.

"use strict";

// The error function by its integral, with 20 points of Gauss and Legendre.
function erf(x) {
  const end = Math.min(Math.abs(x), 6);
  let sum = 0;
  for (const [node, weight] of GAUSS_LEGENDRE) {
    sum += weight * Math.exp(-(((end * (1 + node)) / 2) ** 2));
  }
  return Math.sign(x) * (end / Math.sqrt(Math.PI)) * sum;
}

// Nodes and weights on [-1, 1] by Newton's method.
const GAUSS_LEGENDRE = Array.from({ length: 24 }, (_, i) => {
  const size = 24;
  let x = Math.cos((Math.PI * (i + 0.75)) / (size + 0.5)), slope = 1;
  for (let step = 0; step < 8; step++) {
    let before = 1, here = x;
    for (let k = 2; k <= size; k++) {
      [before, here] = [here, ((2 * k - 1) * x * here - (k - 1) * before) / k];
    }
    slope = (size * (x * here - before)) / (x * x - 1);
    x -= here / slope;
  }
  return [x, 2 / ((1 - x * x) * slope * slope)];
});

const softplus = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));

const ACTIVATION_FUNCTIONS = {
  tanh: Math.tanh,
  relu: (x) => Math.max(x, 0),
  "leakyrelu:0.1": (x) => (x > 0 ? x : 0.1 * x),
  hardtanh: (x) => Math.min(1, Math.max(-1, x)),
  erf,
  gelu: (x) => (x * (1 + erf(x / Math.SQRT2))) / 2,
  swish: (x) => x / (1 + Math.exp(-x)),
  mish: (x) => x * Math.tanh(softplus(x)),
  elu: (x) => (x > 0 ? x : Math.expm1(x)),
  softplus,
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  sine: Math.sin,
  cosine: Math.cos,
};
