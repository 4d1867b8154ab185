// Tables with live figures. Rows are kept by key. While the table is in use, the order of rows is fixed, because a click must not hit
// another row; figures are still updated.

import { fill, h } from "./dom.js";

// The order is fixed for this long after the pointer has moved.
const HOLD_MS = 5_000;

/**
 * A table. `columns` are `{title, text(item)}` for cells that change, or `{title, node(item)}` for cells that are built once; `number: true`
 * aligns right, and `bad(item)` marks cells that need attention. The first column is the row header.
 */
export function table({ caption, columns, key, empty }) {
  const body = h("tbody", { role: "rowgroup" });
  const head = h("tr", { role: "row" }, columns.map(({ title, number }) => h("th", { scope: "col", role: "columnheader", class: number ? "number" : null }, title)));
  const note = h("span", { class: "held", hidden: true }, " Order fixed while you use it.");
  const element = h("table", { role: "table", class: columns.length > 3 ? "wide" : null }, h("caption", {}, caption, note), h("thead", { role: "rowgroup" }, head), body);
  const none = h("p", { class: "none" }, empty);
  const box = h("div", { class: "table" }, none);
  const rows = new Map();
  let moved = -Infinity;
  body.addEventListener("pointermove", () => (moved = performance.now()));

  const isHeld = () => body.contains(document.activeElement) || (body.matches(":hover") && performance.now() - moved < HOLD_MS);

  function row(item) {
    const changing = [];
    const cells = columns.map(({ title, number, text, node, bad }, index) => {
      const attributes = { class: number ? "number" : null, ...(index === 0 ? { scope: "row", role: "rowheader" } : { role: "cell", "data-title": title }) };
      const cell = h(index === 0 ? "th" : "td", attributes, node ? node(item) : text(item));
      if (text) changing.push([cell, text, bad]);
      if (bad) cell.classList.toggle("bad", bad(item));
      return cell;
    });
    return { element: h("tr", { role: "row" }, cells), changing };
  }

  function update(items) {
    const held = isHeld();
    note.hidden = !held;
    const seen = new Set();
    const order = [];
    for (const item of items) {
      const name = key(item);
      if (seen.has(name)) continue;
      seen.add(name);
      let known = rows.get(name);
      if (known === undefined) {
        if (held) continue;
        known = row(item);
        rows.set(name, known);
      } else {
        for (const [cell, text, bad] of known.changing) {
          const now = text(item);
          if (cell.textContent !== now) cell.textContent = now;
          if (bad) cell.classList.toggle("bad", bad(item));
        }
      }
      known.element.classList.remove("gone");
      order.push(known.element);
    }
    for (const [name, known] of rows) {
      if (seen.has(name)) continue;
      if (held) known.element.classList.add("gone");
      else rows.delete(name);
    }
    if (!held && (order.length !== body.children.length || order.some((one, index) => body.children[index] !== one))) fill(body, order);
    const shown = body.children.length > 0 ? element : none;
    if (box.firstChild !== shown) fill(box, shown);
  }

  return { element: box, update, caption: (text) => fill(element.caption, text, note) };
}
