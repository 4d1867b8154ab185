#!/usr/bin/env python3
"""Draws a dashboard as SVG: its panels, with the answers of a real Prometheus to their queries.

    tests/monitoring/picture.py DASHBOARD.json ADDRESS FROM TO NAMESPACE OUTPUT.svg

FROM and TO are seconds since 1970; tests/monitoring/record.py prints the address. The script draws
the kinds of panels in deploy/monitoring/dashboards.py: rows, time series, stats, states over time
and tables. It needs only Python's standard library.
"""

import datetime
import html
import json
import math
import pathlib
import re
import sys
import urllib.parse
import urllib.request

COLUMN, UNIT_HEIGHT, GAP = 56, 30, 8
WIDTH = 24 * COLUMN + GAP
STEP = 15
PALETTE = [
    "#3d71d9",
    "#e0752d",
    "#37872d",
    "#a352cc",
    "#c4162a",
    "#56a3a6",
    "#b5851d",
    "#8a6d3b",
    "#d64e8f",
    "#5b5b5b",
]
NAMED = {
    "green": "#56a64b",
    "light-green": "#96d98d",
    "red": "#e02f44",
    "dark-red": "#ad0317",
    "orange": "#ff9830",
    "dark-orange": "#c15c17",
    "purple": "#a352cc",
    "dark-purple": "#7c2ea3",
    "blue": "#3274d9",
}


def ask(address, path, **fields):
    with urllib.request.urlopen(
        f"{address}/api/v1/{path}?{urllib.parse.urlencode(fields)}", timeout=30
    ) as answer:
        return json.load(answer)["data"]["result"]


def number(value, unit):
    """A value as Grafana would show it, roughly."""
    if value is None or math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and value < 1:
        return f"{1000 * value:.3g} ms"
    if unit == "s":
        return f"{value:.4g} s"
    if unit == "dateTimeFromNow":
        return datetime.datetime.fromtimestamp(value / 1000, datetime.UTC).strftime("%H:%M:%S")
    for size, name in [(1e9, "G"), (1e6, "M"), (1e3, "k")]:
        if unit == "bytes" and value >= size:
            return f"{value / size:.3g} {name}B"
        if unit != "none" and value >= size:
            return f"{value / size:.3g}{name}"
    per_second = {"reqps": " req/s", "ops": " /s"}.get(unit, "")
    return f"{value:.5g}{per_second}" if value >= 1000 else f"{value:.3g}{per_second}"


def text(x, y, content, size=11, color="#333", anchor="start", weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{html.escape(str(content))}</text>'
    )


def box(x, y, width, height, color, more=""):
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}"'
        f' fill="{color}" {more}/>'
    )


def legend_of(target, metric):
    return re.sub(
        r"\{\{(\w+)\}\}", lambda match: metric.get(match[1], ""), target["legendFormat"]
    ).strip()


def runs(times, values):
    """The first and the last time of each stretch without a change or a gap."""
    found = []
    for at in times:
        if found and at - found[-1][1] == STEP and values[at] == values[found[-1][0]]:
            found[-1][1] = at
        else:
            found.append([at, at])
    return found


class Picture:
    def __init__(self, address, begin, end, namespace):
        self.address, self.begin, self.end = address, begin, end
        self.variables = {"job": ".+", "namespace": namespace, "$__rate_interval": "1m"}

    def query(self, target):
        query = (
            target["expr"]
            .replace("$__rate_interval", "1m")
            .replace("$namespace", self.variables["namespace"])
        )
        return re.sub(r'"\$\w+"', '".*"', query)

    def series(self, panel):
        """(legend, {time: value}) of each series, in the order of the queries."""
        found = []
        for target in panel["targets"]:
            answer = ask(
                self.address,
                "query_range",
                query=self.query(target),
                start=self.begin,
                end=self.end,
                step=STEP,
            )
            series = [
                (
                    legend_of(target, one["metric"]),
                    {at: float(value) for at, value in one["values"]},
                )
                for one in answer
            ]
            found += sorted(series, key=lambda pair: pair[0])
        return found

    def x(self, at, left, right):
        return left + (at - self.begin) / (self.end - self.begin) * (right - left)

    def time_axis(self, left, right, y):
        out = []
        first = math.ceil(self.begin / 300) * 300
        for at in range(first, int(self.end) + 1, 300):
            x = self.x(at, left, right)
            label = datetime.datetime.fromtimestamp(at, datetime.UTC).strftime("%H:%M")
            out.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 4:.1f}" stroke="#bbb"/>'
                + text(x, y + 14, label, 9, "#777", "middle")
            )
        return out

    def timeseries(self, panel, x, y, width, height):
        defaults = panel["fieldConfig"]["defaults"]
        unit, stacked = defaults["unit"], defaults["custom"]["stacking"]["mode"] == "normal"
        fixed = {
            one["matcher"]["options"]: one["properties"][0]["value"]["fixedColor"]
            for one in panel["fieldConfig"]["overrides"]
        }
        series = [
            (name, values)
            for name, values in self.series(panel)
            if any(not math.isnan(value) for value in values.values())
        ]
        left, right, top, bottom = x + 62, x + width - 10, y + 30, y + height - 44
        times = range(self.begin, self.end + 1, STEP)
        base = dict.fromkeys(times, 0.0)
        drawn = []
        for index, (name, values) in enumerate(series):
            color = NAMED.get(fixed.get(name), fixed.get(name)) or PALETTE[index % len(PALETTE)]
            lower = dict(base) if stacked else None
            points = {}
            for at in times:
                value = values.get(at, math.nan)
                if stacked:
                    base[at] += 0 if math.isnan(value) else value
                    points[at] = base[at]
                else:
                    points[at] = value
            drawn.append((name, color, points, lower))
        values = [
            value for _, _, points, _ in drawn for value in points.values() if not math.isnan(value)
        ]
        top_value = max([defaults.get("max", 0), *values], default=0) or 1
        exact = top_value / 4
        magnitude = 10 ** math.floor(math.log10(exact))
        tick = next(
            step * magnitude for step in (1, 2, 2.5, 5, 10) if step * magnitude >= exact * 0.999
        )
        upper = tick * math.ceil(top_value / tick * 0.999)
        scale = lambda value: bottom - value / upper * (bottom - top)
        out = []
        for step in range(round(upper / tick) + 1):
            level = scale(step * tick)
            out.append(
                f'<line x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"'
                ' stroke="#e7e7e7"/>'
            )
            out.append(text(left - 5, level + 3.5, number(step * tick, unit), 9, "#777", "end"))
        out += self.time_axis(left, right, bottom)
        for threshold in defaults["thresholds"]["steps"][1:]:
            if threshold["value"] <= upper:
                color, level = (
                    NAMED.get(threshold["color"], threshold["color"]),
                    scale(threshold["value"]),
                )
                out.append(
                    f'<line x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}"'
                    f' stroke="{color}" stroke-dasharray="6 4"/>'
                )
        for name, color, points, lower in drawn:
            parts, part = [], []
            for at in times:
                if math.isnan(points[at]):
                    parts, part = parts + [part], []
                else:
                    part.append(at)
            for part in filter(None, [*parts, part]):
                line = " ".join(
                    f"{self.x(at, left, right):.1f},{scale(points[at]):.1f}" for at in part
                )
                if lower:
                    back = " ".join(
                        f"{self.x(at, left, right):.1f},{scale(lower[at]):.1f}"
                        for at in reversed(part)
                    )
                    out.append(
                        f'<polygon points="{line} {back}" fill="{color}" fill-opacity="0.3"/>'
                    )
                out.append(
                    f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="1.4"/>'
                )
        at, line = left - 40, y + height - 16
        for name, color, _, _ in drawn:
            length = 20 + 5.6 * len(name)
            if at + length > right:
                if line > y + height - 16:
                    break
                at, line = left - 40, line + 12
            out.append(box(at, line - 7, 10, 3, color) + text(at + 14, line - 3, name, 9.5))
            at += length
        return (
            out
            if drawn
            else [*out, text(x + width / 2, (top + bottom) / 2, "no data", 12, "#999", "middle")]
        )

    def stat(self, panel, x, y, width, height):
        defaults = panel["fieldConfig"]["defaults"]
        answer = ask(self.address, "query", query=self.query(panel["targets"][0]), time=self.end)
        value = float(answer[0]["value"][1]) if answer else math.nan
        color = "green"
        for threshold in defaults["thresholds"]["steps"][1:]:
            color = threshold["color"] if value >= threshold["value"] else color
        out = [
            text(
                x + width / 2,
                y + 66,
                number(value, defaults["unit"]),
                26,
                NAMED.get(color, color),
                "middle",
                "bold",
            )
        ]
        points = [
            (at, value)
            for _, values in self.series(panel)
            for at, value in values.items()
            if not math.isnan(value)
        ]
        most = max([value for _, value in points], default=0)
        if most > 0:
            line = " ".join(
                f"{self.x(at, x + 6, x + width - 6):.1f},{y + height - 6 - value / most * 34:.1f}"
                for at, value in points
            )
            out.append(
                f'<polyline points="{line}" fill="none" stroke="{NAMED.get(color, color)}"'
                ' stroke-opacity="0.5"/>'
            )
        return out

    def states(self, panel, x, y, width, height):
        mapping = panel["fieldConfig"]["defaults"]["mappings"][0]["options"]
        left, right, out = x + 150, x + width - 10, []
        series = self.series(panel)
        row = min(26, (height - 70) / max(len(series), 1))
        for index, (name, values) in enumerate(series):
            top = y + 32 + index * row
            out.append(text(left - 6, top + row / 2 + 3, name, 10, "#555", "end"))
            times = sorted(values)
            for first, last in runs(times, values):
                color = mapping.get(f"{values[first]:.0f}", {"color": "#999"})["color"]
                begin, end = (
                    self.x(first, left, right),
                    self.x(min(last + STEP, self.end), left, right),
                )
                out.append(box(begin, top + 2, end - begin, row - 5, NAMED.get(color, color)))
        out += self.time_axis(left, right, y + 34 + len(series) * row)
        at = left
        for state in mapping.values():
            out.append(
                box(at, y + height - 16, 10, 8, NAMED.get(state["color"], state["color"]))
                + text(at + 15, y + height - 8, state["text"], 10)
            )
            at += 90
        return out

    def table(self, panel, x, y, width, height):
        organize = panel["transformations"][-1]["options"]
        units = {
            one["matcher"]["options"]: one["properties"][0]["value"]
            for one in panel["fieldConfig"]["overrides"]
        }
        columns = [(field, organize["renameByName"][field]) for field in organize["indexByName"]]
        rows = []
        for index, target in enumerate(panel["targets"]):
            for one in ask(self.address, "query", query=self.query(target), time=self.end):
                labels, value = one["metric"], float(one["value"][1])
                row = next(
                    (
                        row
                        for row in rows
                        if all(row.get(key, label) == label for key, label in labels.items())
                    ),
                    None,
                )
                if row is None:
                    rows.append(row := {})
                row |= labels | {f"Value #{target['refId']}": value, "Value": value}
        out, cell = [], (width - 20) / len(columns)
        for number_of, (field, title) in enumerate(columns):
            out.append(text(x + 10 + number_of * cell, y + 42, title, 10, "#3d71d9", weight="bold"))
        for index, row in enumerate(rows[: int((height - 60) // 20)]):
            for number_of, (field, title) in enumerate(columns):
                value = row.get(field, "")
                value = (
                    number(value, units.get(title, "none")) if isinstance(value, float) else value
                )
                out.append(text(x + 10 + number_of * cell, y + 64 + 20 * index, value, 10.5))
        return out or [text(x + 10, y + 60, "no data", 10, "#999")]

    def draw(self, dashboard):
        kinds = {
            "timeseries": self.timeseries,
            "stat": self.stat,
            "state-timeline": self.states,
            "table": self.table,
        }
        bottom = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
        full = bottom * UNIT_HEIGHT + 50
        out = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {full}" width="{WIDTH}"'
            f' height="{full}" font-family="sans-serif">',
            box(0, 0, WIDTH, full, "#f4f5f5"),
            text(12, 28, dashboard["title"], 18, "#222", weight="bold"),
        ]
        for panel in dashboard["panels"]:
            size = panel["gridPos"]
            x, y = size["x"] * COLUMN + GAP, size["y"] * UNIT_HEIGHT + 40
            width, height = size["w"] * COLUMN - GAP, size["h"] * UNIT_HEIGHT - GAP
            if panel["type"] == "row":
                out.append(text(x + 4, y + 16, panel["title"], 13, "#222", weight="bold"))
                continue
            out.append(box(x, y, width, height, "#fff", 'rx="3" stroke="#ddd"'))
            out.append(text(x + 10, y + 20, panel["title"], 12, "#222", weight="bold"))
            out += kinds[panel["type"]](panel, x, y, width, height)
        return "\n".join([*out, "</svg>\n"])


def main(dashboard, address, begin, end, namespace, output):
    picture = Picture(address, int(begin), int(end), namespace)
    pathlib.Path(output).write_text(picture.draw(json.loads(pathlib.Path(dashboard).read_text())))


main(*sys.argv[1:])
