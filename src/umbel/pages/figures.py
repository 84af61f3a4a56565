"""The figures of a report as files for a paper: PNG at 300 dpi and SVG, one column wide, drawn by matplotlib."""

import re
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from umbel.errors import UmbelError
from umbel.files import make_folder, write_atomically
from umbel.nets.objective import Metric
from umbel.pages import views
from umbel.pages.load import Floats, Run
from umbel.pages.plots import drawn
from umbel.pages.views import Entrant

PALETTE = ("#0072b2", "#d55e00", "#00835f", "#b8548d", "#b07900", "#3f9bd1", "#6a3d9a", "#7c7d00")  # the page's
MARKERS = "osD^P*vh"
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (7, 2)), (0, (7, 2, 1, 2)))
COLUMN, WHOLE = 3.4, 7.0  # inches: one column of two, and both
STYLE: Any = {
    "font.family": "sans-serif", "font.size": 8, "axes.labelsize": 8, "axes.titlesize": 8, "legend.fontsize": 7,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.linewidth": 0.6, "grid.linewidth": 0.4, "grid.color": "#dddddd", "lines.linewidth": 1.3,
    "legend.frameon": False, "svg.hashsalt": "umbel", "svg.fonttype": "path", "figure.constrained_layout.use": True,
}

Draw = Callable[[Any], None]  # draws on a matplotlib Axes


def write(runs: Sequence[Run], folder: Path) -> list[Path]:
    """Each figure that these runs have evidence for, as NAME.png and NAME.svg."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UmbelError("Figures for a paper need matplotlib: pip install 'umbel[report]'.") from error
    make_folder(folder)
    written = []
    for name, (wide, high), draw in _all(runs):
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(wide, high))
            draw(figure.add_subplot())
            for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
                path = folder / f"{name}.{kind}"
                content = BytesIO()
                figure.savefig(content, format=kind, dpi=300, metadata=metadata)
                write_atomically(path, content.getvalue())
                written.append(path)
    return written


def _all(runs: Sequence[Run]) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    """Of each figure its name, its size in inches, and how to draw it."""
    entrants = views.entrants(runs)
    names = views.run_names(entrants)
    if any(views.curve(entrant).rounds for entrant in entrants):
        word = re.sub(r"\W+", "-", runs[0].metric.name.lower())
        yield f"{word}-rounds", (COLUMN, 2.5), lambda axes: scores(axes, entrants, "rounds")
        yield f"{word}-bytes", (COLUMN, 2.5), lambda axes: scores(axes, entrants, "megabytes")
    if any(views.score_by_client(run) for run in runs):
        yield "clients", (COLUMN, 0.8 + 0.32 * len(entrants)), lambda axes: spread(axes, entrants)
    taken: set[str] = set()
    for run in runs:
        stem = re.sub(r"[^\w.-]+", "-", names[id(run)]).strip("-.") or "run"
        stem = stem if stem not in taken else f"{stem}-{len(taken)}"
        taken.add(stem)
        for name, size, draw in _of_run(run, views.baseline(run, runs)):
            yield f"{stem}-{name}", size, draw


def _of_run(run: Run, other: Run | None) -> Iterator[tuple[str, tuple[float, float], Draw]]:
    tree, plane, gained = views.dendrogram(run), views.plane(run), views.gains(run, other) if other else []
    if tree is not None:
        many = len(tree.order) > 40
        yield "dendrogram", (WHOLE if many else COLUMN, 2.4), lambda axes: dendrogram(axes, run, tree)
        yield "distances", (COLUMN, 2.9), lambda axes: matrix(axes, run, tree)
    if run.evidence.curve is not None:
        yield "sweep", (COLUMN, 2.2), lambda axes: sweep(axes, run)
    if plane is not None:
        yield "map", (COLUMN, 2.9), lambda axes: client_map(axes, run, plane)
    if run.evidence.trajectory is not None:
        yield "trajectories", (COLUMN, 2.7), lambda axes: trajectories(axes, run)
    shares = views.label_shares(run)
    if shares is not None:
        wide = WHOLE if len(run.clients) > 40 else COLUMN
        yield "labels", (wide, 2.4), lambda axes: label_shares(axes, run, *shares)
    if views.against_truth(run) is not None:
        yield "truth", (COLUMN, 2.2), lambda axes: against_truth(axes, run)
    if gained:
        yield "gains", (WHOLE if len(gained) > 40 else COLUMN, 2.3), lambda axes: gains(axes, gained, run.metric)


def _colour(k: int) -> str:
    return PALETTE[k % len(PALETTE)] if k >= 0 else "#777777"


def _marker(k: int) -> str:
    return MARKERS[(k + k // len(PALETTE)) % len(MARKERS)] if k >= 0 else "x"


def _label(text: str) -> str:
    """Text for matplotlib: a dollar sign would begin a formula, a leading underscore hide a name from the legend."""
    return text.replace("$", r"\$").lstrip("_")


def _axis(metric: Metric, of: str = "") -> str:
    return _label(metric._replace(name=f"{metric.name}{of}").axis)


def scores(axes: Any, entrants: Sequence[Entrant], over: str) -> None:
    """The score against rounds or megabytes; bands span the seeds."""
    metric = entrants[0].runs[0].metric
    for k, entrant in enumerate(entrants):
        curve = views.curve(entrant)
        x = curve.rounds if over == "rounds" else curve.megabytes
        axes.plot(x, drawn(curve.mean, metric), color=_colour(k), linestyle=DASHES[k % len(DASHES)],
                  label=_label(entrant.label), marker=_marker(k), markersize=3, markevery=max(1, len(x) // 10))
        if len(entrant.runs) > 1:
            axes.fill_between(x, drawn(curve.low, metric), drawn(curve.high, metric), color=_colour(k), alpha=0.15,
                              linewidth=0)
    axes.set(xlabel="rounds" if over == "rounds" else "megabytes sent, both ways", ylabel=_axis(metric))
    axes.grid(True)
    axes.legend()


def spread(axes: Any, entrants: Sequence[Entrant]) -> None:
    """Every client's score, a row for each entrant."""
    metric = entrants[0].runs[0].metric
    for k, entrant in enumerate(entrants):
        scores = drawn([score for run in entrant.runs for score in views.score_by_client(run).values()], metric)
        if len(scores):
            pen = {"color": _colour(k), "linewidth": 0.8}
            axes.boxplot(scores, positions=[k], orientation="horizontal", widths=0.5, showfliers=False,
                         medianprops=pen, boxprops=pen, whiskerprops=pen, capprops=pen)
            heights = k + 0.3 * (np.arange(len(scores)) * 0.618 % 1 - 0.5)  # evenly spread, the same every time
            axes.plot(scores, heights, _marker(k), color=_colour(k), markersize=2.5, alpha=0.5, markeredgewidth=0)
    axes.set(yticks=range(len(entrants)), yticklabels=[_label(entrant.label) for entrant in entrants],
             xlabel=_axis(metric, " of a client"), ylim=(len(entrants) - 0.5, -0.5))
    axes.grid(True, axis="x")


def dendrogram(axes: Any, run: Run, tree: views.Dendrogram) -> None:
    """The tree, the cut, clusters in colour, and the true groups below."""
    labels, ari = views.cut_at(tree, run, tree.start)
    n, top = len(tree.order), float(tree.links[:, 2].max()) or 1.0
    spot = {leaf: (float(x), 0.0) for x, leaf in enumerate(tree.order)}
    node = labels.tolist()
    for k, (a, b, height, _) in enumerate(tree.links.tolist()):
        (xa, ya), (xb, yb) = spot[int(a)], spot[int(b)]
        spot[n + k] = ((xa + xb) / 2, height)
        whole = height <= tree.start and node[int(a)] == node[int(b)] >= 0
        node.append(node[int(a)] if whole else -1)
        axes.plot([xa, xa, xb, xb], [ya, height, height, yb], color=_colour(node[-1]), linewidth=0.9)
    axes.axhline(min(tree.start, 1.06 * top), color="black", linestyle="--", linewidth=0.8)
    count = int(labels.max()) + 1
    agreement = "" if ari is None else f", ARI {ari:.2f}"
    axes.set_title(f"{count} cluster{'s' if count != 1 else ''}{agreement}", loc="right")
    names = [_label(run.clients[tree.clients[leaf]].name) for leaf in tree.order]
    axes.set(xlim=(-0.6, n - 0.4), ylim=(0, 1.1 * top), ylabel="distance", xticks=range(n) if n <= 40 else [])
    if n <= 40:
        axes.set_xticklabels(names, rotation=90)
    truth = run.truth
    if truth:
        for x, leaf in enumerate(tree.order):
            axes.axvspan(x - 0.5, x + 0.5, ymin=-0.04, ymax=0, color=_colour(truth[tree.clients[leaf]]), clip_on=False)
        axes.tick_params(axis="x", length=0, pad=8)
    axes.spines["bottom"].set_visible(False)


def matrix(axes: Any, run: Run, tree: views.Dendrogram) -> None:
    """Distances, in the order of the dendrogram."""
    assert run.evidence.proximity is not None
    image = axes.imshow(run.evidence.proximity[np.ix_(tree.order, tree.order)], cmap="Blues_r")
    _bare(axes)
    names = [_label(run.clients[tree.clients[leaf]].name) for leaf in tree.order]
    if len(names) <= 30:
        axes.set(xticks=range(len(names)), yticks=range(len(names)))
        axes.set_xticklabels(names, rotation=90)
        axes.set_yticklabels(names)
    else:
        axes.set(xticks=[], yticks=[], xlabel="clients")
    axes.figure.colorbar(image, ax=axes, label="distance", shrink=0.8)


def sweep(axes: Any, run: Run) -> None:
    """The score of each clustering that was tried."""
    curve = run.evidence.curve
    assert curve is not None
    axes.plot(curve[:, 1], curve[:, 2], "o-", color=_colour(0), markersize=3)
    chosen = curve[curve[:, 3] == 1]
    if len(chosen):
        axes.plot(chosen[:1, 1], chosen[:1, 2], "D", color=_colour(1), markersize=7)
        axes.annotate(f"{int(chosen[0, 1])} chosen", (chosen[0, 1], chosen[0, 2]), xytext=(0, 7),
                      textcoords="offset points", ha="center", color=_colour(1))
    axes.set(xlabel="clusters", ylabel="score", xscale="log" if curve[:, 1].max() > 40 else "linear")
    axes.margins(y=0.16)
    axes.grid(True)


def label_shares(axes: Any, run: Run, labels: list[int], shares: Floats) -> None:
    """Labels of each client, cluster beside cluster."""
    order = views.by_cluster(run)
    image = axes.imshow(100 * shares[:, order], cmap="Blues", aspect="auto", vmin=0, interpolation="nearest")
    _bare(axes)
    clusters = [run.clients[i].cluster for i in order]
    starts = [x for x, k in enumerate(clusters) if x == 0 or clusters[x - 1] != k]
    for x in starts[1:]:
        axes.axvline(x - 0.5, color="black", linewidth=0.8)
    middles = [(a + b - 1) / 2 for a, b in zip(starts, [*starts[1:], len(order)], strict=True)]
    step = max(1, len(labels) // 10)
    axes.set(xticks=middles, yticks=range(0, len(labels), step), xlabel="clients, by cluster", ylabel="label")
    axes.set_xticklabels([str(clusters[x]) if clusters[x] >= 0 else "–" for x in starts])
    axes.set_yticklabels([str(label) for label in labels[::step]])
    axes.figure.colorbar(image, ax=axes, label="% of its rows")


def trajectories(axes: Any, run: Run) -> None:
    """Pull and push of each class."""
    points = run.evidence.trajectory
    assert points is not None
    clusters = np.array([run.clients[i].cluster for i in run.evidence.who.tolist()])
    for k in sorted(set(clusters.tolist())):
        for each in points[clusters == k]:
            axes.plot(*each, color=_colour(k), linewidth=0.5, alpha=0.35)
        axes.plot(*points[clusters == k].mean(0), color=_colour(k), marker=_marker(k), markersize=3.5, linewidth=1.6,
                  label=f"cluster {k}" if k >= 0 else "not placed")
    axes.set(xlabel="pull", ylabel="push")
    axes.grid(True)
    axes.legend()


def client_map(axes: Any, run: Run, plane: views.Plane) -> None:
    """The map of clients."""
    for k in sorted({run.clients[i].cluster for i in plane.clients}):
        at = [p for p, i in enumerate(plane.clients) if run.clients[i].cluster == k]
        axes.plot(plane.points[at, 0], plane.points[at, 1], _marker(k), color=_colour(k), markersize=5, alpha=0.85,
                  markeredgecolor="white", markeredgewidth=0.4, label=f"cluster {k}" if k >= 0 else "not placed")
    axes.set(xticks=[], yticks=[], aspect="equal", adjustable="datalim")
    axes.legend(ncols=2, handletextpad=0.1)


def gains(axes: Any, clients: Sequence[views.Gain], metric: Metric) -> None:
    """From FedAvg's score to the method's; marks point the way it goes."""
    for x, client in enumerate(clients):
        k = 0 if client.gain >= 0 else 1
        before, after = drawn([client.before, client.after], metric)
        axes.plot([x, x], [before, after], color=_colour(k), linewidth=1)
        axes.plot(x, after, "^v"[k if metric.higher_is_better else 1 - k], color=_colour(k), markersize=4)
        axes.plot(x, before, "o", color="white", markeredgecolor="#777777", markersize=3)
    axes.set(ylabel=_axis(metric), xlabel="clients: FedAvg ○ to the method ▲▼", xticks=[])
    axes.grid(True, axis="y")


def against_truth(axes: Any, run: Run) -> None:
    """Clusters against true groups."""
    counts = views.against_truth(run)
    assert counts is not None
    groups, clusters, both = counts
    share = both / both.sum(1, keepdims=True).clip(min=1)
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    _bare(axes)
    for (g, c), count in np.ndenumerate(both):
        if count:
            axes.text(c, g, str(count), ha="center", va="center", color="white" if share[g, c] > 0.5 else "black")
    axes.set(xticks=range(len(clusters)), yticks=range(len(groups)), xlabel="cluster", ylabel="true group")
    axes.set_xticklabels([str(k) if k >= 0 else "–" for k in clusters])
    axes.set_yticklabels([str(group) for group in groups])


def _bare(axes: Any) -> None:
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
