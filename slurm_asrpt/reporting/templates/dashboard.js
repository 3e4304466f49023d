"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const FIELDS = ["id", "rank", "name", "user", "partition", "gpus", "state", "text", "submit", "start", "early", "late", "run", "left", "nodes"];
  const FIRST = 50, MORE = 200;
  const by = (id) => document.getElementById(id);
  const pad = (number) => String(number).padStart(2, "0");

  // Times are in the cluster's time zone, not the browser's.
  const offset = (seconds) => data.offsets.reduce((last, next) => next[0] <= seconds ? next : last)[1];
  const local = (seconds) => new Date((seconds + offset(seconds)) * 1000);
  const day = (seconds) => local(seconds).toISOString().slice(0, 10);
  const time = (seconds) => local(seconds).toISOString().slice(11, 16);
  const clock = (seconds) => day(seconds) === day(data.written) ? time(seconds) : `${day(seconds).slice(5)} ${time(seconds)}`;
  // As Slurm and asrpt-status write durations: [days-]hours:minutes:seconds.
  function span(seconds) {
    const whole = Math.round(seconds), days = Math.floor(whole / 86400);
    return (days ? `${days}-` : "") + [whole % 86400 / 3600, whole % 3600 / 60, whole % 60].map(Math.floor).map(pad).join(":");
  }
  const optional = (value, shown) => value === null ? "-" : shown(value);
  const interval = (job) => optional(job.early, (early) => {
    const late = job.late === null ? "?" : day(job.late) === day(early) ? time(job.late) : clock(job.late);
    return late === time(early) ? clock(early) : `${clock(early)}–${late}`;
  });

  const jobs = data.jobs.map((row) => {
    const job = Object.fromEntries(FIELDS.map((field, at) => [field, row[at]]));
    job.holds = data.holding.includes(job.state);
    job.sought = [job.id, job.name, job.user, job.partition, job.text, job.nodes].join("\n").toLowerCase();
    job.order = job.id.split(/[_+]/).map(Number);
    return job;
  });
  const owner = data.named ? "user" : "partition";

  // What the user has chosen is kept in the address: it survives the reloads of the page, and can be shared.
  const chosen = new URLSearchParams(location.hash.slice(1));
  function remember(key, value) {
    if (value) chosen.set(key, value); else chosen.delete(key);
    try { history.replaceState(null, "", `#${chosen}`); } catch { /* in a sandboxed frame */ }
  }
  const stored = {
    get theme() { try { return localStorage.getItem("asrpt-theme"); } catch { return null; } },
    set theme(name) { try { localStorage.setItem("asrpt-theme", name); } catch { /* in a sandboxed frame */ } },
  };

  function add(parent, name, text, attributes = {}) {
    const element = document.createElement(name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  class Table {
    // columns: [title, text of a cell, value to sort by, class]
    constructor(id, columns, noun) {
      this.id = id;
      this.section = by(id);
      this.columns = columns;
      this.noun = noun;
      this.rows = [];
      this.shown = Number(chosen.get(`${id}-rows`)) || FIRST;
      this.sort = Number(chosen.get(`${id}-sort`)) || 0;  // 1 is the first column, negative is reversed, 0 the given order
      const head = add(this.section.querySelector("thead"), "tr");
      columns.forEach(([title, , , kind = ""], at) => {
        const cell = add(head, "th", title, { class: kind, tabindex: 0, scope: "col" });
        const press = () => this.sortBy(at + 1);
        cell.addEventListener("click", press);
        cell.addEventListener("keydown", (event) => { if (event.key === "Enter") press(); });
      });
      this.button = this.section.querySelector(".more");
      this.button.addEventListener("click", () => {
        this.shown += MORE;
        remember(`${id}-rows`, this.shown);
        this.draw();
      });
    }
    sortBy(column) {
      this.sort = this.sort === column ? -column : this.sort === -column ? 0 : column;
      remember(`${this.id}-sort`, this.sort || "");
      this.draw();
    }
    show(rows, all) {
      this.rows = rows;
      this.all = all;
      this.draw();
    }
    sorted() {
      const column = this.columns[Math.abs(this.sort) - 1];
      if (!column) return this.rows;
      const value = column[2], sign = Math.sign(this.sort);
      return [...this.rows].sort((a, b) => {
        const one = value(a), two = value(b);
        if (one === two) return 0;
        if (one === null || two === null) return one === null ? 1 : -1;  // rows without a value come last
        return sign * (one < two ? -1 : 1);
      });
    }
    draw() {
      const body = document.createElement("tbody");
      for (const row of this.sorted().slice(0, this.shown)) {
        const line = add(body, "tr");
        for (const [title, text, , kind = ""] of this.columns) add(line, "td", text(row), { class: kind, "data-label": title });
      }
      this.section.querySelector("tbody").replaceWith(body);
      this.section.querySelectorAll("th").forEach((cell, at) => {
        cell.classList.toggle("sorted", this.sort === at + 1);
        cell.classList.toggle("reversed", this.sort === -at - 1);
      });
      const count = this.rows.length.toLocaleString("en"), hidden = this.rows.length - this.shown;
      const noun = this.all === 1 ? this.noun.slice(0, -1) : this.noun;
      this.section.querySelector("small").textContent = this.rows.length === this.all ? `${count} ${noun}` : `${count} of ${this.all.toLocaleString("en")} ${noun}`;
      this.button.hidden = hidden <= 0;
      this.button.textContent = `Show ${Math.min(MORE, hidden).toLocaleString("en")} more`;
    }
  }

  const numbers = (job) => job.order[0] + (job.order[1] || 0) / 1e7;
  const column = (title, field, kind, text = (job) => optional(job[field], String)) => [title, text, (job) => job[field], kind];
  const id = ["Job", (job) => job.id, numbers, ""];
  const names = data.named ? [column("Name", "name", "text whole"), column("User", "user", "text")] : [];
  const state = column("State", "state", "text"), gpus = column("GPUs", "gpus", "");
  const queue = new Table("queue", [
    column("Rank", "rank", ""), id, ...names, column("Partition", "partition", "text"), gpus, state,
    column("Starts", "early", "text when", interval),
    column("Waited", "submit", "", (job) => span(Math.max(0, data.written - job.submit))),
    column("Runtime", "run", "", (job) => optional(job.run, span)), column("Why", "text", "text why"),
  ], "jobs");
  const running = new Table("running", [
    id, ...names, column("Partition", "partition", "text"), gpus, column("Started", "start", "text", (job) => optional(job.start, clock)),
    column("Time left", "left", "", (job) => optional(job.left, span)), column("Nodes", "nodes", "text why"),
  ], "jobs");
  const who = new Table("who", [
    [data.named ? "User" : "Partition", (row) => row.name, (row) => row.name, data.named ? "text link" : "text"],
    ...["Jobs waiting", "GPUs waiting", "Jobs running", "GPUs running"].map((title, at) => [title, (row) => row.counts[at].toLocaleString("en"), (row) => row.counts[at], ""]),
    ["Longest wait", (row) => optional(row.since, (since) => span(Math.max(0, data.written - since))), (row) => row.since, ""],
  ], data.named ? "users" : "partitions");

  function grouped(found) {
    const rows = new Map();
    for (const job of found) {
      const name = job[owner];
      if (!rows.has(name)) rows.set(name, { name, counts: [0, 0, 0, 0], since: null });
      const row = rows.get(name), at = job.holds ? 2 : 0;
      row.counts[at] += 1;
      row.counts[at + 1] += job.gpus;
      if (!job.holds && (row.since === null || job.submit < row.since)) row.since = job.submit;
    }
    return [...rows.values()].sort((a, b) => b.counts[1] - a.counts[1] || b.counts[3] - a.counts[3]);
  }

  const FILTERS = ["text", "user", "state", "gpus"].filter(by);
  function fill(select, values) {
    for (const value of [...new Set(values)].sort()) add(select, "option", value, { value });
  }
  function filter() {
    const value = Object.fromEntries(FILTERS.map((name) => [name, by(name).value]));
    for (const name of FILTERS) remember(name, value[name]);
    const words = value.text.toLowerCase().split(/\s+/).filter(Boolean), least = Number(value.gpus) || 0;
    const found = jobs.filter((job) => job.gpus >= least && (!value.user || job.user === value.user) &&
      (!value.state || job.state === value.state) && words.every((word) => job.sought.includes(word)));
    const holding = jobs.filter((job) => job.holds).length;
    queue.show(found.filter((job) => !job.holds), jobs.length - holding);
    running.show(found.filter((job) => job.holds), holding);
    who.show(grouped(found), grouped(jobs).length);
  }

  function draw(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
  }
  const LEFT = 48, RIGHT = 20, AXIS = 20;
  const usage = data.usage;
  const first = usage ? Math.min(usage.times[0], data.written - 3600) : 0;
  const place = (at, width, left) => left + (at - first) / (data.written - first) * (width - left - RIGHT);

  function ticks(width, left) {
    const most = Math.max(2, (width - left) / 90);
    const step = [600, 1800, 3600, 7200, 10800, 21600].find((s) => (data.written - first) / s <= most) || 43200, found = [];
    data.offsets.forEach(([since, ahead], at) => {
      const begin = at ? Math.max(first, since) : first;
      const end = at + 1 < data.offsets.length ? Math.min(data.written, data.offsets[at + 1][0] - 1) : data.written;
      for (let t = Math.ceil((begin + ahead) / step) * step - ahead; t <= end; t += step) found.push(t);
    });
    return found;
  }
  // Lines break where asrptd was not running.
  function path(values, width, y, bottom) {
    let text = "", begun = null;
    values.forEach((value, at) => {
      const x = place(usage.times[at], width, LEFT), gap = at > 0 && usage.times[at] - usage.times[at - 1] > 3 * data.step;
      if (begun === null || gap) {
        if (begun !== null && bottom) text += `L${place(usage.times[at - 1], width, LEFT)},${bottom}L${begun},${bottom}Z`;
        begun = x;
        text += `M${x},${y(value)}`;
      } else text += `H${x}V${y(value)}`;
    });
    const end = place(usage.times.at(-1), width, LEFT);
    return bottom ? `${text}L${end},${bottom}L${begun},${bottom}Z` : text;
  }
  function chart(svg, most, lines, areas) {
    const width = svg.clientWidth, height = svg.clientHeight, bottom = height - AXIS;
    const y = (value) => bottom - value / Math.max(1, most) * (bottom - 8);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.replaceChildren();
    for (const level of new Set([0, Math.round(most / 2), most])) {
      draw(svg, "line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(level), y2: y(level) });
      draw(svg, "text", { x: LEFT - 6, y: y(level) + 4, "text-anchor": "end" }, level.toLocaleString("en"));
    }
    for (const tick of ticks(width, LEFT)) {
      draw(svg, "line", { class: "grid", x1: place(tick, width, LEFT), x2: place(tick, width, LEFT), y1: 0, y2: bottom });
      draw(svg, "text", { x: place(tick, width, LEFT), y: height - 5, "text-anchor": "middle" }, time(tick));
    }
    for (const [kind, values] of areas) draw(svg, "path", { class: kind, d: path(values, width, y, bottom) });
    for (const [kind, values] of lines) draw(svg, "path", { class: kind, d: path(values, width, y, 0) });
  }

  const LABEL = 90;
  const row = data.nodes.length > 200 ? 4 : Math.max(12, Math.min(14, Math.floor(560 / Math.max(1, data.nodes.length))));
  function strips() {
    const canvas = document.querySelector("#strips canvas"), width = canvas.parentNode.clientWidth, scale = window.devicePixelRatio || 1;
    const height = data.nodes.length * row + AXIS;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"), [used, free, down, soft] = ["used", "free", "down", "soft"].map(shade);
    pen.scale(scale, scale);
    pen.font = "11px system-ui, sans-serif";
    data.nodes.forEach(([name, gpus], at) => {
      const samples = usage.nodes[name] || "";
      pen.fillStyle = soft;
      pen.globalAlpha = 1;
      if (row >= 10) pen.fillText(name, 0, at * row + row - 3, LABEL - 6);
      for (let i = 0; i < samples.length; i++) {
        if (samples[i] === ".") continue;
        const left = place(usage.times[i], width, LABEL), next = i + 1 < samples.length ? usage.times[i + 1] : data.written;
        const right = place(Math.min(next, usage.times[i] + 3 * data.step), width, LABEL), idle = samples[i] === data.unusable;
        pen.globalAlpha = 1;
        pen.fillStyle = idle ? down : free;
        pen.fillRect(left, at * row + 1, right - left + 0.5, row - 2);
        if (idle) continue;
        pen.globalAlpha = Math.min(1, parseInt(samples[i], 33) / gpus);
        pen.fillStyle = used;
        pen.fillRect(left, at * row + 1, right - left + 0.5, row - 2);
      }
    });
    pen.globalAlpha = 1;
    pen.fillStyle = soft;
    pen.textAlign = "center";
    for (const tick of ticks(width, LABEL)) pen.fillText(time(tick), place(tick, width, LABEL), height - 5);
  }
  // A canvas knows no variables of a style sheet.
  function shade(name) {
    const probe = add(document.body, "i", undefined, { class: name });
    const found = name === "soft" ? getComputedStyle(document.querySelector(".legend")).color : getComputedStyle(probe).backgroundColor;
    probe.remove();
    return found;
  }
  function point(event) {
    const box = event.currentTarget.getBoundingClientRect(), x = event.clientX - box.left;
    const node = data.nodes[Math.floor((event.clientY - box.top) / row)];
    const pointed = first + (x - LABEL) / (box.width - LABEL - RIGHT) * (data.written - first);
    const at = usage.times.findLastIndex((sampled) => sampled <= pointed);
    const sample = node && at >= 0 ? (usage.nodes[node[0]] || "")[at] : undefined;
    if (sample === undefined || sample === "." || x < LABEL) return;
    const said = sample === data.unusable ? "not usable" : `${parseInt(sample, 33)} of ${node[1]} GPUs in use`;
    by("pointed").textContent = `${node[0]} at ${clock(usage.times[at])}: ${said}`;
  }
  function charts() {
    if (!usage) return;
    by("day").hidden = by("over-time").hidden = false;
    chart(by("gpu-chart"), Math.max(...usage.total), [["total-line", usage.total], ["used-line", usage.used]], [["area", usage.used]]);
    chart(by("job-chart"), Math.max(...usage.jobs, 1), [["jobs-line", usage.jobs]], []);
    strips();
  }

  function nodes() {
    const usable = data.nodes.filter((node) => node[3]).length;
    document.querySelector("#nodes small").textContent = `${usable.toLocaleString("en")} of ${data.nodes.length.toLocaleString("en")} usable`;
    for (const [name, gpus, used, works, type, state] of data.nodes) {
      const card = add(by("now"), "div", undefined, { class: "node", title: state });
      add(card, "b", name);
      add(card, "span", ` ${type ? `${type} ` : ""}${works ? `${gpus - used} of ${gpus} free` : state.toLowerCase()}`);
      const cells = add(card, "div", undefined, { class: "cells" });
      for (let i = 0; i < gpus; i++) add(cells, "i", undefined, { class: i < used ? "used" : works ? "free" : "down" });
    }
  }

  function dark() {
    const named = document.documentElement.dataset.theme;
    return named ? named === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  function theme(name) {
    if (name) document.documentElement.dataset.theme = name;
    by("theme").textContent = dark() ? "Light" : "Dark";
    charts();
  }

  function age() {
    const seconds = Date.now() / 1000 - data.written, old = data.reload > 0 && seconds > data.stale;
    by("stale").hidden = !old;
    if (old) by("stale").textContent = `This page is ${span(seconds)} old. asrptd may be down, or this device's clock is wrong.`;
  }
  // Not while somebody types or does not look: that would cost the web server for nothing.
  function reload() {
    if (!document.hidden && document.activeElement?.closest?.("#filters") === null) location.reload();
  }

  const waits = jobs.filter((job) => !job.holds && job.state !== "left to Slurm");
  by("running-jobs").textContent = jobs.filter((job) => job.holds).length.toLocaleString("en");
  by("waiting-jobs").textContent = waits.length.toLocaleString("en");
  by("wanted").textContent = waits.reduce((sum, job) => sum + job.gpus, 0).toLocaleString("en");
  fill(by("state"), jobs.map((job) => job.state));
  if (data.named) fill(by("user"), jobs.map((job) => job.user));
  for (const name of FILTERS) by(name).value = chosen.get(name) || "";
  by("filters").addEventListener("input", filter);
  by("filters").addEventListener("submit", (event) => event.preventDefault());
  by("filters").addEventListener("reset", () => setTimeout(filter));
  by("theme").addEventListener("click", () => {
    const other = dark() ? "light" : "dark";
    stored.theme = other;
    theme(other);
  });
  by("who").addEventListener("click", (event) => {
    if (!event.target.matches("td.link")) return;
    by("user").value = event.target.textContent;
    filter();
    by("filters").scrollIntoView();
  });
  document.querySelector("#strips canvas").addEventListener("pointermove", point);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());
  let resized = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(resized); resized = requestAnimationFrame(charts); });
  filter();
  nodes();
  theme(stored.theme);
  age();
  if (data.reload) {
    setInterval(age, 10000);
    setInterval(reload, data.reload * 1000);
  }
})();
