// Rates from counters: what was counted between two answers, spread over slots of time.

const SLOT_SECS = 2;
const SLOTS = 150;
// The rate "now" is that of the last seconds, so that it can be read.
const RECENT_SECS = 8;

/** Samples of `/decisions`. */
export class Rates {
  #slots = new Map();
  #samples = [];
  #started = null;

  /** Adds an answer at a time of the page's own clock in seconds. A process that was restarted begins anew. */
  add(at, { totals, limits }, started) {
    const last = this.#samples.at(-1);
    const isBack = last !== undefined && Object.entries(last.totals).some(([name, value]) => (totals[name] ?? 0) < value);
    if (started !== this.#started || isBack) {
      this.#samples = [];
      this.#slots.clear();
      this.#started = started;
    }
    const before = this.#samples.at(-1);
    if (before !== undefined && at > before.at) {
      const rates = perSecond(before.totals, totals, at - before.at);
      const to = Math.floor(at / SLOT_SECS);
      const from = Math.max(Math.floor(before.at / SLOT_SECS) + 1, to - SLOTS);
      for (let slot = from; slot <= to; slot += 1) this.#slots.set(slot, rates);
      for (const slot of this.#slots.keys()) if (slot <= to - SLOTS) this.#slots.delete(slot);
    }
    this.#samples.push({ at, totals, limits: new Map(limits.map((one) => [one.limit, one])) });
    // The first of what remains is the newest one that is old enough.
    while (this.#samples.length > 2 && at - this.#samples[1].at >= RECENT_SECS) this.#samples.shift();
  }

  /** The rates by slot, oldest first; those now; their means; and the totals. */
  shown(names) {
    const last = this.#samples.at(-1);
    const to = Math.floor(last.at / SLOT_SECS);
    const slots = Array.from({ length: SLOTS }, (_, index) => this.#slots.get(to - SLOTS + 1 + index) ?? null);
    const first = this.#samples[0];
    const now = first === last ? {} : perSecond(first.totals, last.totals, last.at - first.at);
    const known = slots.filter((slot) => slot !== null);
    const mean = {};
    for (const name of new Set([...names, ...Object.keys(last.totals)])) {
      if (known.length > 0) mean[name] = known.reduce((sum, slot) => sum + (slot[name] ?? 0), 0) / known.length;
    }
    return { slots, now, mean, totals: last.totals };
  }

  /** The limits by decisions a second; before the second answer by decisions since the start. */
  limits(refused) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const sum = (outcomes, names) => names.reduce((all, name) => all + (outcomes[name] ?? 0), 0);
    const lines = [...last.limits.values()].map(({ limit, domain, outcomes }) => {
      const total = sum(outcomes, Object.keys(outcomes));
      const before = first.limits.get(limit)?.outcomes;
      if (first === last || before === undefined) return { limit, domain, total };
      const rates = perSecond(before, outcomes, last.at - first.at);
      return { limit, domain, total, all: sum(rates, Object.keys(rates)), refused: sum(rates, refused) };
    });
    return lines.sort((a, b) => (b.all ?? 0) - (a.all ?? 0) || b.total - a.total);
  }
}

function perSecond(before, after, seconds) {
  return Object.fromEntries(Object.entries(after).map(([name, value]) => [name, Math.max(0, value - (before[name] ?? 0)) / seconds]));
}
