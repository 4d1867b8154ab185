// The usage of a subject, and the subjects of a limit by usage.

import { get } from "./api.js";
import { ahead, choose, count, entriesPlain, entriesShown, field, fill, h, input, instant, panel, plain, select, shown, span } from "./dom.js";
import { nameOf } from "./address.js";
import { entriesEditor } from "./entries.js";
import { actions, facts, limitOf, marked, part } from "./parts.js";
import { plot } from "./plot.js";
import { table } from "./table.js";

const SHOWN = 25;
// A list by share reads each counter.
const SHARE_TURNS = 15;
const TURN_ON = h("span", {}, "Weir records usage for limits with ", h("code", {}, "track_usage: true"), ". Add it to the limit.");
const hint = () => TURN_ON.cloneNode(true);

export function usage(app) {
  const domain = input({ required: true, maxlength: 4096, list: "known-domains" });
  const editor = entriesEditor({ legend: "Descriptor" });
  const since = select([["", "All buckets"], ["15m", "15 minutes"], ["1h", "1 hour"], ["6h", "6 hours"], ["24h", "24 hours"], ["168h", "7 days"]]);
  const form = h("form", { onsubmit: submitted },
    h("div", { class: "line" }, field("Domain", domain), field("Time range", since)), editor.element,
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "main" }, "Show usage")));

  const picture = plot();
  const title = h("h3", {});
  const summary = h("div", {});
  const figures = table({
    caption: "Intervals with hits, newest first",
    columns: [
      { title: "Start", text: ({ at }) => instant(at).textContent },
      { title: "Hits", number: true, text: ({ hits }) => count(hits) },
      { title: "Over the limit", number: true, text: ({ refused }) => count(refused) },
    ],
    key: ({ at }) => at,
    empty: "No hits in this time range.",
  });
  const details = h("details", {}, h("summary", {}, "Figures"), figures.element);
  const windows = table({
    caption: "Periods of the limit, newest first",
    columns: [
      { title: "Start", text: ({ begin, whole }) => `${instant(begin).textContent}${whole ? "" : " (partial)"}` },
      { title: "Hits", number: true, text: ({ hits }) => count(hits) },
      { title: "Over the limit", number: true, text: ({ refused }) => count(refused) },
      { title: "Used", number: true, text: (period) => used(ofPeriod(period)) },
      { title: "Share", number: true, text: percent, bad: ({ used, limit }) => limit > 0 && used >= limit },
    ],
    key: ({ begin }) => begin,
    empty: "One bucket covers several periods of this limit.",
  });
  const content = h("div", {}, summary, picture.element, windows.element, details);
  const one = part(content, { missing: hint(), unavailable: hint() });
  const output = h("section", { class: "panel", "aria-label": "Usage of the subject", hidden: true }, title, one.element);
  let requested = null;
  let opened = null;

  function submitted(event) {
    event.preventDefault();
    const entries = editor.read();
    const isOpened = opened !== null && domain.value === opened.domain && editor.name() !== null;
    const subject = isOpened ? editor.name() : nameOf({ domain: domain.value, entries });
    requested = { domain: domain.value, entries, subject, limit: isOpened ? limitOf(opened) : null };
    app.shows("usage", state());
    fill(title, entriesShown(requested.entries));
    output.hidden = false;
    load();
  }

  async function load(signal) {
    const request = requested;
    const parameters = [["subject", request.subject], ["limit", request.limit], ["since", since.value], ["period", "last"]];
    await one.load(() => get("usage", parameters, signal), (answer) => {
      if (request === requested) draw(request, answer);
    }, signal !== undefined);
  }

  let drawn = null;
  function draw(request, answer) {
    const { series, periods, last_period: last } = answer;
    const text = JSON.stringify(answer);
    if (text === drawn) return;
    drawn = text;
    const buttons = actions(app, { ...request, limit: answer.limit, subject: answer.subject }, entriesPlain(request.entries), ["explain", "overrides"]);
    if (!summary.contains(document.activeElement)) {
      fill(summary, facts([
        ["Limit", h("span", {}, h("span", { class: "mono" }, shown(answer.limit)), marked(answer))],
        ...(answer.used === null ? [] : [["Used now", `${used(answer)} (${percent(answer)})`], ["Left", left(answer)]]), ["Resets in", resets(answer)],
        ["Last period", last ? `${used(ofPeriod(last))} (${percent(last)}) from ${instant(last.begin).textContent}` : null],
        ["Hits since first seen", count(answer.hits)], ["Hits over the limit", count(answer.refused)], ["Refunded", answer.given_back > 0 ? count(answer.given_back) : null],
        ["First seen", instant(answer.first_seen)], ["Last seen", instant(answer.last_seen)],
      ]), buttons);
    }
    const hits = series?.hits ?? [];
    const refused = series?.refused ?? [];
    const begin = new Date(series?.begin ?? NaN);
    const at = (index) => new Date(begin.getTime() + index * series.interval_seconds * 1000).toISOString();
    const isDated = !Number.isNaN(begin.getTime());
    const sum = (values) => values.reduce((all, value) => all + value, 0);
    picture.draw({
      series: [
        { name: "ok", values: hits.map((value, index) => Math.max(0, value - (refused[index] ?? 0))) },
        { name: "over_limit", values: refused },
      ],
      begin: isDated ? at(0).slice(0, 16).replace("T", " ") : "",
      end: isDated ? at(hits.length).slice(0, 16).replace("T", " ") : "",
      label: `Hits of ${entriesPlain(request.entries)} in intervals of ${span(series?.interval_seconds ?? 0)}: ${count(sum(hits))} hits, ${count(sum(refused))} over the limit. The table below has the figures.`,
    });
    const lines = isDated ? hits.map((value, index) => ({ at: at(index), hits: value, refused: refused[index] ?? 0 })) : [];
    figures.update(lines.filter((line) => line.hits > 0 || line.refused > 0).reverse());
    windows.update([...(periods ?? [])].reverse());
  }

  since.addEventListener("change", () => {
    app.shows("usage", state());
    if (requested !== null) load();
  });

  const tracked = select([]);
  const by = select([["hits", "Hits"], ["refused", "Hits over the limit"], ["last-seen", "Last seen"], ["first-seen", "First seen"], ["share", "Share of the period"], ["last", "Last period"]]);
  const chooser = h("form", { class: "line", onsubmit: (event) => event.preventDefault() }, field("Limit", tracked), field("Sort by", by));
  const name = { title: "Subject", node: (item) => h("div", { class: "subject" }, h("span", {}, entriesShown(item.entries), marked(item)), actions(app, item, entriesPlain(item.entries))) };
  const list = (columns) => table({
    caption: "Subjects of the limit",
    columns: [name, ...columns],
    key: ({ limit, subject, override }) => JSON.stringify([limit, subject, override]),
    empty: "No subjects of this limit yet.",
  });
  const totals = list([
    { title: "Hits since first seen", number: true, text: ({ hits }) => count(hits) },
    { title: "Over the limit", number: true, text: ({ refused }) => count(refused) },
    { title: "First seen", text: ({ first_seen: at }) => instant(at).textContent },
    { title: "Last seen", text: ({ last_seen: at }) => instant(at).textContent },
  ]);
  const shares = list([
    { title: "Used", number: true, text: used },
    { title: "Share", number: true, text: percent, bad: ({ left }) => left === 0 },
    { title: "Left", number: true, text: left },
    { title: "Resets in", text: (item) => resets(item) ?? "–" },
  ]);
  const box = h("div", {});
  const listed = part(h("div", {}, chooser, box), { missing: hint(), unavailable: hint() });
  const none = h("p", { class: "notice", hidden: true }, hint());
  let turn = 0;
  const state = () => ({ ...requested, sort: by.value, range: since.value, of: tracked.value });
  for (const control of [tracked, by]) {
    control.addEventListener("change", () => {
      turn = 0;
      app.shows("usage", state());
      app.now();
    });
  }
  let limits = [];
  let wanted = "";

  function refreshLimits() {
    // Plans of a table share a list.
    const all = app.limits.filter(({ further }) => further?.track_usage === "true").map((one) => [one.limit, one]);
    const found = [...new Map(all).values()];
    if (JSON.stringify(found) === JSON.stringify(limits)) return;
    limits = found;
    const before = tracked.value || wanted;
    fill(tracked, limits.map(({ limit }) => h("option", { value: limit }, plain(limit))));
    choose(tracked, before);
  }

  async function refresh(signal) {
    const top = async () => {
      refreshLimits();
      none.hidden = limits.length > 0;
      listed.element.hidden = limits.length === 0;
      const limit = limits.find(({ limit }) => limit === tracked.value);
      if (limit === undefined) return { subjects: [] };
      const order = by.value === "last" ? [["by", "share"], ["period", "last"]] : [["by", by.value]];
      const answer = await get("usage/top", [["domain", limit.domain], ["limit", limit.limit], ...order, ["count", SHOWN]], signal);
      return { ...answer, subjects: answer.subjects.map((subject) => ({ ...subject, ...ofPeriod(subject.last_period), domain: limit.domain, limit: limit.limit })) };
    };
    const isShare = by.value === "share" || by.value === "last";
    const isDue = !isShare || turn % SHARE_TURNS === 0;
    turn += 1;
    await Promise.all([
      requested === null ? null : load(signal),
      isDue && listed.load(top, ({ subjects, complete, examined }) => {
        const rows = isShare ? shares : totals;
        const of = complete === false ? `, of the ${count(examined)} with the most hits` : "";
        rows.caption(`Subjects of the limit${of}, ${app.status.store === "redis" ? "all replicas" : "this process only"}`);
        rows.update(subjects);
        if (box.firstChild !== rows.element) fill(box, rows.element);
      }),
    ]);
  }

  return {
    title: "Usage",
    element: h("div", { class: "view" }, panel("Usage of a subject", form), output, panel("Subjects by usage", none, listed.element)),
    refresh,
    open(subject) {
      domain.value = subject.domain;
      editor.write(subject.entries, subject.subject);
      opened = subject;
      choose(by, subject.sort);
      choose(since, subject.range);
      wanted = subject.of;
      choose(tracked, wanted);
      if (subject.entries.length > 0) form.requestSubmit();
    },
  };
}

const ofPeriod = (period) => period && { used: period.used_units, amount: period.limit_units, share_percent: period.share_percent };
const used = (now) => `${count(now.used)} of ${count(now.amount)}`;
const left = ({ left, held }) => count(left) + (held > 0 ? ` (${count(held)} held)` : "");
const percent = ({ share_percent: share }) => `${Math.floor(10 * share) / 10} %`;
const resets = ({ resets_in_seconds: seconds, timezone }) => (typeof seconds === "number" ? ahead(seconds, timezone) : null);
