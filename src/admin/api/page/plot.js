// Plots as SVG: stacked bars over time. Each has a text for screen readers, and a table next to it.

import { fill, h, svg } from "./dom.js";

const HEIGHT = 190;
const LEFT = 52;
const BOTTOM = 22;
const TOP = 8;
const TICKS = new Intl.NumberFormat("en", { notation: "compact" });

/** The smallest of 1, 2, 5, 10, 20, ... that is at least the value. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

/**
 * A plot. `draw({series, begin, end, label})`: `series` are `{name, values}` of the same length, stacked in this order, null for a gap; `begin`
 * and `end` are the texts below the axis; `label` is the text for screen readers.
 */
export function plot() {
  const picture = svg("svg", { role: "img", height: HEIGHT, class: "plot" });
  const element = h("div", { class: "picture" }, picture);
  let last = null;
  let width = 0;
  new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now === width) return;
    width = now;
    if (last !== null) paint(last);
  }).observe(element);

  function paint({ series, begin, end, label }) {
    picture.setAttribute("aria-label", label);
    if (width < LEFT + 20) return;
    picture.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    picture.setAttribute("width", width);
    const length = series[0]?.values.length ?? 0;
    const sums = Array.from({ length }, (_, index) => series.reduce((sum, { values }) => sum + (values[index] ?? 0), 0));
    const top = roundUp(Math.max(0, ...sums));
    const bottom = HEIGHT - BOTTOM;
    const y = (value) => bottom - (value / top) * (bottom - TOP);
    const step = (width - LEFT) / Math.max(1, length);
    const gap = step > 4 ? 1 : 0;
    const lines = [0, 0.5, 1].map((share) => {
      const at = y(top * share);
      return [svg("line", { class: "grid", x1: LEFT, x2: width, y1: at, y2: at }), svg("text", { class: "tick", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, TICKS.format(top * share))];
    });
    const below = new Float64Array(length);
    const bars = series.map(({ name, values }) => {
      let path = "";
      values.forEach((value, index) => {
        if (!(value > 0)) return;
        const left = (LEFT + index * step).toFixed(1);
        const high = y(below[index] + value).toFixed(1);
        path += `M${left} ${y(below[index]).toFixed(1)}V${high}h${(step - gap).toFixed(1)}V${y(below[index]).toFixed(1)}z`;
        below[index] += value;
      });
      return svg("path", { class: `bar ${name}`, d: path });
    });
    fill(picture, lines.flat(), bars,
      svg("text", { class: "tick", x: LEFT, y: HEIGHT - 5 }, begin),
      svg("text", { class: "tick", x: width, y: HEIGHT - 5, "text-anchor": "end" }, end));
  }

  return {
    element,
    draw(values) {
      last = values;
      paint(values);
    },
  };
}
