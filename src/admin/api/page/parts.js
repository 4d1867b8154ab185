// A part of a view with its own failure, and the actions on a subject.

import { clock, count, fill, h, sentence, span } from "./dom.js";

// A missing resource is requested again after this many turns.
const TURNS_WITHOUT = 15;

/** A box that shows either its content or why it has none. */
export function part(content, hints) {
  const box = h("div", { class: "part" }, content);
  let without = 0;

  function failed(failure) {
    const hint = hints?.[failure.kind];
    const titles = { missing: "Not available", unavailable: "Not available now", unauthorised: "Token required", forbidden: "Not allowed" };
    const text = h("p", {}, h("strong", {}, `${titles[failure.kind] ?? "Refused"}: `), sentence(failure.message));
    // A screen reader would read the same text again.
    if (box.dataset.failure === failure.message) return;
    box.dataset.failure = failure.message;
    fill(box, h("div", { class: "notice" }, text, hint ? h("p", {}, hint) : null));
  }

  return {
    element: box,
    /** Renders the result of a call, or why it failed. Resolves to whether the service answered. `isTurn`: called by the loop. */
    async load(call, render, isTurn = true) {
      if (isTurn && without > 0) {
        without -= 1;
        return true;
      }
      without = 0;
      try {
        const value = await call();
        render(value);
        if (box.firstChild !== content) fill(box, content);
        delete box.dataset.failure;
        return true;
      } catch (failure) {
        if (failure.kind === undefined) throw failure;
        if (failure.kind === "aborted") return true;
        // The last data stays; the banner has its time.
        if (failure.kind === "unreachable") return false;
        if (failure.kind === "missing") without = TURNS_WITHOUT;
        failed(failure);
        return true;
      }
    },
  };
}

/** Whether usage is recorded for this limit, which a list may have cut. */
export function tracks(app, limit) {
  return typeof limit === "string" && (limit.endsWith("…") || app.limits.some((one) => one.limit === limit && one.further?.track_usage === "true"));
}

/** The buttons of a subject: Explain, Usage, Override. */
export function actions(app, subject, label, views = ["explain", "usage", "overrides"]) {
  const titles = { explain: "Explain", usage: "Usage", overrides: "Override" };
  return h("span", { class: "actions" }, views.filter((view) => view !== "usage" || tracks(app, subject.limit)).map((view) =>
    h("button", { type: "button", class: "small", "aria-label": `${titles[view]}: ${label}`, onclick: () => app.go(view, subject) }, titles[view])));
}

const MARKS = { block: "blocked", exempt: "exempt", raise: "raised" };

/** The mark of a subject with an override, next to its name; null without one. */
export function marked({ override: kind }) {
  return typeof kind === "string" ? [" ", h("span", { class: `tag ${Object.hasOwn(MARKS, kind) ? kind : "plain"}` }, MARKS[kind] ?? words(kind))] : null;
}

/** The full key of a subject's limit; null where a list has cut it. */
export function limitOf({ limit }) {
  return limit === undefined || limit === null || limit.endsWith("…") || limit.startsWith("(") ? null : limit;
}

/** A list of names and values. */
export function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/** A Redis outage in progress, in one line; empty without one. */
export function outageLine({ outage, now }) {
  if (!outage) return "";
  const since = new Date(outage.since);
  const answered = Object.entries(outage.answers).filter(([, times]) => times > 0).map(([policy, times]) => `${policy} ${count(times)}`);
  const by = answered.length === 0 ? "on_store_failure has answered no check yet" : `checks answered by on_store_failure: ${answered.join(", ")}`;
  return `Outage since ${clock(since)} UTC (${span((new Date(now) - since) / 1000)}); ${by}`;
}

/** A name of a JSON field as words. */
export function words(name) {
  const text = String(name).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}
