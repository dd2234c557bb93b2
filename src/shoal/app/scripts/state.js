// What is set on the page, how it is written into a link, and what follows from it.

"use strict";

const DOCUMENT = JSON.parse(document.getElementById("numbers").textContent);
const ACTIVATIONS = {};
for (const [name, table] of Object.entries(DOCUMENT.tables.activations)) {
  ACTIVATIONS[name] = null; // prepared when it is first chosen
}
const MODELED = DOCUMENT.population.samples === null;

function activationNamed(name) {
  const { tables } = DOCUMENT;
  ACTIVATIONS[name] ??= new Activation(name, tables.activations[name], tables.scales, tables.unit);
  return ACTIVATIONS[name];
}

// Numbers that sliders set: their range, whether it is one of ratios, and what they are at first.
const SETTINGS = {
  recurrent: { low: 0, high: 2.5, start: DOCUMENT.start.recurrent },
  input: { low: 0.05, high: 3, ratio: true, start: DOCUMENT.start.input },
  bias: { low: 0, high: 1, start: 0 },
  norm: { low: 0.25, high: 3, ratio: true, start: 1 },
  shape: { low: 0.02, high: 20, ratio: true, start: MODELED ? 0.5 : shapeOfData() },
  separation: { low: 0, high: 4, start: 2 },
  ridge: { low: 0, high: 1, start: 0 },
};
const TRAINED = ["ntk", "ck"];

function shapeOfData() {
  const { size, samples } = DOCUMENT.population;
  return Math.min(20, Math.max(0.02, size / samples));
}

function initialState() {
  const state = { activation: DOCUMENT.start.activation, trained: "ntk" };
  for (const [name, { start }] of Object.entries(SETTINGS)) state[name] = start;
  return state;
}

// The largest recurrent variance on the page: that of the kernel's guarantee times 2.5.
function largestRecurrent(activation) {
  return Number((2.5 / activation.lipschitz ** 2).toPrecision(2));
}

function limited(name, value, state) {
  const { low, high } = SETTINGS[name];
  const most = name === "recurrent" ? largestRecurrent(activationNamed(state.activation)) : high;
  return Math.min(most, Math.max(low, value));
}

function link(state) {
  const words = Object.entries(state).map(([name, value]) =>
    `${name}=${typeof value === "number" ? Number(value.toPrecision(5)) : value}`);
  return `#${words.join("&")}`;
}

// The state in a link; what it does not say, or says badly, is as at first.
function stateOf(fragment) {
  const state = initialState();
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  if (Object.hasOwn(ACTIVATIONS, given.get("activation"))) state.activation = given.get("activation");
  if (TRAINED.includes(given.get("trained"))) state.trained = given.get("trained");
  for (const name of Object.keys(SETTINGS)) {
    const value = given.get(name) === null ? NaN : Number(given.get(name));
    if (Number.isFinite(value)) state[name] = value;
    state[name] = limited(name, state[name], state);
  }
  return state;
}

// The population at a state: that of the data, or two classes so far apart.
function populationAt(state) {
  if (!MODELED) return DOCUMENT.population;
  const { size } = DOCUMENT.population, spike = state.separation ** 2;
  return {
    size,
    values: [1, 1 + spike],
    shares: [1 - 1 / size, 1 / size],
    signal: [0, spike / (1 + spike)],
    noise: 1 / (1 + spike),
  };
}

const laws = new Map();

// The law of a state, kept while what it depends on stays.
function lawAt(state) {
  const key = `${state.shape} ${MODELED ? state.separation : ""}`;
  if (!laws.has(key)) {
    if (laws.size > 20) laws.clear();
    laws.set(key, new Law(populationAt(state), 1 / state.shape));
  }
  return laws.get(key);
}

// Everything that panels show.
function computed(state) {
  const model = { ...state, activation: activationNamed(state.activation) };
  const found = equilibrium(model);
  const result = { state, model, found };
  if (found.status === "found") {
    result.functions = kernels(model, found);
    result.twin = designedTwin(model, found, result.functions, state.trained);
  }
  result.high = highDimensional(model);
  return result;
}

// The same in Python.
function python(state) {
  const { activation, recurrent, input, bias, norm, shape, separation, trained } = state;
  const short = (value) => String(Number(value.toPrecision(5)));
  const scale = separation * norm;
  const biased = bias > 0 ? `, bias_variance=${short(bias)}` : "";
  const groups = trained === "ck" ? ', trainable={"readout"}' : "";
  const lines = [
    "import torch",
    "import shoal",
    "",
    "deq = shoal.DEQ(",
    `    ${activationNamed(activation).source},`,
    `    recurrent_variance=${short(recurrent)},`,
    `    input_variance=${short(input)}${biased},`,
    ")",
    "angle = torch.linspace(0, torch.pi, 13, dtype=torch.float64)",
    `x = ${norm === 1 ? "" : `${short(norm)} * `}torch.stack([angle.cos(), angle.sin()], 1)`,
    "kernels = shoal.kernel(deq, x[:1], x)",
    "print(kernels.ck, kernels.ntk)",
    `design = shoal.design(deq, input_norm=${short(norm)}, which="${trained}", method="sphere"${groups})`,
    "print(design.explanation)",
  ];
  if (MODELED) {
    const plain = bias > 0 ? "shoal.DEQ(deq.activation, deq.recurrent_variance, deq.input_variance)" : "deq";
    lines.push(
      "",
      "p = 400  # high dimension: two classes",
      `mean = torch.full((p,), ${short(scale)} / p**0.5, dtype=torch.float64)`,
      `spread = ${short(norm * norm)} * torch.eye(p, dtype=torch.float64)`,
      "mixture = shoal.GaussianMixture([mean, -mean], [spread, spread], [0.5, 0.5])",
      `n = round(p / ${short(shape)})`,
      `spectrum = shoal.spectrum(${plain}, mixture, n=n).${trained}`,
      "print(spectrum.edges, [spike.value for spike in spectrum.spikes])",
    );
  }
  return `${lines.join("\n")}\n`;
}
