// "Explain this request": the output of weir explain.

import { post } from "./api.js";
import { ahead, announce, count, entriesShown, field, fill, h, input, panel, plain, sentence, shown } from "./dom.js";
import { entriesEditor } from "./entries.js";
import { facts, part, words } from "./parts.js";
import { table } from "./table.js";

// Largest number of descriptors in this form; Envoy's routes have a few.
const MOST_DESCRIPTORS = 16;
const OUTCOMES = { checked: "Limited", unlimited: "Unlimited", replaced: "Replaced", no_limit: "Not limited", unknown_domain: "Not limited: unknown domain" };

export function explain(app) {
  const domain = input({ required: true, maxlength: 4096, list: "known-domains" });
  const editors = h("div", {});
  const add = h("button", { type: "button", class: "small", onclick: () => (append([]), editors.lastChild.querySelector("input").focus()) }, "Add descriptor");
  const follow = h("input", { type: "checkbox", id: "explain-follow", checked: true });
  const result = h("div", {});
  const whole = part(result);
  const output = h("section", { class: "panel", "aria-label": "Explanation", hidden: true }, whole.element);
  let all = [];
  let requested = null;
  let last = null;
  let opened = null;

  const form = h("form", { onsubmit: submitted },
    h("div", { class: "line" }, field("Domain", domain)), editors,
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Explain"), add,
      h("span", { class: "check" }, follow, " ", h("label", { for: "explain-follow" }, "Update the live state"))));

  function append(entries, subject) {
    const editor = entriesEditor({ legend: `Descriptor ${all.length + 1}` });
    editor.write(entries, subject);
    all.push(editor);
    editors.append(editor.element);
    add.disabled = all.length >= MOST_DESCRIPTORS;
  }

  function written(descriptors, subject) {
    all = [];
    fill(editors);
    descriptors.forEach((entries) => append(entries, subject));
  }

  function submitted(event) {
    event.preventDefault();
    const subject = all.length === 1 && domain.value === opened?.domain ? all[0].name() : null;
    app.shows("explain", all.length === 1 ? { ...opened, domain: domain.value, entries: all[0].read(), subject } : { domain: domain.value });
    requested = { subject, request: { domain: domain.value, descriptors: all.map((editor) => ({ entries: editor.read() })) } };
    last = null;
    load();
  }

  async function load(signal) {
    const mine = requested;
    const { subject, request } = mine;
    output.hidden = false;
    const call = () => (subject === null ? post("explain", request, signal) : post(`explain?${new URLSearchParams({ subject })}`, undefined, signal));
    await whole.load(call, (report) => {
      const text = JSON.stringify(report);
      if (text === last || mine !== requested) return;
      if (last === null) announce(`Explained: ${report.descriptors.map(({ reason }) => plain(reason)).join("; ")}`);
      last = text;
      draw(request, report);
    }, signal !== undefined);
  }

  function draw(request, report) {
    // If a button here has the focus, the new one gets it.
    const focused = [...result.querySelectorAll("button")].indexOf(document.activeElement);
    fill(result, report.descriptors.map((descriptor, index) => described(app, request, descriptor, index)));
    if (focused >= 0) result.querySelectorAll("button")[focused]?.focus();
  }

  written([[]]);
  return {
    title: "Explain",
    element: h("div", { class: "view" }, panel("Explain this request", h("p", { class: "hint" }, "Find the limit of a request, and why no other limit applies. Nothing is counted."), form), output),
    async refresh(signal) {
      if (requested !== null && follow.checked) await load(signal);
    },
    open(subject) {
      domain.value = subject.domain;
      opened = subject;
      written([subject.entries.map(({ key, value }) => ({ key, value: value ?? "" }))], subject.subject);
      requested = null;
      last = null;
      output.hidden = true;
      // A subject from the tree of limits may have no values.
      if (subject.entries.length > 0 && subject.entries.every(({ value }) => value !== "" && value !== null)) form.requestSubmit();
    },
  };
}

function described(app, request, { subject: name, outcome, reason, levels, limit, counter, live, refused_now: isRefused }, index) {
  const { entries } = request.descriptors[index];
  const subject = { domain: request.domain, entries, limit: limit?.path, subject: name };
  const isLimited = outcome === "checked";
  const buttons = h("div", { class: "buttons" },
    isLimited && limit?.fields?.track_usage === true ? h("button", { type: "button", class: "small", onclick: () => app.go("usage", subject) }, "Usage") : null,
    h("button", { type: "button", class: "small", onclick: () => app.go("overrides", subject) }, "Override"));
  const place = limit === undefined || limit === null ? [] : [["Limit", h("span", { class: "mono" }, shown(limit.path))], ["Defined in", h("span", { class: "mono" }, shown(origin(limit.from)))]];
  const fields = Object.entries(limit?.fields ?? {}).filter(([, value]) => String(value) !== "false").map(([name, value]) => [words(name), shown(value)]);
  return h("article", { class: "explained" },
    h("h3", {}, entriesShown(entries)),
    h("p", { class: "outcome" }, h("strong", { class: isLimited ? "tag" : "tag plain" }, OUTCOMES[outcome] ?? words(outcome)), " ", isRefused ? [h("strong", { class: "tag block" }, "Refused now"), " "] : null, sentence(reason)),
    (levels ?? []).length > 0 ? steps(levels) : null,
    live ? h("div", {}, h("h4", {}, "Live state"), facts(liveFacts(live, limit?.fields?.timezone))) : null,
    facts([...place, ...fields, ["Counter", counter ? h("span", { class: "mono" }, shown(counter)) : null]]),
    buttons);
}

function origin(from) {
  if (typeof from === "string") return from;
  return from?.line ? `${from.document}:${from.line}` : (from?.document ?? "");
}

/** The lookup, level by level. */
function steps(levels) {
  const others = ({ later, other_values: values, more }) => {
    const parts = [];
    if ((later ?? []).length > 0) parts.push(["match later, so not used: ", list(later)]);
    if ((values ?? []).length > 0) parts.push(["other values: ", list(values), more > 0 ? ` and ${count(more)} more` : null]);
    return parts.length === 0 ? "–" : parts.map((one) => h("div", {}, one));
  };
  const lookUp = table({
    caption: "Lookup, level by level",
    columns: [
      { title: "Entry", node: ({ entry }) => h("span", { class: "mono" }, shown(entry)) },
      { title: "Matches", node: ({ matched }) => (matched ? h("span", { class: "mono" }, shown(matched)) : "nothing") },
      { title: "How", text: ({ how }) => how ?? "–" },
      { title: "Not used", node: others },
    ],
    key: ({ index }) => String(index),
    empty: "",
  });
  lookUp.update(levels.map((level, index) => ({ ...level, index })));
  return lookUp.element;
}

function list(names) {
  return names.flatMap((name, index) => [index === 0 ? "" : ", ", h("span", { class: "mono" }, shown(name))]);
}

/** The state of a counter as names and values. Fields that this page does not know are shown as they are. */
function liveFacts(live, zone) {
  const known = {
    used: ["Used", count],
    left: ["Left", count],
    resets_in_seconds: ["Resets in", (seconds) => ahead(seconds, zone)],
    error: ["The store did not answer", sentence],
    policy: ["Failure policy", (policy) => h("span", { class: "mono" }, shown(policy))],
  };
  return Object.entries(live).filter(([name, value]) => value !== null && value !== undefined && !name.endsWith("_hits")).map(([name, value]) => {
    if (known[name] !== undefined) return [known[name][0], known[name][1](value)];
    return [words(name), typeof value === "string" ? shown(value) : shown(JSON.stringify(value))];
  });
}
