// Reviews doubtful values one by one: the page with the value's box, and a key for each verdict.
import { call, complain, readWhile, RETRY_MILLISECONDS } from "./dashboard.js";
import { inputFor, labelled, valueOf } from "./fields.js";
import { Lists } from "./lists.js";

const part = (id) => document.getElementById(id);
const room = part("review");
const AROUND = 3000; // characters before and after a place
const METERS_PER_POINT = 0.0254 / 72;
let claimed = { claim: null, data: [] };
let left = Number(part("left").textContent.replaceAll(",", ""));
let busy = false;
const GONE = ["review_decided", "review_claimed"]; // somebody else has the value now

const lists = new Lists(part("lists"), {
  extractionId: room.dataset.extraction,
  claim: () => claimed.claim,
  act: alone,
  async dropped(documentId, path) {
    const isInside = (review) => review.document_id === documentId && (review.path === path || review.path.startsWith(`${path}.`) || review.path.startsWith(`${path}[`));
    claimed.data = claimed.data.filter((review) => !isInside(review));
    const { doubt, sample } = await call("GET", `/v1/extractions/${room.dataset.extraction}/reviews`);
    left = doubt.open + sample.open;
    await next();
  },
});

async function next() {
  if (!claimed.data.length) claimed = await call("POST", "/v1/reviews/claim", { extraction_id: room.dataset.extraction });
  const review = claimed.data[0];
  room.hidden = !review;
  part("done").hidden = Boolean(review);
  part("done-said").textContent = left ? "The remaining values are with others or were put off here: they return in some minutes" : "Nothing is left to review here";
  if (review) await show(review);
}

async function show(review) {
  const { evidence } = review;
  const spans = evidence.spans ?? [], place = spans.find((span) => span.box) ?? spans[0] ?? { start: 0, end: 0 };
  const at = documentAt(review, place), name = place.document ?? review.document;
  const link = at ? Object.assign(document.createElement("a"), { href: `${at}?start=${place.start}&end=${place.end}#mark`, textContent: name }) : name;
  part("document").replaceChildren(link, review.reason === "sample" ? ", drawn of what nobody need look at" : "");
  part("path").textContent = review.path;
  part("value").textContent = evidence.value === null ? noValue(evidence) : Array.isArray(evidence.value) ? "no item" : String(evidence.value);
  part("score").textContent = `${evidence.level}, ${evidence.score.toFixed(2)}`; // no "%": it is a probability only once it is calibrated
  part("quote").textContent = evidence.quote ?? "nowhere";
  part("reasons").replaceChildren(...(evidence.reasons ?? []).map((reason) => Object.assign(document.createElement("li"), { textContent: reason })));
  const isList = Array.isArray(evidence.value);
  part("reject").textContent = isList ? "It has items" : "No such value";
  part("correct").textContent = isList ? "These are its items" : "Correct";
  part("accept").textContent = isList ? "It has no item" : "Accept";
  part("correction").hidden = true;
  if (!isList) part("right").replaceChildren(labelled("What is right", inputFor(review.value_schema, evidence.value ?? evidence.answer ?? null)));
  showLists(review); // the value may be decided before they are loaded
  part("path").focus({ preventScroll: true });
  for (const id of ["page", "text", "no-page"]) part(id).hidden = true;
  if (place.box) showPage(review, place, at); // not awaited
  else if (at) showText(review, place, at);
  else part("no-page").hidden = false;
}

function noValue({ answer }) { return answer === undefined ? "no value" : `no value; the model answered ${answer}, which is not in the document`; }

function showLists(review) { lists.show(review).catch((error) => complain(error.message)); }

/** The path of a place's document; with an index each value has its own, and a value found nowhere has none. */
function documentAt(review, place) {
  const id = place.document_id ?? (room.dataset.index ? null : review.document_id);
  return id && `/collections/${room.dataset.collection}/documents/${id}`;
}

/** The text around a place that is on no page, or the first words. Offsets count characters, not UTF-16 units. */
async function showText(review, { start, end }, at) {
  const from = Math.max(0, start - AROUND);
  try {
    const found = await readWhile(() => review === claimed.data[0], `/v1${at}/text?start=${from}&limit=${end - from + AROUND}`);
    if (!found || review !== claimed.data[0]) return;
    const characters = [...found.text], cut = (first, last) => characters.slice(first, last).join("");
    const mark = Object.assign(document.createElement("mark"), { textContent: cut(start - from, end - from), hidden: start === end });
    part("text").replaceChildren(from ? "…" : "", cut(0, start - from), mark, cut(end - from), found.end < found.num_characters ? "…" : "");
    part("text").hidden = false;
    part("text").scrollTop = mark.offsetTop - 80;
  } catch { part("no-page").hidden = false; } // the quote is on the left
}

/** Pixels per point of the page, from the picture's `pHYs`. */
function scaleOf(bytes) {
  const view = new DataView(bytes);
  for (let at = 8; at + 12 <= view.byteLength; at += 12 + view.getUint32(at)) {
    if (view.getUint32(at + 4) === 0x70485973) return view.getUint32(at + 8) * METERS_PER_POINT;
  }
  return 1;
}

async function showPage(review, span, at) {
  const answer = await fetch(`/v1${at}/pages/${span.page}/image`);
  const bytes = await answer.arrayBuffer();
  if (review !== claimed.data[0]) return;
  if (answer.status === 429) return void setTimeout(() => review === claimed.data[0] && showPage(review, span, at), RETRY_MILLISECONDS);
  part("no-page").hidden = answer.ok;
  if (!answer.ok) return;
  const image = part("image");
  URL.revokeObjectURL(image.src);
  image.alt = `Page ${span.page + 1} of ${span.document ?? review.document}; the value is marked`;
  image.src = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  await image.decode();
  part("page").hidden = false;
  const canvas = part("box"), scale = scaleOf(bytes), [x0, y0, x1, y1] = span.box.map((point) => point * scale);
  [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
  const ink = canvas.getContext("2d"), room_ = 4 * scale;
  ink.fillStyle = "rgba(255, 196, 0, 0.28)";
  ink.strokeStyle = "#c77700";
  ink.lineWidth = Math.max(2, 1.5 * scale);
  ink.fillRect(x0 - room_, y0 - room_, x1 - x0 + 2 * room_, y1 - y0 + 2 * room_);
  ink.strokeRect(x0 - room_, y0 - room_, x1 - x0 + 2 * room_, y1 - y0 + 2 * room_);
}

function corrected(review) {
  if (Array.isArray(review.evidence.value)) return lists.itemsOf(review.path);
  const value = valueOf(part("right").querySelector("input, select"), review.path);
  if (value === null) throw new Error("Nothing is given. Write what is right, or say that the document has no such value.");
  return value;
}

/** Whether there is a correction; if not, opens its input. */
function isGiven(review) {
  if (Array.isArray(review.evidence.value)) {
    if (lists.itemsOf(review.path).length) return true;
    lists.add(review.path);
    return false;
  }
  if (!part("correction").hidden) return true;
  part("correction").hidden = false;
  const field = part("right").querySelector("input, select");
  field.focus();
  field.select?.();
  return false;
}

/** Run one action at a time, and show what happened in between. */
async function alone(work) {
  if (busy) return;
  busy = true;
  complain("");
  try { await work(); } catch (error) { complain(error.message); }
  busy = false;
  part("left").textContent = left.toLocaleString("en");
}

async function decide(verdict) {
  const review = claimed.data[0];
  if (!review || busy || (verdict === "correct" && !isGiven(review))) return;
  await alone(async () => {
    let said = "";
    if (verdict !== "next") {
      const value = verdict === "correct" ? { value: corrected(review) } : {};
      try {
        await call("POST", `/v1/reviews/${review.id}`, { verdict, claim: claimed.claim, ...value });
      } catch (error) {
        if (error.code === "item_changed") {
          lists.forget();
          showLists(review);
        }
        if (!GONE.includes(error.code)) throw error;
        said = `${error.message} This is the next one.`;
      }
      lists.forget(); // a verdict may change their content
      left = Math.max(0, left - 1);
    }
    claimed.data.shift();
    await next();
    complain(said);
  });
}

document.addEventListener("click", (event) => {
  const verdict = event.target.closest("[data-verdict]")?.dataset.verdict;
  if (verdict) decide(verdict);
});
part("correction").addEventListener("submit", (event) => { event.preventDefault(); decide("correct"); });
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key.toLowerCase(), verdict = { a: "accept", c: "correct", r: "reject", n: "next" }[key];
  if (!verdict && key !== "i" && key !== "d") return;
  event.preventDefault();
  if (verdict) decide(verdict);
  else if (key === "i") lists.add(claimed.data[0]?.path);
  else lists.dropItemOf(claimed.data[0]?.path);
});
next().catch((error) => complain(error.message));
