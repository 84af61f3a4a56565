"""Why these clients are together: what marks each cluster off from the others, in words."""

from typing import Any

import numpy as np

from umbel.clustering.differences import Difference
from umbel.clustering.energy import energy
from umbel.clustering.parts import Floats, Ints, Parts
from umbel.nets.objective import Objective

MOST = 3  # labels that a sentence names
MORE = 0.05  # how much larger a label's share in a cluster must be than elsewhere to be named


def kind_names(goal: Objective) -> list[str]:
    """What kinds of rows are called: the labels' names, or their numbers; bins of a number by their place."""
    given = getattr(goal, "labels", ()) if goal.classes else ()
    if len(given) == goal.classes > 0:
        return [str(name) for name in given]
    return [str(k) if goal.classes else f"bin {k + 1}" for k in range(max(1, goal.groups))]


def clusters(parts: Parts, labels: Ints, names: list[str], kinds: list[str],
             found: dict[str, Difference]) -> list[dict[str, Any]]:
    """Of each cluster: its clients, its share of rows of each kind, and what marks it, a sentence without its end."""
    several = len(set(labels.tolist())) > 1
    return [{"clients": [names[i] for i in np.flatnonzero(labels == label)],
             "shares": _shares(parts.counts, labels == label).tolist(),
             "marks": marks(parts, labels == label, kinds, found) if several else ""}
            for label in sorted(set(labels.tolist()))]


def places(parts: Parts) -> Floats:
    """(n, 2) clients in a plane, about as far apart as their rows are: the two widest axes of energy distances.

    An energy distance grows with the square of how far means are apart, so it is taken as a square.
    """
    n = len(parts.counts)
    square = energy(parts)
    middle = np.eye(n) - 1 / n
    values, vectors = np.linalg.eigh(-0.5 * middle @ square @ middle)
    widest = np.argsort(-values)[:2]
    flat: Floats = vectors[:, widest] * np.sqrt(np.maximum(values[widest], 0.0))
    signs = np.sign(flat[np.abs(flat).argmax(0), np.arange(flat.shape[1])]) if n else np.ones(flat.shape[1])
    return np.pad(flat * np.where(signs == 0, 1.0, signs), ((0, 0), (0, 2 - flat.shape[1])))


def _shares(counts: Ints, inside: Any) -> Floats:
    answer: Floats = counts[inside].sum(0) / max(1, counts[inside].sum())
    return answer


def marks(parts: Parts, inside: Any, kinds: list[str], found: dict[str, Difference]) -> str:
    """What the clients inside have that the others have not."""
    said = []
    if found["labels"].found and (more := _labels(parts.counts, inside, kinds)):
        said.append(f"more of {more}")
    if found["looks"].found and len(kinds) > 1 and (far := looking(parts, inside)):
        said.append(f"other looks, most of {_listed([kinds[k] for k in far])}")
    elif found["looks"].found:
        said.append("other looks")
    if found["meanings"].found and (other := _renamed(found["meanings"], np.flatnonzero(inside), kinds)):
        said.append(f"other meanings: {other}")
    if found["amounts"].found:
        rows = parts.counts.sum(1)
        said.append(f"{np.median(rows[inside]):g} rows each (median), elsewhere {np.median(rows[~inside]):g}")
    return "; ".join(said)


def _labels(counts: Ints, inside: Any, kinds: list[str]) -> str:
    own, others = _shares(counts, inside), _shares(counts, ~inside)
    first = [k for k in np.argsort(others - own)[:MOST] if own[k] - others[k] >= MORE]
    return _listed([f"{kinds[k]} ({100 * own[k]:.0f} % of rows, elsewhere {100 * others[k]:.0f} %)" for k in first])


def looking(parts: Parts, inside: Any) -> list[int]:
    """The kinds whose parts lie farthest from the others' parts of the same kind, in their own spread; at most MOST."""
    far: dict[int, float] = {}
    for kind in np.unique(parts.kind).tolist():
        mine = parts.kind == kind
        own, others = (parts.vector[mine & (inside[parts.owner] == side)] for side in (True, False))
        if len(own) > 1 and len(others) > 1:
            spread = _spread(own) + _spread(others)
            far[kind] = float(((own.mean(0) - others.mean(0)) ** 2).sum()) / max(spread, 1e-12)
    return sorted(far, key=lambda kind: (-far[kind], kind))[:MOST]


def _spread(vectors: Floats) -> float:
    return float(((vectors - vectors.mean(0)) ** 2).sum(1).mean())


def _renamed(found: Difference, inside: Ints, kinds: list[str]) -> str:
    """Which names most clients of a cluster use for what others call something else."""
    votes: dict[tuple[int, int], int] = {}
    for client, own, usual in found.renamed:
        if client in inside:
            votes[own, usual] = votes.get((own, usual), 0) + 1
    usual_ones = [pair for pair, many in sorted(votes.items()) if 2 * many > len(inside)]
    return _listed([f"its {kinds[own]} is what others call {kinds[usual]}" for own, usual in usual_ones])


def _listed(words: list[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if words[1:] else "") + words[-1] if words else ""
