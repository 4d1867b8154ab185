"""The JSON of Grafana's dashboards and panels, as far as dashboards.py uses it."""

# The schema of Grafana 10.0; newer versions convert it when they load it.
SCHEMA_VERSION = 38

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
PODS = 'job=~"$job",namespace=~"$namespace",pod=~"$pod"'
RATE = "[$__rate_interval]"

GREEN, YELLOW, RED = "green", "#EAB839", "red"
COLORS = {
    "code": {"OK": GREEN, "UNAVAILABLE": RED, "refused under overload": "dark-red"},
    "outcome": {
        "ok": GREEN,
        "unlimited": "light-green",
        "over_limit": "orange",
        "shadow_over_limit": "purple",
        "error": RED,
        "outage_allowed": "dark-orange",
        "outage_denied": "dark-purple",
    },
    "policy": {"local": "blue", "error": RED, "allow": "dark-orange", "deny": "dark-purple"},
}


def expand(query):
    return query.replace("{pods", "{" + PODS).replace("{rate}", RATE)


def thresholds(steps):
    """Steps are (value, color); below the first one is green."""
    return {
        "mode": "absolute",
        "steps": [{"color": GREEN, "value": None}]
        + [{"color": color, "value": value} for value, color in steps],
    }


def targets(queries, **fields):
    """`queries` are pairs of a legend and a query."""
    return [
        {
            "datasource": DATASOURCE,
            "refId": chr(ord("A") + index),
            "expr": expand(query),
            "legendFormat": legend,
            **fields,
        }
        for index, (legend, query) in enumerate(queries)
    ]


def panel(kind, title, width, height, unit, about, good, queries, defaults, options, **fields):
    assert about.endswith(".") and good.endswith("."), title
    return {
        "type": kind,
        "title": title,
        "description": f"{about}\n\nGood: {good}",
        "datasource": DATASOURCE,
        "gridPos": {"w": width, "h": height},
        "fieldConfig": {
            "defaults": {"unit": unit, **defaults},
            "overrides": fields.pop("overrides", []),
        },
        "options": options,
        "targets": queries,
        **fields,
    }


def by_name(name, *properties):
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties],
    }


def graph(title, unit, about, good, *queries, width=8, height=8, steps=(), stack=False, most=None):
    """Lines over time; thresholds are drawn as lines."""
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 30 if stack else 5,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    defaults = {
        "min": 0,
        "color": {"mode": "palette-classic"},
        "custom": custom,
        "thresholds": thresholds(steps),
    }
    if most is not None:
        defaults["max"] = most
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    colors = COLORS.get(queries[0][0].strip("{}"), {})
    overrides = [
        by_name(name, ("color", {"mode": "fixed", "fixedColor": color}))
        for name, color in colors.items()
    ]
    return panel(
        "timeseries",
        title,
        width,
        height,
        unit,
        about,
        good,
        targets(queries),
        defaults,
        options,
        overrides=overrides,
    )


def stat(title, unit, about, good, query, width=4, height=4, steps=(), decimals=None):
    """One number, coloured by its thresholds."""
    defaults = {"color": {"mode": "thresholds"}, "thresholds": thresholds(steps), "noValue": "-"}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "orientation": "auto",
        "textMode": "value",
    }
    return panel(
        "stat", title, width, height, unit, about, good, targets([("", query)]), defaults, options
    )


def states(title, about, good, legend, query, values, width=12, height=6):
    """The states of a gauge over time; `values` are (number, text, color)."""
    mapping = {
        str(number): {"text": text, "color": color, "index": index}
        for index, (number, text, color) in enumerate(values)
    }
    defaults = {
        "color": {"mode": "thresholds"},
        "thresholds": thresholds([]),
        "mappings": [{"type": "value", "options": mapping}],
        "custom": {"fillOpacity": 70, "lineWidth": 0, "spanNulls": False},
    }
    options = {
        "mergeValues": True,
        "showValue": "never",
        "alignValue": "left",
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    return panel(
        "state-timeline",
        title,
        width,
        height,
        "none",
        about,
        good,
        targets([(legend, query)]),
        defaults,
        options,
    )


def table(title, about, good, columns, *queries, hidden=(), width=12, height=8, units=()):
    """The newest values. `columns` are (field, title) in their order.

    The value of query A is the field `Value #A`, or `Value` if there is one query.
    """
    organize = {
        "excludeByName": {name: True for name in ("Time", *hidden)},
        "indexByName": {field: index for index, (field, _) in enumerate(columns)},
        "renameByName": dict(columns),
    }
    defaults = {
        "color": {"mode": "thresholds"},
        "thresholds": thresholds([]),
        "custom": {"align": "auto", "filterable": True},
    }
    queries = targets([("", query) for query in queries], format="table", instant=True, range=False)
    overrides = [by_name(name, ("unit", unit)) for name, unit in units]
    merge = [{"id": "merge", "options": {}}] if len(queries) > 1 else []
    return panel(
        "table",
        title,
        width,
        height,
        "short",
        about,
        good,
        queries,
        defaults,
        {"showHeader": True, "cellHeight": "sm"},
        overrides=overrides,
        transformations=[*merge, {"id": "organize", "options": organize}],
    )


def variable(name, label, query, all_value=".*"):
    """A choice of label values; `.*` also matches series without the label."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "includeAll": True,
        "allValue": all_value,
        "multi": True,
        "refresh": 2,
        "sort": 1,
        "regex": "",
        "hide": 0,
        "options": [],
        "skipUrlSync": False,
    }


SOURCE = {
    "name": "datasource",
    "label": "Data source",
    "type": "datasource",
    "query": "prometheus",
    "current": {},
    "includeAll": False,
    "multi": False,
    "refresh": 1,
    "regex": "",
    "hide": 0,
    "options": [],
    "skipUrlSync": False,
}


def dashboard(title, description, variables, *rows):
    """Rows are (title, panels); panels fill lines of 24 columns in their order."""
    panels, y = [], 0
    for row, members in rows:
        panels.append(
            {
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        x, y, tallest = 0, y + 1, 0
        for member in members:
            size = member["gridPos"]
            if x + size["w"] > 24:
                x, y, tallest = 0, y + tallest, 0
            member["gridPos"] = {"x": x, "y": y, **size}
            x, tallest = x + size["w"], max(tallest, size["h"])
            panels.append(member)
        y += tallest
    for number, member in enumerate(panels, 1):
        member["id"] = number
    return {
        "title": f"Weir / {title}",
        "description": description,
        "tags": ["weir", "rate-limit"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "timezone": "browser",
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "links": [
            {
                "type": "dashboards",
                "title": "Weir",
                "tags": ["weir"],
                "asDropdown": False,
                "includeVars": True,
                "keepTime": True,
            }
        ],
        "annotations": {"list": []},
        "templating": {"list": variables},
        "panels": panels,
    }


def quantiles(metric, selector, by=""):
    """The median, one in a hundred and one in a thousand of a histogram."""
    labels = ", ".join(filter(None, ["le", by]))
    legend = f" {{{{{by}}}}}" if by else ""
    return [
        (
            f"p{name}{legend}",
            f"histogram_quantile({quantile}, sum by ({labels})"
            f" (rate({metric}_bucket{selector}{{rate}})))",
        )
        for name, quantile in [("50", 0.5), ("99", 0.99), ("99.9", 0.999)]
    ]
