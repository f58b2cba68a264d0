// Searches an index through the API, like any client.
import { call, complain } from "./dashboard.js";

const part = (id) => document.getElementById(id);

function shown(form, passage) {
  const item = document.createElement("li"), head = document.createElement("p"), text = document.createElement("p");
  const place = new URLSearchParams({ start: passage.start, end: passage.end });
  const link = Object.assign(document.createElement("a"), {
    href: `/collections/${form.dataset.collection}/documents/${passage.document_id}?${place}#mark`, textContent: passage.document,
  });
  const under = passage.headings.length ? `, ${passage.headings.join(" › ")}` : "";
  head.append(link, Object.assign(document.createElement("span"), { className: "small muted", textContent: `${under} · ${passage.num_tokens} tokens` }));
  text.textContent = passage.text;
  text.className = "passage";
  item.append(head, text);
  return item;
}

// On the document: the form appears while the page is open, after the last stage.
document.addEventListener("submit", async (event) => {
  const form = event.target.closest("#search");
  if (!form) return;
  event.preventDefault();
  const button = form.querySelector("button");
  complain("");
  button.disabled = true;
  part("found").textContent = "searching";
  try {
    const asked = new URLSearchParams({ ...Object.fromEntries(new FormData(form)), order: "score" });
    const found = await call("GET", `/v1/indexes/${form.dataset.index}/search?${asked}`);
    part("passages").replaceChildren(...found.data.map((passage) => shown(form, passage)));
    part("found").textContent = found.data.length ? `${found.data.length} passages, the best first, ${found.num_tokens} tokens together` : "Nothing was found.";
  } catch (error) {
    part("found").textContent = "";
    part("passages").replaceChildren();
    complain(error.message);
  }
  button.disabled = false;
});
