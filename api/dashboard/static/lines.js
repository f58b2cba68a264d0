// Searches the lines of a batch through the API, and shows each hit as it is found.
import { complain } from "./dashboard.js";

const part = (id) => document.getElementById(id);
const form = part("grep"), stop = part("stop"), button = form.querySelector("button.main"), rows = part("hits").querySelector("tbody");
let search = null; // the running one's AbortController

function cell(tag, text, { className = "", label = "" } = {}) {
  const made = Object.assign(document.createElement(tag), { className, textContent: text ?? "" });
  if (label) made.dataset.label = label;
  return made;
}

function named(text, label) {
  const made = cell("td", "", { className: "mono", label });
  made.append(Object.assign(cell("span", text, { className: "name" }), { title: text ?? "" }));
  return made;
}

function shown(line) {
  const row = document.createElement("tr"), number = cell("th", "", { className: "number" }), state = cell("td", "");
  number.scope = "row";
  number.append(Object.assign(document.createElement("a"), { href: `/batches/${form.dataset.batch}/lines/${line.number}`, textContent: line.number.toLocaleString("en") }));
  state.append(cell("span", line.failed ? "failed" : "completed", { className: `pill ${line.failed ? "bad" : "good"}` }));
  row.append(number, state, cell("td", line.status_code, { className: "mono", label: "Status" }), named(line.code, "Code"), named(line.custom_id, "Id"), cell("td", line.excerpt, { className: "wide" }));
  return row;
}

const searched = ({ searched_bytes, has_ended, has_more, next_after }) => {
  const found = `${rows.children.length} found, ${(searched_bytes / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} MB searched`;
  if (!has_ended) return `${found} so far`;
  return has_more ? `${found}, up to line ${next_after.toLocaleString("en")}: search after that line for more` : `${found}: all lines`;
};

async function* received(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.map((line) => JSON.parse(line));
  }
}

async function run(query, signal) {
  const answer = await fetch(`/v1/batches/${form.dataset.batch}/lines/grep?${query}`, { signal });
  if (answer.status === 401) location.assign(`/sign-in?asked=${encodeURIComponent(location.pathname + location.search)}`);
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error?.message ?? `The search answered ${answer.status}.`);
  for await (const row of received(answer)) {
    if (row.error) throw new Error(row.error.message);
    if (row.hit) rows.append(shown(row.hit));
    else part("searched").textContent = searched(row.progress);
    part("hits").hidden = !rows.children.length;
    if (row.progress?.has_ended) return;
  }
  throw new Error("The answer broke off before the search ended. Try again.");
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  search?.abort();
  const mine = (search = new AbortController());
  const { failed, code, status, after } = form.dataset;
  const query = new URLSearchParams(Object.entries({ text: form.elements.text.value, failed, code, status, after }).filter(([, value]) => value));
  complain("");
  rows.replaceChildren();
  part("searched").textContent = "searching";
  button.disabled = true;
  stop.hidden = false;
  try { await run(query, mine.signal); } catch (error) {
    const what = error.name === "AbortError" ? "stopped" : "not ended";
    part("searched").textContent = `${rows.children.length} found, ${what}`;
    if (error.name !== "AbortError") complain(error.message);
  }
  stop.hidden = true;
  button.disabled = false;
});
stop.addEventListener("click", () => { search?.abort(); form.elements.text.focus(); });
