// Calls of the admin API. The token is kept only in this module's memory.

// Deadline of a call; the page must not wait for a service that hangs.
const DEADLINE_MS = 8_000;

let token = null;

/** Reason why a call failed: `kind` is unreachable, unauthorised, forbidden, missing, unavailable or refused. */
export class Failure extends Error {
  constructor(kind, status, message) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

/** Requests the status with this token, and keeps the token if it is valid. */
export async function tryToken(candidate) {
  if (!/^[!-~]+$/.test(candidate)) throw new Failure("unauthorised", 0, "a token consists of printable ASCII characters without spaces");
  const status = await call("GET", "status", undefined, undefined, candidate);
  if (typeof status.authorized_as !== "string") throw new Failure("unauthorised", 200, "Weir did not return the name of the token");
  token = candidate;
  return status;
}

/** Forgets the token. */
export function forgetToken() {
  token = null;
}

/** Whether there is a token. */
export function hasToken() {
  return token !== null;
}

/** GET with parameters: pairs of name and value; empty values are left out. */
export function get(path, parameters, signal) {
  const query = new URLSearchParams((parameters ?? []).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const text = query.toString();
  return call("GET", text === "" ? path : `${path}?${text}`, undefined, signal);
}

/** POST of a JSON body. */
export function post(path, body, signal) {
  return call("POST", path, JSON.stringify(body), signal);
}

/** DELETE. */
export function remove(path) {
  return call("DELETE", path);
}

async function call(method, path, body, signal, bearer = token) {
  const headers = { Accept: "application/json" };
  if (bearer !== null) headers.Authorization = `Bearer ${bearer}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const signals = [AbortSignal.timeout(DEADLINE_MS)];
  if (signal) signals.push(signal);
  const options = { method, headers, body, cache: "no-store", credentials: "omit", redirect: "error", referrerPolicy: "no-referrer" };
  let response, text;
  try {
    response = await fetch(new URL(`api/v1/${path}`, document.baseURI), { ...options, signal: AbortSignal.any(signals) });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw new Failure("aborted", 0, "aborted");
    throw new Failure("unreachable", 0, error.name === "TimeoutError" ? "no answer within 8 s" : "no connection");
  }
  const value = parsed(text);
  if (response.ok) {
    if (value !== undefined || text.trim() === "") return value ?? {};
    throw new Failure("refused", response.status, `the response to ${method} ${path.split("?")[0]} is not JSON`);
  }
  const message = typeof value?.error === "string" ? value.error : text.slice(0, 300) || `status ${response.status}`;
  const kinds = { 401: "unauthorised", 403: "forbidden", 404: "missing", 503: "unavailable" };
  throw new Failure(kinds[response.status] ?? "refused", response.status, message);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
