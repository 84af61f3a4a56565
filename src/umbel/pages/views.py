"""What a figure shows, before anybody draws it: numbers and orders, the same for the page and for the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.cluster import hierarchy

from umbel.clustering.linkage import cut, heights, linkage
from umbel.pages.load import Floats, Ints, Run
from umbel.runs import evaluate

# Runs and their names


@dataclass(frozen=True)
class Line:
    """Runs that differ by their seed only: one name, one colour, one curve."""

    label: str
    runs: list[Run]


def lines(runs: Sequence[Run]) -> list[Line]:
    """Runs grouped by all but the seed, in the order given; a name tells what differs, and no more."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(repr(sorted(_settings(run).items())), []).append(run)
    heads = [group[0] for group in grouped.values()]
    return [Line(_label(group[0], heads), group) for group in grouped.values()]


def _settings(run: Run) -> dict[str, str]:
    info = run.info
    setting = {name: info.get(name) for name in ("data", "scenario", "clients", "fraction", "test_mode", "precision")}
    setting |= {"rounds": info["rounds"]["after"], "model": info["model"]["name"]}
    return {"method": str(info["method"])} | {name: str(value) for name, value in {**info["params"], **setting}.items()}


def _label(run: Run, heads: Sequence[Run]) -> str:
    mine, method = _settings(run), str(run.info["method"])
    same = [_settings(other) for other in heads if other.info["method"] == method]
    apart = [name for name in mine if any(other.get(name) != mine[name] for other in same)]
    for name in ("data", "scenario"):
        if name not in apart and any(_settings(other)[name] != mine[name] for other in heads):
            apart.append(name)
    said = [mine[name] if name in ("data", "scenario", "model") else f"{name} {mine[name]}" for name in apart]
    return f"{method} ({', '.join(said)})" if said else method


def run_names(found: Sequence[Line]) -> dict[int, str]:
    """A name for each run, by `id`: its line's, with the seed where there are several, and never one name twice."""
    names: dict[int, str] = {}
    for line in found:
        for run in line.runs:
            name = f"{line.label}, seed {run.info['seed']}" if len(line.runs) > 1 else line.label
            names[id(run)] = f"{name}, {run.path.name}" if name in names.values() else name
    return names


# Accuracy


class Curve(NamedTuple):
    """Mean accuracy by rounds done, with the least and largest over seeds, and the megabytes moved by then."""

    rounds: list[int]
    megabytes: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]


def curve(line: Line) -> Curve:
    """Over the rounds in which all runs of the line were tested. Evaluation moves nothing."""
    each = [_one_curve(run) for run in line.runs]
    shared = [done for done in each[0] if all(done in other for other in each)]
    scores = np.array([[points[done][0] for done in shared] for points in each]).reshape(len(each), -1)
    moved = np.array([[points[done][1] for done in shared] for points in each]).reshape(len(each), -1)
    return Curve(shared, moved.mean(0).tolist(), scores.mean(0).tolist(), scores.min(0).tolist(),
                 scores.max(0).tolist())


def _one_curve(run: Run) -> dict[int, tuple[float, float]]:
    points, moved = {}, 0.0
    for record in run.records:
        moved += sum(sum(kinds.values()) for phase, ways in record["bytes"].items() if phase != "evaluate"
                     for kinds in ways.values())
        if record.get("accuracy"):
            points[record["round"] + 1] = (float(record["accuracy"]["mean"]), moved / 1e6)
    return points


def reached(run: Run) -> dict[str, float]:
    """The headline accuracy of each client that has one."""
    return {client.name: client.accuracy[run.headline] for client in run.clients if run.headline in client.accuracy}


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


def gains(run: Run, other: Run) -> list[Gain]:
    """Who wins most first."""
    before, after = reached(other), reached(run)
    found = [Gain(client.name, client.cluster, before[client.name], after[client.name])
             for client in run.clients if client.name in before and client.name in after]
    return sorted(found, key=lambda gain: (gain.before - gain.after, gain.name))


def gain_sentence(found: Sequence[Gain]) -> str:
    """Winners and losers counted; half a point is the same."""
    change = np.array([gain.after - gain.before for gain in found])
    won, lost = int((change > 0.005).sum()), int((change < -0.005).sum())
    return (f"{won} of {len(found)} clients gain, {lost} lose, {len(found) - won - lost} stay within half a point; on"
            f" average {100 * change.mean():+.1f} points.")


# Clusters


class Forest(NamedTuple):
    """A dendrogram ready to be drawn: leaves in their order, their clients, and the links."""

    links: Floats
    order: list[int]  # leaves from left to right
    clients: list[int]  # of each leaf, its position among the run's clients
    own: bool  # whether the method cut this very tree; else it is average linkage, for the eye
    start: float  # where the cut is at first


def forest(run: Run) -> Forest | None:
    """The method's dendrogram, or one of its distances where it clustered them by other means."""
    found = run.evidence
    if found.proximity is None:
        return None
    links = found.linkage
    if links is None:
        links = np.asarray(linkage(torch.from_numpy(found.proximity)).numpy(), dtype=np.float64)
    count = len({run.clients[i].cluster for i in found.who[: len(found.proximity)].tolist()} - {-1})
    start = found.cut if found.linkage is not None and found.cut is not None else _level(links, count)
    return Forest(links, hierarchy.leaves_list(links).tolist(), found.who[: len(found.proximity)].tolist(),
                  found.linkage is not None, float(start))


def _level(links: Floats, clusters: int) -> float:
    """Half-way between the last merge and the next."""
    found: list[float] = heights(torch.from_numpy(links)).tolist()
    merges = len(found) + 1 - max(1, clusters)
    if merges <= 0:
        return found[0] / 2
    return (found[merges - 1] + found[merges]) / 2 if merges < len(found) else found[-1] * 1.04


def cut_at(tree: Forest, run: Run, threshold: float) -> tuple[Ints, float | None]:
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
    both = np.zeros((len(groups), len(clusters)), dtype=np.int64)
    for group, cluster in zip(truth, run.labels, strict=True):
        both[groups.index(group), clusters.index(cluster)] += 1
    return groups, clusters, both


class Map(NamedTuple):
    """Clients on a plane."""

    clients: list[int]
    points: Floats  # (m, 2)
    share: float  # of the squared distances that two dimensions show, in [0, 1]
    of: str  # what was measured


def plane(run: Run) -> Map | None:
    """Classical scaling of the distances; without any, the main components of clients' last local models."""
    found = run.evidence
    if found.proximity is not None and len(found.proximity) >= 3:
        squared = found.proximity**2
        centred = squared - squared.mean(0) - squared.mean(1, keepdims=True) + squared.mean()
        return _scaled(found.who[: len(squared)].tolist(), -centred / 2, "the distances that the method measured")
    if run.weights is not None:
        at = [i for i, client in enumerate(run.clients) if client.name in set(run.pieces)]
        return _scaled(at, run.weights, "clients' own last models, by their weights")
    return None


def _scaled(clients: list[int], gram: Floats, of: str) -> Map | None:
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1]
    points = vectors[:, :2] * np.sqrt(values[:2].clip(min=0))
    points *= np.where(np.take_along_axis(points, np.abs(points).argmax(0)[None], 0) < 0, -1, 1)  # signs are arbitrary
    shown = values[:2].clip(min=0).sum() / max(values.clip(min=0).sum(), 1e-300)
    return Map(clients, points, float(shown), of) if np.ptp(points) > 0 else None


def by_cluster(run: Run) -> list[int]:
    """Positions of clients: cluster by cluster, inside by true group and name."""
    def place(i: int) -> tuple[Any, ...]:
        client = run.clients[i]
        return client.cluster, client.truth or 0, i

    return sorted(range(len(run.clients)), key=place)


def label_shares(run: Run) -> tuple[list[int], Floats] | None:
    """(labels, clients) share of each label among a client's training rows, where the folder knows it."""
    if any(client.holds is None for client in run.clients):
        return None
    labels = sorted({label for client in run.clients for label in client.holds or {}})
    rows = np.array([[(client.holds or {}).get(label, 0) for client in run.clients] for label in labels], dtype=float)
    return labels, rows / rows.sum(0).clip(min=1)


def short_rows(values: Floats, digits: int = 4) -> Any:
    """An array as short JSON numbers."""
    return [[float(f"{value:.{digits}g}") for value in row] for row in values.tolist()]
