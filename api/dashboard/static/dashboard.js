// Scripts of all pages: calls of the API and live values. Pages can be read without them.

const token = document.querySelector('meta[name="csrf-token"]')?.content ?? "";
const problem = document.getElementById("problem");

export function complain(message) {
  if (!problem) return;
  problem.textContent = message;
  problem.hidden = !message;
  if (message) problem.scrollIntoView({ block: "nearest" });
}

/** Call the API with the signed-in key. Returns the answer's JSON; throws an Error with the API's message and code. */
export async function call(method, path, body, headers = {}) {
  const isForm = body instanceof FormData;
  const sent = { "x-csrf-token": token, ...headers };
  if (body !== undefined && !isForm) sent["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers: sent, body: isForm || body === undefined ? body : JSON.stringify(body) });
  if (answer.status === 401) location.assign(`/sign-in?asked=${encodeURIComponent(location.pathname + location.search)}`);
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(said.error?.message ?? `${path} answered ${answer.status}.`), { code: said.error?.code, status: answer.status });
  return said;
}

export const RETRY_MILLISECONDS = 1000; // pause before a request that was refused with 429 is retried

/** Read from the API, and retry on 429. Returns null once it is not wanted any more. */
export async function readWhile(isWanted, path) {
  while (isWanted()) {
    try { return await call("GET", path); } catch (error) { if (error.status !== 429) throw error; }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MILLISECONDS));
  }
  return null;
}

// If the menu is one scrolling line, scroll the current page into view.
const here = document.querySelector(".side [aria-current]"), names = here?.closest("ul");
if (names) names.scrollLeft += here.getBoundingClientRect().left - names.getBoundingClientRect().left - (names.clientWidth - here.offsetWidth) / 2;

// Buttons that call the API.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-call]");
  if (!button) return;
  if (button.dataset.confirm && !confirm(button.dataset.confirm)) return;
  const [method, path] = button.dataset.call.split(" ");
  button.disabled = true;
  complain("");
  try {
    const said = await call(method, path, button.dataset.body ? JSON.parse(button.dataset.body) : undefined);
    if (button.dataset.then) location.assign(button.dataset.then.replace("{id}", said.id ?? ""));
    else location.reload();
  } catch (error) {
    complain(error.message);
    button.disabled = false;
  }
});

// Forms that call the API with their fields. A field's data-kind is its format; an empty field is left out, or null with
// data-empty; a form with data-changes sends only the fields that were changed.
const isAsItCame = (field) => (field.options ? [...field.options].every((one) => one.selected === one.defaultSelected) : field.value === field.defaultValue);
const KINDS = {
  number: (field) => Number(field.value),
  flag: (field) => field.value === "true",
  moment: (field) => new Date(field.value).toISOString(),
  // money is written in micro-units; 15 digits, as 1.1 * 1e6 is not whole
  amount: (field) => Number((Number(field.value) * (field.form.elements.unit.value === "micros" ? 1e6 : 1)).toPrecision(15)),
};

function bodyOf(form) {
  const body = {};
  for (const field of form.elements) {
    const isEmpty = field.value === "";
    if (!field.name || (isEmpty && !("empty" in field.dataset)) || ("changes" in form.dataset && isAsItCame(field))) continue;
    if (field.type === "checkbox") { if (field.checked) (body[field.name] ??= []).push(field.value); continue; }
    const [name, inner] = field.name.split(".");
    const value = isEmpty ? null : (KINDS[field.dataset.kind]?.(field) ?? field.value);
    if (inner) (body[name] ??= {})[inner] = value;
    else body[name] = value;
  }
  return body;
}

document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-submit]");
  if (!form) return;
  event.preventDefault();
  const [method, path] = form.dataset.submit.split(" ");
  const body = bodyOf(form);
  complain("");
  try {
    const said = await call(method, path, body);
    const shown = form.dataset.shows && document.getElementById(form.dataset.shows);
    if (shown) { shown.hidden = false; shown.querySelector("[data-said]").textContent = said[form.dataset.said]; shown.focus(); }
    else if (form.dataset.then) location.assign(form.dataset.then.replace("{id}", said.id ?? ""));
    else location.reload();
  } catch (error) { complain(error.message); }
});

// Live values. A hidden page has no stream.
const AGAIN = 6000; // milliseconds: values in the stream may be five polls old
const stream = document.body.dataset.stream;
let source = null;
let other = null; // values of rows that the page does not have yet
let timer = 0;
let asked = 0, answered = 0; // numbers of requests for the page: an answer that was overtaken is dropped

function show(name, shown) {
  for (const place of document.querySelectorAll(`[data-live="${CSS.escape(name)}"]`)) {
    if (place.closest("[data-old] tbody")) continue;
    const [text, tone] = Array.isArray(shown) ? shown : [shown, null];
    if (place.tagName === "PROGRESS") { place.value = Number(text); continue; }
    if (place.textContent !== text) place.textContent = text;
    if (tone !== null) place.className = `pill ${tone}`;
  }
}

function showAll(values) { Object.entries(values).forEach(([name, shown]) => show(name, shown)); }

// A region with the focus is not replaced until the focus leaves; until then its rows may differ from the stream's.
async function askAnew() {
  const number = ++asked;
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (answer.status === 429 || answer.status >= 500) throw new Error(`The page answered ${answer.status}.`);
  if (!answer.ok || answer.redirected) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (number < answered) return;
  answered = number;
  for (const region of document.querySelectorAll("[data-region]")) {
    const newer = fresh.querySelector(`[data-region="${CSS.escape(region.dataset.region)}"]`);
    if (region.contains(document.activeElement)) region.dataset.old = "";
    else if (newer) region.replaceWith(document.adoptNode(newer));
  }
  document.body.dataset.layout = fresh.body.dataset.layout;
}

// The stream may be some seconds older than the page: then the page is reloaded after AGAIN, not at each message.
async function catchUp() {
  const failed = await askAnew().then(() => false, () => true);
  if (other?.layout === document.body.dataset.layout) {
    showAll(other.values); // these may be newer than the page
    other = null;
  }
  clearTimeout(timer);
  if (source && (other || failed)) timer = setTimeout(catchUp, AGAIN);
}

function hear(told) {
  if (told.layout === document.body.dataset.layout) {
    other = null;
    showAll(told.values);
  } else if (told.layout === other?.layout) Object.assign(other.values, told.values);
  else {
    other = told;
    catchUp();
  }
}

function follow() {
  if (!stream || document.hidden || source) return;
  source = new EventSource(stream);
  source.onmessage = (event) => hear(JSON.parse(event.data));
  source.onerror = (event) => {
    if (event.target.readyState !== EventSource.CLOSED) return; // it reconnects by itself
    pause();
    timer = setTimeout(comeBack, AGAIN);
  };
}

// A stream was refused. If the session has ended, reloading the page leads to the form.
async function comeBack() {
  await askAnew().catch(() => {});
  follow();
}

function pause() {
  source?.close();
  source = other = null;
  clearTimeout(timer);
}

document.addEventListener("focusout", () => document.querySelector("[data-old]") && catchUp());
document.addEventListener("visibilitychange", () => (document.hidden ? pause() : follow()));
addEventListener("pagehide", pause);
follow();
