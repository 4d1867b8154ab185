// The form fields of a descriptor: its entries, in order.

import { field, fill, h, input, shown } from "./dom.js";

// Envoy's own bound of entries is not known; Weir takes 64.
const MOST_ENTRIES = 64;

/** A text as an order writes it: `*` stands for any text there, `\*` for a star and `\\` for a backslash. */
export function literal(text) {
  return text.replaceAll(/[\\*]/g, "\\$&");
}

/** Whether what an order says has a `*` that stands for any text. */
export function hasWildcard(text) {
  return text.replaceAll(/\\[\\*]/g, "").includes("*");
}

/** For each entry of a named subject whether its value is the pattern of values that share a counter. */
function shared(name) {
  return (name ?? "").split("|").slice(1).map((part) => part.includes("~"));
}

// Long values in lists are a beginning with a digest, or a digest alone.
const CUT = /…|^sha256:/u;

/**
 * An editor of entries. With `any` it is one of an order: its texts have wildcards, and an entry may stand for any value. Text fields drop line
 * breaks; a value that came from a list is therefore kept as it was until it is edited.
 */
export function entriesEditor({ legend, any, changed }) {
  const rows = h("div", { class: "rows" });
  const add = h("button", { type: "button", class: "small", onclick: () => (append("", ""), touched(), rows.lastChild.querySelector("input").focus()) }, "Add entry");
  const element = h("fieldset", {}, h("legend", {}, legend), rows, add);
  let all = [];
  let name = null;

  /** What the operator has changed is no longer the subject that was written. */
  function touched() {
    name = null;
    changed?.();
  }

  /** What a part of a long value means. */
  function partial() {
    if (name === null) return " Weir keeps a part of this long value only. Enter the whole value.";
    return name.includes("#") ? " Weir knows this long value by its digest." : null;
  }

  function kept(text, control) {
    control.value = text;
    let exact = { typed: control.value, text };
    const below = h("p", { class: "hint" });
    const show = () => fill(below,
      exact && exact.typed !== exact.text ? ["Exactly: ", shown(exact.text)] : null,
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

  /** Writes the entries of a subject, which are no patterns, whatever clients chose; and its exact name, if that is known. */
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
