"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#999999"];
  const AXIS = 20, NARROW = 500;
  const STEPS = [1, 5, 15, 30, 60, 300, 900, 1800, 3600, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
  const LEAST_S = 5;
  let before = 110, beyond = 40; // beside a chart, in pixels
  let from = data.t0, to = data.t1, chosen = -1, waiting = false;

  const color = (run) => COLORS[Math.min(data.users.indexOf(run.user), COLORS.length - 1)] || "#999999";
  const pad = (number) => String(number).padStart(2, "0");

  // Times are in the cluster's time zone, not the browser's. Its clocks may change within the period.
  const offset = (seconds) => data.offsets.reduce((last, next) => next[0] <= seconds ? next : last)[1];
  const local = (seconds) => new Date((seconds + offset(seconds)) * 1000);
  const date = (d) => `${d.getUTCFullYear()}-${pad(d.getUTCMonth() + 1)}-${pad(d.getUTCDate())}`;
  function clock(seconds, step) {
    const d = local(seconds), time = `${pad(d.getUTCHours())}:${pad(d.getUTCMinutes())}`;
    if (step >= 86400) return date(d).slice(5);
    return step < 60 ? `${time}:${pad(d.getUTCSeconds())}` : time;
  }
  const stamp = (seconds) => `${date(local(seconds))} ${clock(seconds, 1)}`;
  function span(seconds) {
    if (seconds === null || seconds === undefined) return "unknown";
    const s = Math.round(seconds), days = Math.floor(s / 86400);
    const rest = `${pad(Math.floor(s % 86400 / 3600))}:${pad(Math.floor(s % 3600 / 60))}:${pad(s % 60)}`;
    return days ? `${days}-${rest}` : rest;
  }

  const named = (run) => `${run.job} (${run.name || "no name"}) of ${run.user || "unknown user"}`;
  const brief = (run) => `${named(run)}\n${run.size} GPUs, waited ${span(run.wait)}, ran ${span(run.ran)}`;

  function draw(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  class Chart {
    constructor(id, height) {
      this.svg = document.getElementById(id);
      this.height = height;
      this.svg.setAttribute("height", height);
    }
    begin() {
      this.width = this.svg.clientWidth || 900;
      [before, beyond] = this.width < NARROW ? [86, 14] : [110, 40];
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.svg.replaceChildren();
      this.ticks();
    }
    x(time) { return before + (time - from) / (to - from) * (this.width - before - beyond); }
    time(x) { return from + (x - before) / (this.width - before - beyond) * (to - from); }
    clip(x) { return Math.max(before, Math.min(this.width - beyond, x)); }
    ticks() {
      const most = Math.max(2, (this.width - before) / 90), step = STEPS.find((s) => (to - from) / s <= most) || STEPS.at(-1);
      data.offsets.forEach(([since, ahead], at) => {
        const first = at ? Math.max(from, since) : from, last = at + 1 < data.offsets.length ? data.offsets[at + 1][0] - 1 : to;
        for (let t = Math.ceil((first + ahead) / step) * step - ahead; t <= Math.min(to, last); t += step) this.tick(t, step);
      });
    }
    tick(t, step) {
      const x = this.x(t);
      draw(this.svg, "line", { class: "grid", x1: x, x2: x, y1: 0, y2: this.height - AXIS });
      draw(this.svg, "text", { x, y: this.height - 5, "text-anchor": "middle" }, clock(t, step));
    }
    level(y, label) {
      draw(this.svg, "line", { class: "grid", x1: before, x2: this.width - beyond, y1: y, y2: y });
      draw(this.svg, "text", { x: before - 8, y: y + 4, "text-anchor": "end" }, label);
    }
    pick(element, number) {
      element.dataset.run = number;
      element.classList.toggle("dim", chosen >= 0 && chosen !== number);
      element.classList.toggle("chosen", chosen === number);
      draw(element, "title", {}, brief(data.runs[number]));
    }
  }

  const rows = data.nodes.reduce((sum, node) => sum + node.rows, 0);
  const rowHeight = Math.max(3, Math.min(14, Math.floor(560 / Math.max(rows, 1))));
  const GAP = 4;
  const servers = new Chart("gpus", rows * rowHeight + data.nodes.length * GAP + AXIS);
  const queue = new Chart("queue", 150), waits = new Chart("waits", 170), errors = new Chart("errors", 170);
  const charts = [servers, queue, waits, errors];

  function drawServers() {
    servers.begin();
    let top = 0;
    const tops = data.nodes.map((node) => {
      const here = top;
      top += node.rows * rowHeight + GAP;
      draw(servers.svg, "line", { class: "node", x1: 0, x2: servers.width, y1: top - GAP / 2, y2: top - GAP / 2 });
      if (node.rows * rowHeight >= 10) {
        const middle = here + node.rows * rowHeight / 2 + 4;
        draw(servers.svg, "text", { x: before - 8, y: middle, "text-anchor": "end" }, node.name.slice(0, before < 100 ? 11 : 16));
      }
      return here;
    });
    for (const [number, node, row, count] of data.bars) {
      const run = data.runs[number], end = run.end === null ? data.t1 : run.end;
      if (end < from || run.start > to) continue;
      const x = servers.clip(servers.x(run.start)), right = servers.clip(servers.x(end));
      const bar = draw(servers.svg, "rect", {
        class: "bar", x, y: tops[node] + row * rowHeight + 0.5, width: Math.max(1.5, right - x - 0.5),
        height: count * rowHeight - 1, fill: color(run),
      });
      servers.pick(bar, number);
    }
  }

  function drawQueue() {
    queue.begin();
    const most = data.queue.reduce((found, row) => Math.max(found, row[1]), 1), bottom = queue.height - AXIS - 4;
    const y = (count) => bottom - count / most * (bottom - 10);
    for (const count of new Set([0, Math.round(most / 2), most])) queue.level(y(count), count);
    let path = "";
    data.queue.forEach(([time, count], at) => {
      const next = at + 1 < data.queue.length ? data.queue[at + 1][0] : data.t1;
      if (next < from || time > to) return;
      const left = queue.clip(queue.x(time)), right = queue.clip(queue.x(next));
      path += `${path ? "L" : "M"}${left},${y(count)}L${right},${y(count)}`;
    });
    if (path) draw(queue.svg, "path", { d: path, class: "line" });
  }

  function dots(chart, levels, low, high, at, value) {
    chart.begin();
    const bottom = chart.height - AXIS - 6;
    const y = (v) => bottom - (Math.log(v) - Math.log(low)) / (Math.log(high) - Math.log(low)) * (bottom - 10);
    for (const [v, label] of levels) if (v >= low && v <= high) chart.level(y(v), label);
    data.runs.forEach((run, number) => {
      const when = at(run), v = value(run);
      if (when === null || v === null || when < from || when > to) return;
      const cy = y(Math.max(low, Math.min(high, v)));
      chart.pick(draw(chart.svg, "circle", { class: "bar", cx: chart.x(when), cy, r: 4, fill: color(run) }), number);
    });
  }

  const WAITS = [[1, "1 s"], [10, "10 s"], [60, "1 min"], [600, "10 min"], [3600, "1 h"], [36000, "10 h"], [259200, "3 d"]];
  const ERRORS = [[0.1, "0.1x"], [0.5, "0.5x"], [1, "as predicted"], [2, "2x"], [10, "10x"]];
  const longest = Math.max(10, ...data.runs.map((run) => run.wait || 0)) * 1.3;

  function redraw() {
    waiting = false;
    drawServers();
    drawQueue();
    dots(waits, WAITS, 1, longest, (run) => run.start, (run) => run.wait === null ? null : Math.max(1, run.wait));
    dots(errors, ERRORS, 0.08, 12.5, (run) => run.end, (run) => run.error);
    document.getElementById("span").textContent = `${stamp(from)} to ${stamp(to)}`;
  }
  function later() {
    if (!waiting) requestAnimationFrame(redraw);
    waiting = true;
  }
  function zoom(begin, end) {
    const width = Math.max(LEAST_S, Math.min(data.t1 - data.t0, end - begin));
    from = Math.max(data.t0, Math.min(begin, data.t1 - width));
    to = from + width;
    later();
  }
  function scale(factor) {
    const middle = (from + to) / 2, half = (to - from) / 2 * factor;
    zoom(middle - half, middle + half);
  }
  function move(share) { zoom(from + share * (to - from), to + share * (to - from)); }

  function facts(run) {
    const rows = [
      ["Job", named(run)],
      ["GPUs", `${run.size}${run.where ? `: ${run.where}` : ""}`],
      ["Waited", span(run.wait) + (run.why.length ? `, reasons: ${run.why.join(", ")}` : "")],
      ["Started", run.start === null ? "not in this period" : stamp(run.start)],
      ["Ended", run.end === null ? "not in this period" : `${stamp(run.end)} ${run.state}`],
      ["Ran", span(run.ran)],
      ["Predicted", span(run.predicted)],
    ];
    if (run.ratio !== null) rows.push(["Placement", `${run.ratio.toFixed(2)} times the best time per iteration`]);
    return rows;
  }
  function choose(number) {
    chosen = number === chosen ? -1 : number;
    const box = document.getElementById("job"), list = document.createElement("dl");
    box.hidden = chosen < 0;
    if (chosen >= 0) {
      for (const [name, value] of facts(data.runs[chosen])) {
        list.appendChild(document.createElement("dt")).textContent = name;
        list.appendChild(document.createElement("dd")).textContent = value;
      }
    }
    box.replaceChildren(list);
    for (const row of document.querySelectorAll("tr[data-run]")) {
      row.classList.toggle("chosen", Number(row.dataset.run) === chosen);
    }
    later();
  }

  for (const chart of charts) {
    let began = null, mark = null;
    const at = (event) => chart.clip(event.clientX - chart.svg.getBoundingClientRect().left);
    chart.svg.addEventListener("pointerdown", (event) => { began = at(event); });
    chart.svg.addEventListener("pointermove", (event) => {
      if (began === null || Math.abs(at(event) - began) < 4) return;
      chart.svg.setPointerCapture(event.pointerId);
      mark = mark && mark.isConnected ? mark : draw(chart.svg, "rect", { class: "drag", y: 0, height: chart.height });
      mark.setAttribute("x", Math.min(began, at(event)));
      mark.setAttribute("width", Math.abs(at(event) - began));
    });
    chart.svg.addEventListener("pointerup", (event) => {
      const begin = began, end = at(event);
      began = null;
      if (begin !== null && Math.abs(end - begin) >= 4) {
        mark = null;
        zoom(chart.time(Math.min(begin, end)), chart.time(Math.max(begin, end)));
      } else {
        const hit = event.target.closest("[data-run]");
        if (hit) choose(Number(hit.dataset.run));
      }
    });
    chart.svg.addEventListener("pointercancel", () => { began = null; later(); });
  }
  const press = { all: () => zoom(data.t0, data.t1), in: () => scale(0.5), out: () => scale(2), back: () => move(-0.4), on: () => move(0.4) };
  for (const name in press) document.getElementById(name).addEventListener("click", press[name]);
  const keys = { "+": press.in, "-": press.out, "0": press.all, ArrowLeft: press.back, ArrowRight: press.on };
  document.addEventListener("keydown", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key]) keys[event.key]();
    if (event.key === "Escape" && chosen >= 0) choose(chosen);
  });
  document.addEventListener("click", (event) => {
    const row = event.target.closest("tr[data-run]");
    if (row) choose(Number(row.dataset.run));
  });
  window.addEventListener("resize", later);
  redraw();
})();
