"""One function for each figure, as Plotly takes it: plain dicts. Colours are names that page.js looks up in its theme.

`@c0` .. `@c7` tell clusters and methods apart, together with a symbol or a dash, never alone; `@seq0` .. `@seq2` go
from nothing to much. All text from a run folder passes through `plotly_text`, since Plotly reads some tags.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from umbel.nets.objective import Metric
from umbel.pages import views
from umbel.pages.load import Floats, Run
from umbel.pages.views import Dendrogram, Entrant, Gain

Figure = dict[str, Any]  # `data` and `layout`
Part = dict[str, Any]  # a trace, an axis, a shape, a note

COLOURS = 8
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "star", "triangle-down", "hexagon")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
LARGEST = 400  # rows of a heat map; beyond, neighbours are averaged: a screen shows no more
DEEP = [[0, "@seq0"], [0.5, "@seq1"], [1, "@seq2"]]


def plotly_text(text: object) -> str:
    """Text for Plotly, which would take tags for markup and %{...} for a variable."""
    return escape(str(text), quote=False).replace("%{", "% {")


def colour(k: int) -> str:
    """The colour of cluster or entrant k; grey for clients that are not placed."""
    return f"@c{k % COLOURS}" if k >= 0 else "@muted"


def symbol(k: int) -> str:
    """Its shape: colour and shape together tell 64 clusters apart."""
    return SYMBOLS[(k + k // COLOURS) % len(SYMBOLS)] if k >= 0 else "x-thin-open"


def cluster_name(k: int) -> str:
    """What cluster k is called everywhere in the page."""
    return f"cluster {k}" if k >= 0 else "not placed"


def drawn(values: Sequence[float], metric: Metric) -> list[float]:
    """Scores as an axis has them: shares in per cent, to two digits behind the point, others to six in all."""
    return [round(100 * value, 2) if metric.unit == "%" else float(f"{value:.6g}") for value in values]


def hovered(axis: str, metric: Metric, digits: int) -> str:
    """A score of this axis, with its unit, as a hover template has it."""
    return f"%{{{axis}:{f'.{digits}f' if metric.unit == '%' else '.4g'}}} {plotly_text(metric.unit)}".rstrip()


# All runs


def scores(entrants: Sequence[Entrant], over: str) -> Figure | None:
    """The score against `rounds` or `megabytes`; a band from the worst seed to the best."""
    data: list[Part] = []
    metric = entrants[0].runs[0].metric
    for k, entrant in enumerate(entrants):
        curve = views.curve(entrant)
        if not curve.rounds:
            continue
        x = curve.rounds if over == "rounds" else [float(f"{sent:.6g}") for sent in curve.megabytes]
        if len(entrant.runs) > 1:
            data.append({
                "x": [*x, *reversed(x)], "y": [*drawn(curve.high, metric), *reversed(drawn(curve.low, metric))],
                "fill": "toself", "fillcolor": colour(k), "opacity": 0.16, "line": {"width": 0}, "mode": "lines",
                "hoverinfo": "skip", "showlegend": False, "legendgroup": str(k),
            })
        unit = "after %{x} rounds" if over == "rounds" else "after %{x:,.4g} MB"
        data.append({
            "x": x, "y": drawn(curve.mean, metric), "name": plotly_text(entrant.label), "legendgroup": str(k),
            "mode": "lines+markers" if len(x) <= 40 else "lines",
            "line": {"color": colour(k), "width": 2.25, "dash": DASHES[k % len(DASHES)]},
            "marker": {"color": colour(k), "size": 6, "symbol": symbol(k)},
            "hovertemplate": f"{plotly_text(entrant.label)}<br>{hovered('y', metric, 2)} {unit}<extra></extra>",
        })
    title = "rounds" if over == "rounds" else "megabytes sent, both ways"
    few = over == "rounds" and all(len(trace["x"]) <= 8 for trace in data)
    x_axis = {"title": title, "rangemode": "tozero", "dtick": 1 if few else None}
    return _figure(data, x_axis, _axis(metric), 380, showlegend=len(entrants) > 1) if data else None


def spread(entrants: Sequence[Entrant]) -> Figure | None:
    """Every client's score, a row for each entrant."""
    data: list[Part] = []
    metric = entrants[0].runs[0].metric
    for k, entrant in enumerate(entrants):
        scores = [pair for run in entrant.runs for pair in views.score_by_client(run).items()]
        if scores:
            data.append({
                "type": "box", "x": drawn([score for _, score in scores], metric), "name": plotly_text(entrant.label),
                "text": [plotly_text(name) for name, _ in scores], "boxpoints": "all", "jitter": 0.6, "pointpos": 0,
                "hoveron": "points", "fillcolor": "@none", "line": {"color": colour(k), "width": 1.5},
                "marker": {"color": colour(k), "size": 5, "opacity": 0.55, "symbol": symbol(k)},
                "hovertemplate": f"%{{text}}: {hovered('x', metric, 1)}<extra></extra>", "showlegend": False,
            })
    height = 110 + 56 * len(data)
    figure = _figure(data, _axis(metric, " of a client"), {"autorange": "reversed", "automargin": True}, height)
    return figure if data else None


def against(setting: views.Varied, metric: Metric) -> Figure:
    """The score at each value of a setting, a line for each combination of the others; bars span the seeds."""
    data: list[Part] = []
    for k, (others, line) in enumerate(setting.lines.items()):
        there = [value for value in setting.values if line.get(value)]
        means = [sum(line[value]) / len(line[value]) for value in there]
        up = [max(line[value]) - mean for value, mean in zip(there, means, strict=True)]
        down = [mean - min(line[value]) for value, mean in zip(there, means, strict=True)]
        bars = {"error_y": {"type": "data", "symmetric": False, "array": drawn(up, metric), "width": 4,
                            "arrayminus": drawn(down, metric), "thickness": 1}} if any(up) else {}
        data.append({
            "x": [plotly_text(value) for value in there], "y": drawn(means, metric), "mode": "lines+markers",
            "name": plotly_text(others), "line": {"color": colour(k), "width": 2, "dash": DASHES[k % len(DASHES)]},
            "marker": {"color": colour(k), "size": 7, "symbol": symbol(k)}, **bars,
            "hovertemplate": f"{plotly_text(setting.name)} %{{x}}<br>{hovered('y', metric, 2)}<extra></extra>",
        })
    ticks = {"title": plotly_text(setting.name), "type": "category", "categoryorder": "array",
             "categoryarray": [plotly_text(value) for value in setting.values]}
    return _figure(data, ticks, _axis(metric), 320, showlegend=len(setting.lines) > 1)


# One run


def matrix(run: Run, tree: Dendrogram) -> Figure:
    """Distances between clients, in the order of the dendrogram's leaves."""
    assert run.evidence.proximity is not None
    names = [plotly_text(run.clients[tree.clients[leaf]].name) for leaf in tree.order]
    values, names = _coarse(run.evidence.proximity[np.ix_(tree.order, tree.order)], names)
    few = len(names) <= 30
    axis = {"tickvals": list(range(len(names))) if few else [], "ticktext": names if few else [],
            "showgrid": False, "zeroline": False}
    return _figure([{
        "type": "heatmap", "z": views.short_rows(values), "colorscale": _reversed(DEEP),
        "meta": {"pairs": names}, "hovertemplate": "%{text}<br>distance %{z:.4g}<extra></extra>",
        "colorbar": _bar("distance"),
    }], {**axis, "tickangle": -90, "constrain": "domain"},
        {**axis, "autorange": "reversed", "scaleanchor": "x", "constrain": "domain"}, 460, square=True)


def sweep(run: Run) -> Figure | None:
    """The score of every partition that was tried, and the one chosen."""
    curve = run.evidence.curve
    if curve is None:
        return None
    chosen = curve[curve[:, 3] == 1]
    hover = "%{x} clusters<br>score %{y:.4g}<br>cut at %{customdata:.4g}<extra></extra>"
    data: list[Part] = [{
        "x": curve[:, 1].tolist(), "y": curve[:, 2].tolist(), "customdata": curve[:, 0].tolist(), "name": "tried",
        "mode": "lines+markers", "line": {"color": "@c0", "width": 2}, "marker": {"color": "@c0", "size": 7},
        "hovertemplate": hover,
    }]
    if len(chosen):
        data.append({
            "x": chosen[:, 1].tolist(), "y": chosen[:, 2].tolist(), "customdata": chosen[:, 0].tolist(),
            "mode": "markers+text", "name": "chosen", "text": [f"{int(chosen[0, 1])} chosen"],
            "textposition": "top center", "textfont": {"color": "@c1", "size": 14},
            "marker": {"color": "@c1", "size": 15, "symbol": "diamond", "line": {"color": "@card", "width": 2}},
            "hovertemplate": hover,
        })
    most, low, high = float(curve[:, 1].max()), float(curve[:, 2].min()), float(curve[:, 2].max())
    room = (high - low) or 1.0
    x: Part = {"title": "clusters", "dtick": 1 if most <= 12 else None}
    if most > 40:
        x = {"title": "clusters", "type": "log", "tickvals": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]}
    return _figure(data, x, {"title": "score", "range": [low - 0.06 * room, high + 0.18 * room]}, 340, showlegend=False)


def label_shares(run: Run) -> Figure | None:
    """Which labels each client holds, cluster beside cluster."""
    known = views.label_shares(run)
    if known is None:
        return None
    labels, shares = known
    order = views.by_cluster(run)
    text = [[f"{plotly_text(run.clients[i].name)}, {cluster_name(run.clients[i].cluster)}<br>label {label}:"
             f" {(run.clients[i].holds or {}).get(label, 0)} rows" for i in order] for label in labels]
    few = len(order) <= 30
    heat = {
        "type": "heatmap", "z": views.short_rows(100 * shares[:, order], 3), "y": [str(x) for x in labels],
        "text": text, "hovertemplate": "%{text}, %{z:.1f} %<extra></extra>", "colorscale": DEEP,
        "zmin": 0, "zmax": round(100 * float(shares.max()), 1),
        "xgap": 1 if len(order) <= 120 else 0, "ygap": 1 if len(labels) <= 30 else 0,
        "colorbar": _bar("% of its rows"),
    }
    shapes, notes = _cluster_marks([run.clients[i].cluster for i in order])
    return _figure([heat], {
        "tickvals": list(range(len(order))) if few else [], "showgrid": False, "zeroline": False, "tickangle": -90,
        "ticktext": [plotly_text(run.clients[i].name) for i in order] if few else [],
        "title": "" if few else "clients",
    }, {"title": "label", "type": "category", "showgrid": False}, max(250, min(620, 120 + 22 * len(labels))),
        shapes=shapes, annotations=notes)


def trajectories(run: Run) -> Figure | None:
    """CFLGT: pull and push of each class, a line for each client, a colour for each cluster."""
    points = run.evidence.trajectory
    if points is None:
        return None
    data: list[Part] = []
    clusters = [run.clients[i].cluster for i in run.evidence.who.tolist()]
    for k in sorted(set(clusters)):
        members = [p for p, cluster in enumerate(clusters) if cluster == k]
        x: list[float | None] = []
        y: list[float | None] = []
        text: list[str] = []
        for p in members:
            x += [*_short(points[p, 0]), None]
            y += [*_short(points[p, 1]), None]
            name = plotly_text(run.clients[int(run.evidence.who[p])].name)
            text += [*[f"{name}, class {c}" for c in range(points.shape[2])], ""]
        data.append({
            "x": x, "y": y, "text": text, "name": cluster_name(k), "legendgroup": str(k), "mode": "lines+markers",
            "opacity": 0.4, "line": {"color": colour(k), "width": 1}, "showlegend": False,
            "marker": {"size": 4, "color": colour(k)}, "connectgaps": False,
            "hovertemplate": "%{text}<br>pull %{x:.3g}, push %{y:.3g}<extra></extra>",
        })
        middle = points[members].mean(0)
        data.append({
            "x": _short(middle[0]), "y": _short(middle[1]), "name": f"{cluster_name(k)}, mean", "legendgroup": str(k),
            "mode": "lines+markers+text", "line": {"color": colour(k), "width": 3},
            "marker": {"size": 8, "color": colour(k), "symbol": symbol(k), "line": {"color": "@card", "width": 1}},
            "text": [str(c) if pull > middle[0].max() / 2 else "" for c, pull in enumerate(middle[0])],
            "textposition": "top right", "textfont": {"size": 14, "color": colour(k)},
            "customdata": list(range(points.shape[2])),
            "hovertemplate": f"{cluster_name(k)}, mean, class %{{customdata}}<br>pull %{{x:.3g}}, push %{{y:.3g}}"
                             "<extra></extra>",
        })
    return _figure(data, {"title": "pull"}, {"title": "push"}, 460)


def client_map(run: Run, plane: views.Plane) -> Figure:
    """The map of clients: near is alike."""
    data: list[Part] = []
    truth = run.truth
    few = len(plane.clients) <= 60 and truth is not None
    for k in sorted({run.clients[i].cluster for i in plane.clients}):
        at = [p for p, i in enumerate(plane.clients) if run.clients[i].cluster == k]
        members = [plane.clients[p] for p in at]
        groups = [f"<br>true group {truth[i]}" if truth else "" for i in members]
        data.append({
            "x": _short(plane.points[at, 0]), "y": _short(plane.points[at, 1]), "name": cluster_name(k),
            "mode": "markers+text" if few else "markers", "text": [str(truth[i]) if truth else "" for i in members],
            "textfont": {"size": 10, "color": "@card"},
            "customdata": [f"{plotly_text(run.clients[i].name)}, {cluster_name(k)}{group}"
                           for i, group in zip(members, groups, strict=True)],
            "marker": {"size": 20 if few else 11, "color": colour(k), "symbol": symbol(k), "opacity": 0.9,
                       "line": {"color": "@card", "width": 1}},
            "hovertemplate": "%{customdata}<extra></extra>",
        })
        if not few and k >= 0:  # the number beside its cluster
            middle = plane.points[at].mean(0)
            data.append({"x": [float(middle[0])], "y": [float(middle[1])], "mode": "text", "text": [f"<b>{k}</b>"],
                         "textposition": "top center", "textfont": {"size": 15, "color": "@ink"}, "hoverinfo": "skip",
                         "showlegend": False})
    axis = {"showticklabels": False, "zeroline": False, "showgrid": True, "title": ""}
    return _figure(data, axis, {**axis, "scaleanchor": "x"}, 460, square=True, showlegend=len(data) <= 20)


def gains(clients: Sequence[Gain], metric: Metric) -> Figure:
    """From FedAvg's score to the method's, client by client, who gains most first; marks point the way it goes."""
    names = [plotly_text(gain.name) for gain in clients]
    data: list[Part] = []
    for won, word, hue in ((True, "gains", "@c0"), (False, "loses", "@c1")):
        mark = "triangle-up" if won == metric.higher_is_better else "triangle-down"
        chosen = [(x, client) for x, client in enumerate(clients) if (client.gain >= 0) == won]
        data += [{
            "x": [place for x, _ in chosen for place in (x, x, None)], "mode": "lines",
            "y": [place for _, gain in chosen for place in (*drawn([gain.before, gain.after], metric), None)],
            "line": {"color": hue, "width": 2}, "hoverinfo": "skip", "showlegend": False,
        }, {
            "x": [x for x, _ in chosen], "y": drawn([gain.after for _, gain in chosen], metric), "mode": "markers",
            "name": word, "marker": {"color": hue, "size": 9, "symbol": mark},
            "customdata": [f"{plotly_text(gain.name)}, {cluster_name(gain.cluster)}<br>"
                           f"{plotly_text(metric.said(gain.before, 1))} → {plotly_text(metric.said(gain.after, 1))}"
                           for _, gain in chosen],
            "hovertemplate": "%{customdata}<extra></extra>",
        }]
    data.append({
        "x": list(range(len(clients))), "y": drawn([gain.before for gain in clients], metric), "mode": "markers",
        "name": "under FedAvg", "hoverinfo": "skip",
        "marker": {"color": "@card", "size": 6, "symbol": "circle", "line": {"color": "@muted", "width": 1.5}},
    })
    few = len(names) <= 30
    return _figure(data, {
        "tickvals": list(range(len(names))) if few else [], "ticktext": names if few else [], "tickangle": -90,
        "showgrid": False, "zeroline": False, "title": "" if few else "clients",
    }, _axis(metric), 360)


def client_scores(run: Run) -> Figure | None:
    """Each client's score, cluster beside cluster."""
    order = [i for i in views.by_cluster(run) if run.headline in run.clients[i].score]
    if not order:
        return None
    data = []
    for k in sorted({run.clients[i].cluster for i in order}):
        at = [x for x, i in enumerate(order) if run.clients[i].cluster == k]
        data.append({
            "x": at, "y": drawn([run.clients[order[x]].score[run.headline] for x in at], run.metric), "mode": "markers",
            "name": cluster_name(k), "marker": {"color": colour(k), "size": 9, "symbol": symbol(k)},
            "text": [f"{plotly_text(run.clients[order[x]].name)}, {cluster_name(k)}" for x in at],
            "hovertemplate": f"%{{text}}<br>{hovered('y', run.metric, 1)}<extra></extra>",
        })
    few = len(order) <= 30
    shapes, notes = _cluster_marks([run.clients[i].cluster for i in order])
    return _figure(data, {
        "tickvals": list(range(len(order))) if few else [], "zeroline": False, "showgrid": False, "tickangle": -90,
        "ticktext": [plotly_text(run.clients[i].name) for i in order] if few else [], "title": "" if few else "clients",
        "range": [-0.5, len(order) - 0.5],
    }, _axis(run.metric), 340, shapes=shapes, annotations=notes, showlegend=False)


def against_truth(run: Run) -> Figure | None:
    """How many clients of each true group are in each cluster."""
    counts = views.against_truth(run)
    if counts is None:
        return None
    groups, clusters, both = counts
    share = both / both.sum(1, keepdims=True).clip(min=1)
    notes = [
        {"x": c, "y": g, "text": str(both[g, c]), "showarrow": False,
         "font": {"color": "@seq0" if share[g, c] > 0.5 else "@ink"}}
        for g in range(len(groups)) for c in range(len(clusters)) if both[g, c]
    ] if both.size <= 900 else []
    ticks = {"showgrid": False, "zeroline": False}
    few = len(clusters) <= 12
    return _figure([{
        "type": "heatmap", "z": views.short_rows(share), "colorscale": DEEP, "zmin": 0, "zmax": 1,
        "text": both.tolist(), "xgap": 2, "ygap": 2, "showscale": False,
        "hovertemplate": "true group %{y}, %{x}<br>%{text} clients<extra></extra>",
    }], {**ticks, "title": "cluster", "tickvals": list(range(len(clusters))) if few else None,
         "ticktext": [str(k) if k >= 0 else "none" for k in clusters] if few else None},
        {**ticks, "title": "true group", "autorange": "reversed", "tickvals": list(range(len(groups))),
         "ticktext": [str(g) for g in groups]}, max(230, min(560, 110 + 40 * len(groups))), annotations=notes)


def forecast_rows(truth: Sequence[float | None], forecast: Sequence[float | None], cluster: int, unit: str) -> Figure:
    """One output of one site's test rows, in their order."""
    told = f"row %{{x}}<br>%{{y:.4g}} {plotly_text(unit)}".rstrip()
    lines = (("truth", truth, "@muted", "solid", 1.5), ("forecast", forecast, colour(cluster), "dot", 2.25))
    data: list[Part] = [{
        "y": list(values), "x0": 1, "dx": 1, "name": name, "mode": "lines+markers" if len(values) < 40 else "lines",
        "line": {"color": hue, "width": width, "dash": dash}, "marker": {"color": hue, "size": 5, "symbol": mark},
        "hovertemplate": f"{told}<extra>{name}</extra>",
    } for (name, values, hue, dash, width), mark in zip(lines, ("circle", symbol(max(1, cluster))), strict=True)]
    return _figure(data, {"title": "row"}, {"title": plotly_text(unit)}, 420)


def forecast_against(truth: Sequence[float | None], forecast: Sequence[float | None], cluster: int,
                     unit: str) -> Figure:
    """Forecast over truth, and the line on which they are equal."""
    pairs = [(x, y) for x, y in zip(truth, forecast, strict=True) if x is not None and y is not None]
    ends = [min(map(min, pairs)), max(map(max, pairs))] if pairs else [0.0, 1.0]
    of = f" {plotly_text(unit)}".rstrip()
    axis = f", {plotly_text(unit)}" if unit else ""
    data: list[Part] = [
        {"x": ends, "y": ends, "mode": "lines", "line": {"color": "@muted", "width": 1.5, "dash": "dash"},
         "hoverinfo": "skip", "showlegend": False},
        {"x": [x for x, _ in pairs], "y": [y for _, y in pairs], "mode": "markers", "showlegend": False,
         "marker": {"color": colour(cluster), "symbol": symbol(cluster), "size": 7, "opacity": 0.6},
         "hovertemplate": f"truth %{{x:.4g}}{of}<br>forecast %{{y:.4g}}{of}<extra></extra>"},
    ]
    return _figure(data, {"title": f"truth{axis}"}, {"title": f"forecast{axis}"}, 420)


# Shared


def _axis(metric: Metric, of: str = "") -> Part:
    """An axis of scores: "accuracy of a client, %"."""
    return {"title": plotly_text(metric._replace(name=f"{metric.name}{of}").axis)}


def _figure(data: list[Part], x: Part, y: Part, height: int, **layout: Any) -> Figure:
    """Axes and layout put together; what is None in an axis is left to Plotly. page.js makes `square` ones square."""
    axes = {name: {key: value for key, value in axis.items() if value is not None}
            for name, axis in (("xaxis", x), ("yaxis", y))}
    for axis in axes.values():
        axis["title"] = {"text": axis.pop("title", "")}
    return {"data": data, "layout": {**axes, "height": height, **layout}}


def _bar(title: str) -> Part:
    """The colour bar beside a heat map."""
    font = {"size": 12, "color": "@muted"}
    return {"title": {"text": title, "side": "right", "font": font}, "tickfont": font, "thickness": 10,
            "outlinewidth": 0}


def _short(values: Floats) -> list[float]:
    return [float(f"{value:.5g}") for value in values.tolist()]


def _reversed(scale: list[list[Any]]) -> list[list[Any]]:
    """The other way round: small values are deep."""
    return [[1 - place, name] for place, name in reversed(scale)]


def _coarse(values: Floats, names: list[str]) -> tuple[Floats, list[str]]:
    """A square matrix of at most LARGEST rows: means of neighbours, each named by its first and last."""
    n = len(values)
    if n <= LARGEST:
        return values, names
    starts = np.unique(np.linspace(0, n, LARGEST, endpoint=False).astype(int))
    sizes = np.diff([*starts, n])
    means = np.add.reduceat(np.add.reduceat(values, starts, 0), starts, 1) / np.outer(sizes, sizes)
    ends = [*starts[1:], n]
    return means, [f"{names[a]} … {names[b - 1]}" for a, b in zip(starts, ends, strict=True)]


def _cluster_marks(clusters: list[int]) -> tuple[list[Part], list[Part]]:
    """Shapes: lines between clusters along x, and a bar in the colour of each. Notes: their numbers above."""
    starts = [x for x, k in enumerate(clusters) if x == 0 or clusters[x - 1] != k]
    ends = [*starts[1:], len(clusters)]
    shapes: list[Part] = [{
        "type": "line", "x0": x - 0.5, "x1": x - 0.5, "y0": 0, "y1": 1.02, "yref": "paper",
        "line": {"color": "@muted", "width": 1},
    } for x in starts[1:]]
    shapes += [{
        "type": "rect", "x0": a - 0.5, "x1": b - 0.5, "y0": 1.02, "y1": 1.05, "yref": "paper",
        "fillcolor": colour(clusters[a]), "line": {"width": 0},
    } for a, b in zip(starts, ends, strict=True)]
    wide = [(a, b) for a, b in zip(starts, ends, strict=True) if (b - a) / len(clusters) >= 0.03]
    notes: list[Part] = [{
        "x": (a + b - 1) / 2, "y": 1.05, "yref": "paper", "yanchor": "bottom", "showarrow": False,
        "text": str(clusters[a]) if clusters[a] >= 0 else "–", "font": {"color": colour(clusters[a]), "size": 13},
    } for a, b in wide]
    return shapes, notes
