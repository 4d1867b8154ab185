// The overrides in force, and forms to set, remove and reset.

import { get, post, remove } from "./api.js";
import { amount, confirmed, count, entriesPlain, entriesShown, field, fill, h, input, instant, newId, panel, plain, select, sentence, shown } from "./dom.js";
import { entriesEditor, hasWildcard } from "./entries.js";
import { limitOf, part } from "./parts.js";
import { table } from "./table.js";

const SHOWN = 200;
const CHOOSE = "Choose what to do";
const UNITS = ["second", "minute", "hour", "day", "week", "month", "quarter", "year"];
const SPANS = [["900", "15 minutes"], ["3600", "1 hour"], ["28800", "8 hours"], ["86400", "1 day"], ["604800", "1 week"], ["at", "Until a given time"], ["none", "Until removed"]];
const AMOUNTS = [["to", "in all"], ["add", "added to the limit"]];
const KINDS = [["block", "Block: refuse every request"], ["exempt", "Exempt: do not limit"], ["raise", "Raise: set another amount"], ["reset", "Reset: restart the counter"]];

export function overrides(app) {
  const message = h("div", { class: "result", role: "status", tabindex: "-1" });
  const rows = table({
    caption: "Overrides in force",
    columns: [
      {
        title: "Subject",
        node: (item) => h("div", { class: "subject" }, entriesShown(item.entries), h("small", {}, shown(item.domain)),
          h("span", { class: "actions" },
            h("button", { type: "button", class: "small", "aria-label": `Remove: ${item.kind} ${entriesPlain(item.entries)}`, onclick: () => removed(item) }, "Remove"))),
      },
      { title: "Override", text: (item) => effect(item) },
      { title: "Until", text: ({ until }) => (until ? instant(until).textContent : "removed") },
      { title: "Reason", node: ({ reason }) => (reason ? shown(reason) : "–") },
      { title: "By", node: ({ by, created_at: at }) => h("span", {}, shown(by), h("br"), h("small", {}, instant(at))) },
    ],
    key: ({ id, created_at: at }) => `${id} ${at}`,
    empty: "No overrides are in force.",
  });
  const total = h("p", { class: "hint" });
  const list = part(h("div", {}, rows.element, total));
  const past = table({
    caption: "Overrides that ended within the last week",
    columns: [
      { title: "Subject", node: (item) => h("div", { class: "subject" }, entriesShown(item.entries), h("small", {}, shown(item.domain))) },
      { title: "Override", text: (item) => effect(item) },
      { title: "Reason", node: ({ reason }) => (reason ? shown(reason) : "–") },
      { title: "By", node: ({ by, created_at: at }) => h("span", {}, shown(by), h("br"), h("small", {}, instant(at))) },
      { title: "Ended", node: ({ ended }) => h("span", {}, ended.by === "expired" ? "expired" : shown(ended.by), h("br"), h("small", {}, instant(ended.at))) },
    ],
    key: ({ id, ended }) => `${id} ${ended.at}`,
    empty: "No override ended within the last week.",
  });
  const pastList = part(past.element);

  const off = h("p", { class: "notice", hidden: true }, "This process accepts no changes. Set ", h("code", {}, "ADMIN_TOKEN_FILE"), " to a file with one line name:token for each person who may make changes, and restart Weir.");
  const needed = h("div", { class: "notice", hidden: true },
    h("p", {}, "Changes need a token from the file that ", h("code", {}, "ADMIN_TOKEN_FILE"), " names. Weir logs its name with each change."),
    h("button", { type: "button", class: "main", onclick: () => app.askToken() }, "Enter token"));

  const group = newId("kind");
  const kinds = h("fieldset", { class: "kinds" }, h("legend", {}, "Action"), KINDS.map(([value, text]) => {
    const id = newId("kind");
    return h("div", { class: "check" }, h("input", { type: "radio", name: group, id, value, onchange: changed }), h("label", { for: id }, text));
  }));
  const domain = input({ required: true, maxlength: 4096, list: "known-domains", oninput: changed });
  const editor = entriesEditor({ legend: "Descriptor", any: true, changed: () => changed() });
  const requests = input({ type: "number", min: "0", max: "4294967295", step: "any", oninput: changed });
  const unit = select(UNITS.map((name) => [name, name]), { onchange: changed });
  const multiplier = input({ type: "number", min: "1", max: "4294967295", step: "1", value: "1", oninput: changed });
  const period = h("div", { class: "line" }, field("per", unit, "the unit of the limit"), field("times", multiplier, "its unit_multiplier"));
  const mode = select(AMOUNTS, { onchange: changed });
  const amountFields = h("div", { class: "line" }, field("Requests", requests), field("Amount", mode), period);
  const now = h("p", { class: "hint" });
  const lasts = select(SPANS, { onchange: changed });
  const end = input({ type: "datetime-local", oninput: changed });
  const endField = field("Until (UTC)", end);
  const times = h("div", { class: "line" }, field("For", lasts), endField);
  const reason = input({ maxlength: 300, oninput: changed });
  const summary = h("p", { class: "summary", "aria-live": "polite" });
  // Not a submit button: Enter in a field must not send a change.
  const submit = h("button", { type: "button", class: "main", onclick: submitted }, CHOOSE);
  const wrong = h("p", { class: "wrong", role: "alert" });
  const form = h("form", { hidden: true, onsubmit: (event) => event.preventDefault() }, kinds, h("div", { class: "line" }, field("Domain", domain)), editor.element,
    h("p", { class: "hint" }, h("code", {}, "*"), " matches any text, ", h("code", {}, "\\*"), " a star, and ", h("code", {}, "\\\\"), " a backslash."), amountFields, now, times, field("Reason", reason, "for the log and the list below"), summary, wrong,
    h("div", { class: "buttons" }, submit));

  const kind = () => form.querySelector("input[type=radio]:checked")?.value ?? null;

  let latest = null;

  function read() {
    const entries = editor.read();
    // The exact name of the opened subject, until the operator edits it.
    const subject = latest !== null && domain.value === latest.domain ? editor.name() : null;
    if (kind() === "reset") return { kind: "reset", domain: domain.value, entries, subject };
    // A limit of requests in flight has no unit.
    const per = period.hidden ? {} : { unit: unit.value, unit_multiplier: multiplier.valueAsNumber };
    const rate = kind() === "raise" ? { requests_per_unit: requests.valueAsNumber, ...per } : null;
    const to = mode.value === "to" ? rate : null;
    const add = mode.value === "add" ? rate : null;
    let until = null;
    if (lasts.value === "at") until = end.value === "" ? null : `${end.value.length === 16 ? `${end.value}:00` : end.value}Z`;
    else if (lasts.value !== "none") until = new Date(Math.ceil((Date.now() + Number(lasts.value) * 1000) / 1000) * 1000).toISOString().replace(".000Z", "Z");
    return { kind: kind(), domain: domain.value, entries, subject, to, add, until, reason: reason.value };
  }

  function changed() {
    const chosen = kind();
    amountFields.hidden = chosen !== "raise";
    now.hidden = chosen !== "raise";
    requests.required = chosen === "raise";
    multiplier.required = chosen === "raise" && !period.hidden;
    times.hidden = chosen === "reset" || chosen === null;
    reason.parentElement.hidden = times.hidden;
    submit.disabled = chosen === null;
    endField.hidden = lasts.value !== "at";
    end.required = chosen !== "reset" && lasts.value === "at";
    for (const box of editor.element.querySelectorAll("input[type=checkbox]")) {
      box.disabled = chosen === "reset";
      if (chosen === "reset" && box.checked) box.click();
    }
    const title = { block: "Block", exempt: "Exempt", raise: "Raise", reset: "Reset" }[chosen] ?? CHOOSE;
    if (submit.textContent !== title) submit.textContent = title;
    const text = chosen === null || domain.value === "" || editor.read().some(({ key }) => key === "") ? "" : consequence(read());
    if (summary.textContent !== text) summary.textContent = text;
  }

  async function submitted() {
    if (form.reportValidity()) await send(read());
  }

  async function send(change) {
    fill(wrong);
    const isWide = reachesMany(change.entries);
    if (isWide || change.kind === "reset") {
      const question = change.kind === "reset" ? "Reset this counter?" : "This change applies to more than one value. Continue?";
      if (!(await confirmed(question, h("p", {}, consequence(change)), submit.textContent))) return;
    }
    submit.disabled = true;
    try {
      if (change.kind === "reset") {
        const answer = await post("reset", change.subject === null ? { domain: change.domain, entries: change.entries } : { subject: change.subject, limit: limitOf(latest) });
        const counters = answer.reset ?? [];
        const existed = counters.filter((one) => one.existed).length;
        fill(message, h("p", {}, h("strong", {}, "Reset: "), entriesShown(change.entries), `. ${existed === 0 ? "It had no counter." : `${count(existed)} of ${count(counters.length)} counters restarted.`}`), limitList(counters.map(({ limit }) => limit), answer.warnings));
      } else {
        const { domain: whole, entries, subject, ...order } = change;
        done(await post("overrides", subject === null ? { ...order, domain: whole, entries } : { ...order, subject }));
      }
      reason.value = "";
    } catch (failure) {
      if (failure.kind === undefined) throw failure;
      fill(wrong, failure.kind === "unreachable" ? `Weir did not answer (${failure.message}). Check the list below before you try again.` : sentence(failure.message));
      // No limit in force has the domain or the keys: a mistake, or an override for future limits.
      if (failure.kind === "missing" && change.kind !== "reset" && !change.force) wrong.append(" ", h("button", { type: "button", class: "small", onclick: () => send({ ...change, force: true }) }, "Set it anyway"));
    } finally {
      submit.disabled = false;
    }
    app.now();
  }

  function done({ override, limits, keeps_count: keeps, replaced, warnings }) {
    const counting = override.kind !== "raise" ? "" : keeps === false ? " The counter restarts." : " The current count is kept.";
    fill(message,
      h("p", {}, h("strong", {}, `${effect(override)}: `), entriesShown(override.entries), override.until ? [" until ", instant(override.until)] : "", `.${counting}`),
      replaced ? h("p", {}, `Previously: ${effect(replaced)}.`) : null,
      limitList(limits, warnings),
      h("button", { type: "button", class: "small", onclick: () => removed(override) }, "Undo"));
  }

  async function removed(item) {
    if (form.hidden) return off.hidden ? app.askToken() : off.scrollIntoView();
    const details = h("p", {}, `${effect(item)}: `, entriesShown(item.entries), " in ", shown(item.domain));
    if (!(await confirmed("Remove this override?", details, "Remove"))) return;
    try {
      await remove(`overrides/${encodeURIComponent(item.id)}`);
      fill(message, h("p", {}, h("strong", {}, "Removed: "), `${effect(item)} `, entriesShown(item.entries), "."));
      // The row, which has the focus, is about to be removed.
      message.focus();
    } catch (failure) {
      if (failure.kind === undefined) throw failure;
      fill(message, h("p", { class: "wrong" }, "Not removed: ", sentence(failure.message)));
    }
    app.now();
  }

  async function refresh(signal) {
    const may = app.status.may_change === true && app.status.authorized_as !== null;
    needed.hidden = may || app.status.may_change !== true;
    off.hidden = app.status.may_change === true;
    if (form.hidden === may) {
      form.hidden = !may;
      changed();
    }
    await list.load(() => get("overrides", [["count", SHOWN]], signal), (answer) => {
      rows.update(answer.overrides);
      fill(total, answer.next ? `The first ${count(answer.overrides.length)} are shown; weir overrides lists all.` : null);
    });
    await pastList.load(() => get("overrides", [["ended", true], ["count", SHOWN]], signal), (answer) => past.update(answer.overrides));
  }

  /** The unit and the amount of the subject's limit. */
  async function known(subject) {
    fill(now);
    period.hidden = false;
    latest = subject;
    if (!subject.limit) return;
    try {
      const answer = await get("limits", [["search", subject.limit], ["domain", subject.domain], ["count", 50]]);
      const limit = answer.limits.find((one) => one.limit === subject.limit);
      // Another subject may have been opened meanwhile.
      if (limit === undefined || limit.unlimited || latest !== subject) return;
      period.hidden = limit.unit === undefined;
      unit.value = limit.unit ?? UNITS[0];
      multiplier.value = limit.unit_multiplier ?? 1;
      requests.value = limit.requests_per_unit;
      fill(now, `The limit ${plain(limit.limit)} allows ${amount(limit)}.`);
      changed();
    } catch {
      // The operator can choose the unit; the error for a wrong unit names the right one.
    }
  }

  changed();
  return {
    title: "Overrides",
    element: h("div", { class: "view" }, panel("Change", off, needed, form, message), panel("In force", list.element), panel("Ended", pastList.element)),
    refresh,
    open(subject) {
      // A choice for another subject does not apply to this one.
      for (const choice of kinds.querySelectorAll("input")) choice.checked = false;
      domain.value = subject.domain;
      editor.write(subject.entries, subject.subject);
      latest = subject;
      fill(wrong);
      fill(message);
      changed();
      known(subject);
    },
  };
}

/** The limits of a change, and its warnings. */
function limitList(limits, warnings) {
  const paths = [...new Set(limits ?? [])];
  const notes = (warnings ?? []).map((warning) => h("p", {}, h("strong", {}, "Note: "), sentence(warning)));
  if (paths.length === 0) return notes.length > 0 ? notes : h("p", {}, "It applies to no limit in force.");
  return h("div", {}, notes, h("p", { class: "hint" }, "Applies to ", paths.slice(0, 20).flatMap((path, index) => [index === 0 ? "" : ", ", h("span", { class: "mono" }, shown(path))]), paths.length > 20 ? ` and ${count(paths.length - 20)} more` : ""));
}

/** An override in a few words. */
function effect({ kind, to, add, total }) {
  if (kind === "raise" && add) return `Raised by ${amount(add)}${total ? `, ${count(total.requests_per_unit)} in all` : ""}`;
  if (kind === "raise" && to) return `Raised to ${amount(to)}`;
  return { block: "Blocked", exempt: "Exempt" }[kind] ?? String(kind);
}

/** Whether entries match more than one descriptor. */
function reachesMany(entries) {
  return entries.some(({ key, value }) => value === null || hasWildcard(key) || hasWildcard(value));
}

/** The effect of a change. */
function consequence({ kind, domain, entries, to, add, until }) {
  const stars = entries.some(({ key, value }) => hasWildcard(key) || hasWildcard(value ?? "")) ? " (each * matches any text)" : "";
  const subject = `${entriesPlain(entries)}${stars} in the domain ${plain(domain)}`;
  if (kind === "reset") return `The counter of ${subject} restarts on every replica within a second. This cannot be undone.`;
  const when = until === null ? "until the override is removed" : `until ${until.replace("T", " ").replace("Z", " UTC")}`;
  if (kind === "block") return `Weir refuses every request with ${subject}, ${when}.`;
  if (kind === "exempt") return `Weir does not limit ${subject}, ${when}.`;
  const rate = to ?? add;
  const text = Number.isFinite(rate.requests_per_unit) ? amount({ ...rate, unit_multiplier: rate.unit_multiplier || 1 }) : "another amount";
  return `Weir allows ${subject} ${text}${add ? " in addition to the limit" : ""}, ${when}.`;
}
