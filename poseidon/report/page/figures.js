// Numbers as people read them, and small helpers that every other part uses.

const DATA = JSON.parse(document.getElementById("data").textContent);

function digits(value, count = 4) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(Math.min(2, count - 1)).replace("e+", "e");
  return String(Number(value.toPrecision(count)));
}

function bytesText(count) {
  for (const [size, unit] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) {
    if (count >= size) return `${digits(count / size, 3)} ${unit}`;
  }
  return `${count} bytes`;
}

function microsText(us) {
  if (us >= 1e6) return `${digits(us / 1e6, 4)} s`;
  if (us >= 1e3) return `${digits(us / 1e3, 4)} ms`;
  return `${digits(us, 3)} µs`;
}

// Round steps that put about `count` ticks between two numbers.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) found.push(index * step);
  return found;
}

function element(name, attributes = {}, text = "") {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

function svgElement(name, attributes = {}, text = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
}

// A range of a whole that can be zoomed and moved; what everything that zooms is made of.
class Range {
  constructor(low, high, least) {
    Object.assign(this, { low, high, least, from: low, to: high });
  }
  get isWhole() { return this.from <= this.low && this.to >= this.high; }
  reset() { this.from = this.low; this.to = this.high; }
  set(from, to) {
    const span = Math.min(Math.max(to - from, this.least), this.high - this.low);
    const start = Math.min(Math.max(from, this.low), this.high - span);
    this.from = start;
    this.to = start + span;
  }
  zoom(factor, around) {
    const span = Math.min(Math.max((this.to - this.from) * factor, this.least), this.high - this.low);
    const share = (around - this.from) / (this.to - this.from);
    this.set(around - share * span, around - share * span + span);
  }
  move(by) { this.set(this.from + by, this.to + by); }
  // What arrow keys and + − 0 do; true if the key meant something.
  key(name) {
    const span = this.to - this.from;
    const middle = this.from + span / 2;
    if (name === "ArrowLeft") this.move(-span / 8);
    else if (name === "ArrowRight") this.move(span / 8);
    else if (name === "+" || name === "=") this.zoom(1 / 1.5, middle);
    else if (name === "-") this.zoom(1.5, middle);
    else if (name === "0" || name === "Home") this.reset();
    else return false;
    return true;
  }
}
