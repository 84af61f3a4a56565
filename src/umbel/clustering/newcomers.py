"""Where newcomers belong, by parts of their rows: to whom no test tells them from, or to nobody."""

import numpy as np
import torch

from umbel.clustering.energy import energy, mixtures
from umbel.clustering.exchangeable import LEVEL, SURE, SURE_OF_ALL, TESTS, Test, absent, looks, reachable, shares
from umbel.clustering.parts import Floats, Ints, Parts
from umbel.clustering.proximity import surprise
from umbel.clustering.tested import Verdict

FAR = 0.6  # of the least distance between clusters: who is nearer to one than that founds none
ALONE = 0.1  # the same where there is but one cluster, in units of the mean distance between parts
STANDS = 64  # parts of a kind that stand for a cluster when somebody comes: a newcomer has at most 8


def settle(known: Parts, labels: Ints, newcomers: Parts, clusters: int, rng: np.random.Generator,
           by_shares: bool = False) -> Ints:
    """(m,) the clusters of newcomers, one after the other: the nearest that a test cannot tell them from.

    Who is told from all of them *and* is at least FAR times as far from the nearest as the nearest two clusters are
    from each other founds a cluster, which the next ones may join; these have the numbers from `clusters` on. (Clients
    of life nearly always differ a little, and a founder's model knows its rows alone.) Parts are of one size, so
    neither a newcomer's size nor the clusters' matter. Who has too few rows to be told apart joins the nearest. Known
    clients with the label -1 count for nobody.
    """
    tests: tuple[Test, ...] = (shares,) if by_shares else (absent, looks)

    def apart(some: list[Parts]) -> Floats:
        together = _side_by_side(some)
        return mixtures(together.counts) if by_shares else energy(together)

    stands = {label: _as_one(known.of(np.flatnonzero(labels == label)), rng) for label in sorted({*labels.tolist()})
              if label >= 0}
    between = apart(list(stands.values()))
    far = FAR * float(between[~np.eye(len(between), dtype=bool)].min()) if len(stands) > 1 else ALONE
    answer = np.empty(len(newcomers.counts), dtype=np.int64)
    for i in range(len(answer)):
        one = newcomers.of(np.array([i]))
        nearest = sorted(stands, key=lambda label: _farness(stands[label], one, by_shares))
        alike = (label for label in nearest
                 if all(test(_side_by_side([stands[label], one]), LEVEL / TESTS, rng, SURE) > LEVEL / TESTS
                        for test in tests))
        joined = next(alike, None)
        if joined is None and nearest and apart([stands[nearest[0]], one])[0, 1] < far:
            joined = nearest[0]
        if joined is None:
            joined, clusters = clusters, clusters + 1
        answer[i] = joined
        stands[joined] = _as_one(_side_by_side([stands[joined], one]), rng) if joined in stands else one
    return answer


def told(cluster: Parts, one: Parts, rng: np.random.Generator, by_shares: bool = False) -> Verdict:
    """Whether a client can be told from those of a cluster: what `settle` asks."""
    both = _side_by_side([_as_one(cluster, rng), one])
    asked = (shares,) if by_shares else (absent, looks)
    p = {test.__name__: test(both, LEVEL / TESTS, rng, SURE_OF_ALL) for test in asked}
    return Verdict(**{"looks": 1.0, "absent": 1.0, "shares": 1.0} | p,
                   enough=min(p.values()) < 1 and (by_shares or reachable(both) <= LEVEL / TESTS))


def _side_by_side(some: list[Parts]) -> Parts:
    """Parts of one client each, or of some taken for one, as those of as many clients."""
    if not some:
        return Parts(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty((0, 1)), np.empty((0, 1), int))
    return Parts(np.repeat(np.arange(len(some)), [len(one.owner) for one in some]),
                 *(np.concatenate([one[field] for one in some]) for field in (1, 2, 3)))


def _as_one(parts: Parts, rng: np.random.Generator) -> Parts:
    """Some clients as if they were one, with at most STANDS parts of each kind, drawn."""
    kept = np.concatenate([np.empty(0, dtype=np.int64), *(rng.permutation(np.flatnonzero(parts.kind == kind))[:STANDS]
                                       for kind in np.unique(parts.kind))])
    return Parts(np.zeros(len(kept), dtype=np.int64), parts.kind[kept], parts.vector[kept],
                 parts.counts.sum(0, keepdims=True))


def _farness(cluster: Parts, one: Parts, by_shares: bool) -> float:
    """How far a newcomer is from a cluster: between mean parts, kind by kind; 1 for a kind that one of them lacks."""
    if by_shares:
        return float(mixtures(np.concatenate([cluster.counts, one.counts]))[0, 1])
    total, kinds = 0.0, 0.0
    for kind in np.intersect1d(cluster.kind, one.kind):
        theirs, mine = cluster.vector[cluster.kind == kind], one.vector[one.kind == kind]
        spread = float(np.sqrt(((theirs - theirs.mean(0)) ** 2).sum(1).mean()))
        far = float(np.linalg.norm(theirs.mean(0) - mine.mean(0)))
        total, kinds = total + far / (far + spread) if far > 0 else total, kinds + 1
    for kind in range(one.counts.shape[1]):
        lack = float(surprise(torch.from_numpy(cluster.counts), torch.from_numpy(one.counts), kind))
        total, kinds = total + lack, kinds + lack
    return total / kinds if kinds > 0 else 1.0
