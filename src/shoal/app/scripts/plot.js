// Plots as SVG: axes, curves, marks and words, in the colors of the page.

"use strict";

const SVG = "http://www.w3.org/2000/svg";

function element(name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Words with indices: what follows an underscore is set below the line.
function typeset(node, text) {
  const inside = node instanceof SVGElement;
  node.replaceChildren();
  let lowered = false;
  text.split(/_(\w)/).forEach((piece, i) => {
    if (!piece) return;
    if (inside) {
      const part = element("tspan", i % 2 ? { dy: 3, class: "index" } : lowered ? { dy: -3 } : {}, piece);
      node.append(part);
      lowered = i % 2 === 1;
    } else if (i % 2) {
      const part = document.createElement("sub");
      part.textContent = piece;
      node.append(part);
    } else node.append(piece);
  });
}

// A number for people: three digits, without exponents where they can be helped.
function shown(value, digits = 3) {
  if (!Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(digits - 2).replace("e+", "e").replace("-", "−");
  return String(Number(value.toPrecision(digits))).replace("-", "−");
}

function niceTicks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(k * step);
  return ticks;
}

function ratioTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9), last = Math.floor(Math.log10(high) + 1e-9);
  const every = Math.ceil((last - first + 1) / 6);
  const ticks = [];
  for (let k = first; k <= last; k += every) ticks.push(10 ** k);
  if (ticks.length > 1) return ticks;
  return [1, 2, 3, 5].flatMap((digit) => [first - 1, first].map((k) => digit * 10 ** k))
    .filter((tick) => tick >= low && tick <= high).sort((a, b) => a - b);
}

class Plot {
  // axes: { x, y }, each { low, high, label, ratio?, ticks?, name? }
  constructor(figure, axes) {
    this.figure = figure;
    this.axes = axes;
    this.width = Math.max(260, Math.round(figure.clientWidth || 460));
    this.height = Math.round(Math.min(320, Math.max(230, this.width * 0.62)));
    this.margin = { left: 54, right: 14, top: 12, bottom: 42 };
    this.svg = element("svg", {
      class: "plot", viewBox: `0 0 ${this.width} ${this.height}`, role: "img", "aria-hidden": "true",
    });
    this.back = this.clipped("back", 0);
    this.area = this.clipped("front", 4); // marks at the edge are seen whole
    this.svg.append(this.back);
    this.drawAxes();
    this.svg.append(this.area);
    figure.querySelector("svg")?.remove();
    figure.prepend(this.svg);
  }

  // A group of which only what is inside the axes is seen, and a little around them.
  clipped(name, around) {
    const id = `${this.figure.id}-${name}`, { left, top } = this.margin;
    const clip = element("clipPath", { id });
    clip.append(element("rect", {
      x: left - around, y: top - around,
      width: this.innerWidth() + 2 * around, height: this.innerHeight() + 2 * around,
    }));
    this.svg.append(clip);
    return element("g", { "clip-path": `url(#${id})` });
  }

  innerWidth() { return this.width - this.margin.left - this.margin.right; }
  innerHeight() { return this.height - this.margin.top - this.margin.bottom; }

  share(axis, value) {
    const { low, high, ratio } = this.axes[axis];
    return ratio ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  }

  x(value) { return this.margin.left + this.innerWidth() * this.share("x", value); }
  y(value) { return this.margin.top + this.innerHeight() * (1 - this.share("y", value)); }

  // The values at a place of the picture, in its own units.
  value(axis, place) {
    const { low, high, ratio } = this.axes[axis];
    const share = axis === "x" ? (place - this.margin.left) / this.innerWidth()
      : 1 - (place - this.margin.top) / this.innerHeight();
    const kept = Math.min(1, Math.max(0, share));
    return ratio ? low * (high / low) ** kept : low + (high - low) * kept;
  }

  drawAxes() {
    const { left, top } = this.margin, [w, h] = [this.innerWidth(), this.innerHeight()];
    const grid = element("g", { class: "grid" }), words = element("g", { class: "ticks" });
    for (const axis of ["x", "y"]) {
      const { low, high, ratio, ticks, name, count } = this.axes[axis];
      const across = axis === "x";
      const places = ticks ?? (ratio ? ratioTicks(low, high) : niceTicks(low, high, count ?? (across ? Math.min(6, w / 60) : 4)));
      for (const tick of places) {
        const at = across ? this.x(tick) : this.y(tick);
        grid.append(element("line", across ? { x1: at, x2: at, y1: top, y2: top + h }
          : { x1: left, x2: left + w, y1: at, y2: at }));
        const spot = across ? { x: at, y: top + h + 16, "text-anchor": "middle" }
          : { x: left - 7, y: at + 4, "text-anchor": "end" };
        words.append(element("text", spot, name ? name(tick) : shown(tick)));
      }
    }
    const label = (text, spot) => {
      const made = element("text", { class: "label", ...spot });
      typeset(made, text);
      words.append(made);
    };
    label(this.axes.x.label, { x: left + w / 2, y: this.height - 6, "text-anchor": "middle" });
    label(this.axes.y.label, { transform: `translate(13 ${top + h / 2}) rotate(-90)`, "text-anchor": "middle" });
    this.svg.append(grid, words);
  }

  path(points) {
    let text = "", drawing = false;
    for (const [x, y] of points) {
      const [a, b] = [this.x(x), this.y(y)];
      if (!Number.isFinite(a) || !Number.isFinite(b)) { drawing = false; continue; }
      text += `${drawing ? "L" : "M"}${a.toFixed(1)} ${Math.max(-999, Math.min(1999, b)).toFixed(1)}`;
      drawing = true;
    }
    return text;
  }

  curve(points, style) {
    this.area.append(element("path", { d: this.path(points), class: `curve ${style}` }));
  }

  filled(points, style) {
    const path = this.path(points);
    if (path) this.back.append(element("path", { d: `${path}Z`, class: `filled ${style}` }));
  }

  dots(points, style, radius = 3.5) {
    for (const [x, y] of points) {
      this.area.append(element("circle", { cx: this.x(x), cy: this.y(y), r: radius, class: `dot ${style}` }));
    }
  }

  upright(x, style, from = null, to = null) {
    const { low, high } = this.axes.y;
    this.curve([[x, from ?? low], [x, to ?? high]], style);
  }

  words(x, y, text, options = {}) {
    this.svg.append(element("text", {
      x: this.x(x) + (options.dx ?? 0), y: this.y(y) + (options.dy ?? 0),
      class: `note ${options.style ?? ""}`, "text-anchor": options.anchor ?? "start",
    }, text));
  }

  // What colors mean, as HTML below the plot, where it covers nothing.
  legend(entries) {
    const list = this.figure.querySelector("ul.legend") ?? document.createElement("ul");
    list.className = "legend";
    list.replaceChildren(...entries.map(([style, text]) => {
      const item = document.createElement("li"), mark = document.createElement("span");
      const words = document.createElement("span");
      mark.className = `mark ${style}`;
      typeset(words, text);
      item.append(mark, words);
      return item;
    }));
    this.figure.querySelector("svg").after(list);
  }
}
