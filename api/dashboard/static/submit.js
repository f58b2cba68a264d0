// Turns files into a batch or an extraction through the API, like any client.
import { call, complain } from "./dashboard.js";

const part = (id) => document.getElementById(id);
const KINDS = [["batch", /\.jsonl(\.gz)?$/i], ["table", /\.(csv(\.gz)?|parquet)$/i], ["extraction", /./]];
const NAMES = { batch: "a batch is one .jsonl file", table: "a table is one .csv or .parquet file" };
const kindOf = (file) => KINDS.find(([, ends]) => ends.test(file.name))[0];
const grouped = (number) => Number(number).toLocaleString("en");
let sent = [];
let input = null; // the id of the batch's input file
let latest = new AbortController();

/** Run an action that aborts any earlier one: an upload, making requests, an estimate of earlier choices. */
async function supersede(act) {
  latest.abort();
  const { signal } = (latest = new AbortController());
  complain("");
  try { await act(signal); }
  catch (error) { if (!signal.aborted) complain(error.message); }
}

/** Upload with progress, which fetch does not report. */
function upload(file, purpose, progress, signal) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    form.append("purpose", purpose);
    form.append("file", file, file.name);
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/files");
    request.setRequestHeader("x-csrf-token", document.querySelector('meta[name="csrf-token"]').content);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    signal.addEventListener("abort", () => request.abort());
    request.onabort = () => reject(signal.reason);
    request.onerror = () => reject(new Error(`${file.name} was not sent: the connection broke. Try again.`));
    request.onload = () => {
      const answer = JSON.parse(request.responseText || "{}");
      if (request.status === 200) resolve(answer);
      else reject(new Error(answer.error?.message ?? `${file.name} was refused with ${request.status}.`));
    };
    request.send(form);
  });
}

async function uploadAll(files, purpose, signal) {
  const uploaded = [];
  part("sent").hidden = false;
  try {
    for (const [n, file] of files.entries()) {
      part("sent-name").textContent = file.name;
      part("sent-state").textContent = files.length > 1 ? `${n + 1} of ${files.length}` : "uploading";
      uploaded.push(await upload(file, purpose, (share) => { part("sent-bar").value = 1000 * (n + share) / files.length; }, signal));
      signal.throwIfAborted();
      part("sent-bar").value = 1000 * (n + 1) / files.length;
    }
  } catch (error) {
    if (!signal.aborted) part("sent-state").textContent = "not uploaded";
    throw error;
  }
  part("sent-name").textContent = files.length > 1 ? `${files.length} files` : files[0].name;
  part("sent-state").textContent = "uploaded";
  return uploaded;
}

async function send(files, signal) {
  for (const id of ["sent", "batch", "table", "extraction"]) part(id).hidden = true;
  if (!files.length) return;
  const kind = kindOf(files[0]);
  if (files.some((file) => kindOf(file) !== kind)) throw new Error("You gave files of different kinds. Give one .jsonl file, one table, or only documents.");
  if (NAMES[kind] && files.length > 1) throw new Error(`You gave ${files.length} files, but ${NAMES[kind]}: give one at a time.`);
  sent = await uploadAll(files, kind === "batch" ? "batch" : "user_data", signal);
  input = sent[0].id;
  if (kind === "table") {
    const table = await call("GET", `/v1/files/${input}/table`);
    signal.throwIfAborted();
    showTable(table);
  }
  part(kind).hidden = false;
  if (kind === "batch") await estimate(signal);
  if (kind === "extraction") part("extract").disabled = false;
}

/** Put rows of texts into a table's body. */
function fill(body, rows) {
  body.replaceChildren(...rows.map((cells) => {
    const row = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = row.appendChild(document.createElement("td"));
      cell.textContent = text;
      cell.className = kind;
    }
    return row;
  }));
}

const isWord = (name) => /^[A-Za-z_]\w*$/.test(name);
const taken = (name) => `{{ ${isWord(name) ? name : `row[${JSON.stringify(name)}]`} }}`;
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value ?? null));

function showTable(table) {
  const columns = part("columns");
  columns.replaceChildren(...table.columns.map((name) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: name, title: `Put ${taken(name)} into the prompt` });
    button.addEventListener("click", () => {
      const prompt = part("prompt");
      prompt.setRangeText(taken(name), prompt.selectionStart, prompt.selectionEnd, "end");
      forgetRequests();
      prompt.focus();
    });
    return button;
  }));
  const head = document.createElement("tr");
  head.append(...table.columns.map((name) => Object.assign(document.createElement("th"), { scope: "col", textContent: name })));
  part("rows-head").replaceChildren(head);
  fill(part("rows"), table.rows.map((row) => table.columns.map((name) => [shown(row[name]).slice(0, 200), "long"])));
  part("made").hidden = true;
}

/** Drop the requests of the table, as its form has changed. */
function forgetRequests() {
  latest.abort();
  part("batch").hidden = part("made").hidden = true;
}

async function makeRequests(signal) {
  const given = Object.fromEntries(new FormData(part("table-form")));
  const wish = { prompt: given.prompt, model: given.model, parameters: { max_tokens: Number(given.max_tokens) } };
  if (given.schema.trim()) {
    try { wish.schema = JSON.parse(given.schema); } catch (error) { throw new Error(`The schema is no JSON: ${error.message}`); }
  }
  part("batch").hidden = part("made").hidden = true;
  const made = await call("POST", `/v1/files/${sent[0].id}/requests`, wish);
  signal.throwIfAborted();
  const failed = made.failed ? ` ${grouped(made.failed)} do not fit the prompt and are left out.` : "";
  part("made-said").textContent = `${grouped(made.rows - made.failed)} of ${grouped(made.rows)} rows became requests.${failed}`;
  part("made-said").classList.toggle("warn", made.failed > 0);
  part("first").textContent = (made.lines[0]?.body.messages ?? []).map((message) => `${message.role}:\n${message.content}`).join("\n\n");
  part("first-of").hidden = !made.lines.length;
  part("unfit").hidden = !made.failed;
  fill(part("unfit-rows"), made.errors.map((error) => [[error.row, "number"], [error.message, ""]]));
  part("made").hidden = false;
  input = made.file.id;
  part("batch-form").elements.endpoint.value = "/v1/chat/completions";
  part("batch").hidden = false;
  await estimate(signal);
}

const chosen = () => Object.fromEntries(new FormData(part("batch-form")));

async function estimate(signal) {
  part("start").disabled = true;
  try {
    const found = await call("POST", "/v1/estimates", { input_file_id: input, ...chosen() });
    signal.throwIfAborted();
    showEstimate(found);
  } catch (error) {
    if (!signal.aborted) part("estimate").hidden = true;
    throw error;
  }
}

function showEstimate(found) {
  const places = {
    requests: grouped(found.requests),
    model: found.model ?? "no known model",
    tokens: `${grouped(found.input_tokens)} + ${grouped(found.output_tokens)}`,
    cost: found.cost_micros ? `${(found.cost_micros / 1e6).toFixed(4)} ${found.currency}` : "nothing",
    budget: found.fits_budget ? "your budget has room" : "more than your budget has left",
    eta: found.eta ? new Date(found.eta * 1000).toLocaleString() : "not known",
    basis: found.eta ? "if it is started now" : found.basis,
  };
  for (const [name, text] of Object.entries(places)) document.querySelector(`[data-of="${name}"]`).textContent = text;
  part("estimate").hidden = false;
  const bad = found.invalid_lines, skips = chosen().invalid_lines === "skip";
  part("invalid").hidden = !bad;
  if (bad) {
    const which = found.checked_lines < found.requests ? `Of the first ${grouped(found.checked_lines)} lines` : `Of ${grouped(found.checked_lines)} lines`;
    part("invalid-said").textContent = `${which} ${grouped(bad)} ${bad === 1 ? "is" : "are"} invalid. ${skips ? "They are left out and listed in the error file." : "With these choices the batch would be refused: correct the file, or leave them out."}`;
    fill(part("invalid-lines"), (found.errors?.data ?? []).slice(0, 50).map((error) => [[error.line ?? "", "number"], [error.code, "mono"], [error.message, ""]]));
  }
  const fails = found.verdict === "fails", stops = fails || found.verdict === "refused"; // the outcome of a create call
  part("refused").hidden = !stops || (fails && bad > 0); // invalid lines are reported above
  part("refused").textContent = found.reason ?? "";
  part("start").disabled = stops || (bad > 0 && !skips) || !found.requests;
}

async function go(button, act) {
  button.disabled = true;
  complain("");
  try { location.assign(await act()); }
  catch (error) { complain(error.message); button.disabled = false; }
}

const choose = (files) => supersede((signal) => send([...files], signal));

part("files").addEventListener("change", (event) => choose(event.target.files));
part("batch-form").addEventListener("change", () => supersede(estimate));
part("batch-form").addEventListener("submit", (event) => event.preventDefault());
part("start").addEventListener("click", () => go(part("start"), async () => {
  const made = await call("POST", "/v1/batches", { input_file_id: input, ...chosen() });
  return `/batches/${made.id}`;
}));
part("table-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  part("make").disabled = true;
  await supersede(makeRequests);
  part("make").disabled = false;
});
part("table-form").addEventListener("input", forgetRequests);
part("extraction-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target)), file_ids = sent.map((file) => file.id);
  go(part("extract"), async () => {
    let schema;
    try { schema = JSON.parse(given.schema); } catch (error) { throw new Error(`The schema is no JSON: ${error.message}`); }
    const collection = await call("POST", "/v1/collections", { name: `From the browser, ${new Date().toISOString().slice(0, 19)}` });
    await call("POST", `/v1/collections/${collection.id}/documents`, { file_ids });
    const made = await call("POST", "/v1/extractions", { collection_id: collection.id, schema, model: given.model, priority: given.priority });
    return `/extractions/${made.id}`;
  });
});
for (const kind of ["dragover", "dragleave", "drop"]) part("drop").addEventListener(kind, (event) => {
  event.preventDefault();
  part("drop").classList.toggle("over", kind === "dragover");
  if (kind === "drop") choose(event.dataTransfer.files);
});
