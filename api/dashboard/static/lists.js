// The lists of the reviewed document: their items, a form to add a missing one, and a button to drop one.
import { call, complain, readWhile } from "./dashboard.js";
import { inputsFor } from "./fields.js";

const made = (tag, props = {}, ...inside) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...inside);
  return node;
};
const isIn = (path, item) => path === item || path.startsWith(`${item}.`) || path.startsWith(`${item}[`);

/** An item as readable text on one line. */
function spelled(value) {
  if (value === null) return "–";
  if (Array.isArray(value)) return value.map(spelled).join(", ");
  return typeof value === "object" ? Object.entries(value).map(([name, inner]) => `${name} ${spelled(inner)}`).join(" · ") : String(value);
}

export class Lists {
  #room; #of; #review = null; #found = null; #asked = null; // the awaited answer: one from before a verdict may lack it

  /** `of` has the extraction's id, the name of the claim, a function that serialises actions, and a callback after a drop. */
  constructor(room, of) { [this.#room, this.#of] = [room, of]; }

  /** Show the lists of a review's document. */
  async show(review) {
    const isSame = this.#found?.document_id === review.document_id;
    this.#review = review;
    if (isSame) return this.#draw();
    this.forget();
    const asked = (this.#asked = Symbol());
    const query = new URLSearchParams({ extraction_id: this.#of.extractionId, document_id: review.document_id });
    const found = await readWhile(() => asked === this.#asked, `/v1/reviews/items?${query}`);
    if (found && asked === this.#asked) this.#told(found);
  }

  /** Show nothing until the lists are read again, as they were changed. */
  forget() {
    this.#found = this.#asked = null;
    this.#room.replaceChildren();
  }

  /** The current content of a list. */
  itemsOf(path) {
    return (this.#list(path)?.items ?? []).filter((item) => !item.dropped).map((item) => item.value);
  }

  /** Open the form of the list that contains a path, or of the first list. */
  add(path = "") {
    const lists = this.#found?.data ?? [];
    const inside = lists.filter((one) => isIn(path, one.path)).sort((one, other) => other.path.length - one.path.length);
    const list = inside[0] ?? lists[0];
    if (list) this.#open(list);
    else this.#sayWhyNot("This document has no list");
  }

  /** Drop the innermost item that contains a value. */
  dropItemOf(path = "") {
    const items = (this.#found?.data ?? []).flatMap((list) => list.items).filter((item) => !item.dropped && isIn(path, item.path));
    const item = items.sort((one, other) => other.path.length - one.path.length)[0];
    if (item) this.#drop(item);
    else this.#sayWhyNot("This value is in no item of a list");
  }

  #sayWhyNot(reason) { complain(this.#found ? `${reason}.` : "The lists of the document are not read yet: try again in a moment."); }

  #list(path) { return this.#found?.data.find((one) => one.path === path); }

  #told(found) {
    this.#found = found;
    this.#draw();
  }

  #draw() { this.#room.replaceChildren(...this.#found.data.map((list) => this.#section(list))); }

  #section(list) {
    const add = made("button", { type: "button", textContent: "Add an item", onclick: () => this.#open(list) });
    const items = made("ol", { tabIndex: 0, ariaLabel: `Items of ${list.path}` }, ...list.items.map((item) => this.#item(item)));
    const section = made("section", {}, made("h3", { className: "mono", textContent: list.path }), ...(list.items.length ? [items] : [made("p", { className: "small muted", textContent: "No item" })]), add);
    section.dataset.path = list.path;
    return section;
  }

  #item(item) {
    const line = made("li", { className: isIn(this.#review.path, item.path) ? "here" : "" }, made(item.dropped ? "s" : "span", { textContent: spelled(item.value) }));
    if (item.dropped) line.append(made("span", { className: "small muted", textContent: "dropped" }));
    else line.append(made("button", { type: "button", className: "bad", textContent: "Drop", ariaLabel: `Drop ${item.path}`, onclick: () => this.#drop(item) }));
    return line;
  }

  #sectionOf(path) { return [...this.#room.children].find((one) => one.dataset.path === path); }

  #open(list) {
    complain("");
    const section = this.#sectionOf(list.path);
    if (section.querySelector("form")) return section.querySelector("input, select, textarea").focus();
    const { labels, read } = inputsFor(list.value_schema.items, "");
    const close = () => { form.remove(); this.#room.closest("section").querySelector("h2").focus({ preventScroll: true }); };
    const form = made("form", { ariaLabel: `An item of ${list.path}` }, ...labels, made("div", { className: "actions" }, made("button", { className: "main", textContent: "Add" }), made("button", { type: "button", textContent: "Cancel", onclick: close })));
    form.addEventListener("submit", (event) => { event.preventDefault(); this.#of.act(() => this.#add(list.path, read())); });
    form.addEventListener("keydown", (event) => { if (event.key === "Escape") close(); });
    section.append(form);
    form.querySelector("input, select, textarea").focus();
  }

  async #add(path, value) {
    if (value === null) throw new Error("Nothing is given. Write the item, or cancel.");
    await this.#change({ change: "add", path: this.#list(path).next_path, value });
  }

  #drop(item) {
    if (!confirm(`Drop ${item.path} (${spelled(item.value)})? What of it is to be reviewed is decided with it.`)) return;
    const { document_id: documentId } = this.#found;
    this.#of.act(async () => {
      await this.#change({ change: "drop", path: item.path, claim: this.#of.claim() });
      await this.#of.dropped(documentId, item.path);
    });
  }

  /** Change an item; if somebody else changed it meanwhile, show their change. */
  async #change(body) {
    const of = { extraction_id: this.#of.extractionId, document_id: this.#found.document_id };
    try {
      this.#told(await call("POST", "/v1/reviews/items", { ...of, ...body }));
    } catch (error) {
      if (error.code === "item_changed") {
        const form = this.#room.querySelector("form"); // keep what was typed
        this.#told(await call("GET", `/v1/reviews/items?${new URLSearchParams(of)}`));
        if (form) this.#sectionOf(body.path.slice(0, body.path.lastIndexOf("["))).append(form);
      }
      throw error;
    }
  }
}
