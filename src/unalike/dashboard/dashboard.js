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

// `found.ends`: the first and the last value as text; `found.scale`: 100 for percent. `range`: the lowest and highest value of the axis; that of the curve itself unless given.
function curve(found, range) {
  const [width, height, left, bottom] = [420, 180, 44, 24];
  const figure = element("figure");
  const rounds = found.points.map((p) => p[0]);
  const values = found.points.map((p) => p[1]);
  const last = values[values.length - 1];
  const [first_text, last_text] = found.ends;
  const [low, high] = range || [Math.min(...values), Math.max(...values)];
  const span = high - low || Math.abs(high) || 1;
  const end = Math.max(...rounds, 1);
  const x = (r) => left + (r / end) * (width - left - 10);
  const y = (v) => height - bottom - ((v - low) / span) * (height - bottom - 14);
  const title = found.name;
  const svg = drawn("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `${title}: from ${first_text} in round ${rounds[0]} to ${last_text} in round ${rounds[rounds.length - 1]}` });
  for (const value of [low, low + span / 2, low + span]) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width - 10, y1: y(value), y2: y(value) }));
    svg.append(drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, (found.scale * value).toPrecision(3)));
  }
  svg.append(drawn("text", { x: left, y: height - 6 }, "0"));
  svg.append(drawn("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, `round ${end}`));
  svg.append(drawn("polyline", { class: "curve", points: found.points.map((p) => `${x(p[0])},${y(p[1])}`).join(" ") }));
  svg.append(drawn("circle", { class: "end", r: 3, cx: x(rounds[rounds.length - 1]), cy: y(last) }));
  const caption = element("figcaption", `${title} `);
  caption.append(element("b", last_text));
  figure.append(svg, caption);
  return figure;
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
  const scored = state.standings.find((m) => m.metric);
  at("score").textContent = scored ? scored.metric : "score";
  at("left").textContent = state.state === "finished" ? "Every planned run has ended." : state.left === null
    ? "The time left is known after the first finished run." : `About ${duration(state.left)} left at the pace so far.`;
  at("standings").replaceChildren(...state.standings.map((m) => row([
    element("th", m.method, { scope: "row" }),
    ...[`${m.seeds_done} of ${m.seeds}${m.diverged ? `, ${m.diverged} diverged` : ""}`, `${m.rounds_done} of ${m.rounds}`, m.score_text,
      m.method === state.baseline ? "baseline" : m.difference_text, duration(m.seconds_left)].map((text) => element("td", text, { class: "number" })),
  ])));
}

function show(state) {
  for (const section of document.querySelectorAll(".of-run")) section.hidden = "standings" in state;
  for (const section of document.querySelectorAll(".of-comparison")) section.hidden = !("standings" in state);
  document.title = `${state.title}: ${state.done} of ${state.rounds} rounds`;
  for (const id of ["kind", "title", "method", "model", "state"]) at(id).textContent = state[id];
  at("done").textContent = `${state.done} of ${state.rounds} rounds done`;
  at("progress").value = state.rounds ? state.done / state.rounds : 0;
  const values = state.curves.flatMap((found) => found.points.map((p) => p[1]));
  const range = "standings" in state ? [Math.min(...values), Math.max(...values)] : null; // methods are compared on one axis
  at("curves").replaceChildren(...state.curves.map((found) => curve(found, range)));
  if ("standings" in state) { standings(state); return; }
  running = state.running;
  tick();
  at("sites").replaceChildren(...state.sites.map((site) => row([
    element("th", site.name, { scope: "row" }), element("td", site.state, { class: `state-${site.state}` }),
    ...[site.train, site.test, site.refused].map((n) => element("td", whole(n), { class: "number" })),
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
