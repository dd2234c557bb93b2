// Controls, and what happens when they move: one state, one drawing of everything for each frame.

"use strict";

const PANELS = {
  phase: drawPhase, cobweb: drawCobweb, kernel: drawKernel, twin: drawTwin,
  spectrum: drawSpectrum, training: drawTraining, learning: drawLearning,
};
const RANGE = 1000; // positions of a slider

let state = stateOf(location.hash);
let waiting = false;
const figures = Object.fromEntries(Object.keys(PANELS).map((name) => [name, document.getElementById(name)]));
const steered = steerable(figures.phase, () => state, (change) => update(change));

function sliderBounds(name) {
  const { low, high, ratio } = SETTINGS[name];
  return { low, high: name === "recurrent" ? largestRecurrent(activationNamed(state.activation)) : high, ratio };
}

function positionOf(name, value) {
  const { low, high, ratio } = sliderBounds(name);
  const share = ratio ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.round(RANGE * share);
}

function valueAt(name, position) {
  const { low, high, ratio } = sliderBounds(name), share = position / RANGE;
  const value = ratio ? low * (high / low) ** share : low + (high - low) * share;
  return Number(value.toPrecision(3));
}

function update(change) {
  state = { ...state, ...change };
  for (const name of Object.keys(SETTINGS)) state[name] = limited(name, state[name], state);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function draw() {
  const result = computed(state);
  for (const [name, panel] of Object.entries(PANELS)) {
    const drawn = panel(result, figures[name]);
    if (name === "phase") steered(drawn);
  }
  drawVerdict(result);
  for (const name of Object.keys(SETTINGS)) {
    const slider = document.getElementById(`set-${name}`);
    if (!slider) continue;
    if (document.activeElement !== slider || Number(slider.value) !== positionOf(name, state[name])) {
      slider.value = positionOf(name, state[name]);
    }
    slider.setAttribute("aria-valuetext", shown(state[name]));
    document.getElementById(`value-${name}`).textContent = shown(state[name]);
  }
  document.getElementById("set-activation").value = state.activation;
  document.getElementById("set-trained").value = state.trained;
  document.getElementById("python").textContent = python(state);
  document.getElementById("biased").hidden = state.bias === 0;
  history.replaceState(null, "", link(state));
}

const REASONS = {
  none: "the variance grows without end",
  unstable: "σ_a² E[φ′²] is not below 1",
  outside: "outside of the tables",
};

function drawVerdict({ model, found }) {
  const { activation, recurrent } = model, gain = recurrent * activation.lipschitz ** 2;
  const exists = found.status === "found";
  const verdicts = {
    exists: exists
      ? [true, "exists", gain < 1 ? "for sure: σ_a²L² < 1" : `at these inputs; σ_a²L² = ${shown(gain)}`]
      : [false, found.status === "outside" ? "unknown" : "does not exist",
        REASONS[found.status]],
    contracts: 4 * gain < 1 ? [true, "contract", "for sure: 4σ_a²L² < 1"]
      : exists ? [null, "settle, as a rule", `4σ_a²L² = ${shown(4 * gain)} guarantees nothing`]
        : [false, "do not settle", "an iteration wanders"],
    steps: exists ? [null, String(solverSteps(found.rate)), "of the plain iteration, to 1e−6"] : [false, "–", ""],
  };
  for (const [name, [good, value, meaning]] of Object.entries(verdicts)) {
    const place = document.getElementById(`verdict-${name}`);
    place.className = good === null ? "" : good ? "good" : "bad";
    place.querySelector(".value").textContent = value;
    typeset(place.querySelector(".meaning"), meaning);
  }
}

async function copied(button, text) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed: select it by hand";
  }
  setTimeout(() => { button.textContent = label; }, 1600);
}

for (const name of Object.keys(SETTINGS)) {
  document.getElementById(`set-${name}`)?.addEventListener("input", (event) => {
    update({ [name]: valueAt(name, Number(event.target.value)) });
  });
}
for (const name of ["activation", "trained"]) {
  document.getElementById(`set-${name}`).addEventListener("change", (event) => update({ [name]: event.target.value }));
}
document.getElementById("copy-python").addEventListener("click", (event) => copied(event.target, python(state)));
document.getElementById("copy-link").addEventListener("click", (event) => copied(event.target, location.href));
document.getElementById("reset").addEventListener("click", () => update(initialState()));
addEventListener("hashchange", () => { state = stateOf(location.hash); update({}); });
addEventListener("resize", () => update({}));
draw();
