// Lines over iterations or seconds. Drag across to look closer; double-click, 0 or the button shows all again.

const SERIES_COLOURS = ["blue", "orange", "green", "violet", "rose", "gray"];
const MOST_DOTS = 40; // lines with more values show no single ones
const EDGE = { left: 52, right: 10, top: 8, bottom: 26 };

class LineChart {
  constructor(host, chart) {
    this.chart = chart;
    this.axis = "iteration";
    this.hidden = new Set();
    this.isLog = false;
    this.host = host;
    this.build();
    this.setAxis("iteration");
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  build() {
    const head = element("div", { class: "chart-head" });
    head.append(element("h3", {}, this.chart.title));
    const tools = element("div", { class: "push" });
    if (this.chart.logs) {
      this.logButton = element("button", { type: "button", "aria-pressed": "false" }, "log");
      this.logButton.addEventListener("click", () => this.toggleLog());
      tools.append(this.logButton);
    }
    this.allButton = element("button", { type: "button", hidden: "" }, "Show all");
    this.allButton.addEventListener("click", () => { this.range.reset(); this.draw(); });
    tools.append(this.allButton);
    head.append(tools);
    this.plot = element("div", { class: "plot" });
    this.svg = svgElement("svg", { tabindex: "0", role: "application", "aria-label": this.label() });
    this.tip = element("div", { class: "tip", hidden: "", role: "status" });
    this.plot.append(this.svg, this.tip);
    this.host.append(head, this.legend(), this.plot);
    this.listen();
  }

  label() {
    const names = this.chart.series.map((series) => series.name).join(", ");
    return `${this.chart.title}: ${names}. Arrow keys move, plus and minus zoom, 0 shows all.`;
  }

  legend() {
    const list = element("div", { class: "tools" });
    this.chart.series.forEach((series, index) => {
      const key = element("button", { type: "button", class: "key", "aria-pressed": "true" });
      const colour = SERIES_COLOURS[index % SERIES_COLOURS.length];
      key.append(element("span", { class: `swatch line c-${colour}${series.dashed ? " dashed" : ""}` }), series.name);
      key.addEventListener("click", () => {
        if (this.hidden.delete(index) === false) this.hidden.add(index);
        key.setAttribute("aria-pressed", String(!this.hidden.has(index)));
        this.draw();
      });
      list.append(key);
    });
    return list;
  }

  toggleLog() {
    this.isLog = !this.isLog;
    this.logButton.setAttribute("aria-pressed", String(this.isLog));
    this.draw();
  }

  setAxis(axis) {
    this.axis = axis;
    const column = axis === "iteration" ? 0 : 1;
    this.lines = this.chart.series.map((series) => series.points.map((point) => [point[column], point[2]]));
    const all = this.lines.flat().map((point) => point[0]);
    const low = Math.min(...all), high = Math.max(...all);
    this.range = new Range(low, high > low ? high : low + 1, (high - low || 1) / 2000);
    this.draw();
  }

  shownLines() { return this.lines.map((points, index) => (this.hidden.has(index) ? [] : points)); }

  // Lowest and highest value in view, with a little room.
  extent() {
    let low = Infinity, high = -Infinity;
    for (const points of this.shownLines()) {
      for (const [x, y] of points) {
        if (y === null || x < this.range.from || x > this.range.to || (this.isLog && y <= 0)) continue;
        low = Math.min(low, y);
        high = Math.max(high, y);
      }
    }
    if (low > high) [low, high] = this.isLog ? [1, 10] : [0, 1];
    if (this.isLog) return [low / 1.1, high * 1.1];
    if (this.chart.from_zero) low = Math.min(0, low);
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    return [this.chart.from_zero && low >= 0 ? 0 : low - room, high + room];
  }

  draw() {
    const width = this.plot.clientWidth, height = this.svg.clientHeight;
    if (!width || !height) return;
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    Object.assign(this.svg.dataset, { from: this.range.from, to: this.range.to });
    this.allButton.hidden = this.range.isWhole;
    const [low, high] = this.extent();
    const flat = (y) => (this.isLog ? Math.log10(y) : y);
    const inner = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
    this.x = (value) => EDGE.left + ((value - this.range.from) / (this.range.to - this.range.from)) * inner.width;
    this.y = (value) => EDGE.top + (1 - (flat(value) - flat(low)) / (flat(high) - flat(low))) * inner.height;
    this.grid(width, height, low, high);
    const clip = svgElement("clipPath", { id: `clip-${this.chart.key}` });
    clip.append(svgElement("rect", { x: EDGE.left, y: 0, width: inner.width, height }));
    const group = svgElement("g", { "clip-path": `url(#clip-${this.chart.key})` });
    this.shownLines().forEach((points, index) => group.append(this.curve(points, index)));
    this.band = svgElement("rect", { class: "band", y: EDGE.top, height: inner.height, width: 0 });
    this.hair = svgElement("line", { class: "hair", y1: EDGE.top, y2: height - EDGE.bottom, visibility: "hidden" });
    this.svg.append(clip, group, this.band, this.hair);
  }

  grid(width, height, low, high) {
    const levels = this.isLog ? logTicks(low, high) : ticks(low, high, 5);
    for (const level of levels) {
      const y = this.y(level);
      this.svg.append(svgElement("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: y, y2: y }));
      const text = digits(level, 3) + (this.chart.unit === "%" ? " %" : "");
      this.svg.append(svgElement("text", { x: EDGE.left - 7, y: y + 4, "text-anchor": "end" }, text));
    }
    const steps = ticks(this.range.from, this.range.to, Math.max(2, Math.floor(width / 110)));
    for (const value of steps) {
      const text = this.axis === "iteration" ? digits(value, 7) : `${digits(value, 5)} s`;
      const x = this.x(value);
      const anchor = x > width - 40 ? "end" : "middle";
      this.svg.append(svgElement("text", { x, y: height - 7, "text-anchor": anchor }, text));
    }
  }

  curve(points, index) {
    const parts = [];
    let isOpen = false;
    for (const [x, y] of points) {
      if (y === null || (this.isLog && y <= 0)) { isOpen = false; continue; }
      parts.push(`${isOpen ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`);
      isOpen = true;
    }
    const colour = SERIES_COLOURS[index % SERIES_COLOURS.length];
    const dashed = this.chart.series[index].dashed ? " dashed" : "";
    const line = svgElement("path", { class: `curve${dashed}`, d: parts.join(""), style: `stroke:var(--${colour})` });
    if (parts.length > MOST_DOTS) return line;
    const group = svgElement("g");
    group.append(line);
    for (const [x, y] of points) {
      if (y === null || (this.isLog && y <= 0)) continue;
      group.append(svgElement("circle", { cx: this.x(x), cy: this.y(y), r: 3, style: `fill:var(--${colour})` }));
    }
    return group;
  }

  valueAt(event) {
    const box = this.svg.getBoundingClientRect();
    const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
    return this.range.from + Math.min(1, Math.max(0, share)) * (this.range.to - this.range.from);
  }

  listen() {
    let start = null;
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      start = this.valueAt(event);
      if (event.pointerType === "mouse") this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const now = this.valueAt(event);
      this.hover(now);
      if (start === null || event.pointerType !== "mouse") return;
      this.band.setAttribute("x", this.x(Math.min(start, now)));
      this.band.setAttribute("width", Math.abs(this.x(now) - this.x(start)));
    });
    this.svg.addEventListener("pointerup", (event) => {
      const now = this.valueAt(event);
      const isDrag = start !== null && event.pointerType === "mouse" && Math.abs(this.x(now) - this.x(start)) > 6;
      if (isDrag) this.range.set(Math.min(start, now), Math.max(start, now));
      start = null;
      this.draw();
    });
    this.svg.addEventListener("pointercancel", () => { start = null; this.draw(); });
    this.svg.addEventListener("pointerleave", () => { this.tip.hidden = true; this.hair?.setAttribute("visibility", "hidden"); });
    this.svg.addEventListener("dblclick", () => { this.range.reset(); this.draw(); });
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // plain wheels scroll the page
      event.preventDefault();
      this.range.zoom(Math.exp(event.deltaY / 300), this.valueAt(event));
      this.draw();
    }, { passive: false });
    this.svg.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || !this.range.key(event.key)) return;
      event.preventDefault();
      this.draw();
    });
  }

  hover(at) {
    const rows = [];
    let nearest = null;
    this.shownLines().forEach((points, index) => {
      let best = null;
      for (const point of points) {
        if (point[1] !== null && (best === null || Math.abs(point[0] - at) < Math.abs(best[0] - at))) best = point;
      }
      if (best === null) return;
      rows.push([this.chart.series[index].name, best]);
      if (nearest === null || Math.abs(best[0] - at) < Math.abs(nearest - at)) nearest = best[0];
    });
    if (nearest === null) return;
    const where = this.axis === "iteration" ? `iteration ${digits(nearest, 8)}` : `after ${digits(nearest, 5)} s`;
    this.tip.replaceChildren(element("b", {}, where));
    for (const [name, point] of rows) {
      this.tip.append(element("div", { class: "num" }, `${name}: ${digits(point[1], 5)} ${this.chart.unit}`.trim()));
    }
    this.tip.hidden = false;
    const x = this.x(nearest);
    this.hair.setAttribute("x1", x);
    this.hair.setAttribute("x2", x);
    this.hair.setAttribute("visibility", "visible");
    const isRight = x > this.plot.clientWidth / 2;
    this.tip.style.left = isRight ? "" : `${x + 12}px`;
    this.tip.style.right = isRight ? `${this.plot.clientWidth - x + 12}px` : "";
    this.tip.style.top = "12px";
  }
}

function logTicks(low, high) {
  const found = [];
  const decades = Math.log10(high / low);
  const factors = decades > 3 ? [1] : decades > 1.2 ? [1, 2, 5] : [1, 2, 3, 4, 5, 6, 7, 8, 9];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

function startCharts() {
  for (const group of document.querySelectorAll("[data-charts]")) {
    const made = DATA.charts[group.dataset.charts].map((chart) => {
      const host = element("div", { class: "chart", "data-chart": chart.key });
      group.append(host);
      return new LineChart(host, chart);
    });
    const buttons = [...group.parentElement.querySelectorAll("[data-axis]")];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
        made.forEach((chart) => chart.setAxis(button.dataset.axis));
      });
    }
  }
}
