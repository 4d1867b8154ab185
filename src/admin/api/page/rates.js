// Rates: differences between two responses, and /history.

// Points in 15 minutes.
const POINTS = 180;
// The rate "now" is a mean of the last seconds; a shorter one would be unsteady.
const RECENT_SECS = 8;

/** Samples of `/decisions`. */
export class Rates {
  #samples = [];
  #started = null;

  /** Adds an answer at a time of the page's own clock in seconds. Samples of a previous process are dropped. */
  add(at, { totals, limits }, started) {
    const last = this.#samples.at(-1);
    const isBack = last !== undefined && Object.entries(last.totals).some(([name, value]) => (totals[name] ?? 0) < value);
    if (started !== this.#started || isBack) {
      this.#samples = [];
      this.#started = started;
    }
    this.#samples.push({ at, totals, limits: new Map(limits.map((one) => [one.limit, one])) });
    // The first sample left is the newest one that is old enough.
    while (this.#samples.length > 2 && at - this.#samples[1].at >= RECENT_SECS) this.#samples.shift();
  }

  /** The current rates, and the totals. */
  shown() {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const now = first === last ? {} : perSecond(first.totals, last.totals, last.at - first.at);
    return { now, totals: last.totals };
  }

  /** The limits by decisions per second; before the second response by decisions since start. */
  limits(refused) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const sum = (outcomes, names) => names.reduce((all, name) => all + (outcomes[name] ?? 0), 0);
    const lines = [...last.limits.values()].map(({ limit, domain, outcomes, peeks }) => {
      const total = sum(outcomes, Object.keys(outcomes));
      const before = first.limits.get(limit)?.outcomes;
      if (first === last || before === undefined) return { limit, domain, total, peeks };
      const rates = perSecond(before, outcomes, last.at - first.at);
      return { limit, domain, total, peeks, all: sum(rates, Object.keys(rates)), refused: sum(rates, refused) };
    });
    return lines.sort((a, b) => (b.all ?? 0) - (a.all ?? 0) || b.total - a.total);
  }
}

/** The rates of each outcome of `/history`, oldest first (null before the start), and their mean. */
export function past({ every_seconds: seconds, outcomes }) {
  const rates = {};
  const mean = {};
  for (const [name, counts] of Object.entries(outcomes)) {
    const own = counts.map((times) => times / seconds);
    rates[name] = [...Array(Math.max(0, POINTS - own.length)).fill(null), ...own];
    mean[name] = own.reduce((sum, one) => sum + one, 0) / Math.max(1, own.length);
  }
  return { rates, mean };
}

function perSecond(before, after, seconds) {
  return Object.fromEntries(Object.entries(after).map(([name, value]) => [name, Math.max(0, value - (before[name] ?? 0)) / seconds]));
}
