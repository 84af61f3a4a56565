"""How steady clusters are: whether clients stay together when clusters are formed again from parts drawn anew."""

from typing import NamedTuple

import numpy as np
from scipy.cluster import hierarchy

from umbel.clustering.branches import tree_of
from umbel.clustering.energy import energies, mixtures
from umbel.clustering.parts import Floats, Ints, Parts

BOOTSTRAPS = 40
STEADY = 400  # clients up to which clusters are formed again from bootstraps


def together(parts: Parts, labels: Ints, rng: np.random.Generator, by_shares: bool = False) -> Floats:
    """(n, n) in which share of bootstraps over its parts each pair of clients is in one of as many clusters."""
    n, clusters = len(labels), int(labels.max()) + 1
    if by_shares:
        rows = parts.counts.sum(1)
        apart = [mixtures(np.stack([rng.multinomial(of, row / max(1, of))
                                    for of, row in zip(rows, parts.counts, strict=True)])) for _ in range(BOOTSTRAPS)]
    else:
        weights = np.zeros((BOOTSTRAPS, len(parts.owner)))
        name = parts.owner * (parts.counts.shape[1] + 1) + parts.kind
        for each in np.unique(name):
            places = np.flatnonzero(name == each)
            weights[:, places] = rng.multinomial(len(places), np.full(len(places), 1 / len(places)), BOOTSTRAPS)
        apart = list(energies(parts, weights))
    pairs = np.zeros((n, n))
    for each in apart:
        again = hierarchy.fcluster(tree_of(each), clusters, "maxclust")
        pairs += again[:, None] == again[None]
    return pairs / BOOTSTRAPS


class Steadiness(NamedTuple):
    """How clusters stand up to bootstraps: shares in which clients are together, NaN where there is no such pair."""

    within: float  # pairs of one cluster
    across: float  # pairs of different clusters
    clusters: dict[int, float]  # pairs inside each
    own: Floats  # (n,) each client with the others of its cluster
    other: Floats  # (n,) with the clients of that other cluster with which it is most often
    nearest: Ints  # (n,) which one that is


def steadiness(together: Floats, labels: Ints) -> Steadiness:
    """What (n, n) shares of bootstraps say of clusters, of which there are at least two."""
    names = np.unique(labels)
    member = (labels[:, None] == names).astype(np.float64)
    others = member.sum(0) - member  # of each cluster, without oneself
    sums = together @ member - member * together.diagonal()[:, None]
    mean = np.divide(sums, others, out=np.full_like(sums, np.nan), where=others > 0)
    mine = member > 0
    other = np.where(mine, -1.0, mean)
    inside, size = np.where(mine, sums, 0.0).sum(0), member.sum(0)
    pairs = size * (size - 1)
    clusters = np.divide(inside, pairs, out=np.full_like(inside, np.nan), where=pairs > 0)
    apart = np.where(mine, 0.0, sums).sum() / max(1.0, float((size * (len(labels) - size)).sum()))
    return Steadiness(
        float(inside.sum() / pairs.sum()) if pairs.sum() else float("nan"), float(apart),
        dict(zip(names.tolist(), clusters.tolist(), strict=True)), mean[mine], other.max(1), names[other.argmax(1)])
