// Starts the page: the views, the header, and the loop that refreshes both.

import { access } from "./access.js";
import { forgetToken, get, hasToken } from "./api.js";
import { announce, clock, count, fill, h, plain, sentence, span } from "./dom.js";
import { loop } from "./live.js";
import { explain } from "./explain.js";
import { addressOf, subjectAt } from "./address.js";
import { limits } from "./limits.js";
import { outageLine } from "./parts.js";
import { overrides } from "./overrides.js";
import { overview } from "./overview.js";
import { subjects } from "./subjects.js";
import { usage } from "./usage.js";

// Limits for suggestions, fetched in pages of the API's largest size.
const LARGEST_PAGE = 1_000;
const MOST_PAGES = 5;
const MOST_SUGGESTED = 500;
const VIEWS = { overview, subjects, limits, explain, usage, overrides };
const main = document.getElementById("main");
const banner = document.getElementById("banner");
const health = document.getElementById("health");
const pause = document.getElementById("pause");
const made = new Map();

let current = null;
let answeredAt = null;

const app = {
  /** The last status of the service, or null. */
  status: null,
  /** Limits of the configuration in force, for suggestions in fields. */
  limits: [],
  /** Shows a view, with a subject if one is given. */
  go(name, subject) {
    show(name, subject);
    const address = addressOf(name, subject);
    if (location.hash !== address) history.pushState(null, "", address);
  },
  /** Puts the subject of the view into the address, for links to share. */
  shows(name, subject) {
    if (current?.name === name) history.replaceState(null, "", addressOf(name, subject));
  },
  /** Refreshes at once. */
  now: () => live.now(),
  /** Asks for a token. */
  askToken: () => token.ask(),
};

const token = access(document.getElementById("access"), () => live.now());

function view(name) {
  if (!made.has(name)) {
    const { title, element, ...rest } = VIEWS[name](app);
    const heading = h("h2", { tabindex: "-1" }, title);
    element.prepend(heading);
    made.set(name, { name, title, element, heading, ...rest });
  }
  return made.get(name);
}

function show(name, subject) {
  const next = view(name);
  const isFirst = current === null;
  if (current !== next) fill(main, next.element);
  current = next;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (subject !== undefined) next.open(subject);
  titled();
  if (!isFirst) next.heading.focus();
  window.scrollTo(0, 0);
  live.now();
}

function titled() {
  const mark = app.status !== null && !app.status.healthy ? "Unhealthy: " : "";
  document.title = `${mark}${current.title} – Weir`;
}

function follow() {
  const { name, subject } = subjectAt(location.hash);
  show(Object.hasOwn(VIEWS, name) ? name : "overview", subject);
}

async function ask(signal) {
  try {
    app.status = await get("status", [], signal);
  } catch (failure) {
    if (failure.kind === "aborted") return true;
    if (failure.kind === "unauthorised" && hasToken()) {
      forgetToken();
      announce("The token is no longer valid.");
    }
    problem(failure);
    return false;
  }
  answeredAt = new Date();
  warned(app.status);
  document.body.classList.remove("old");
  stated();
  try {
    await learn(signal);
    await current.refresh(signal);
  } catch (error) {
    // An error of the page must be visible, and must not stop the loop.
    fill(banner, `Error in this page: ${plain(error?.message)}. Reload it, or use the commands of weir.`);
    banner.hidden = false;
    console.error(error);
  }
  return true;
}

const MINUTE_MS = 60_000;
const WEEK = 604_800;
let shaken = [];

/** The banner: a rejected configuration, the certificate, failed handshakes. */
function warned({ rejected, now, certificate_expires_at: end, tls_handshakes: all, failed_tls_handshakes: failed }) {
  const lines = [];
  const until = (at) => (new Date(at) - new Date(now)) / 1_000;
  if (rejected) lines.push(`A changed configuration was rejected ${span(-until(rejected.at))} ago; the previous limits stay in force. `, ...rejected.problems);
  if (end && until(end) < WEEK) lines.push(`The certificate of the gRPC port ${until(end) < 0 ? `expired ${span(-until(end))} ago: Envoy refuses it` : `expires in ${span(until(end))}`}.`);
  shaken = [...shaken.filter(([at]) => at > Date.now() - MINUTE_MS), [Date.now(), all, failed]];
  const [bad, of] = [failed - shaken[0][2], all - shaken[0][1]];
  if (bad > 2 && bad > of / 10) lines.push(`${count(bad)} of ${count(of)} TLS handshakes failed in the last minute; see the log.`);
  banner.hidden = lines.length === 0;
  banner.dataset.kind = rejected ? "rejected" : lines.length > 0 ? "tls" : "";
  fill(banner, h("p", {}, lines.map((line) => h("div", {}, sentence(line)))));
}

let learned = null;

/** Fetches the limits once for each configuration. */
async function learn(signal) {
  const configuration = JSON.stringify([app.status.generation, app.status.started_at]);
  if (learned === configuration) return;
  const found = [];
  let cursor = null;
  try {
    for (let page = 0; page < MOST_PAGES && cursor !== undefined; page += 1) {
      const answer = await get("limits", [["count", LARGEST_PAGE], ["cursor", cursor]], signal);
      found.push(...answer.limits);
      cursor = answer.next ?? undefined;
    }
  } catch (failure) {
    if (failure.kind === undefined) throw failure;
    return;
  }
  learned = configuration;
  app.limits = found;
  suggest("known-domains", found.map(({ domain }) => domain));
  suggest("known-limits", found.map(({ limit }) => limit));
  suggest("known-keys", found.flatMap(({ path }) => path.map(({ key }) => key)));
}

function suggest(id, values) {
  const list = document.getElementById(id) ?? document.body.appendChild(h("datalist", { id }));
  fill(list, [...new Set(values)].slice(0, MOST_SUGGESTED).map((value) => h("option", { value })));
}

function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function stated() {
  const { status } = app;
  const started = new Date(status.started_at);
  const uptime = Number.isNaN(started.getTime()) ? null : `up ${span((new Date(status.now) - started) / 1000)}`;
  const facts = [`${status.replica} at ${location.host}`, status.version, `store ${status.store}`, uptime, `${many(status.limits, "limit")} in ${many(status.domains, "domain")}`, `configuration ${status.generation}`, status.digest && `digest ${status.digest}`];
  const process = document.getElementById("process");
  const text = facts.filter(Boolean).map(plain).join(" · ");
  if (process.textContent !== text) process.textContent = text;
  const reasons = (status.reasons ?? []).map(plain).join("; ");
  const away = (status.redis ?? []).filter(({ circuit, up }) => circuit !== "closed" || !up);
  const verb = away.every(({ up }) => up) ? "fails" : "is down";
  const cause = ({ server, circuit, remedy }) => `${plain(server)} (circuit ${plain(circuit)})${remedy ? `: ${plain(remedy)}` : ""}`;
  const outage = away.length === 0 ? "" : `Redis ${verb}: ${away.map(cause).join(", ")}`;
  const state = status.healthy ? "Healthy" : `Unhealthy${reasons === "" ? "" : `: ${reasons}`}`;
  const headline = outage === "" ? state : status.healthy ? outage : `${state}; ${outage}`;
  // The counts of this line change each time, therefore it is not announced.
  const line = outageLine(status);
  const whole = line === "" ? headline : `${headline}. ${line}`;
  if (health.textContent !== whole) {
    const isGood = status.healthy && outage === "" && line === "";
    fill(health, whole);
    health.className = `health ${isGood ? "good" : "bad"}`;
    document.querySelector(".top").classList.toggle("outage", !isGood);
    if (!isGood) announce(headline);
  }
  token.show(status);
  titled();
}

function problem(failure) {
  banner.hidden = false;
  if (failure.kind === "unauthorised" || failure.kind === "forbidden") {
    app.status = null;
    token.show(null);
    const text = ["This listener rejects the requests of this page: ", failure.message, "."];
    if (banner.dataset.kind !== failure.kind || banner.firstChild === null) {
      fill(banner, h("p", {}, text), failure.kind === "unauthorised" ? h("button", { type: "button", onclick: () => token.ask() }, "Enter token") : null);
    }
    banner.dataset.kind = failure.kind;
    fill(health, failure.kind === "unauthorised" ? "Token required" : "Not allowed");
    health.className = "health";
    return;
  }
  const since = answeredAt === null ? "" : ` The data is from ${clock(answeredAt)} UTC.`;
  const text = failure.kind === "unreachable" ? `Weir does not answer (${failure.message}).` : `Weir returned an error: ${failure.message}`;
  if (banner.dataset.kind !== "down" || banner.firstChild === null) {
    fill(banner, h("p", {}), h("button", { type: "button", onclick: () => live.now() }, "Try now"));
  }
  banner.dataset.kind = "down";
  banner.firstChild.textContent = `${text}${since}`;
  document.body.classList.add("old");
  fill(health, "No answer");
  health.className = "health bad";
  announce(text);
}

const live = loop(ask, (isAnswered, next) => {
  const line = banner.dataset.kind === "down" && !isAnswered ? banner.firstChild : null;
  if (line !== null) line.textContent = `${line.textContent} Next attempt in ${Math.round(next / 1000)} s.`;
});

pause.addEventListener("click", () => {
  const isPaused = pause.getAttribute("aria-pressed") !== "true";
  pause.setAttribute("aria-pressed", String(isPaused));
  live.pause(isPaused);
  announce(isPaused ? "Paused. Figures are not updated." : "Resumed.");
});

window.addEventListener("hashchange", () => {
  // The "Skip to content" link is not a view.
  if (location.hash !== "#main") follow();
});
window.addEventListener("popstate", () => {
  if (location.hash !== "#main" && current !== null) follow();
});
token.show(null);
follow();
