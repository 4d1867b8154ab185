// The overview: decisions per second, the hottest limits, the heaviest subjects, and Redis.

import { get } from "./api.js";
import { count, entriesPlain, entriesShown, estimate, h, panel, rate, shown } from "./dom.js";
import { actions, marked, outageLine, part } from "./parts.js";
import { plot } from "./plot.js";
import { Rates, past } from "./rates.js";
import { table } from "./table.js";

/** Outcomes of weir_decisions_total in stacking order. */
const OUTCOMES = new Map([
  ["ok", "Allowed"],
  ["unlimited", "Unlimited"],
  ["exempt", "Exempt"],
  ["shadow_over_limit", "Over a shadow limit, allowed"],
  ["free", "No limit applied"],
  ["over_limit", "Refused"],
  ["blocked", "Blocked"],
  ["outage_allowed", "Allowed during an outage"],
  ["outage_denied", "Refused during an outage"],
  ["error", "Error during an outage"],
]);
const REFUSED = ["over_limit", "blocked", "outage_denied"];
// Limits to fetch, and limits to show.
const FETCHED_LIMITS = 200;
const SHOWN = 10;

export function overview(app) {
  const rates = new Rates();
  const picture = plot();
  const legend = table({
    caption: "Decisions by outcome",
    columns: [
      { title: "Outcome", node: ({ name, title }) => h("span", {}, h("span", { class: `swatch ${name}`, "aria-hidden": "true" }), title) },
      { title: "per second", number: true, text: ({ now }) => rate(now) },
      { title: "15 min mean, per second", number: true, text: ({ mean }) => rate(mean) },
      { title: "since start", number: true, text: ({ total }) => count(total) },
    ],
    key: ({ name }) => name,
    empty: "No decisions yet.",
  });
  const decisions = part(h("div", { class: "split" }, picture.element, legend.element));
  const hottest = table({
    caption: `The ${SHOWN} limits with the most decisions per second`,
    columns: [
      { title: "Limit", node: ({ limit }) => h("span", { class: "mono" }, shown(limit)) },
      { title: "per second", number: true, text: ({ all }) => rate(all) },
      { title: "refused per second", number: true, text: ({ refused }) => rate(refused) },
      { title: "since start", number: true, text: ({ total }) => count(total) },
      { title: "of these peeks", number: true, text: ({ peeks }) => count(peeks) },
    ],
    key: ({ limit }) => limit,
    empty: "No limit has decided a request yet.",
  });
  const limits = part(hottest.element);
  const refused = subjectTable(app, "refused", "Subjects with the most refused hits in the last minute, this process only");
  const heaviest = subjectTable(app, "hits", "Subjects with the most hits in the last minute, this process only");
  const redisTable = table({
    caption: "Redis servers",
    columns: [
      { title: "Server", node: ({ deployment, server }) => h("span", { class: "mono" }, shown(server), deployment ? [" ", h("small", {}, shown(deployment))] : null) },
      { title: "Circuit", text: ({ circuit }) => String(circuit), bad: ({ circuit }) => circuit !== "closed" },
      { title: "Connection", text: ({ up }) => (up ? "up" : "down"), bad: ({ up }) => !up },
    ],
    key: ({ deployment, server }) => JSON.stringify([deployment, server]),
    empty: "No Redis: counters are in this process's memory.",
  });

  const outage = h("p", { class: "notice", hidden: "" });
  const redis = panel("Redis", outage, redisTable.element);
  const below = h("div", { class: "pair" }, panel("Hottest limits", limits.element), redis);
  const element = h("div", { class: "view" },
    panel("Decisions", decisions.element),
    h("div", { class: "pair" }, panel("Refused subjects", refused.part.element), panel("Heaviest subjects", heaviest.part.element)),
    below);

  function drawn(history) {
    const { now, totals } = rates.shown();
    const { rates: points, mean } = past(history);
    const names = [...OUTCOMES.keys(), ...Object.keys(totals).filter((name) => !OUTCOMES.has(name))];
    const lines = names.filter((name) => (totals[name] ?? 0) > 0 || name === "ok" || name === "over_limit")
      .map((name) => ({ name: OUTCOMES.has(name) ? name : "other", title: OUTCOMES.get(name) ?? name, now: now[name], mean: mean[name], total: totals[name] ?? 0 }));
    legend.update(lines);
    const current = lines.filter((line) => line.now > 0).map((line) => `${line.title} ${rate(line.now)}`).join(", ");
    const series = [...OUTCOMES.keys()].map((name) => ({ name, values: points[name] ?? [] })).filter(({ values }) => values.length > 0);
    picture.draw({ series, begin: "15 min ago", end: "now", label: `Decisions per second in the last 15 minutes. Now: ${current || "none"}.` });
  }

  async function refresh(signal) {
    const { status } = app;
    const servers = status.redis ?? [];
    redisTable.update(servers);
    outage.textContent = outageLine(status);
    outage.hidden = outage.textContent === "";
    // While a server is down, Redis comes first.
    const isDown = servers.some(({ circuit, up }) => circuit !== "closed" || !up);
    if (isDown !== (redis.parentNode === element)) {
      if (isDown) element.insertBefore(redis, element.children[1]);
      else below.append(redis);
    }
    const decided = Promise.all([get("decisions", [["count", FETCHED_LIMITS]], signal), get("history", [], signal)]);
    await Promise.all([
      decisions.load(() => decided, ([value, history]) => {
        rates.add(performance.now() / 1000, { ...value, totals: { ...value.totals, free: value.free ?? 0 } }, status.started_at);
        drawn(history);
      }),
      limits.load(() => decided, () => hottest.update(rates.limits(REFUSED).slice(0, SHOWN))),
      refused.refresh(signal),
      heaviest.refresh(signal),
    ]);
  }

  return { title: "Overview", element, refresh, open() {} };
}

/** A table of subjects of the last minute. */
function subjectTable(app, by, caption) {
  const rows = table({
    caption,
    columns: [
      {
        title: "Subject",
        node: (item) => h("div", { class: "subject" }, h("span", {}, entriesShown(item.entries), marked(item)), h("div", { class: "below" }, h("small", {}, shown(item.limit)), actions(app, item, entriesPlain(item.entries)))),
      },
      { title: "Hits", number: true, text: (item) => estimate(item.hits, item.hits_error) },
      { title: "Refused", number: true, text: (item) => estimate(item.refused, item.refused_error) },
    ],
    key: ({ limit, domain, entries, subject }) => JSON.stringify([limit, domain, entries, subject]),
    empty: by === "hits" ? "No hits in the last minute." : "No refusals in the last minute.",
  });
  const whole = part(rows.element);
  const refresh = (signal) =>
    whole.load(() => get("top", [["window", "minute"], ["by", by], ["count", SHOWN]], signal), ({ subjects }) => rows.update(subjects));
  return { part: whole, refresh };
}

