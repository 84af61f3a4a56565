"""One self-contained HTML file: no server, no network, no framework but the drawing library inside it.

Everything from a run folder is escaped where it meets HTML, and data travels as JSON that cannot end its script. A
policy in the page forbids the browser to load anything from anywhere.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from umbel.errors import UmbelError
from umbel.evaluate import ACCURACIES
from umbel.report import plots, views
from umbel.report.load import Run
from umbel.report.views import Line
from umbel.result import versions

WORDS = {"cluster_model": "cluster's model", "fine_tuned": "fine-tuned", "last_local": "client's own last"}
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
MARK = (  # an umbel: flowers on stalks from one centre
    '<svg viewBox="0 0 32 32" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="1.6">'
    '<path d="M16 30V19M16 19L6 9M16 19L11 6M16 19V5M16 19l5-13M16 19L26 9"/><g stroke="none">'
    '<circle cx="5.5" cy="8.5" r="2.8" fill="var(--c0)"/><circle cx="10.7" cy="4.8" r="2.8" fill="var(--c2)"/>'
    '<circle cx="16" cy="3.6" r="2.8" fill="var(--c4)"/><circle cx="21.3" cy="4.8" r="2.8" fill="var(--c3)"/>'
    '<circle cx="26.5" cy="8.5" r="2.8" fill="var(--c1)"/></g></svg>'
)


class Book:
    """What the page's script gets beside the text: figures and dendrograms by name."""

    def __init__(self) -> None:
        self.figures: dict[str, plots.Figure] = {}
        self.trees: dict[str, dict[str, Any]] = {}

    def figure(self, title: str, figure: plots.Figure | None, caption: str, wide: bool = False, mark: str = "") -> str:
        """One figure with its title and what to see in it (HTML); nothing where there is nothing to draw."""
        if figure is None:
            return ""
        name = f"f{len(self.figures)}"
        self.figures[name] = figure
        height = figure["layout"]["height"]
        return (
            f'<figure{_class(wide)}><h3>{escape(title)}</h3><div class="plot" data-figure="{name}" {mark} role="img"'
            f' aria-label="{escape(title)}" style="min-height:{height}px"></div>'
            f"<figcaption>{caption}</figcaption></figure>"
        )


def write(runs: Sequence[Run]) -> str:
    """The whole page."""
    book, found = Book(), views.lines(runs)
    names = views.run_names(found)
    ordered = [run for line in found for run in line.runs]
    body = (
        _summary(found, names) + _compared(book, found) + _each_run(book, ordered, names)
        + f"<footer>Written by umbel {escape(versions()['umbel'])} on"
        f" {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. This file needs no network.</footer>"
    )
    title = _title(found)
    several = len(found) > 1 or len(ordered) > 1
    links = [("summary", "Summary"), ("compared", "Compared" if several else "Training"),
             ("runs", "Why these clusters")]
    nav = "".join(f'<a href="#{place}">{words}</a>' for place, words in links)
    data = {"figures": book.figures, "trees": book.trees, "largest": plots.LARGEST}
    return (
        '<!doctype html>\n<html lang="en" data-theme="light"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} – umbel</title><link rel=\"icon\" href=\"data:,\"><style>{_asset('page.css')}</style>"
        '<script>if (matchMedia("(prefers-color-scheme: dark)").matches)'
        ' document.documentElement.dataset.theme = "dark"</script></head><body>'
        '<a class="skip" href="#summary">To the summary</a>'
        f'<header class="bar"><div><span class="brand">{MARK}umbel</span><nav aria-label="Sections">{nav}</nav>'
        '<button class="plain" id="theme" type="button">Dark</button></div></header>'
        f'<main id="summary"><h1>{escape(title)}</h1>{body}</main>'
        "<noscript><p>The figures of this page are drawn by its script.</p></noscript>"
        f'<script type="application/json" id="data">{embedded(data)}</script>'
        f"<script>{_asset('page.js')}</script><script>{drawing_library()}</script></body></html>\n"
    )


def embedded(data: Any) -> str:
    """JSON that may stand inside a script element, whatever its texts are."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def drawing_library() -> str:
    """plotly.js, as Plotly's Python package brings it; the package itself, slow to import, is not loaded."""
    found = find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise UmbelError("A report is drawn by Plotly, which is not installed: pip install 'umbel[report]'.")
    script = Path(found.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return script.read_text(encoding="utf-8").replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (files("umbel.report") / name).read_text(encoding="utf-8")


def _class(wide: bool) -> str:
    return ' class="wide"' if wide else ""


# Summary


def _title(found: Sequence[Line]) -> str:
    labels = list(dict.fromkeys(str(line.runs[0].info["method"]) for line in found))
    who = labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"
    who = who if len(labels) <= 4 else f"{len(labels)} methods"
    settings = {(_of(line, "data"), _of(line, "scenario")) for line in found}
    if len(settings) > 1:
        return f"{who} on {len(settings)} settings"
    data, scenario = settings.pop()
    return f"{who} on {data}, {scenario}"


def _of(line: Line, name: str) -> str:
    return str(line.runs[0].info[name])


def _accuracy(line: Line) -> float | None:
    scores = [run.accuracy for run in line.runs if run.accuracy is not None]
    return mean(scores) if scores else None


def _summary(found: Sequence[Line], names: dict[int, str]) -> str:
    info = found[0].runs[0].info
    facts = [f"{info['clients']} clients", f"model {info['model']['name']}", f"{info['rounds']['after']} rounds"]
    several = [len(line.runs) for line in found]
    facts += [f"{max(several)} seeds"] if max(several) > 1 else [f"seed {info['seed']}"]
    facts += [f"data: {info['data']}"] if info.get("data_part") else []
    table = _lines_table(found) if max(several) > 1 else _runs_table(found, names)
    every = f"<details><summary>Every run</summary>{_runs_table(found, names)}</details>" if max(several) > 1 else ""
    return (
        f'<p class="setting">{escape(" · ".join(facts))}</p><p class="lead">{_story(found)}</p>{_cards(found)}'
        f"{table}{every}"
    )


def _story(found: Sequence[Line]) -> str:
    """What happened, in two or three sentences. HTML."""
    scored = [(line, score) for line in found if (score := _accuracy(line)) is not None]
    own = [pair for pair in scored if pair[0].runs[0].info["method"] != "oracle"]
    if not own:
        return "No client of these runs could be scored."
    best, score = max(own, key=lambda pair: pair[1])
    told = [f"<b>{escape(best.label)}</b> reaches {100 * score:.1f} % on clients' own test rows{_found(best)}."]
    one = next((pair for pair in scored if pair[0].runs[0].info["method"] == "fedavg" and pair[0] is not best), None)
    if one and _paired(best, one[0]):
        told.append(f"That is {_points(score - one[1])} one model for all (FedAvg, {100 * one[1]:.1f} %).")
    oracle = next((pair for pair in scored if pair[0].runs[0].info["method"] == "oracle"), None)
    if oracle and _paired(best, oracle[0]):
        told.append(f"The oracle, which is told the true groups, reaches {100 * oracle[1]:.1f} %.")
    if len({run.info["partition_hash"] for line in found for run in line.runs if run.info["seed"] ==
            found[0].runs[0].info["seed"]}) > 1:
        told.append("These runs do not share one partition: compare their numbers with care.")
    return " ".join(told)


def _points(change: float) -> str:
    if abs(change) < 0.0005:
        return "as much as"
    return f"{100 * abs(change):.1f} points {'above' if change > 0 else 'below'}"


def _found(line: Line) -> str:
    if line.runs[0].info["method"] == "solo":
        return ", everybody alone"
    if _count(line) == "1":
        return " with one model for all"
    ari = _ari(line)
    agreement = f", which agree with the true groups to an ARI of {ari:.2f}" if ari is not None else ""
    return f" with {_count(line)} clusters{agreement}"


def _paired(a: Line, b: Line) -> bool:
    return {run.info["partition_hash"] for run in a.runs} == {run.info["partition_hash"] for run in b.runs}


def _cards(found: Sequence[Line]) -> str:
    """A few large numbers of the best run that is not told the groups."""
    scored = [line for line in found if _accuracy(line) is not None]
    own = [line for line in scored if line.runs[0].info["method"] != "oracle"] or scored
    if not own:
        return ""
    best = max(own, key=lambda line: _accuracy(line) or 0.0)
    clusters = [run.info["clusters"] for run in best.runs]
    lost = sum(sum(run.info["lost"].values()) for run in best.runs)
    many, ari, worst = _count(best), _ari(best), _worst(best)
    cards = [
        (f"{100 * (_accuracy(best) or 0):.1f} %", f"accuracy of {best.label}, {WORDS[best.runs[0].headline]}"),
        ("–" if worst is None else f"{100 * worst:.1f} %", "mean of its worst tenth of clients"),
        (many, "clusters" if many != "1" else "cluster: one model for all"),
        ("–" if ari is None else f"{ari:.2f}",
         "no true groups known" if ari is None else "ARI against the true groups; 1 is perfect"),
        (_megabytes(mean(map(_moved, best.runs))), "moved between server and clients"),
    ]
    unplaced = max(each["unplaced"] for each in clusters)
    cards += [(str(unplaced), "clients not placed")] if unplaced else []
    cards += [(str(lost), "answers lost")] if lost else []
    return '<div class="cards">' + "".join(
        f'<div class="card"><b>{escape(number)}</b><span>{escape(words)}</span></div>' for number, words in cards
    ) + "</div>"


def _count(line: Line) -> str:
    counts = sorted(run.info["clusters"]["count"] for run in line.runs)
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]}–{counts[-1]}"


def _ari(line: Line) -> float | None:
    found = [run.info["clusters"]["ari"] for run in line.runs if run.info["clusters"]["ari"] is not None]
    return mean(found) if found else None


def _worst(line: Line) -> float | None:
    found = [run.info["accuracy"][run.headline]["worst_decile"] for run in line.runs
             if run.info["accuracy"][run.headline]]
    return mean(found) if found else None


def _moved(run: Run) -> float:
    return float(run.info["bytes"]["down"] + run.info["bytes"]["up"])


def _megabytes(amount: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if amount >= size:
            return f"{amount / size:.3g} {unit}" if amount < 999.5 * size else f"{amount / size:,.0f} {unit}"
    return f"{amount:.0f} B"


# Tables


class Cell:
    """What a table shows, and what it sorts by; None is shown as a dash and sorts last."""

    def __init__(self, text: str | None, value: object = None) -> None:
        self.text = "–" if text is None else text
        self.value = "" if text is None else text if value is None else value


def _number(value: float | None, digits: int = 2, factor: float = 1.0) -> Cell:
    return Cell(None) if value is None else Cell(f"{factor * value:.{digits}f}", factor * value)


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]], caption: str, text_columns: int = 1) -> str:
    """A table that sorts; the first columns hold text."""
    head = "".join(
        f'<th scope="col"{_text(k, text_columns)}><button type="button">{escape(name)}</button></th>'
        for k, name in enumerate(heads)
    )
    lines = []
    for row in rows:
        first, *rest = [f'data-value="{escape(str(cell.value))}">{escape(cell.text)}' for cell in row]
        others = "".join(f"<td{_left(k + 1, text_columns)} {cell}</td>" for k, cell in enumerate(rest))
        lines.append(f'<tr><th scope="row" class="left" {first}</th>{others}</tr>')
    label = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table class="sortable">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _text(k: int, text_columns: int) -> str:
    return ' class="left"' if k < text_columns else ' data-first="down"'


def _left(k: int, text_columns: int) -> str:
    return ' class="left"' if k < text_columns else ""


def _runs_table(found: Sequence[Line], names: dict[int, str]) -> str:
    rows = []
    for run in (run for line in found for run in line.runs):
        info, score = run.info, run.info["accuracy"][run.headline] or {}
        rows.append([
            Cell(names[id(run)]),
            Cell(f"{100 * score['mean']:.2f} ± {100 * score['std']:.2f}", score["mean"]) if score else Cell(None),
            _number(score.get("worst_decile"), 1, 100),
            *(_number((info["accuracy"][kind] or {}).get("mean"), 1, 100) for kind in ACCURACIES),
            Cell(str(info["clusters"]["count"])), _number(info["clusters"]["ari"]),
            Cell(_megabytes(_moved(run)), _moved(run)), _number(info["seconds"]["total"], 1),
        ])
    note = ("Accuracy in % on clients' own test rows; ± standard deviation over clients. The first is the one of the"
            " next three (after the worst tenth of clients) that the method is judged by. ARI: agreement with the true"
            " groups, 1 is perfect, 0 is chance.")
    return table(_HEADS, rows, "Runs") + f'<p class="note">{note}</p>'


_HEADS = ("run", "accuracy", "worst tenth", "cluster's model", "fine-tuned", "own last", "clusters", "ARI", "moved",
          "seconds")


def _lines_table(found: Sequence[Line]) -> str:
    rows = []
    for line in found:
        kinds = {kind: [run.info["accuracy"][kind]["mean"] for run in line.runs if run.info["accuracy"][kind]]
                 for kind in ACCURACIES}
        score, scores = _accuracy(line), [run.accuracy for run in line.runs if run.accuracy is not None]
        spread = f" ± {100 * stdev(scores):.2f}" if len(scores) > 1 else ""
        rows.append([
            Cell(line.label), Cell(None) if score is None else Cell(f"{100 * score:.2f}{spread}", score),
            _number(_worst(line), 1, 100),
            *(_number(mean(kinds[kind]) if kinds[kind] else None, 1, 100) for kind in ACCURACIES),
            Cell(_count(line), mean(run.info["clusters"]["count"] for run in line.runs)), _number(_ari(line)),
            Cell(_megabytes(mean(map(_moved, line.runs))), mean(map(_moved, line.runs))),
            _number(mean(run.info["seconds"]["total"] for run in line.runs), 1),
        ])
    note = ("Accuracy in % on clients' own test rows, mean over clients; ± standard deviation over seeds. The first is"
            " the one of the next three (after the worst tenth of clients) that the method is judged by. ARI: agreement"
            " with the true groups, 1 is perfect, 0 is chance.")
    return table(("method", *_HEADS[1:]), rows, "Methods") + f'<p class="note">{note}</p>'


# Compared


def _compared(book: Book, found: Sequence[Line]) -> str:
    early = [line.label for line in found if line.runs[0].info["rounds"]["pretrain"]]
    first = f" Rounds before its clusters are formed count ({escape(', '.join(early))})." if early else ""
    band = first + " The band spans the seeds." if any(len(line.runs) > 1 for line in found) else first
    several = sum(len(line.runs) for line in found) > 1
    parts = [
        book.figure("Accuracy against rounds", plots.accuracy(found, "rounds"),
                    f"Mean over clients of the accuracy on their own test rows, as training goes on.{band}"),
        book.figure("Accuracy against bytes", plots.accuracy(found, "megabytes"),
                    "The same against what was moved between server and clients, both ways, signatures included;"
                    " evaluation is left out. A curve that begins further right paid first for finding its clusters."),
        book.figure("Every client", plots.spread(found) if several else None,
                    "A point a client, and the box of their quartiles. A method that serves all has a short box far to"
                    " the right.", wide=True),
    ]
    title = "Compared" if several else "Training"
    words = ("All runs on the same axes. Click a name in a legend to hide or show its line."
             if several else "How the run went, round by round and client by client.")
    return f'<h2 id="compared">{title}</h2><p class="what">{words}</p><div class="grid">{"".join(parts)}</div>'


# One run


def _each_run(book: Book, runs: Sequence[Run], names: dict[int, str]) -> str:
    first = next((k for k, run in enumerate(runs) if run.evidence.proximity is not None), 0)
    tabs = "".join(
        f'<button type="button" role="tab" id="tab{k}" aria-controls="run{k}" aria-selected="{_bool(k == first)}"'
        f' tabindex="{0 if k == first else -1}">{escape(names[id(run)])}</button>' for k, run in enumerate(runs)
    )
    bar = f'<div class="tabs" role="tablist" aria-label="Runs">{tabs}</div>' if len(runs) > 1 else ""
    panels = "".join(_panel(book, run, k, k == first, runs) for k, run in enumerate(runs))
    words = "What the clusters of a run rest on, who is in them, and whom they serve."
    words += " Choose a run; arrow keys go through them." if len(runs) > 1 else ""
    return f'<h2 id="runs">Why these clusters</h2><p class="what">{words}</p>{bar}{panels}'


def _bool(value: bool) -> str:
    return str(value).lower()


def _panel(book: Book, run: Run, k: int, shown: bool, runs: Sequence[Run]) -> str:
    role = f'role="tabpanel" aria-labelledby="tab{k}"' if len(runs) > 1 else ""
    hidden = "" if shown else " hidden"
    other = views.baseline(run, runs)
    halves = [half for half in (_proximity(book, run), _map(book, run), _sweep(book, run), _truth(book, run)) if half]
    if len(halves) % 2:
        halves[-1] = halves[-1].replace("<figure>", '<figure class="wide">', 1)
    parts = [_dendrogram(book, run, k), *halves, _trajectories(book, run), _labels(book, run),
             _people(book, run, other)]
    about = [_clients(run, other), _recipe(run)]
    return f'<div id="run{k}" {role}{hidden}><div class="grid">{"".join(parts)}</div>{"".join(about)}</div>'


def _dendrogram(book: Book, run: Run, k: int) -> str:
    tree = views.forest(run)
    if tree is None:
        return ""
    truth = run.truth
    book.trees[f"t{k}"] = {
        "links": tree.links[:, :3].tolist(), "order": tree.order, "start": tree.start,
        "names": [run.clients[i].name for i in tree.clients], "held": [run.clients[i].cluster for i in tree.clients],
        "truth": [truth[i] for i in tree.clients] if truth else None,
    }
    ari = '<span><b data-shows="ari">–</b>ARI against the true groups</span>' if truth else ""
    if tree.own:
        said = "At first the line is where the method cut; clusters are what hangs below it."
    else:
        said = (f"{escape(str(run.info['method']))} groups these distances by other means; the tree (average linkage)"
                " is for the eye, and is cut into as many clusters as the method found.")
    strip = " The strip below it shows the true group of each client." if truth else ""
    return (
        f'<figure class="wide" data-tree="t{k}"><h3>Dendrogram: drag the cut</h3>'
        '<div class="readout"><output aria-live="polite"><span><b data-shows="clusters">–</b>clusters</span>'
        f'{ari}<span>cut at <b data-shows="cut">–</b></span></output>'
        '<button class="plain" type="button" data-back>Back to the method’s cut</button></div>'
        '<div class="tree"><div class="cut" role="slider" tabindex="0" aria-orientation="vertical"'
        ' aria-label="Height of the cut" aria-valuenow="0"><i></i></div></div>'
        f"<figcaption>Two branches meet at the height of the distance between them. {said}{strip} Drag the line, or"
        " focus it and use the arrow keys: one press is one merge more or less, with Shift a small step, Escape goes"
        " back.</figcaption></figure>"
    )


def _proximity(book: Book, run: Run) -> str:
    tree = views.forest(run)
    if tree is None:
        return ""
    caption = ("Every pair of clients, in the order of the dendrogram: the stronger the colour, the more alike."
               " Clusters show as squares along the diagonal; outlines follow the cut above.")
    return book.figure("Distances between clients", plots.matrix(run, tree), caption, mark="data-matrix")


def _sweep(book: Book, run: Run) -> str:
    params, curve = run.info["params"], run.evidence.sweep
    if curve is None:
        return ""
    how = {
        "sweep": "Each clustering was tried by a short federation and scored on clients' validation rows",
        "silhouette": "The score is the mean silhouette: how much nearer clients are to their cluster than to the next",
        "gap": "The score is the gap between one merge and the next",
    }.get(str(params.get("cut")), "Each clustering that was tried has a score")
    rule = {
        "both": "; the diamond is where the elbow of this curve and the gaps of the dendrogram together speak most.",
        "knee": "; the diamond is the elbow, farthest above the chord.",
        "within": "; the diamond has the fewest clusters within 2 points of the best.",
    }.get(str(params.get("rule")) if params.get("cut") == "sweep" else "", "; the diamond is the one chosen.")
    return book.figure("How many clusters", plots.sweep(run), how + rule)


def _truth(book: Book, run: Run) -> str:
    scores = run.info["clusters"]
    said = "" if scores["ari"] is None else f" ARI {scores['ari']:.2f}, AMI {scores.get('ami', 0):.2f}."
    return book.figure("Clusters against the truth", plots.against_truth(run),
                       "How many clients of each true group are in each cluster. One filled cell in each row and column"
                       f" is a perfect match.{said}")


def _map(book: Book, run: Run) -> str:
    found = views.plane(run)
    if found is None:
        return ""
    number = " Numbers are true groups." if run.truth and len(found.clients) <= 60 else ""
    return book.figure("Map of clients", plots.plane(run, found),
                       f"Near is alike, by {found.of}; colour and shape are the cluster.{number} Two dimensions show"
                       f" {100 * found.share:.0f} % of the differences.")


def _trajectories(book: Book, run: Run) -> str:
    tests = []
    if run.evidence.hopkins is not None:
        tests.append(f"Hopkins statistic {run.evidence.hopkins:.2f} (0.5 is uniform, above 0.75 is clustered)")
    if run.evidence.variation is not None:
        tests.append(f"coefficients of variation of pull and push {run.evidence.variation[0]:.2f} and"
                     f" {run.evidence.variation[1]:.2f}")
    return book.figure("Gradient trajectories", plots.trajectories(run),
                       "How strongly each client's data pull the classifier towards a class, and push it away; a point"
                       f" a class, a line a client, the mean of each cluster in bold, with the numbers of"
                       f" the classes that it pulls most. {'; '.join(tests).capitalize()}.",
                       wide=True)


def _labels(book: Book, run: Run) -> str:
    return book.figure("Who holds which labels", plots.label_shares(run),
                       "A column a client, cluster beside cluster: the stronger the colour, the larger the share of"
                       " its training rows. Only a simulation knows this; the server did not.", wide=True)


def _people(book: Book, run: Run, other: Run | None) -> str:
    if other is not None:
        found = views.gains(run, other)
        if found:
            return book.figure("Who gains, who loses against FedAvg", plots.gains(run, found),
                               f"{escape(views.gain_sentence(found))} A stalk goes from a client's accuracy under one"
                               " model for all to its accuracy here; same partition, same seed.", wide=True)
    return book.figure("Accuracy of each client", plots.client_scores(run),
                       "On its own test rows, cluster beside cluster. Add the FedAvg run of the same partition and seed"
                       " to this report to see who gains and who loses.", wide=True)


def _clients(run: Run, other: Run | None) -> str:
    before = views.reached(other) if other else {}
    kinds = [kind for kind in ACCURACIES if any(kind in client.accuracy for client in run.clients)]
    known = all(client.holds is not None for client in run.clients)
    heads = ["client", "cluster", *(["true group"] if run.truth else []), *(["rows", "labels"] if known else []),
             *(WORDS[kind] for kind in kinds), *(["against FedAvg"] if before else [])]
    rows = []
    for client in run.clients:
        holds = client.holds or {}
        row = [Cell(client.name), Cell(str(client.cluster) if client.cluster >= 0 else None)]
        row += [Cell(str(client.truth))] if run.truth else []
        row += [Cell(str(sum(holds.values()))), Cell(str(len(holds)))] if known else []
        row += [_number(client.accuracy.get(kind), 1, 100) for kind in kinds]
        if before:
            there = client.name in before and run.headline in client.accuracy
            change = client.accuracy[run.headline] - before[client.name] if there else None
            row.append(Cell(None) if change is None else Cell(f"{100 * change:+.1f}", change))
        rows.append(row)
    return f"<details><summary>All {len(rows)} clients</summary>{table(heads, rows, 'Clients')}</details>"


def _recipe(run: Run) -> str:
    info, device = run.info, run.environment.get("device")
    facts = {
        "folder": str(run.path), "partition": info["partition_hash"], "tested on": info.get("test_mode"),
        "engine": info.get("engine"), "device": info.get("device"), "machine": device,
        **dict(info["versions"]),
    }
    listed = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items()
                     if value not in (None, ""))
    return (
        '<details open><summary>Recipe and versions</summary><div class="pair"><div>'
        f'<pre tabindex="0" aria-label="recipe.toml">{escape(run.recipe)}</pre>'
        '<p class="note">Save it as recipe.toml; <code>umbel run recipe.toml</code> repeats this run.</p></div>'
        f"<dl>{listed}</dl></div></details>"
    )
