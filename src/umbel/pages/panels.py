"""The runs side by side, and then one by one: what their clusters rest on, who is in them, whom they serve."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from umbel.pages import plots, views
from umbel.pages.load import Run
from umbel.pages.parts import START_NAMES, Choice, Drawings, FigureBox, Table, TableCell, scored
from umbel.pages.views import Entrant
from umbel.runs.evaluate import STARTS
from umbel.runs.reasons import reason, steadiness_said


class Panel(NamedTuple):
    """Everything about one run, behind its tab."""

    name: str
    shown: bool  # when the page opens
    method: str
    why: str  # there are so many clusters, and how steady they are; empty where the method does not say
    tree: str | None  # the name of its dendrogram in the script's data
    own_tree: bool  # whether the method cut this very tree
    one_cut: bool  # whether it did so at one height
    leaves: str  # whose tree it is: clients, or a sample of so many
    truth: bool  # whether true groups are known
    figures: list[FigureBox]
    clients: Table
    recipe: str
    facts: dict[str, Any]


def compared(drawings: Drawings, entrants: Sequence[Entrant]) -> list[FigureBox]:
    """All runs on the same axes."""
    early = [entrant.label for entrant in entrants if entrant.runs[0].info["rounds"]["pretrain"]]
    notes = f" Rounds before its clusters are formed count ({', '.join(early)})." if early else ""
    notes += " The band spans the seeds." if any(len(entrant.runs) > 1 for entrant in entrants) else ""
    several = sum(len(entrant.runs) for entrant in entrants) > 1
    metric = entrants[0].runs[0].metric
    score = f"Mean over clients of the {metric.name} on their own test rows"
    score = f"{metric.title} over all clients' test rows together" if metric.pooled else score
    lines = [box for setting in views.varied(entrants) for box in drawings.figure(
        f"{metric.title} against {setting.name}", plots.against(setting, metric),
        "A line for each combination of the other settings; bars span the seeds. Chosen by these scores a setting is"
        " chosen by test rows.")]
    if len(lines) % 2:
        lines[-1] = lines[-1]._replace(wide=True)
    return [
        *lines,
        *drawings.figure(f"{metric.title} against rounds", plots.scores(entrants, "rounds"),
                         f"{score}, as training goes on.{notes}"),
        *drawings.figure(f"{metric.title} against bytes", plots.scores(entrants, "megabytes"),
                         "The same against what was sent between server and clients, both ways, signatures included;"
                         " evaluation is left out. A curve that begins further right paid first for finding its"
                         " clusters."),
        *drawings.figure("Every client", plots.spread(entrants) if several else None,
                         "A point a client, and the box of their quartiles. A method that serves all has a short box"
                         f" far to the {'right' if metric.higher_is_better else 'left'}.", wide=True),
    ]


def each_run(drawings: Drawings, runs: Sequence[Run], names: dict[int, str]) -> list[Panel]:
    """A panel for every run; the page opens with the first that measured distances."""
    first = next((k for k, run in enumerate(runs) if run.evidence.proximity is not None), 0)
    panels = []
    for k, run in enumerate(runs):
        baseline, tree, name = views.baseline(run, runs), views.dendrogram(run), f"t{k}"
        if tree:
            drawings.trees[name] = _tree(run, tree)
        panels.append(Panel(
            name=names[id(run)], shown=k == first, method=str(run.info["method"]), why=_why(run),
            tree=name if tree else None, own_tree=tree is not None and tree.own, one_cut=run.evidence.cut is not None,
            leaves=views.sampled(run), truth=run.truth is not None,
            figures=_figures(drawings, run, baseline), clients=_clients(run, baseline), recipe=run.recipe,
            facts=_facts(run),
        ))
    return panels


def _why(run: Run) -> str:
    """As the terminal has it."""
    clusters = run.info["clusters"]
    return f"{reason(clusters)} {steadiness_said(clusters)}".strip() if clusters["why"].get("words") else ""


def _figures(drawings: Drawings, run: Run, baseline: Run | None) -> list[FigureBox]:
    halves = [*_proximity(drawings, run), *_map(drawings, run), *_sweep(drawings, run), *_truth(drawings, run)]
    if len(halves) % 2:  # they stand two in a row: the last one fills its own
        halves[-1] = halves[-1]._replace(wide=True)
    return [*halves, *_trajectories(drawings, run), *_labels(drawings, run), *_gains(drawings, run, baseline),
            *_forecasts(drawings, run)]


def _tree(run: Run, tree: views.Dendrogram) -> dict[str, Any]:
    """A dendrogram as page.js takes it."""
    truth = run.truth
    return {
        "links": tree.links[:, :3].tolist(), "order": tree.order, "start": tree.start,
        "names": [run.clients[i].name for i in tree.clients],
        "clusters": [run.clients[i].cluster for i in tree.clients],
        "truth": [truth[i] for i in tree.clients] if truth else None,
    }


def _proximity(drawings: Drawings, run: Run) -> list[FigureBox]:
    tree = views.dendrogram(run)
    return drawings.figure("Distances between clients", plots.matrix(run, tree) if tree else None,
                           f"Every pair of {views.sampled(run)}, in the order of the dendrogram: the stronger the"
                           " colour, the more alike. Clusters show as squares along the diagonal; outlines follow the"
                           " cut above.",
                           matrix=True)


def _map(drawings: Drawings, run: Run) -> list[FigureBox]:
    plane = views.plane(run)
    if plane is None:
        return []
    numbers = " Numbers are true groups." if run.truth and len(plane.clients) <= 60 else ""
    return drawings.figure("Map of clients", plots.client_map(run, plane),
                           f"Near is alike, by {plane.of}; colour and shape are the cluster.{numbers} Two dimensions"
                           f" show {100 * plane.share:.0f} % of the differences.")


def _sweep(drawings: Drawings, run: Run) -> list[FigureBox]:
    params = run.info["params"]
    how = {
        "sweep": "Each clustering was tried by a short federation and scored on clients' validation rows",
        "silhouette": "The score is the mean silhouette: how much nearer clients are to their cluster than to the next",
        "gap": "The score is the gap between one merge and the next",
    }.get(str(params.get("cut")), "Each clustering that was tried has a score")
    rule = {
        "both": "the diamond is where the elbow of this curve and the gaps of the dendrogram together speak most",
        "knee": "the diamond is the elbow, farthest above the chord",
        "within": "the diamond has the fewest clusters within 2 points of the best",
    }.get(str(params.get("rule")) if params.get("cut") == "sweep" else "", "the diamond is the one chosen")
    return drawings.figure("How many clusters", plots.sweep(run), f"{how}; {rule}.")


def _truth(drawings: Drawings, run: Run) -> list[FigureBox]:
    scores = run.info["clusters"]
    agreement = "" if scores["ari"] is None else f" ARI {scores['ari']:.2f}, AMI {scores.get('ami', 0):.2f}."
    return drawings.figure("Clusters against the truth", plots.against_truth(run),
                           "How many clients of each true group are in each cluster. One filled cell in each row and"
                           f" column is a perfect match.{agreement}")


def _trajectories(drawings: Drawings, run: Run) -> list[FigureBox]:
    tests, evidence = [], run.evidence
    if evidence.hopkins is not None:
        tests.append(f"Hopkins statistic {evidence.hopkins:.2f} (0.5 is uniform, above 0.75 is clustered)")
    if evidence.variation is not None:
        pull, push = evidence.variation
        tests.append(f"coefficients of variation of pull and push {pull:.2f} and {push:.2f}")
    of = "" if evidence.landmarks is None else f" of {views.sampled(run)}"
    return drawings.figure("Gradient trajectories", plots.trajectories(run),
                           "How strongly each client's data pull the classifier towards a class, and push it away; a"
                           f" point a class, a line a client{of}, the mean of each cluster in bold, with the"
                           f" numbers of the classes that it pulls most. {'; '.join(tests).capitalize()}.", wide=True)


def _labels(drawings: Drawings, run: Run) -> list[FigureBox]:
    return drawings.figure("Who holds which labels", plots.label_shares(run),
                           "A column a client, cluster beside cluster: the stronger the colour, the larger the share"
                           " of its training rows. Only a simulation knows this; the server did not.", wide=True)


def _gains(drawings: Drawings, run: Run, baseline: Run | None) -> list[FigureBox]:
    """Clients against FedAvg, or their scores where there is no FedAvg run to compare with."""
    gains, metric = views.gains(run, baseline) if baseline else [], run.metric
    if gains:
        return drawings.figure("Who gains, who loses against FedAvg", plots.gains(gains, metric),
                               f"{views.gain_sentence(gains, metric)} A stalk goes from a client's {metric.name} under"
                               f" one model for all to its {metric.name} here; same partition, same seed.", wide=True)
    return drawings.figure(f"{metric.title} of each client", plots.client_scores(run),
                           "On its own test rows, cluster beside cluster. Add the FedAvg run of the same partition and"
                           " seed to this report to see who gains and who loses.", wide=True)


def _forecasts(drawings: Drawings, run: Run) -> list[FigureBox]:
    """A few sites' test rows as they are and as they were foretold: row by row, and one against the other."""
    if run.forecasts is None:
        return []
    sites, outputs, unit = run.forecasts["sites"], run.forecasts["outputs"], run.forecasts["unit"]
    series: dict[str, plots.Figure] = {}
    against: dict[str, plots.Figure] = {}
    for s, site in enumerate(sites.values()):
        for k in range(len(outputs)):
            of = site["truth"][k], site["forecast"][k], site["cluster"], unit
            key = f"{s}-{k}" if len(outputs) > 1 else str(s)
            series[key], against[key] = plots.forecast_rows(*of), plots.forecast_against(*of)
    group = f"forecasts{len(drawings.figures)}"
    names = [f"{name} ({plots.cluster_name(site['cluster'])})" for name, site in sites.items()]
    choices = [Choice("Site", names), *([Choice("Output", outputs)] if len(outputs) > 1 else [])]
    drawn, there = max(len(site["truth"][0]) for site in sites.values()), max(site["rows"] for site in sites.values())
    which = "All test rows" if drawn == there else f"The first {drawn} test rows at most"
    own = START_NAMES[run.forecasts["model"]]
    few = f" {len(sites)} of {len(run.clients)} sites are kept." if len(sites) < len(run.clients) else ""
    one = "" if len(outputs) > 1 else f" of {outputs[0]}"
    return [
        drawings.chosen(f"Forecasts{one}", series, f"{which} of a site in their order: the truth, and what the site's"
                        f" {own} makes of each.{few}", group, choices),
        drawings.chosen("Forecast against truth", against, "The same rows. On the dashed line a forecast is right;"
                        " above it is too high.", group),
    ]


def _clients(run: Run, baseline: Run | None) -> Table:
    before, metric = views.score_by_client(baseline) if baseline else {}, run.metric
    starts = [start for start in STARTS if any(start in client.score for client in run.clients)]
    known = all(client.holds is not None for client in run.clients)
    heads = ["client", "cluster", *(["true group"] if run.truth else []), *(["rows", "labels"] if known else []),
             *(START_NAMES[start] for start in starts), *(["against FedAvg"] if before else [])]
    rows = []
    for client in run.clients:
        holds = client.holds or {}
        row = [TableCell(client.name), TableCell(str(client.cluster) if client.cluster >= 0 else None)]
        row += [TableCell(str(client.truth))] if run.truth else []
        row += [TableCell(str(sum(holds.values()))), TableCell(str(len(holds)))] if known else []
        row += [scored(client.score.get(start), metric) for start in starts]
        if before:
            both = client.name in before and run.headline in client.score
            change = client.score[run.headline] - before[client.name] if both else None
            sign = "+" if change is not None and change >= 0 else ""
            row.append(TableCell(None) if change is None else TableCell(f"{sign}{metric.shown(change, 1)}", change))
        rows.append(row)
    rising = () if metric.higher_is_better else (*START_NAMES.values(), "against FedAvg")
    return Table("Clients", heads, rows, rising=rising)


def _facts(run: Run) -> dict[str, Any]:
    info = run.info
    facts = {
        "folder": run.path, "partition": info["partition_hash"], "tested on": info.get("test_mode"),
        "engine": info.get("engine"), "device": info.get("device"), "machine": run.environment.get("device"),
        **info["versions"],
    }
    return {name: value for name, value in facts.items() if value not in (None, "")}
