// The form fields of a descriptor: its entries, in order.

import { field, fill, h, input, shown } from "./dom.js";

// Largest number of entries that Weir accepts.
const MOST_ENTRIES = 64;

/** A text as an override pattern, in which `*` matches any text, `\*` a star and `\\` a backslash. */
export function literal(text) {
  return text.replaceAll(/[\\*]/g, "\\$&");
}

/** Whether a pattern has a `*` that matches any text. */
export function hasWildcard(text) {
  return text.replaceAll(/\\[\\*]/g, "").includes("*");
}

/** For each entry of a named subject, whether its value is a pattern whose values share a counter. */
function shared(name) {
  return (name ?? "").split("|").slice(1).map((part) => part.includes("~"));
}

// A list has digests of long values.
const CUT = /…|^sha256:/u;

/**
 * An editor of entries. With `any` it edits an override: texts are patterns, and an entry may match any value. Text fields drop line breaks;
 * a value that came from a list is therefore kept unchanged until it is edited.
 */
export function entriesEditor({ legend, any, changed }) {
  const rows = h("div", { class: "rows" });
  const add = h("button", { type: "button", class: "small", onclick: () => (append("", ""), touched(), rows.lastChild.querySelector("input").focus()) }, "Add entry");
  const element = h("fieldset", {}, h("legend", {}, legend), rows, add);
  let all = [];
  let name = null;

  /** After an edit, the entries are no longer the named subject. */
  function touched() {
    name = null;
    changed?.();
  }

  /** A hint for the digest of a long value. */
  function partial() {
    if (name === null) return " Weir keeps only a part of this long value. Enter the whole value.";
    return name.includes("#") ? " Weir identifies this long value by its digest." : null;
  }

  function kept(text, control) {
    control.value = text;
    let exact = { typed: control.value, text };
    const below = h("p", { class: "hint" });
    const show = () => fill(below,
      exact && exact.typed !== exact.text ? ["Exact value: ", shown(exact.text)] : null,
      exact && CUT.test(exact.text) ? partial() : null);
    control.addEventListener("input", () => {
      if (control.value !== exact?.typed) exact = null;
      touched();
      show();
    });
    show();
    return { below, read: () => (exact !== null && control.value === exact.typed ? exact.text : control.value) };
  }

  function append(key, value) {
    const keyField = input({ required: true, list: "known-keys" });
    const valueField = input();
    const keyText = kept(key, keyField);
    const valueText = kept(value ?? "", valueField);
    const box = h("input", { type: "checkbox" });
    const isAny = () => any && box.checked;
    const applied = () => (valueField.disabled = isAny());
    box.checked = any === true && value === null;
    box.addEventListener("change", () => {
      applied();
      touched();
    });
    const row = { read: () => ({ key: keyText.read(), value: isAny() ? null : valueText.read() }) };
    const gone = () => {
      all = all.filter((other) => other !== row);
      row.element.remove();
      number();
      add.focus();
      touched();
    };
    row.drop = h("button", { type: "button", class: "small drop", onclick: gone }, "Remove");
    const anyValue = any ? h("label", { class: "check" }, box, " any value") : null;
    row.element = h("div", { class: "row", role: "group" }, h("div", {}, field("Key", keyField), keyText.below), h("div", {}, field("Value", valueField), valueText.below, anyValue), row.drop);
    all.push(row);
    rows.append(row.element);
    applied();
    number();
  }

  function number() {
    all.forEach((row, index) => {
      row.element.setAttribute("aria-label", `Entry ${index + 1}`);
      row.drop.setAttribute("aria-label", `Remove entry ${index + 1}`);
      row.drop.hidden = all.length === 1;
    });
    add.disabled = all.length >= MOST_ENTRIES;
  }

  /** Fills in the entries of a subject, with their stars escaped, and its exact name, if known. */
  function write(entries, subject) {
    all = [];
    name = subject ?? null;
    fill(rows);
    const patterns = shared(name);
    const text = (exact, index) => (any && typeof exact === "string" && !patterns[index] ? literal(exact) : exact);
    (entries.length > 0 ? entries : [{ key: "", value: "" }]).slice(0, MOST_ENTRIES).forEach(({ key, value }, index) => append(text(key, index), text(value, index)));
  }

  write([]);
  return { element, write, read: () => all.map((row) => row.read()), name: () => name };
}
