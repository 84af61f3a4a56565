"""What a figure shows, before anybody draws it: numbers and orders, the same for the page and for the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.cluster import hierarchy

from umbel.clustering.linkage import cut, heights, linkage
from umbel.nets.objective import Metric
from umbel.pages.load import Floats, Ints, Run
from umbel.runs import evaluate

CELLS = 500_000  # of a heat map of clients or groups: each is a text in the page, and no screen shows more

# Runs and their names


@dataclass(frozen=True)
class Entrant:
    """One method with one setting: runs that differ by their seed only share a name, a colour and a curve."""

    label: str
    runs: list[Run]


def entrants(runs: Sequence[Run]) -> list[Entrant]:
    """Runs grouped by all but the seed, in the order given; labels name only the settings that differ."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(repr(sorted(_settings(run).items())), []).append(run)
    firsts = [group[0] for group in grouped.values()]
    return [Entrant(_label(group[0], firsts), group) for group in grouped.values()]


def _settings(run: Run) -> dict[str, str]:
    info = run.info
    setting = {name: info.get(name) for name in ("data", "scenario", "clients", "fraction", "test_mode", "precision")}
    setting |= {"rounds": info["rounds"]["after"], "model": info["model"]["name"]}
    return {"method": str(info["method"])} | {name: str(value) for name, value in {**info["params"], **setting}.items()}


def _label(run: Run, firsts: Sequence[Run]) -> str:
    """The method, and in brackets what tells this run from the first runs of the other entrants."""
    mine, method = _settings(run), str(run.info["method"])
    same = [_settings(other) for other in firsts if other.info["method"] == method]
    apart = [name for name in mine if any(other.get(name) != mine[name] for other in same)]
    for name in ("data", "scenario"):
        if name not in apart and any(_settings(other)[name] != mine[name] for other in firsts):
            apart.append(name)
    words = [mine[name] if name in ("data", "scenario", "model") else f"{name} {mine[name]}" for name in apart]
    return f"{method} ({', '.join(words)})" if words else method


def run_names(entrants: Sequence[Entrant]) -> dict[int, str]:
    """A name for each run, by `id`: the entrant's label and, where it would be twice the same, seed and folder."""
    names: dict[int, str] = {}
    for entrant in entrants:
        for run in entrant.runs:
            name = f"{entrant.label}, seed {run.info['seed']}" if len(entrant.runs) > 1 else entrant.label
            names[id(run)] = f"{name}, {run.path.name}" if name in names.values() else name
    return names


# Settings


class Varied(NamedTuple):
    """One setting that differs between the entrants: a line for each combination of the others' values."""

    name: str
    values: list[str]  # in ascending order where they are numbers
    lines: dict[str, dict[str, list[float]]]  # the others' values in words -> value -> scores of the seeds


def varied(entrants: Sequence[Entrant]) -> list[Varied]:
    """Settings with which runs of one method differ, each with what was reached at its values."""
    each = [_settings(entrant.runs[0]) for entrant in entrants]
    if len({own["method"] for own in each}) > 1:
        return []
    names = [name for name in each[0] if len({own.get(name) for own in each}) > 1]
    found = []
    for name in names:
        lines: dict[str, dict[str, list[float]]] = {}
        for own, entrant in zip(each, entrants, strict=True):
            others = ", ".join(f"{other} {own.get(other)}" for other in names if other != name)
            scores = [run.score for run in entrant.runs if run.score is not None]
            lines.setdefault(others, {}).setdefault(str(own.get(name)), []).extend(scores)
        if any(len(line) > 1 for line in lines.values()):  # else another setting changes whenever this one does
            values = dict.fromkeys(str(own.get(name)) for own in each)
            found.append(Varied(name, sorted(values, key=_by_number), lines))
    return found


def _by_number(text: str) -> tuple[bool, float, str]:
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text


# Scores


class Curve(NamedTuple):
    """Score by rounds done, with the least and largest over seeds, and the megabytes sent by then."""

    rounds: list[int]
    megabytes: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(entrant: Entrant) -> Curve:
    """Over the rounds after which all its runs were tested. Bytes sent for evaluation are not counted."""
    each = [_one_curve(run) for run in entrant.runs]
    shared = [done for done in each[0] if all(done in other for other in each)]
    scores = np.array([[points[done][0] for done in shared] for points in each]).reshape(len(each), -1)
    sent = np.array([[points[done][1] for done in shared] for points in each]).reshape(len(each), -1)
    return Curve(shared, sent.mean(0).tolist(), scores.mean(0).tolist(), scores.min(0).tolist(),
                 scores.max(0).tolist())


def _one_curve(run: Run) -> dict[int, tuple[float, float]]:
    """By rounds done: the score, and megabytes sent until then."""
    points, sent = {}, 0.0
    for record in run.records:
        sent += sum(sum(kinds.values()) for phase, ways in record["bytes"].items() if phase != "evaluate"
                     for kinds in ways.values())
        if record.get("score"):
            points[record["round"] + 1] = (float(record["score"]["value"]), sent / 1e6)
    return points


def score_by_client(run: Run) -> dict[str, float]:
    """The headline score of each client that has one."""
    return {client.name: client.score[run.headline] for client in run.clients if run.headline in client.score}


def baseline(run: Run, runs: Sequence[Run]) -> Run | None:
    """The FedAvg run on the same partition, seed and clients, to compare client by client."""
    for other in runs:
        same = all(run.info[name] == other.info[name] for name in ("partition_hash", "seed"))
        if other is not run and other.info["method"] == "fedavg" and run.info["method"] != "fedavg" and same and (
                [client.name for client in run.clients] == [client.name for client in other.clients]):
            return other
    return None


class Gain(NamedTuple):
    """One client under FedAvg and under a method."""

    name: str
    cluster: int
    before: float
    after: float
    gain: float  # how much better it is served; positive is better, whichever way the metric points


def gains(run: Run, other: Run) -> list[Gain]:
    """Clients scored in both runs, who gains most first."""
    before, after = score_by_client(other), score_by_client(run)
    clients = [Gain(client.name, client.cluster, before[client.name], after[client.name],
                    run.metric.gain(after[client.name], before[client.name]))
               for client in run.clients if client.name in before and client.name in after]
    return sorted(clients, key=lambda client: (-client.gain, client.name))


def gain_sentence(clients: Sequence[Gain], metric: Metric) -> str:
    """How many gain and how many lose; a change of up to half a point, or a hundredth of the mean, is neither."""
    change = np.array([client.gain for client in clients])
    shares = metric.unit == "%"
    near = 0.005 if shares else 0.01 * float(np.mean([abs(client.before) for client in clients]))
    won, lost = int((change > near).sum()), int((change < -near).sum())
    mean = float(change.mean())
    way = "better" if mean >= 0 else "worse"
    within = "half a point" if shares else f"{metric.said(near)} (a hundredth of FedAvg's mean)"
    average = f"{100 * mean:+.1f} points" if shares else f"{metric.said(abs(mean))} {way}"
    return (f"{won} of {len(clients)} clients gain, {lost} lose, {len(clients) - won - lost} stay within {within};"
            f" on average {average}.")


# Clusters


class Dendrogram(NamedTuple):
    """A dendrogram ready to be drawn: leaves in their order, their clients, and the links."""

    links: Floats
    order: list[int]  # leaves from left to right
    clients: list[int]  # of each leaf, its position among the run's clients
    own: bool  # whether the method cut this very tree; else it is average linkage, for the eye
    start: float  # where the cut is at first


def dendrogram(run: Run) -> Dendrogram | None:
    """The method's own, or average linkage of its distances where it clustered them by other means."""
    evidence = run.evidence
    if evidence.proximity is None:
        return None
    links = evidence.linkage
    if links is None:
        links = np.asarray(linkage(torch.from_numpy(evidence.proximity)).numpy(), dtype=np.float64)
    clients = evidence.who[: len(evidence.proximity)].tolist()
    if evidence.linkage is not None and evidence.cut is not None:
        start = evidence.cut
    else:
        start = _level(links, len({run.clients[i].cluster for i in clients} - {-1}))
    return Dendrogram(links, hierarchy.leaves_list(links).tolist(), clients, evidence.linkage is not None, float(start))


def sampled(run: Run) -> str:
    """Whose distances were measured, in words: clients', or those of a sample where landmarks were grouped."""
    return "clients" if run.evidence.landmarks is None else f"a sample of {run.evidence.landmarks} clients"


def _level(links: Floats, clusters: int) -> float:
    """A cut that leaves so many clusters: half-way between the last merge below it and the next."""
    merged: list[float] = heights(torch.from_numpy(links)).tolist()
    below = len(merged) + 1 - max(1, clusters)
    if below <= 0:
        return merged[0] / 2
    return (merged[below - 1] + merged[below]) / 2 if below < len(merged) else merged[-1] * 1.04


def cut_at(tree: Dendrogram, run: Run, threshold: float) -> tuple[Ints, float | None]:
    """Labels of the leaves at a cut, and their ARI against the truth: what the page must show at this place."""
    labels = cut(torch.from_numpy(tree.links), threshold).numpy()
    truth = run.truth
    ari = evaluate.agreement(labels.tolist(), [truth[i] for i in tree.clients])["ari"] if truth else None
    return labels, ari


def against_truth(run: Run) -> tuple[list[int], list[int], Ints] | None:
    """True groups, clusters, and how many clients are in both."""
    truth = run.truth
    if truth is None or len(set(truth)) < 2:
        return None
    groups, clusters = sorted(set(truth)), sorted(set(run.labels))
    if len(groups) * len(clusters) > CELLS:
        return None
    both = np.zeros((len(groups), len(clusters)), dtype=np.int64)
    for group, cluster in zip(truth, run.labels, strict=True):
        both[groups.index(group), clusters.index(cluster)] += 1
    return groups, clusters, both


class Plane(NamedTuple):
    """The map of clients: a point for each."""

    clients: list[int]
    points: Floats  # (m, 2)
    share: float  # of the squared distances that two dimensions show, in [0, 1]
    of: str  # what was compared, in words


def plane(run: Run) -> Plane | None:
    """Classical scaling of the distances; without any, the main components of clients' last local models."""
    evidence = run.evidence
    if evidence.proximity is not None and len(evidence.proximity) >= 3:
        of = "" if evidence.landmarks is None else f" between {sampled(run)}"
        squared = evidence.proximity**2
        centred = squared - squared.mean(0) - squared.mean(1, keepdims=True) + squared.mean()
        clients = evidence.who[: len(squared)].tolist()
        return _scaled(clients, -centred / 2, f"the distances that the method measured{of}")
    if run.gram is not None:
        clients = [i for i, client in enumerate(run.clients) if client.name in set(run.gram_names)]
        return _scaled(clients, run.gram, "clients' last local models, by their weights")
    return None


def _scaled(clients: list[int], gram: Floats, of: str) -> Plane | None:
    """The two main directions of a matrix of inner products; None where all points are one."""
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    points = vectors[:, :2] * np.sqrt(values[:2].clip(min=0))
    points *= np.where(np.take_along_axis(points, np.abs(points).argmax(0)[None], 0) < 0, -1, 1)  # signs are arbitrary
    shown = values[:2].clip(min=0).sum() / max(values.clip(min=0).sum(), 1e-300)
    return Plane(clients, points, float(shown), of) if np.ptp(points) > 0 else None


def by_cluster(run: Run) -> list[int]:
    """Positions of clients: cluster by cluster, in a cluster by true group, then in the order of the run."""
    return sorted(range(len(run.clients)), key=lambda i: (run.clients[i].cluster, run.clients[i].truth or 0))


def label_shares(run: Run) -> tuple[list[int], Floats] | None:
    """(labels, clients) share of each label among a client's training rows, where the folder knows it."""
    if any(client.holds is None for client in run.clients):
        return None
    labels = sorted({label for client in run.clients for label in client.holds or {}})
    if len(labels) < 2 or len(labels) * len(run.clients) > CELLS:  # one kind of target, as in a regression without bins
        return None
    rows = np.array([[(client.holds or {}).get(label, 0) for client in run.clients] for label in labels], dtype=float)
    return labels, rows / rows.sum(0).clip(min=1)


def short_rows(values: Floats, digits: int = 4) -> Any:
    """An array as short JSON numbers."""
    return [[float(f"{value:.{digits}g}") for value in row] for row in values.tolist()]
