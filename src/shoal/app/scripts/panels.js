// The other panels: each takes what was computed and a figure, and draws.

"use strict";

const WHY_NOT = {
  none: "There is no kernel here: the variance grows without end.",
  unstable: "There is no kernel here: σ_a² E[φ′²] is not below 1, and the loop does not settle.",
  even: "This activation is even: in high dimension its kernel has no linear part, and this limit says nothing.",
  outside: "This is outside of the tables of the page, which know scales τ from 0.05 to 8.",
};

function say(figure, text) {
  typeset(figure.parentElement.querySelector(".says"), text);
  figure.setAttribute("aria-label", text);
}

function drawNothing(figure, status) {
  figure.querySelector("svg")?.remove();
  figure.querySelector("ul.legend")?.replaceChildren();
  say(figure, WHY_NOT[status]);
}

function drawCobweb({ model, found }, figure) {
  const { activation, recurrent } = model, { injected } = found;
  const settled = found.status === "found" || found.status === "unstable";
  const least = activation.homogeneous ? 0 : activation.low ** 2;
  const top = activation.homogeneous ? Infinity : activation.high ** 2;
  const step = (q) => recurrent * activation.square(Math.sqrt(q)) + injected;
  const path = [injected];
  while (path.length < 40 && activation.covers(Math.sqrt(path[path.length - 1]))) path.push(step(path[path.length - 1]));
  const high = Math.min(top, settled ? 1.25 * Math.max(found.value, ...path) : 25 * injected);
  const plot = new Plot(figure, {
    x: { low: 0, high, label: "variance q" },
    y: { low: 0, high, label: "σ_a² E[φ(√q ξ)²] + σ_b²‖x‖² + σ_0²" },
  });
  plot.curve([[0, 0], [high, high]], "reference");
  plot.curve(linear(Math.max(least, high * 1e-4), high, 120).map((q) => [q, step(q)]), "s0");
  const web = [[injected, 0]];
  path.forEach((q, i) => {
    if (i) web.push([path[i - 1], q]);
    web.push([q, q]);
  });
  plot.curve(web, "s1 thin");
  if (settled) plot.dots([[found.value, found.value]], "s1", 5);
  plot.legend([["line s0", "what one turn of the loop makes of a variance"], ["line s1", "turn after turn"]]);
  if (!settled) return say(figure, WHY_NOT[found.status]);
  const turn = found.rate < 1 ? `each turn leaves ${shown(found.rate)} of squared differences`
    : `but each turn makes squared differences ${shown(found.rate)} times as large`;
  say(figure, `The variance settles at q = τ² = ${shown(found.value)}; ${turn}.`);
}

function drawKernel({ state, found, functions, twin }, figure) {
  if (found.status !== "found") return drawNothing(figure, found.status);
  const angles = linear(0, Math.PI, 121), degrees = (psi) => (psi * 180) / Math.PI;
  const values = angles.map((psi) => functions.at(psi));
  const all = values.flatMap(({ ck, ntk }) => [ck, ntk]);
  const plot = new Plot(figure, {
    x: { low: 0, high: 180, label: "angle between two inputs", ticks: [0, 45, 90, 135, 180], name: (t) => `${t}°` },
    y: { low: Math.min(0, ...all) * 1.05, high: Math.max(...all) * 1.05, label: "kernel" },
  });
  plot.curve(values.map(({ ck }, i) => [degrees(angles[i]), ck]), "s0");
  plot.curve(values.map(({ ntk }, i) => [degrees(angles[i]), ntk]), "s1");
  const spots = linear(0, Math.PI, 13);
  plot.dots(spots.map((psi) => [degrees(psi), twin.at(psi)]), "s2");
  plot.legend([["line s0", "CK"], ["line s1", "NTK"],
    ["point s2", `its shallow twin: one hidden layer with this ${state.trained.toUpperCase()}`]]);
  const own = functions.at(0);
  const gap = Math.max(...spots.map((psi) => Math.abs(twin.at(psi) - functions.at(psi)[state.trained]))) / own[state.trained];
  say(figure, `Of an input with itself: CK ${shown(own.ck, 4)}, NTK ${shown(own.ntk, 4)}. `
    + `The twin of ${twin.degree + 1} coefficients differs by ${shown(Math.max(gap, 1e-9), 2)} of the diagonal at most.`);
}

function drawTwin({ state, model, found, twin }, figure) {
  if (found.status !== "found") return drawNothing(figure, found.status);
  const phi = ACTIVATION_FUNCTIONS[model.activation.name];
  const own = TWIN_GRID.map((x) => phi(found.tau * x));
  const all = [...own, ...twin.values], [low, high] = [Math.min(...all), Math.max(...all)];
  const plot = new Plot(figure, {
    x: { low: -3.5, high: 3.5, label: "argument, in standard deviations", ticks: [-3, -2, -1, 0, 1, 2, 3] },
    y: { low: low - 0.05 * (high - low), high: high + 0.05 * (high - low), label: "activation" },
  });
  plot.curve(TWIN_GRID.map((x, i) => [x, own[i]]), "s0");
  plot.curve(TWIN_GRID.map((x, i) => [x, twin.values[i]]), "s2");
  plot.legend([["line s0", "φ, inside the loop"],
    ["line s2", `that of the shallow twin, without a loop (${state.trained.toUpperCase()})`]]);
  say(figure, "An infinitely wide network of one hidden layer with the designed activation "
    + "has the kernel of the whole loop, for inputs of this norm.");
}

function drawSpectrum({ state, high }, figure) {
  if (high.status !== "found") return drawNothing(figure, high.status);
  const law = lawAt(state), coefficients = high[state.trained];
  const { slope, shift } = scaled(coefficients, state.norm);
  const bulks = law.bulks().filter((bulk) => !law.single(bulk));
  const isolated = spikes(law, coefficients, state.norm);
  const ends = [...bulks.flatMap((b) => [slope * b.low + shift, slope * b.high + shift]), ...isolated.map((s) => s.x)];
  if (law.atom > 0) ends.push(shift);
  const [least, most] = [Math.max(Math.min(...ends), 1e-9), Math.max(...ends)];
  const ratio = most / least > 30;
  const curves = bulks.map((bulk) => bulk.points.map(({ x, density }) => {
    const value = slope * x + shift;
    return [value, ratio ? (density / slope) * value : density / slope];
  }));
  const heights = curves.map((curve, k) => [Math.max(...curve.map(([, y]) => y)), bulks[k].mass]);
  const heavy = Math.max(...heights.map(([, mass]) => mass)) / 4; // narrow ones may go beyond the top
  const tall = Math.max(...heights.filter(([, mass]) => mass >= heavy).map(([height]) => height));
  const span = most - least || most || 1;
  const plot = new Plot(figure, {
    x: ratio ? { low: least / 1.5, high: most * 1.5, ratio, label: "eigenvalue" }
      : { low: Math.max(0, least - 0.06 * span), high: most + 0.06 * span, label: "eigenvalue" },
    y: { low: 0, high: tall * 1.15, label: ratio ? "share for each factor e" : "density" },
  });
  for (const curve of curves) {
    const closed = [[curve[0][0], 0], ...curve, [curve[curve.length - 1][0], 0]];
    plot.filled(closed, "bulk");
    plot.curve(closed, "s0");
  }
  const styles = { data: "s1", mean: "s2", norms: "s3" };
  for (const { x, of } of isolated) {
    plot.upright(x, `${styles[of]} spike`, 0, tall * 0.72);
    plot.dots([[x, tall * 0.72]], styles[of], 4);
  }
  if (law.atom > 0) plot.upright(shift, "s0 atom", 0, tall * 1.1);
  const kinds = new Set(isolated.map(({ of }) => of));
  const equal = law.atom > 0 ? `, and ${shown(100 * law.atom, 3)}% of all eigenvalues at ${shown(shift)}` : "";
  plot.legend([["line s0", `bulk${equal}`],
    ...(kinds.has("data") ? [["line s1", "spikes: classes and main directions"]] : []),
    ...(kinds.has("mean") ? [["line s2", "spike of the quadratic part"]] : []),
    ...(kinds.has("norms") ? [["line s3", "spike of the norms"]] : [])]);
  const count = isolated.length;
  const number = count > 1 ? `${count} eigenvalues stand` : `${count ? "One" : "No"} eigenvalue stands`;
  const [low, top] = [bulks[0].low, bulks[bulks.length - 1].high].map((x) => shown(slope * x + shift));
  say(figure, `${number} alone; the bulk goes from ${low} to ${top}.`);
}

function drawTraining({ state, high }, figure) {
  if (high.status !== "found") return drawNothing(figure, high.status);
  const law = lawAt(state), { slope, shift } = scaled(high[state.trained], state.norm);
  const edges = law.edges(), alone = spikes(law, high[state.trained], state.norm).map(({ x }) => x);
  const top = Math.max(slope * edges[edges.length - 1][0] + shift, ...alone);
  const slowest = Math.max(shift, 1e-4 * top);
  const times = geometric(0.02 / top, 6 / slowest, 90);
  const losses = trainingCurve(law, high[state.trained], state.norm, times);
  const plot = new Plot(figure, {
    x: { low: times[0], high: times[times.length - 1], ratio: true, label: "time of gradient flow" },
    y: { low: 0, high: 1.05, label: "training error" },
  });
  plot.curve(times.map((t, i) => [t, losses[i]]), "s1");
  const half = times.find((_, i) => losses[i] <= 0.5), tenth = times.find((_, i) => losses[i] <= 0.01);
  const trained = state.trained === "ck" ? "readout alone" : "everything";
  plot.legend([["line s1", `mean square on the training samples, ${trained} trained`]]);
  const when = (t) => (t === undefined ? "later than shown" : `at time ${shown(t, 2)}`);
  say(figure, `Half of the error is gone ${when(half)}, 99% of it ${when(tenth)}. `
    + `Gradient descent on half the sum of squares needs a learning rate below ${shown(2 / top, 2)}.`);
}

function drawLearning({ state, high }, figure) {
  if (high.status !== "found") return drawNothing(figure, high.status);
  const population = populationAt(state), coefficients = high[state.trained];
  const at = (ratio) => regressionError(population, ratio, coefficients, state.norm, state.ridge);
  const ratios = geometric(0.05, 50, 70), errors = ratios.map(at), here = at(1 / state.shape);
  const tall = Math.min(2, Math.max(1.05, 1.1 * Math.max(...errors.map(({ test }) => test))));
  const plot = new Plot(figure, {
    x: { low: 0.05, high: 50, ratio: true, label: "samples for each dimension, n/p" },
    y: { low: 0, high: tall, label: "error, variance of the target = 1" },
  });
  plot.curve(ratios.map((r, i) => [r, errors[i].test]), "s1");
  if (state.ridge > 0) plot.curve(ratios.map((r, i) => [r, errors[i].train]), "s0");
  plot.dots([[1 / state.shape, here.test]], "s1", 5);
  plot.legend([["line s1", "on new samples"], ...(state.ridge > 0 ? [["line s0", "on the training samples"]] : [])]);
  say(figure, `With n/p = ${shown(1 / state.shape)}, the mean squared error on new samples is ${shown(here.test)}; `
    + `${shown(population.noise)} of the target's variance is not linear in the inputs.`);
}
