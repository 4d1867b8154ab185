// Building the page. Texts of servers and clients become text nodes: nothing here parses HTML, and the Content-Security-Policy blocks
// scripts that try (Trusted Types).

const SVG = "http://www.w3.org/2000/svg";

// Characters shown of a value; the rest is counted.
const LONGEST_SHOWN = 160;
const LONGEST_SENTENCE = 2_000;

/** An element with attributes, listeners (`onclick: function`) and children: nodes, texts, or null for none. */
export function h(name, attributes, ...children) {
  return build(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes, ...children) {
  return build(document.createElementNS(SVG, name), attributes, children);
}

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

/** Replaces the children of an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return parent;
}

let numbered = 0;

/** A new id, for labels. */
export function newId(prefix) {
  numbered += 1;
  return `${prefix}-${numbered}`;
}

// Characters that are invisible or change the order of their neighbours: control and format characters, lone surrogates, unassigned
// characters, line separators, and spaces other than U+0020.
const UNSEEN = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const NAMED = new Map([["\n", "\\n"], ["\r", "\\r"], ["\t", "\\t"], ["\0", "\\0"]]);

function escaped(character) {
  return NAMED.get(character) ?? `\\u{${character.codePointAt(0).toString(16)}}`;
}

/**
 * Any text as a node: unseen characters become marked escapes, long texts are cut, and the text direction does not affect its
 * neighbours.
 */
export function shown(text) {
  return safe(text, "value", LONGEST_SHOWN);
}

/** A sentence of the service, which may quote what clients sent. */
export function sentence(text) {
  return safe(text, "sentence", LONGEST_SENTENCE);
}

function safe(text, className, longest) {
  const whole = String(text);
  const node = h("bdi", { class: className });
  if (whole === "") return build(node, {}, [h("span", { class: "mark" }, "empty")]);
  // Twice as many code units hold the characters that are shown.
  const all = [...whole.slice(0, 2 * longest + 2)];
  const characters = all.slice(0, longest);
  let run = "";
  const end = () => {
    if (run !== "") node.append(run);
    run = "";
  };
  characters.forEach((character, index) => {
    const isEdge = character === " " && (index === 0 || index === characters.length - 1);
    if (!isEdge && !UNSEEN.test(character)) {
      run += character;
      return;
    }
    end();
    node.append(h("span", { class: "mark" }, isEdge ? "space" : escaped(character)));
  });
  end();
  if (all.length > longest) node.append(h("span", { class: "mark" }, `… ${count(whole.length)} characters`));
  return node;
}

/** Any text as one plain line, for labels and announcements. */
export function plain(text) {
  const characters = [...String(text).slice(0, 2 * LONGEST_SHOWN)].slice(0, 80);
  const line = characters.map((character) => (UNSEEN.test(character) ? escaped(character) : character)).join("");
  return String(text).length > line.length && characters.length === 80 ? `${line}…` : line;
}

/** Entries of a descriptor: `key=value` each; null means any value. */
export function entriesShown(entries) {
  const one = ({ key, value: text, value_sha256: digest }) => {
    const value = text ?? (digest ? `sha256:${digest}` : null);
    const end = value === null || value === undefined ? h("em", { class: "any" }, "any value") : shown(value);
    return h("span", { class: "entry" }, h("span", { class: "key" }, shown(key)), "=", end);
  };
  return h("span", { class: "entries" }, entries.flatMap((entry, index) => (index === 0 ? [one(entry)] : [" ", one(entry)])));
}

/** Entries in one plain line. */
export function entriesPlain(entries) {
  const written = ({ value, value_sha256: digest }) => (typeof value === "string" ? plain(value) : digest ? `sha256:${digest}` : "any value");
  return entries.map((entry) => `${plain(entry.key)}=${written(entry)}`).join(" ");
}

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 10 });
const SMALL = new Intl.NumberFormat("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

/** A number, with decimals only of a limit with `scale`. */
export function count(number) {
  return typeof number === "number" && Number.isFinite(number) ? GROUPED.format(number) : "–";
}

/** A number of a sketch, which is too low by at most its error. */
export function estimate(number, error) {
  return error > 0 ? `${count(number)} ±${count(error)}` : count(number);
}

/** A number per second. */
export function rate(number) {
  if (typeof number !== "number" || !Number.isFinite(number)) return "–";
  return number >= 100 || number === 0 ? GROUPED.format(Math.round(number)) : SMALL.format(number);
}

/** An instant, as commands print it: `2026-12-14 23:00 UTC`. */
export function instant(text) {
  const at = new Date(text);
  if (text === null || text === undefined || Number.isNaN(at.getTime())) return h("span", {}, "–");
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, utc(at));
}

function utc(at) {
  const iso = at.toISOString();
  return `${iso.slice(0, 10)} ${iso.slice(11, at.getUTCSeconds() === 0 ? 16 : 19)} UTC`;
}

/** An amount of a limit: `5 per 30 seconds`. */
export function amount({ requests_per_unit: requests, unit, unit_multiplier: multiplier }) {
  // A limit of requests in flight has no unit of time.
  if (!unit) return `${count(requests)} in flight`;
  return `${count(requests)} per ${multiplier > 1 ? `${count(multiplier)} ${unit}s` : unit}`;
}

/** The time of day of an instant. */
export function clock(at) {
  return at.toISOString().slice(11, 19);
}

const SPANS = [[86_400, "d"], [3_600, "h"], [60, "m"], [1, "s"]];

/** A span of time by its two largest units: `21d 9h`, `42s`. */
export function span(seconds) {
  if (seconds > 0 && seconds < 1) return `${Math.ceil(seconds * 1_000)}ms`;
  const whole = Math.max(0, Math.round(seconds));
  const from = SPANS.findIndex(([size]) => whole >= size || size === 1);
  const [[size, unit], next] = SPANS.slice(from);
  const rest = next === undefined ? 0 : Math.floor((whole % size) / next[0]);
  return `${Math.floor(whole / size)}${unit}${rest > 0 ? ` ${rest}${next[1]}` : ""}`;
}

/** A time ahead: its span and, from an hour on, its minute, first in the time zone of the limit. */
export function ahead(seconds, zone) {
  const at = new Date(Math.round((Date.now() / 1_000 + seconds) / 60) * 60_000);
  if (seconds < 3_600 || Number.isNaN(at.getTime())) return span(seconds);
  // Sweden writes 2026-12-15 00:00.
  const local = () => at.toLocaleString("sv", { timeZone: zone, dateStyle: "short", timeStyle: "short" });
  return `${span(seconds)} (${zone && zone !== "UTC" ? `${local()} ${zone}, ` : ""}${utc(at)})`;
}

/** Announces a text to screen readers, if it is new. */
export function announce(text) {
  const region = document.getElementById("announcements");
  if (region.textContent !== text) region.textContent = text;
}

/** A section of a view with a heading. */
export function panel(title, ...children) {
  const id = newId("panel");
  return h("section", { class: "panel", "aria-labelledby": id }, h("h3", { id }, title), ...children);
}

/** A control with its label above and a hint, if any, below. */
export function field(label, control, hint) {
  if (!control.id) control.id = newId("field");
  const below = hint === undefined ? null : h("span", { class: "hint", id: `${control.id}-hint` }, hint);
  if (below !== null) control.setAttribute("aria-describedby", below.id);
  return h("div", { class: "field" }, h("label", { for: control.id }, label), control, below);
}

/** A select element; options are pairs of value and text. */
export function select(options, attributes) {
  return h("select", attributes ?? {}, options.map(([value, text]) => h("option", { value }, text)));
}

/** Chooses an option, or the first one. */
export function choose(control, value) {
  control.value = value ?? "";
  if (control.selectedIndex < 0) control.selectedIndex = 0;
}

/** A text field, which the browser does not store. */
export function input(attributes) {
  return h("input", { type: "text", autocomplete: "off", autocapitalize: "none", spellcheck: "false", ...attributes });
}

/** Asks for confirmation in a dialog. Resolves to true or false. */
export function confirmed(question, details, action) {
  return new Promise((resolve) => {
    const id = newId("question");
    const close = (answer) => () => {
      resolve(answer);
      dialog.remove();
      before?.focus();
    };
    const before = document.activeElement;
    const dialog = h("dialog", { "aria-labelledby": id, oncancel: close(false) },
      h("h2", { id }, question), details,
      h("div", { class: "buttons" },
        h("button", { type: "button", class: "danger", onclick: close(true) }, action),
        h("button", { type: "button", autofocus: true, onclick: close(false) }, "Cancel")));
    document.body.append(dialog);
    dialog.showModal();
  });
}
