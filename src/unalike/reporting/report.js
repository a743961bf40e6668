"use strict";

const PAPER = 620; // width of a panel on a portrait page (A4 or letter), in pixels
const NARROW = 560; // pixels below which a chart uses its narrow layout, if it has one
const dark = matchMedia("(prefers-color-scheme: dark)");

/** The colors of the page as a Plotly template, so that charts follow the light or dark theme. */
function theme() {
  const css = getComputedStyle(document.documentElement);
  const color = (name) => css.getPropertyValue(name).trim();
  const axis = {
    gridcolor: color("--line"), linecolor: color("--line"), zerolinecolor: color("--line"),
    tickcolor: color("--line"), automargin: true, title: { standoff: 12, font: { size: 13, color: color("--muted") } },
    exponentformat: "none", separatethousands: true, // 0.0002 MB, not 200µ MB
  };
  const data = { heatmap: [{ textfont: { color: color("--text") } }] };
  return { data, layout: {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: css.fontFamily, size: 13, color: color("--text") },
    hoverlabel: { bgcolor: color("--card"), bordercolor: color("--muted"), font: { color: color("--text") }, align: "left" },
    annotationdefaults: { bgcolor: color("--card") },
    // On touch screens dragging scrolls the page; only a mouse selects a region to enlarge.
    dragmode: matchMedia("(pointer: fine)").matches ? "zoom" : false,
    xaxis: axis, yaxis: axis,
  } };
}

/** The text in lines of at most so many letters, where words allow it. */
function wrapped(text, letters) {
  const line = new RegExp(`(.{1,${Math.floor(letters)}})( |$)`, "g");
  return text.split("<br>").flatMap((part) => part.match(line)).join("<br>");
}

/** Draw a chart in the layout for its width, unless it is already drawn. */
function draw(plot) {
  const id = plot.id.replace("plot", "data");
  const source = (plot.clientWidth < NARROW && document.getElementById(`${id}-narrow`)) || document.getElementById(id);
  if (plot.dataset.drawn === source.id) return;
  plot.dataset.drawn = source.id;
  const figure = JSON.parse(source.textContent);
  plot.style.height = `${figure.layout.height}px`;
  const titled = Object.values(figure.layout).filter((axis) => plot.clientWidth < NARROW && axis?.title?.text);
  titled.forEach((axis) => { axis.title.text = wrapped(axis.title.text, plot.clientWidth / 9); });
  const options = {
    responsive: true, displaylogo: false, modeBarButtons: [["toImage"]],
    toImageButtonOptions: { format: "svg", filename: plot.id },
  };
  Plotly.newPlot(plot, figure.data, { ...figure.layout, template: theme() }, options);
}

function repaint() {
  document.querySelectorAll(".plot[data-drawn]").forEach((plot) => Plotly.relayout(plot, { template: theme() }));
}

/** Set the width of all charts in pixels; null lets each fill its panel again. */
function fit(width) {
  document.querySelectorAll(".plot[data-drawn]:not([hidden])").forEach((plot) => {
    Plotly.relayout(plot, { width, autosize: width === null });
  });
}

/** Show one view of a panel. A view is drawn when first shown, since a hidden chart has no width. */
function show(panel, index) {
  panel.querySelectorAll(".plot").forEach((plot, i) => { plot.hidden = i !== index; });
  const plot = panel.querySelectorAll(".plot")[index];
  draw(plot);
  Plotly.Plots.resize(plot);
  panel.querySelectorAll(".legend button").forEach((button) => toggle(plot, button));
}

/** Show or hide the lines of one method; methods without lines in this view are hidden in the legend. */
function toggle(plot, button) {
  const visible = button.getAttribute("aria-pressed") === "true";
  const lines = plot.data.flatMap((trace, i) => (trace.legendgroup === button.dataset.key ? [i] : []));
  button.parentElement.hidden = !lines.length;
  if (lines.length) Plotly.restyle(plot, { visible }, lines);
}

/** Sort by one column: numbers in descending order, text from A; a second click reverses it. Missing numbers stay last. */
function sort(heading) {
  const table = heading.closest("table"), body = table.tBodies[0], numeric = heading.classList.contains("number");
  const [first, second] = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = heading.getAttribute("aria-sort") === first ? second : first;
  const sign = order === "ascending" ? 1 : -1;
  const value = (row) => row.cells[heading.cellIndex].dataset.value;
  const compare = (a, b) => {
    if (!numeric) return sign * value(a).localeCompare(value(b));
    const [x, y] = [value(a), value(b)].map(Number);
    return Number.isNaN(x) || Number.isNaN(y) ? Number.isNaN(x) - Number.isNaN(y) : sign * (x - y);
  };
  table.querySelectorAll("thead th").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", order);
  body.append(...[...body.rows].sort(compare));
}

async function copy(button) {
  const code = document.getElementById(button.dataset.copy);
  getSelection().selectAllChildren(code);
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  document.getElementById("status").textContent = "Command copied";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

/** Run Plotly's script, which the page holds compressed. */
async function unpack() {
  const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
}

function start(panel) {
  show(panel, 0);
  panel.querySelectorAll(".views input").forEach((input, i) => input.addEventListener("change", () => show(panel, i)));
  panel.querySelectorAll(".legend button").forEach((button) => button.addEventListener("click", () => {
    button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
    toggle(panel.querySelector(".plot:not([hidden])"), button);
  }));
}

const panels = document.querySelectorAll(".panel");
if (panels.length && !("DecompressionStream" in window)) document.getElementById("old").hidden = false;
else if (panels.length) unpack().then(() => panels.forEach(start));
document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => sort(button.closest("th"))));
document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", () => copy(button)));
dark.addEventListener("change", repaint);
addEventListener("resize", () => document.querySelectorAll(".plot[data-drawn]:not([hidden])").forEach(draw));
matchMedia("print").addEventListener("change", repaint);
addEventListener("beforeprint", () => {
  document.querySelectorAll(".more").forEach((folded) => { folded.open = true; });
  fit(PAPER);
});
addEventListener("afterprint", () => fit(null));
