// The address of a view: `#view?domain=...&subject=...&sort=...`. Browsers send the part after `#` to no server.

// Filters, sorting and range.
const FURTHER = ["limit", "search", "sort", "range", "of"];

/** The address of a view, with a subject if there is one. */
export function addressOf(name, subject) {
  const parts = [["domain", subject?.domain], ["subject", subject?.subject ?? nameOf(subject)], ...FURTHER.map((name) => [name, subject?.[name]])];
  const query = new URLSearchParams(parts.filter(([, value]) => typeof value === "string" && value !== "")).toString();
  return query === "" ? `#${name}` : `#${name}?${query}`;
}

/** The view of an address, and its subject if it has one. */
export function subjectAt(hash) {
  const [name, query] = hash.slice(1).split(/\?(.*)/s);
  const get = (parameters, one) => parameters.get(one) ?? undefined;
  if (query === undefined || query === "") return { name, subject: undefined };
  const parameters = new URLSearchParams(query);
  const subject = get(parameters, "subject");
  const read = subject === undefined ? null : entriesOf(subject);
  return {
    name,
    subject: { domain: get(parameters, "domain") ?? read?.domain ?? "", entries: read?.entries ?? [], subject, ...Object.fromEntries(FURTHER.map((name) => [name, get(parameters, name)])) },
  };
}

/** The exact name of a subject with all values, as in responses; undefined if a value is missing. */
export function nameOf(subject) {
  const entries = subject?.entries ?? [];
  if (!subject?.domain || entries.length === 0 || entries.some(({ key, value }) => key === "" || typeof value !== "string" || value === "")) return undefined;
  const part = (text) => text.replaceAll(/[%{}|=~#]/g, (letter) => `%${letter.charCodeAt(0).toString(16)}`);
  return [part(subject.domain), ...entries.map(({ key, value }) => `${part(key)}=${part(value)}`)].join("|");
}

/** The domain and the entries of an exact name, as in lists. */
function entriesOf(name) {
  const [domain, ...parts] = name.split("|");
  const entries = parts.map((part) => {
    // A key that is a digest begins with `#`.
    const [, key, mark, value] = /^(.[^=~#]*)([=~#]?)(.*)$/s.exec(part) ?? [null, "", "", ""];
    return { key: text(key), value: mark === "#" ? `sha256:${value}` : text(value) };
  });
  return { domain: text(domain), entries };
}

/** Unescapes a part. */
function text(part) {
  if (part.startsWith("#")) return `sha256:${part.slice(1)}`;
  const bytes = part.split(/(%[0-9a-fA-F]{2})/).flatMap((piece, index) => (index % 2 === 1 ? [Number.parseInt(piece.slice(1), 16)] : [...new TextEncoder().encode(piece)]));
  return new TextDecoder().decode(new Uint8Array(bytes));
}
