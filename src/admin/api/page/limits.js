// The configuration in force as a tree.

import { get } from "./api.js";
import { amount, announce, count, field, fill, h, input, panel, plain, shown } from "./dom.js";
import { part, words } from "./parts.js";

const PAGE = 200;
// Largest number of pages of one search, for the browser's sake.
const MOST_PAGES = 10;
const TYPING_MS = 250;
// Defaults, which are not shown.
const DEFAULTS = new Set(["algorithm=fixed_window", "commit=each", "count_denied=true"]);

export function limits(app) {
  const search = input({ type: "search", maxlength: 4096 });
  const total = h("p", { class: "hint", role: "status" });
  const tree = h("div", { class: "tree" });
  const more = h("button", { type: "button", hidden: true, onclick: () => next() }, "Show more");
  const whole = part(h("div", {}, total, tree, more));
  const form = h("form", { class: "line", role: "search", onsubmit: (event) => event.preventDefault() }, field("Search", search, "in domains, keys, values, names and files"));
  let typing = null;
  let shownFor = null;
  let found = [];
  let cursor = null;
  let pages = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      app.shows("limits", { search: search.value });
      app.now();
    }, TYPING_MS);
  });

  async function refresh(signal) {
    // Fetches only after the configuration or the search has changed.
    const wanted = JSON.stringify([app.status.generation, app.status.started_at, search.value]);
    if (wanted === shownFor) return;
    const isAnswered = await whole.load(() => get("limits", [["search", search.value], ["count", PAGE]], signal), (answer) => {
      found = answer.limits;
      pages = 1;
      draw(answer);
    }, false);
    if (isAnswered && !signal.aborted) shownFor = wanted;
  }

  async function next() {
    await whole.load(() => get("limits", [["search", search.value], ["count", PAGE], ["cursor", cursor]]), (answer) => {
      found = found.concat(answer.limits);
      pages += 1;
      draw(answer);
    }, false);
  }

  function draw(answer) {
    cursor = answer.next ?? null;
    more.hidden = cursor === null || pages >= MOST_PAGES;
    const all = `${count(answer.total)} ${answer.total === 1 ? "limit" : "limits"}`;
    const match = answer.total === 1 ? "matches" : "match";
    const some = found.length < answer.total ? `, ${count(found.length)} shown${more.hidden ? "; search to see the others" : ""}` : "";
    fill(total, search.value === "" ? `${all}${some}` : `${all} ${match}${some}`);
    fill(tree, domains(found).map(([name, root, number]) => {
      const summary = h("summary", {}, h("span", { class: "mono" }, shown(name)), " ", h("small", {}, `${count(number)} ${number === 1 ? "limit" : "limits"}`));
      return h("details", { open: found.length <= PAGE || search.value !== "" }, summary, branches(app, name, root));
    }));
    if (search.value !== "") announce(`${all} ${match}.`);
  }

  return {
    title: "Limits",
    element: h("div", { class: "view" }, panel("Configuration in force", form, whole.element)),
    refresh,
    open({ limit, search: text }) {
      search.value = text ?? limit ?? "";
    },
  };
}

/** Domains in order, each with its tree and its number of limits. */
function domains(limits) {
  const all = new Map();
  for (const limit of limits) {
    if (!all.has(limit.domain)) all.set(limit.domain, { root: newNode(), number: 0 });
    const domain = all.get(limit.domain);
    domain.number += 1;
    let node = domain.root;
    for (const level of limit.path) {
      const name = JSON.stringify([level.key, level.value ?? null]);
      if (!node.below.has(name)) node.below.set(name, { level, node: newNode() });
      node = node.below.get(name).node;
    }
    node.limit = limit;
  }
  return [...all].map(([name, { root, number }]) => [name, root, number]);
}

function newNode() {
  return { limit: null, below: new Map() };
}

function branches(app, domain, root) {
  const list = ({ below }, path) => h("ul", {}, [...below.values()].map(({ level, node }) => {
    const here = [...path, level];
    const { key, value } = level;
    const name = h("span", { class: "entry" }, h("span", { class: "key" }, shown(key)), value === null || value === undefined ? null : ["=", shown(value)]);
    return h("li", {}, h("div", { class: "branch" }, name, node.limit === null ? null : leaf(app, domain, here, node.limit)), node.below.size > 0 ? list(node, here) : null);
  }));
  return list(root, []);
}

function leaf(app, domain, path, limit) {
  const entries = path.map(({ key, value }) => ({ key, value: value ?? "" }));
  const allowed = limit.unlimited ? "unlimited" : amount(limit);
  const further = Object.entries(limit.further ?? {}).filter(([name, value]) => value !== "false" && !name.startsWith("usage_") && !DEFAULTS.has(`${name}=${value}`));
  const modes = [limit.shadow_mode ? "shadow" : null, limit.quota_mode ? "quota" : null].filter((mode) => mode !== null);
  const options = [...modes, ...further.map(([name, value]) => (value === "true" ? words(name).toLowerCase() : `${words(name).toLowerCase()} ${plain(value)}`))];
  const from = limit.from?.line ? `${plain(limit.from.document)}:${limit.from.line}` : plain(limit.from?.document ?? "");
  return h("span", { class: "leaf" },
    h("strong", {}, allowed), options.length > 0 ? ` ${options.join(", ")}` : null,
    h("span", { class: "from mono" }, from),
    h("button", { type: "button", class: "small", "aria-label": `Explain: ${plain(limit.limit)}`, onclick: () => app.go("explain", { domain, entries }) }, "Explain"),
    h("button", { type: "button", class: "small", "aria-label": `Subjects: ${plain(limit.limit)}`, onclick: () => app.go("subjects", { domain, limit: limit.limit }) }, "Subjects"));
}
