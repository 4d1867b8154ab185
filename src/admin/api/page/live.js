// The loop that refreshes the current view, unless the tab is hidden or the page is paused.

const PERIOD_MS = 2_000;
// While the service does not answer, the pauses double up to this.
const LONGEST_PAUSE_MS = 30_000;

/**
 * Starts the loop. `ask(signal)` resolves to true when the service has answered; `answers(isAnswered, pause)` gets the result
 * and the pause until the next attempt in milliseconds.
 */
export function loop(ask, answers) {
  let timer = null;
  let running = null;
  let pause = PERIOD_MS;
  let isPaused = false;

  async function turn() {
    clearTimeout(timer);
    timer = null;
    if (document.hidden || isPaused) return;
    running?.abort();
    const mine = new AbortController();
    running = mine;
    const isAnswered = await ask(mine.signal);
    if (mine.signal.aborted) return;
    running = null;
    pause = isAnswered ? PERIOD_MS : Math.min(LONGEST_PAUSE_MS, pause * 2);
    answers(isAnswered, pause);
    if (!document.hidden && !isPaused) timer = setTimeout(turn, pause);
  }

  function stop() {
    clearTimeout(timer);
    timer = null;
    running?.abort();
    running = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? stop() : turn()));
  return {
    /** Refreshes at once. */
    now: turn,
    /** Stops or resumes the loop. */
    pause(value) {
      isPaused = value;
      if (value) stop();
      else turn();
    },
  };
}
