// The timeline: a track for each rank's compute and one for its network, on a canvas. Drag moves, Ctrl with the wheel
// (or two fingers) zooms; with the keyboard arrows move, + − 0 zoom, n and p go from event to event, ↑ ↓ between tracks.
// Pointing at an event shows what it is and brings out all that has to do with the same layer.

const MARKS = {
  forward: "blue", backward: "orange", update: "violet", wait: "gray", move: "green",
  ready: "ink", start: "ink", end: "ink",
};
const WORDS = {
  forward: "forward pass", backward: "backward pass", update: "update", wait: "waiting for parameters",
  move: "on the wire", ready: "gradient ready", start: "exchange begins", end: "parameters in place",
};
const AXIS_HEIGHT = 26, COMPUTE_HEIGHT = 24, RANK_GAP = 12;

class Timeline {
  constructor(host, data) {
    this.data = data;
    this.host = host;
    this.canvas = host.querySelector("canvas");
    this.tip = host.querySelector(".tip");
    this.range = new Range(0, data.span, Math.min(20, data.span));
    this.hiddenKinds = new Set();
    this.chosen = null;
    this.layOut();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
    Theme.listeners.push(() => this.draw());
    this.draw();
  }

  layOut() {
    let y = AXIS_HEIGHT + 6;
    let rank = null;
    for (const track of this.data.tracks) {
      if (rank !== null && track.rank !== rank) y += RANK_GAP;
      rank = track.rank;
      const isNetwork = track.kind === "network";
      track.laneHeight = isNetwork ? Math.max(5, Math.min(13, 44 / track.lanes)) : COMPUTE_HEIGHT / track.lanes;
      track.top = y;
      track.height = Math.max(isNetwork ? 16 : COMPUTE_HEIGHT, track.laneHeight * track.lanes + (isNetwork ? 5 : 0));
      y += track.height + 3;
    }
    this.height = y + 8;
    this.tracks = this.data.tracks;
  }

  get gutter() { return this.canvas.clientWidth < 560 ? 62 : 128; }
  x(time) { return this.gutter + ((time - this.range.from) / (this.range.to - this.range.from)) * this.inner; }
  get inner() { return this.canvas.clientWidth - this.gutter - 6; }
  timeAt(x) { return this.range.from + ((x - this.gutter) / this.inner) * (this.range.to - this.range.from); }

  // -- drawing
  draw() {
    const width = this.canvas.parentElement.clientWidth;
    if (!width) return;
    const ratio = devicePixelRatio || 1;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    Object.assign(this.canvas.dataset, { from: this.range.from, to: this.range.to });
    const names = ["ink", "quiet", "line", "sheet", "faint", "on-mark", ...new Set(Object.values(MARKS))];
    this.colours = Object.fromEntries(names.map((name) => [name, Theme.colour(name)]));
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = this.colours.sheet;
    pen.fillRect(0, 0, width, this.height);
    this.hatch = this.hatchPattern(pen);
    this.drawAxis(pen, width);
    for (const track of this.tracks) this.drawTrack(pen, track);
    this.drawIterations(pen);
    if (this.chosen) this.drawChosen(pen);
  }

  hatchPattern(pen) {
    const tile = element("canvas", { width: 6, height: 6 });
    const brush = tile.getContext("2d");
    brush.fillStyle = this.colours.sheet;
    brush.fillRect(0, 0, 6, 6);
    brush.strokeStyle = this.colours.gray;
    brush.lineWidth = 1.6;
    brush.beginPath();
    for (const at of [-6, 0, 6]) { brush.moveTo(at, 6); brush.lineTo(at + 6, 0); }
    brush.stroke();
    return pen.createPattern(tile, "repeat");
  }

  drawAxis(pen, width) {
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.textAlign = "center";
    for (const time of ticks(this.range.from, this.range.to, Math.max(2, Math.floor(width / 130)))) {
      const x = this.x(time);
      pen.strokeStyle = this.colours.line;
      pen.beginPath();
      pen.moveTo(x, AXIS_HEIGHT);
      pen.lineTo(x, this.height);
      pen.stroke();
      pen.fillStyle = this.colours.quiet;
      const half = pen.measureText(microsText(time)).width / 2;
      pen.fillText(time === 0 ? "0" : microsText(time), Math.min(x, width - half - 2), 13);
    }
  }

  drawTrack(pen, track) {
    pen.fillStyle = this.colours.faint;
    pen.fillRect(this.gutter, track.top, this.inner, track.height);
    this.drawName(pen, track);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, track.top, this.inner, track.height);
    pen.clip();
    const spans = [], over = [], instants = [];
    for (const event of track.events) {
      const kind = this.data.kinds[event[0]];
      if (this.hiddenKinds.has(kind)) continue;
      const end = event[3] + Math.max(0, event[4]);
      if (end < this.range.from || event[3] > this.range.to) continue;
      (event[4] < 0 ? instants : kind === "wait" || kind === "update" ? over : spans).push(event);
    }
    this.drawSpans(pen, track, spans);
    this.drawSpans(pen, track, over);
    this.drawInstants(pen, track, instants);
    pen.restore();
  }

  drawName(pen, track) {
    const middle = track.top + track.height / 2;
    pen.textAlign = "left";
    if (track.kind === "network") {
      pen.fillStyle = this.colours.quiet;
      pen.font = "11px system-ui, sans-serif";
      pen.fillText("network", 8, middle);
      return;
    }
    pen.fillStyle = this.colours.ink;
    pen.font = "600 12px system-ui, sans-serif";
    pen.fillText(`rank ${track.rank}`, 8, middle);
    const after = 10 + pen.measureText(`rank ${track.rank} `).width;
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.colours.quiet;
    pen.fillText(cut(pen, track.host, this.gutter - after - 6), after, middle);
  }

  drawSpans(pen, track, events) {
    const drawn = new Map(); // the last pixel of each lane and kind: what lies in it already is not drawn again
    for (const event of events) {
      const [kindIndex, name, , start, duration, lane] = event;
      const kind = this.data.kinds[kindIndex];
      const isOver = kind === "wait" || kind === "update";
      const left = Math.max(this.x(start), this.gutter - 2), right = Math.min(this.x(start + duration), this.gutter + this.inner + 2);
      const isDim = this.chosen && !this.belongs(event, this.chosen.event);
      const key = lane * 100 + kindIndex * 2 + (isDim ? 1 : 0);
      if (right - left < 1 && drawn.get(key) === Math.floor(left)) continue;
      drawn.set(key, Math.floor(left));
      const wide = Math.max(1, right - left);
      const top = isOver ? track.top : track.top + lane * track.laneHeight + (track.kind === "network" ? 3 : 0);
      const high = isOver && track.kind === "compute" ? track.height : track.laneHeight - 1;
      pen.globalAlpha = isDim ? 0.25 : 1;
      pen.fillStyle = kind === "wait" ? this.hatch : this.colours[MARKS[kind]];
      pen.fillRect(left, top, wide > 3 ? wide - 0.7 : wide, high);
      if (wide > 26 && high >= 11 && kind !== "wait") this.drawLabel(pen, this.data.names[name], left, top, wide, high);
    }
    pen.globalAlpha = 1;
  }

  drawLabel(pen, text, left, top, wide, high) {
    pen.font = high >= 16 ? "11px system-ui, sans-serif" : "10px system-ui, sans-serif";
    const shown = cut(pen, text, wide - 8);
    if (!shown) return;
    pen.fillStyle = this.colours["on-mark"];
    pen.textAlign = "left";
    pen.fillText(shown, left + 4, top + high / 2 + 0.5);
  }

  drawInstants(pen, track, events) {
    const seen = new Set();
    pen.fillStyle = this.colours.ink;
    for (const event of events) {
      const kind = this.data.kinds[event[0]];
      const x = this.x(event[3]);
      const key = `${kind}${Math.floor(x)}`;
      if (seen.has(key)) continue;
      seen.add(key);
      pen.globalAlpha = this.chosen && !this.belongs(event, this.chosen.event) ? 0.2 : 0.75;
      const foot = track.top + track.height;
      pen.beginPath();
      if (kind === "ready") { pen.moveTo(x - 3.5, track.top); pen.lineTo(x + 3.5, track.top); pen.lineTo(x, track.top + 5); }
      else if (kind === "start") { pen.rect(x - 0.5, track.top, 1, track.height); }
      else { pen.moveTo(x - 3.5, foot); pen.lineTo(x + 3.5, foot); pen.lineTo(x, foot - 5); }
      pen.fill();
    }
    pen.globalAlpha = 1;
  }

  drawIterations(pen) {
    pen.font = "11px system-ui, sans-serif";
    for (const [rank, iteration, start, duration] of this.data.marks) {
      const track = this.tracks.find((one) => one.rank === rank && one.kind === "compute");
      if (!track || start + duration < this.range.from || start > this.range.to) continue;
      const x = Math.max(this.x(start), this.gutter);
      pen.strokeStyle = this.colours.ink;
      pen.globalAlpha = 0.55;
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(x, track.top - 4);
      pen.lineTo(x, track.top + track.height);
      pen.stroke();
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      if (rank !== this.tracks[0].rank) continue;
      pen.fillStyle = this.colours.ink;
      const text = `iteration ${iteration}`;
      const room = this.x(Math.min(start + duration, this.range.to)) - x;
      if (room > pen.measureText(text).width + 8) pen.fillText(text, x + 3, track.top - 6);
    }
  }

  drawChosen(pen) {
    const { track, event } = this.chosen;
    const left = this.x(event[3]), wide = Math.max(2, this.x(event[3] + Math.max(0, event[4])) - left);
    const isLane = event[4] >= 0 && track.kind === "network";
    const top = isLane ? track.top + event[5] * track.laneHeight + 3 : track.top;
    pen.strokeStyle = this.colours.ink;
    pen.lineWidth = 2;
    pen.strokeRect(left - 1, top - 1, wide + 2, (isLane ? track.laneHeight : track.height) + 1);
    pen.lineWidth = 1;
  }

  // -- what belongs together: events of one layer or unit, in all tracks
  layersOf(event) {
    const units = this.data.units[event[7]];
    return units ?? [this.data.names[event[1]]];
  }
  belongs(event, other) {
    if (event[7] >= 0 && event[7] === other[7]) return true;
    const names = this.layersOf(other);
    return this.layersOf(event).some((name) => names.includes(name));
  }

  // -- pointing
  find(x, y) {
    const track = this.tracks.find((one) => y >= one.top - 2 && y <= one.top + one.height + 2);
    if (!track || x < this.gutter) return null;
    const time = this.timeAt(x), near = (4 / this.inner) * (this.range.to - this.range.from);
    let best = null;
    for (const event of track.events) {
      if (this.hiddenKinds.has(this.data.kinds[event[0]])) continue;
      const end = event[3] + Math.max(0, event[4]);
      if (time < event[3] - near || time > end + near) continue;
      const kind = this.data.kinds[event[0]];
      const isInLane = track.kind === "compute" || event[4] < 0 ||
        Math.floor((y - track.top - 3) / track.laneHeight) === event[5];
      // The shortest wins, so that a wait is found although a forward pass lies around it; spans before instants.
      const away = Math.max(0, event[3] - time, time - end);
      const score = (isInLane ? 0 : 1e12) + away * 1e4 + (event[4] < 0 ? 1e6 : event[4]) + (kind === "wait" ? -1 : 0);
      if (best === null || score < best.score) best = { track, event, score };
    }
    return best && best.score < 1e12 ? best : null;
  }

  choose(found, x, y) {
    const isSame = found?.event === this.chosen?.event;
    this.chosen = found;
    if (!isSame) this.draw();
    this.tip.hidden = !found;
    if (!found) return;
    if (!isSame) this.describe(found);
    const frame = this.canvas.parentElement;
    const left = Math.min(Math.max(4, x + 14), this.host.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = `${left}px`;
    const top = y - frame.scrollTop + frame.offsetTop + 16;
    this.tip.style.top = `${top}px`;
  }

  describe({ track, event }) {
    const [kindIndex, name, iteration, start, duration, , count, , chunk] = event;
    this.tip.replaceChildren(element("b", {}, this.data.names[name] || "all parameters"));
    const lines = [`${WORDS[this.data.kinds[kindIndex]]}, rank ${track.rank}, iteration ${iteration}`];
    lines.push(duration < 0 ? `at ${microsText(start)}` : `${microsText(duration)}, from ${microsText(start)}`);
    if (count >= 0) {
      const rate = duration > 0 ? `, ${bytesText((count / duration) * 1e6)}/s` : "";
      lines.push(`${bytesText(count)}${chunk >= 0 ? `, piece ${chunk + 1}` : ""}${rate}`);
    }
    for (const line of lines) this.tip.append(element("div", { class: "num" }, line));
  }

  chooseByKey(key) {
    const all = this.tracks.filter((track) => track.events.some((event) => this.isShown(event)));
    if (!all.length) return;
    let track = this.chosen?.track ?? all[0];
    let time = this.chosen ? this.chosen.event[3] : this.range.from;
    if (key === "ArrowUp" || key === "ArrowDown") {
      const place = all.indexOf(track) + (key === "ArrowDown" ? 1 : -1);
      track = all[Math.min(all.length - 1, Math.max(0, place))];
    }
    const events = track.events.filter((event) => this.isShown(event));
    let index = this.chosen?.track === track ? events.indexOf(this.chosen.event) : -1;
    if (index < 0) index = Math.max(0, events.findIndex((event) => event[3] + Math.max(0, event[4]) >= time));
    else if (key === "n") index = Math.min(events.length - 1, index + 1);
    else if (key === "p") index = Math.max(0, index - 1);
    const event = events[index];
    time = event[3] + Math.max(0, event[4]) / 2;
    if (time < this.range.from || time > this.range.to) this.range.move(time - (this.range.from + this.range.to) / 2);
    this.choose({ track, event }, this.x(Math.max(event[3], this.range.from)), track.top + track.height);
  }
  isShown(event) { return !this.hiddenKinds.has(this.data.kinds[event[0]]); }

  listen() {
    const canvas = this.canvas;
    const pointers = new Map();
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    canvas.addEventListener("pointerdown", (event) => {
      pointers.set(event.pointerId, place(event));
      if (event.pointerType === "mouse") canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const now = place(event), before = pointers.get(event.pointerId);
      if (!before) { this.choose(this.find(now.x, now.y), now.x, now.y); return; }
      const others = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const perPixel = (this.range.to - this.range.from) / this.inner;
      if (others.length) {
        const apart = Math.abs(before.x - others[0].x), nowApart = Math.abs(now.x - others[0].x);
        this.range.zoom(Math.max(apart, 8) / Math.max(nowApart, 8), this.timeAt((now.x + others[0].x) / 2));
      } else {
        this.range.move((before.x - now.x) * perPixel);
      }
      pointers.set(event.pointerId, now);
      this.draw();
    });
    for (const kind of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(kind, (event) => {
        pointers.delete(event.pointerId);
        const now = place(event);
        if (kind === "pointerup" && event.pointerType !== "mouse") this.choose(this.find(now.x, now.y), now.x, now.y);
      });
    }
    canvas.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse" && !pointers.size) this.choose(null);
    });
    canvas.addEventListener("wheel", (event) => {
      const isZoom = event.ctrlKey || event.metaKey;
      if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) return;
      event.preventDefault();
      if (isZoom) this.range.zoom(Math.exp(event.deltaY / 250), this.timeAt(place(event).x));
      else this.range.move((event.deltaX / this.inner) * (this.range.to - this.range.from));
      this.draw();
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => { this.range.zoom(0.4, this.timeAt(place(event).x)); this.draw(); });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey) return;
      if (["n", "p", "ArrowUp", "ArrowDown"].includes(event.key)) this.chooseByKey(event.key);
      else if (event.key === "Escape") this.choose(null);
      else if (this.range.key(event.key)) this.draw();
      else return;
      event.preventDefault();
    });
  }

  press(action) {
    if (action.startsWith("kind:")) {
      const kinds = action.slice(5).split(",");
      for (const kind of kinds) if (!this.hiddenKinds.delete(kind)) this.hiddenKinds.add(kind);
    } else if (action.startsWith("iteration:")) {
      const wanted = Number(action.slice(10));
      const marks = this.data.marks.filter((mark) => mark[1] === wanted);
      const from = Math.min(...marks.map((mark) => mark[2])), to = Math.max(...marks.map((mark) => mark[2] + mark[3]));
      this.range.set(from - (to - from) * 0.03, to + (to - from) * 0.03);
    } else this.range.key({ in: "+", out: "-", all: "0" }[action]);
    this.chosen = null;
    this.tip.hidden = true;
    this.draw();
  }
}

// As much of a text as fits, or nothing.
function cut(pen, text, room) {
  if (pen.measureText(text).width <= room) return text;
  let length = Math.floor((text.length * room) / pen.measureText(text).width);
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

function startTimeline() {
  const host = document.getElementById("gantt");
  if (!host || !DATA.timeline) return;
  const timeline = new Timeline(host, DATA.timeline);
  for (const button of document.querySelectorAll("[data-gantt]")) {
    button.addEventListener("click", () => {
      if (button.hasAttribute("aria-pressed")) {
        button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      }
      timeline.press(button.dataset.gantt);
    });
  }
}
