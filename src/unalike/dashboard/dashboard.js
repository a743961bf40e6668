// Draws the states of the server's stream. Text is never inserted as markup, because names come from sites.
"use strict";

const at = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function element(name, text = "", attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function drawn(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

const clock = (seconds) => (seconds ? new Date(seconds * 1000).toLocaleTimeString() : "");
const whole = (value) => (value === null || value === undefined ? "–" : String(value));

// Curves in one chart, with a list of their names and last values. `ends`: the first and the last value as text; `scale`: 100 for percent;
// `color` and `strokes`: the look of a method. `wide`: the chart fills the page.
function chart(curves, wide) {
  const [width, height, left, bottom] = wide ? [900, 320, 44, 24] : [420, 180, 44, 24];
  const figure = element("figure"), list = element("figcaption");
  const points = curves.flatMap((found) => found.points);
  const values = points.map((p) => p[1]), end = Math.max(...points.map((p) => p[0]), 1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const span = high - low || Math.abs(high) || 1;
  const x = (r) => left + (r / end) * (width - left - 10);
  const y = (v) => height - bottom - ((v - low) / span) * (height - bottom - 14);
  const said = curves.map(({ name, ends, points: own }) => `${name}: from ${ends[0]} in round ${own[0][0]} to ${ends[1]} in round ${own[own.length - 1][0]}`);
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said.join("; ") });
  for (const value of [low, low + span / 2, low + span]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, (curves[0].scale * value).toPrecision(3)));
  }
  svg.append(drawn("text", { x: left, y: height - 6 }, "0"));
  svg.append(drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, `round ${end}`));
  for (const { name, points: own, ends, color, strokes } of curves) {
    const look = color ? { stroke: color, "stroke-dasharray": strokes } : {}, [r, value] = own[own.length - 1];
    svg.append(drawn("polyline", { class: "curve", points: own.map((p) => `${x(p[0])},${y(p[1])}`).join(" "), ...look }));
    svg.append(drawn("circle", { class: "end", r: 3, cx: x(r), cy: y(value), ...(color ? { fill: color } : {}) }));
    const entry = element("span", `${name} `);
    if (color) {
      const swatch = drawn("svg", { class: "swatch", viewBox: "0 0 30 10", "aria-hidden": "true" });
      swatch.append(drawn("line", { class: "curve", x1: 1, x2: 29, y1: 5, y2: 5, ...look }));
      entry.prepend(swatch);
    }
    entry.append(element("b", ends[1]));
    list.append(entry);
  }
  figure.append(svg, list);
  return figure;
}

// A row for each client, with a bar from each request to its update, or to the moment when the server gave it up, in seconds.
function timeline({ clients, bars, fates, simulated }, narrow) {
  const [width, left, bottom, step] = [narrow ? 340 : 900, narrow ? 80 : 120, 24, 18], height = step * clients.length + bottom + 8;
  const known = bars.filter((bar) => bar.begun !== null);
  const start = Math.min(...known.map((bar) => bar.begun)), end = Math.max(...known.map((bar) => bar.ended));
  const x = (seconds) => left + ((seconds - start) / (end - start || 1)) * (width - left - 10);
  const figure = element("figure"), list = element("figcaption");
  const said = fates.map(({ name, count }) => `${count} ${name}`).join(", ");
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Timeline of ${clients.length} clients: ${said}` });
  clients.forEach((name, i) => {
    const y = step * i + 14, letters = narrow ? 11 : 17;
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: y, y2: y }));
    svg.append(drawn("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, name.length > letters ? `${name.slice(0, letters - 1)}…` : name));
  });
  const color = Object.fromEntries(fates.map((fate) => [fate.name, fate.color]));
  for (const { row: i, begun, ended, round, fate } of known) {
    const bar = drawn("rect", { x: x(begun), y: step * i + 10, width: Math.max(1, x(ended) - x(begun)), height: 8, fill: color[fate] });
    bar.append(drawn("title", {}, `${clients[i]}, round ${round}: ${fate}`));
    svg.append(bar);
  }
  svg.append(drawn("text", { x: left, y: height - 6 }, `${start.toPrecision(3)} s`));
  svg.append(drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, `${end.toPrecision(3)} s${simulated ? " simulated" : ""}`));
  for (const { name, color: fill, count } of fates) {
    const swatch = drawn("svg", { class: "swatch", viewBox: "0 0 30 10", "aria-hidden": "true" });
    swatch.append(drawn("rect", { x: 1, y: 1, width: 28, height: 8, fill }));
    const entry = element("span", `${name} `);
    entry.prepend(swatch);
    entry.append(element("b", String(count)));
    list.append(entry);
  }
  figure.append(svg, list);
  return figure;
}

function devices(found) {
  at("devices").hidden = !found;
  if (!found) return;
  const whose = found.clients.length < found.asked ? `the first ${found.clients.length} of ${found.asked} clients` : "the clients";
  at("followed").textContent = `${found.simulated ? "In simulated time, from" : "From"} the request of the server to the update, or to the moment when the server gave it up: the newest bars of ${whose} that were asked.`;
  at("timeline").replaceChildren(timeline(found, at("timeline").clientWidth < 700));
}

function row(cells) {
  const made = element("tr");
  made.append(...cells);
  return made;
}

function table(found) {
  const head = [element("th", "site", { scope: "col" }), ...found.rounds.map((r) => element("th", String(r), { scope: "col", class: "number" }))];
  at("table").tHead.replaceChildren(row(head));
  at("table").tBodies[0].replaceChildren(...found.rows.map((site) => row([
    element("th", site.name, { scope: "row" }),
    ...site.cells.map(([value, status, text]) => element("td", text, {
      class: `number${value === null ? " absent" : ""}${status === "trained" ? " trained" : ""}`, title: status })),
  ])));
  const metric = found.metric;
  at("table-head").textContent = `${metric[0].toUpperCase()}${metric.slice(1)} by site and round, the newest first`;
}

let running = null;

function tick() {
  if (!running) { at("running").textContent = "none"; return; }
  const passed = Math.max(0, Date.now() / 1000 - running.since);
  const parts = [`Round ${running.round}: ${running.asked.length} sites were asked to train (${running.asked.join(", ") || "evaluation only"})`];
  if (running.quorum) parts.push(`${running.quorum} valid updates are enough`);
  parts.push(`started ${passed.toFixed(0)} s ago`);
  if (running.deadline) parts.push(`deadline after ${running.deadline} s`);
  at("running").textContent = parts.join(" · ");
}

function event(e) {
  const made = element("li");
  made.append(element("time", clock(e.time)), ` ${[e.event, e.round ? `round ${e.round}` : "", e.client, e.text].filter(Boolean).join(" · ")}`);
  return made;
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 90) return `${Math.ceil(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function standings(state) {
  const metrics = new Set(state.standings.map((m) => m.metric).filter(Boolean));
  at("score").textContent = metrics.size === 1 ? [...metrics][0] : "score";
  at("left").textContent = state.state === "finished" ? "Every planned run has ended." : state.left === null
    ? "The time left is known after the first finished run." : `About ${duration(state.left)} left at the pace so far.`;
  const isPrivate = state.standings.some((m) => m.epsilon_text);
  at("epsilon").hidden = !isPrivate;
  at("standings").replaceChildren(...state.standings.map((m) => row([
    element("th", m.method, { scope: "row" }),
    ...[`${m.seeds_done} of ${m.seeds}${m.diverged ? `, ${m.diverged} diverged` : ""}`, `${m.rounds_done} of ${m.rounds}`, metrics.size > 1 && m.metric ? `${m.score_text} ${m.metric}` : m.score_text,
      m.method === state.baseline ? "baseline" : m.difference_text, ...(isPrivate ? [m.epsilon_text || "–"] : []), duration(m.seconds_left)].map((text) => element("td", text, { class: "number" })),
  ])));
}

function show(state) {
  for (const section of document.querySelectorAll(".of-run")) section.hidden = "standings" in state;
  for (const section of document.querySelectorAll(".of-comparison")) section.hidden = !("standings" in state);
  document.title = `${state.title}: ${state.done} of ${state.rounds} rounds`;
  for (const id of ["kind", "title", "method", "model", "state"]) at(id).textContent = state[id];
  at("done").textContent = [`${state.done} of ${state.rounds} rounds done`, state.epsilon].filter(Boolean).join(", ");
  at("progress").value = state.rounds ? state.done / state.rounds : 0;
  const charts = "standings" in state && state.curves.length ? [state.curves] : state.curves.map((found) => [found]); // methods in one chart
  at("curves").replaceChildren(...charts.map((curves) => chart(curves, curves.length > 1 && at("curves").clientWidth > 700)));
  if ("standings" in state) { standings(state); return; }
  devices(state.timeline);
  running = state.running;
  tick();
  at("sites").replaceChildren(...state.sites.map((site) => row([
    element("th", site.name, { scope: "row" }), element("td", site.state, { class: `state-${site.state}` }),
    ...[whole(site.train), whole(site.test), site.received, site.sent, whole(site.refused)].map((text) => element("td", text, { class: "number" })),
  ])));
  table(state.table);
  at("none").hidden = state.refused.length > 0;
  at("refused").replaceChildren(...state.refused.slice().reverse().map((e) => row([
    element("td", clock(e.time)), element("td", e.event), element("td", whole(e.round), { class: "number" }),
    element("td", e.client), element("td", e.text, { class: "why" }),
  ])));
  at("log").replaceChildren(...state.log.slice().reverse().map(event));
}

function link(text, lost) {
  at("link").textContent = text;
  at("link").classList.toggle("lost", lost);
}

// EventSource reconnects by itself, except after an answer that is not a stream; then a new one is opened.
function follow() {
  const stream = new EventSource("stream");
  stream.onopen = () => link("following", false);
  stream.onmessage = (message) => show(JSON.parse(message.data));
  stream.onerror = () => {
    link("connection lost, trying again", true);
    if (stream.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

setInterval(tick, 1000);
follow();
