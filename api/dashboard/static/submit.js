// Files become a batch or an extraction, by the calls that any client makes.
import { call, complain } from "./dashboard.js";

const part = (id) => document.getElementById(id);
const isRequests = (file) => /\.jsonl(\.gz)?$/i.test(file.name);
const grouped = (number) => Number(number).toLocaleString("en");
let sent = [];

/** Upload with progress, which fetch cannot tell. */
function upload(file, purpose, progress) {
  return new Promise((resolve, reject) => {
    const form = new FormData();
    form.append("purpose", purpose);
    form.append("file", file, file.name);
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/files");
    request.setRequestHeader("x-csrf-token", document.querySelector('meta[name="csrf-token"]').content);
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onerror = () => reject(new Error(`${file.name} was not sent: the connection broke. Try again.`));
    request.onload = () => {
      const said = JSON.parse(request.responseText || "{}");
      if (request.status === 200) resolve(said);
      else reject(new Error(said.error?.message ?? `${file.name} was refused with ${request.status}.`));
    };
    request.send(form);
  });
}

async function send(files) {
  complain("");
  for (const id of ["batch", "extraction"]) part(id).hidden = true;
  if (!files.length) return;
  const asBatch = isRequests(files[0]);
  if (asBatch && files.length > 1) return complain(`You give ${files.length} files. A batch is one .jsonl file: give one at a time.`);
  if (!asBatch && files.some(isRequests)) return complain("You give requests and documents together. Give one .jsonl file, or documents alone.");
  part("sent").hidden = false;
  sent = [];
  try {
    for (const [n, file] of files.entries()) {
      part("sent-name").textContent = file.name;
      part("sent-state").textContent = files.length > 1 ? `${n + 1} of ${files.length}` : "uploading";
      sent.push(await upload(file, asBatch ? "batch" : "user_data", (share) => { part("sent-bar").value = 1000 * (n + share) / files.length; }));
      part("sent-bar").value = 1000 * (n + 1) / files.length;
    }
    part("sent-name").textContent = files.length > 1 ? `${files.length} files` : files[0].name;
    part("sent-state").textContent = "uploaded";
  } catch (error) {
    part("sent-state").textContent = "not uploaded";
    return complain(error.message);
  }
  part(asBatch ? "batch" : "extraction").hidden = false;
  if (asBatch) await estimate();
  else part("extract").disabled = false;
}

const chosen = () => Object.fromEntries(new FormData(part("batch-form")));

async function estimate() {
  part("start").disabled = true;
  complain("");
  try { showEstimate(await call("POST", "/v1/estimates", { input_file_id: sent[0].id, ...chosen() })); }
  catch (error) { part("estimate").hidden = true; complain(error.message); }
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
    part("invalid-said").textContent = `${which} ${grouped(bad)} ${bad === 1 ? "is" : "are"} invalid. ${skips ? "They are left out and listed in the error file." : "As things are chosen, the batch would be refused: mend the file, or leave them out."}`;
    part("invalid-lines").replaceChildren(...(found.errors?.data ?? []).slice(0, 50).map(lineOf));
  }
  part("start").disabled = (bad > 0 && !skips) || !found.requests;
}

function lineOf(error) {
  const row = document.createElement("tr");
  for (const [text, kind] of [[error.line ?? "", "number"], [error.code, "mono"], [error.message, ""]]) {
    const cell = row.appendChild(document.createElement("td"));
    cell.textContent = text;
    cell.className = kind;
  }
  return row;
}

async function go(button, act) {
  button.disabled = true;
  complain("");
  try { location.assign(await act()); }
  catch (error) { complain(error.message); button.disabled = false; }
}

part("files").addEventListener("change", (event) => send([...event.target.files]));
part("batch-form").addEventListener("change", estimate);
part("batch-form").addEventListener("submit", (event) => event.preventDefault());
part("start").addEventListener("click", () => go(part("start"), async () => {
  const made = await call("POST", "/v1/batches", { input_file_id: sent[0].id, ...chosen() });
  return `/batches/${made.id}`;
}));
part("extraction-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const given = Object.fromEntries(new FormData(event.target));
  go(part("extract"), async () => {
    let schema;
    try { schema = JSON.parse(given.schema); } catch (error) { throw new Error(`The schema is no JSON: ${error.message}`); }
    const collection = await call("POST", "/v1/collections", { name: `From the browser, ${new Date().toISOString().slice(0, 19)}` });
    await call("POST", `/v1/collections/${collection.id}/documents`, { file_ids: sent.map((file) => file.id) });
    const made = await call("POST", "/v1/extractions", { collection_id: collection.id, schema, model: given.model, priority: given.priority });
    return `/extractions/${made.id}`;
  });
});
for (const kind of ["dragover", "dragleave", "drop"]) part("drop").addEventListener(kind, (event) => {
  event.preventDefault();
  part("drop").classList.toggle("over", kind === "dragover");
  if (kind === "drop") send([...event.dataTransfer.files]);
});
