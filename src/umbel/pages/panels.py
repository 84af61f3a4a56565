"""The runs side by side, and then one by one: what their clusters rest on, who is in them, whom they serve."""

from collections.abc import Sequence
from html import escape

from umbel.pages import plots, views
from umbel.pages.load import Run
from umbel.pages.parts import WORDS, Book, Cell, number, table
from umbel.pages.views import Line
from umbel.runs.evaluate import ACCURACIES


def compared(book: Book, found: Sequence[Line]) -> str:
    """All runs on the same axes. HTML."""
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


def each_run(book: Book, runs: Sequence[Run], names: dict[int, str]) -> str:
    """A tab and a panel for every run. HTML."""
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
        row += [number(client.accuracy.get(kind), 1, 100) for kind in kinds]
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
