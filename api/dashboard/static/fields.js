// Inputs for values by their JSON schema, and their contents as JSON.

const NUMBER = /^[-+]?\d+(\.\d+)?(e[-+]?\d+)?$/i;
const withoutNull = (schema) => schema.anyOf?.find((one) => one.type !== "null") ?? schema;

export function labelled(name, input) {
  const label = document.createElement("label");
  label.append(name, input);
  return label;
}

/** An input for a value: a choice if the schema has one; JSON for a list. */
export function inputFor(schema, value = null) {
  const { type, enum: choices } = withoutNull(schema);
  const options = choices?.filter((one) => one !== null) ?? (type === "boolean" ? [true, false] : null);
  const input = document.createElement(options ? "select" : type === "array" ? "textarea" : "input");
  input.dataset.type = type;
  input.autocomplete = "off";
  if (options) input.append(new Option("", ""), ...options.map((one) => new Option(one, JSON.stringify(one), false, one === value)));
  else if (value !== null) input.value = type === "array" ? JSON.stringify(value) : value;
  if (type === "number" || type === "integer") input.inputMode = "decimal";
  return input;
}

/** The value of an input, null if it is empty. Throws an Error that names what is allowed. */
export function valueOf(input, name) {
  const text = input.value.trim(), { type } = input.dataset;
  if (!text) return null;
  if (type === "array" && !input.options) return listOf(text, name);
  if (input.options) return JSON.parse(text);
  if (type !== "number" && type !== "integer") return text;
  const number = Number(text);
  if (!NUMBER.test(text) || !Number.isFinite(number)) throw new Error(`${text} is no number, and ${name} is one: write it like 1234.5, without currency.`);
  if (type === "integer" && !Number.isInteger(number)) throw new Error(`${text} is no whole number, and ${name} is one.`);
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) throw new Error(`${text} has more digits than this page can keep: give it over the API.`);
  return number;
}

function listOf(text, name) {
  try { return JSON.parse(text); } catch { throw new Error(`${name} is a list: write it as JSON, like ["one", "two"].`); }
}

/** Inputs for an item of a list, and a function that reads them. */
export function inputsFor(schema, name) {
  const inside = withoutNull(schema);
  if (inside.type !== "object") {
    const input = inputFor(inside), label = inside.type === "array" ? `${name}, as JSON` : name;
    return { labels: [labelled(label, input)], read: () => valueOf(input, name) };
  }
  const parts = Object.entries(inside.properties).map(([part, one]) => [part, inputsFor(one, name ? `${name}.${part}` : part)]);
  return {
    labels: parts.flatMap(([, { labels }]) => labels),
    read: () => Object.fromEntries(parts.map(([part, { read }]) => [part, read()])),
  };
}
