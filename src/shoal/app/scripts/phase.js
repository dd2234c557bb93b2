// The phase diagram: for each activation one map of the recurrent variance and of the variance that
// inputs inject, since nothing else matters. A level of the rate needs no equation to be solved:
// at scale tau it is at rate / E[phi'^2], where the injected variance is what is left.

"use strict";

const STEP_LEVELS = [10, 20, 40, 100];
const INJECTED = [0.004, 30];

function levelCurve(activation, rate) {
  const [low, high] = activation.homogeneous ? [1e-3, 1e6] : DOCUMENT.tables.scales;
  const points = [];
  for (const tau of geometric(low, high, 160)) {
    const recurrent = rate / activation.steep(tau);
    const injected = tau * tau - recurrent * activation.square(tau);
    if (injected > 0) points.push([recurrent, injected]);
  }
  return points;
}

// The region to the left of a level.
function regionLeftOf(points) {
  if (!points.length) return [];
  const [low, high] = INJECTED, first = points[0], last = points[points.length - 1];
  return [[0, Math.min(low, first[1])], [first[0], Math.min(low, first[1])], ...points,
    [last[0], Math.max(high, last[1])], [0, Math.max(high, last[1])]];
}

function drawPhase(result, figure) {
  const { model, found, state } = result, { activation } = model;
  const most = largestRecurrent(activation);
  const plot = new Plot(figure, {
    x: { low: 0, high: most, label: "σ_a², recurrent variance" },
    y: { low: INJECTED[0], high: INJECTED[1], ratio: true, label: "σ_b²‖x‖² + σ_0²" },
  });
  const levels = [...STEP_LEVELS].reverse();
  const edge = levelCurve(activation, 1 - 1e-7);
  plot.filled([[0, INJECTED[0]], [most, INJECTED[0]], [most, INJECTED[1]], [0, INJECTED[1]]], "none");
  plot.filled(regionLeftOf(edge), "exists");
  for (const steps of levels) {
    plot.filled(regionLeftOf(levelCurve(activation, 1e-6 ** (2 / steps))), "faster");
  }
  plot.curve(edge, "edge");
  for (const steps of STEP_LEVELS) {
    const curve = levelCurve(activation, 1e-6 ** (2 / steps));
    plot.curve(curve, "level");
    const spot = curve.filter(([x, y]) => x < 0.95 * most && y > INJECTED[0] && y < INJECTED[1] * 0.7).pop();
    if (spot) plot.words(spot[0], spot[1], String(steps), { dx: 5, dy: 4 });
  }
  const unknown = beyondTables(activation, most);
  if (unknown.length) plot.filled(unknown, "unknown");
  const sure = 1 / activation.lipschitz ** 2;
  plot.upright(sure / 4, "guarantee");
  plot.upright(sure, "guarantee");
  const { norms } = DOCUMENT.population;
  const injected = (share) => state.input * (state.norm * share) ** 2 + state.bias;
  if (norms.length > 1) {
    plot.upright(state.recurrent, "spread", injected(norms[2]), injected(norms[norms.length - 3]));
  }
  plot.dots([[state.recurrent, injected(1)]], "here", 7);
  plot.legend([
    ["swatch exists", "the kernel exists; darker: fewer steps of a solver (10, 20, 40, 100 at the lines)"],
    ["swatch none", "no kernel: the loop does not settle"],
    ...(unknown.length ? [["swatch unknown", "outside of the tables of this page"]] : []),
    ["line guarantee", "σ_a² = 1/(4L²), up to which wide networks contract for sure, and 1/L², up to which "
      + "the kernel exists for sure"],
    ...(norms.length > 1 ? [["line spread", "norms of the data, 5% to 95%"]] : []),
  ]);
  say(figure, found.status === "found"
    ? `At σ_a² = ${shown(state.recurrent)} and an injected variance of ${shown(found.injected)}, `
      + `the plain iteration takes about ${solverSteps(found.rate)} steps.`
    : WHY_NOT[found.status]);
  return plot;
}

// Where the variance would be above what the table has, up to the variance at which it grows without end.
function beyondTables(activation, most) {
  if (activation.homogeneous) return [];
  const top = activation.high ** 2, square = activation.square(activation.high);
  const points = linear(0, most, 100).map((x) => [x, top - x * square]).filter(([, y]) => y > INJECTED[0]);
  if (!points.some(([, y]) => y < INJECTED[1])) return [];
  return [...points, [points[points.length - 1][0], 2 * INJECTED[1]], [0, 2 * INJECTED[1]]];
}

// Drag the point, or move it with the arrow keys; `move` gets the recurrent and input variance.
function steerable(figure, current, move) {
  let plot = null;
  const moved = (event) => {
    const box = plot.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) * plot.width) / box.width;
    const y = ((event.clientY - box.top) * plot.height) / box.height;
    const state = current();
    const left = plot.value("y", y) - state.bias;
    move({ recurrent: plot.value("x", x), input: Math.max(0, left) / state.norm ** 2 });
  };
  figure.addEventListener("pointerdown", (event) => {
    if (!plot.svg.contains(event.target) || event.button > 0) return;
    figure.setPointerCapture(event.pointerId);
    moved(event);
    figure.addEventListener("pointermove", moved);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    figure.addEventListener(end, () => figure.removeEventListener("pointermove", moved));
  }
  figure.addEventListener("keydown", (event) => {
    const state = current(), most = largestRecurrent(activationNamed(state.activation));
    const steps = {
      ArrowLeft: { recurrent: state.recurrent - most / 50 }, ArrowRight: { recurrent: state.recurrent + most / 50 },
      ArrowUp: { input: state.input * 1.1 }, ArrowDown: { input: state.input / 1.1 },
    };
    if (!steps[event.key]) return;
    event.preventDefault();
    move(steps[event.key]);
  });
  return (drawn) => { plot = drawn; };
}
