// The heaviest and the most refused subjects, and the latest descriptors without a limit.

import { get } from "./api.js";
import { choose, count, entriesPlain, entriesShown, estimate, field, fill, h, input, instant, panel, select, shown } from "./dom.js";
import { actions, marked, part } from "./parts.js";
import { table } from "./table.js";

const SHOWN = 50;
// Descriptors without a limit change slowly.
const UNMATCHED_TURNS = 5;

export function subjects(app) {
  const window = select([["minute", "Last minute"], ["hour", "Last hour"]]);
  const by = select([["refused", "Refused hits"], ["hits", "Hits"]]);
  const domain = input({ maxlength: 4096, list: "known-domains" });
  const limit = input({ maxlength: 4096, list: "known-limits" });
  const form = h("form", { class: "line", onsubmit: (event) => event.preventDefault() },
    field("Window", window), field("Sort by", by), field("Domain", domain, "empty: all"), field("Limit", limit, "for example shop.user; empty: all"));
  for (const control of [window, by, domain, limit]) {
    control.addEventListener("change", () => {
      app.shows("subjects", { domain: domain.value, limit: limit.value, sort: by.value, range: window.value });
      app.now();
    });
  }

  const rows = table({
    caption: "Subjects",
    columns: [
      {
        title: "Subject",
        node: (item) => h("div", { class: "subject" }, h("span", {}, entriesShown(item.entries), marked(item)), h("div", { class: "below" }, h("small", {}, shown(item.limit)), actions(app, item, entriesPlain(item.entries)))),
      },
      { title: "Hits", number: true, text: (item) => estimate(item.hits, item.hits_error) },
      { title: "Refused", number: true, text: (item) => estimate(item.refused, item.refused_error) },
    ],
    key: (item) => JSON.stringify([item.limit, item.domain, item.entries, item.subject, item.override]),
    empty: "No subjects in this window.",
  });
  const total = h("p", { class: "hint" });
  const top = part(h("div", {}, rows.element, total));

  const missed = table({
    caption: "Latest descriptors that match no limit, sampled",
    columns: [
      {
        title: "Descriptor",
        node: (item) => h("div", { class: "subject" }, entriesShown(item.entries), h("div", { class: "below" }, h("small", {}, shown(item.domain), item.known ? "" : ": no file defines this domain"),
          h("button", { type: "button", class: "small", "aria-label": `Explain: ${entriesPlain(item.entries)}`, onclick: () => app.go("explain", item) }, "Explain"))),
      },
      { title: "Last seen", text: ({ seen_at: at }) => instant(at).textContent },
    ],
    key: (item) => JSON.stringify([item.domain, item.entries, item.subject]),
    empty: "All sampled descriptors match a limit.",
  });
  const unmatched = part(missed.element);
  let turn = 0;

  const element = h("div", { class: "view" },
    panel("Heaviest and most refused", form, top.element),
    panel("Descriptors without a limit", h("p", { class: "hint" }, "These requests are not limited. Explain shows why."), unmatched.element));

  async function refresh(signal) {
    const parameters = [["window", window.value], ["by", by.value], ["count", SHOWN], ["domain", domain.value], ["limit", limit.value]];
    const calls = [
      top.load(() => get("top", parameters, signal), (answer) => {
        rows.caption(`Subjects with the most ${by.value === "hits" ? "hits" : "refused hits"}, ${window.value === "minute" ? "last minute" : "last hour"}, this process only`);
        rows.update(answer.subjects);
        const noun = by.value === "hits" ? "hits" : "refused hits";
        fill(total, `${count(answer.total)} ${noun} of all subjects of this process in ${count(answer.seconds)} s. Subjects with more than ${count(answer.error_at_most)} are never missing.`);
      }),
    ];
    if (turn % UNMATCHED_TURNS === 0) {
      calls.push(unmatched.load(() => get("unmatched", [], signal), ({ domains }) => {
        const all = domains.flatMap((one) => one.descriptors.map((descriptor) => ({ ...descriptor, domain: one.domain, known: one.known })));
        missed.update(all.sort((a, b) => String(b.seen_at).localeCompare(String(a.seen_at))));
      }));
    }
    turn += 1;
    await Promise.all(calls);
  }

  return {
    title: "Subjects",
    element,
    refresh,
    open({ domain: chosen, limit: path, sort, range }) {
      domain.value = chosen ?? "";
      limit.value = path ?? "";
      choose(by, sort);
      choose(window, range);
    },
  };
}
