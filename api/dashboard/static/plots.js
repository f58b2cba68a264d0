// Draws the plots of a page with uPlot, in the colours of its style sheet.
/* global uPlot */

const INKS = ["--accent", "--good", "--warn", "--bad", "--muted", "--ink"];
const drawn = new Map();

const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const short = (value) => (value === null ? "–" : value && Math.abs(value) < 1e-3 ? value.toExponential(1) : compact.format(value));

// Times are UTC, as everywhere on the pages.
const DAY = 86_400;
const at = (seconds) => new Date(seconds * 1000).toISOString();
const times = (_, ticks, __, ___, step) => ticks.map((tick) => (step >= DAY || tick % DAY === 0 ? at(tick).slice(5, 10) : at(tick).slice(11, 16)));
const moment = (_, seconds) => (seconds === null ? "–" : `${at(seconds).slice(0, 16).replace("T", " ")} UTC`);

function options(title, labels, width) {
  const axis = { stroke: ink("--muted"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return {
    width, height: 200, cursor: { y: false }, legend: { live: true },
    scales: { y: { range: (_, least, most) => [0, Math.max(most ?? 0, 1e-9) * 1.1] } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    axes: [{ ...axis, values: times }, { ...axis, size: 54, values: (_, ticks) => ticks.map(short) }],
    series: [{ label: "time", value: moment }, ...labels.map((label, n) => ({
      label, stroke: ink(INKS[n % INKS.length]), width: 1.75, points: { show: false }, spanGaps: false, value: (_, v) => short(v),
    }))],
  };
}

async function draw(range) {
  const answer = await fetch(`/plots?range=${range}`);
  if (!answer.ok) return;
  const plots = await answer.json();
  for (const figure of document.querySelectorAll("[data-plot]")) {
    const plot = plots[figure.dataset.plot];
    const place = figure.querySelector(".plot");
    drawn.get(figure)?.destroy();
    const labels = Object.keys(plot?.lines ?? {});
    const isEmpty = !labels.some((label) => plot.lines[label].some((value) => value));
    place.hidden = isEmpty;
    figure.querySelector("[data-empty]").hidden = !isEmpty;
    if (isEmpty) { drawn.delete(figure); continue; }
    const data = [plot.at, ...labels.map((label) => plot.lines[label])];
    drawn.set(figure, new uPlot(options(figure.dataset.plot, labels, place.clientWidth), data, place));
  }
}

let chosen = "1h";
for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    chosen = button.dataset.range;
    for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
    draw(chosen);
  });
}
addEventListener("resize", () => drawn.forEach((plot, figure) => plot.setSize({ width: figure.clientWidth, height: 200 })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw(chosen));
setInterval(() => { if (!document.hidden) draw(chosen); }, 30_000);
draw(chosen);
