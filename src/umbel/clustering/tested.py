"""Which clients can be told apart? A cut of any tree that rests on tests of parts of their rows (exchangeable.py).

Looks and absent kinds are asked for first; where they find no groups at all, and only there, clients are parted by the
shares in which they hold their kinds.

A tree, any method's, is walked from its root: a node of k of n clients is split where a test rejects at (k - 1) /
(n - 1) of the level, which bounds the error over disjoint nodes of alike clients (Kimes et al. 2017). A node that is
split need not be split *well*, so clusters that no test tells apart are joined in the end, nearest first by the energy
distance of their parts. Below the root the nodes were chosen on the same rows: there the level is not proven, but was
kept in trials (LOG.md).
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np

from umbel.clustering.branches import Branch, by_distance
from umbel.clustering.energy import energy, mixtures
from umbel.clustering.exchangeable import LEVEL, SURE, SURE_OF_ALL, TESTS, Test, absent, looks, reachable, shares
from umbel.clustering.parts import Floats, Ints, Parts

SAMPLE = 128  # clients of a node that are looked at: enough for any test, and memory stays bounded
ALL_PAIRS = 24  # clusters up to which each is compared with each; above, with its nearest NEIGHBOURS
NEIGHBOURS = 6


class Verdict(NamedTuple):
    """Whether some clients differ, and in what."""

    looks: float  # p-values; 1 where there was nothing to compare
    absent: float
    shares: float
    enough: bool  # whether there were rows enough for a test to reject

    @property
    def p(self) -> float:
        """Of all that was asked, the number of tests counted in."""
        return min(1.0, TESTS * min(self.looks, self.absent, self.shares))

    @property
    def differ(self) -> bool:
        """At the level."""
        return self.p <= LEVEL


class Cut(NamedTuple):
    """Clusters, and what the tests said of all clients."""

    labels: Ints  # (n,)
    root: Verdict
    by_shares: bool  # whether they differ only in how kinds are mixed


def tested(parts: Parts, start: Branch | list[Branch], rng: np.random.Generator) -> Cut:
    """Split clusters of clients where they differ, along a method's tree; join those that do not.

    `start`: where the walk begins: the tree of everybody, or those of clusters that a method has found.
    """
    root = verdict(parts, rng)
    if not root.differ:
        return Cut(np.zeros(len(parts.counts), dtype=np.int64), root, by_shares=False)
    branches = [start] if isinstance(start, Branch) else start
    labels = _walk(parts, branches, energy(parts), (absent, looks), rng)
    if labels.any() or TESTS * root.shares > LEVEL:
        return Cut(labels, root, by_shares=False)
    mixed = mixtures(parts.counts)
    return Cut(_walk(parts, [by_distance(mixed)], mixed, (shares,), rng), root, by_shares=True)


def verdict(parts: Parts, rng: np.random.Generator) -> Verdict:
    """What the tests say of all clients."""
    everybody = np.arange(len(parts.counts))
    p, q, r = (_ask(test, parts, everybody, rng, SURE_OF_ALL) for test in (looks, absent, shares))
    root = Verdict(looks=p, absent=q, shares=r, enough=True)
    enough = root.differ or (min(p, q, r) < 1 and reachable(_sampled(parts, everybody, rng)) <= LEVEL / TESTS)
    return root._replace(enough=enough)


def differ(parts: Parts, members: Ints, tests: tuple[Test, ...], rng: np.random.Generator) -> bool:
    """Whether some test tells some of all clients apart, at their part of the level."""
    return any(_ask(test, parts, members, rng) <= _due(parts, members) for test in tests)


def _sampled(parts: Parts, members: Ints, rng: np.random.Generator) -> Parts:
    if len(members) > SAMPLE:
        members = np.sort(rng.choice(members, SAMPLE, replace=False))
    return parts.of(members)


def _due(parts: Parts, members: Ints) -> float:
    """The level of one test of some of all clients."""
    return LEVEL / TESTS * (len(members) - 1) / max(1, len(parts.counts) - 1)


def _ask(test: Test, parts: Parts, members: Ints, rng: np.random.Generator, sure: int = SURE) -> float:
    due = _due(parts, members)
    return test(_sampled(parts, members, rng), due, rng, sure) if due > 0 else 1.0


def _walk(parts: Parts, start: list[Branch], near: Floats, tests: tuple[Test, ...],
          rng: np.random.Generator) -> Ints:
    """Labels: `start` is split as far down as clients differ; clusters that do not are joined, the nearest first."""
    clusters, todo = [], start[::-1]
    while todo:
        branch = todo.pop()
        if branch.halves is None or not differ(parts, branch.members, tests, rng):
            clusters.append(branch.members)
        else:
            left, right = branch.halves()
            if len(left.members) and len(right.members):
                todo += [right, left]
            else:
                clusters.append(branch.members)
    told: set[frozenset[int]] = set()  # unions of two clusters that differ

    def alike() -> tuple[int, int, Ints] | None:
        """The nearest two clusters that cannot be told apart, and their union."""
        for a, b in _pairs(clusters, near):
            both = np.sort(np.concatenate([clusters[a], clusters[b]]))
            if (name := frozenset(both.tolist())) not in told:
                if not differ(parts, both, tests, rng):
                    return a, b, both
                told.add(name)
        return None

    def join() -> None:
        while len(clusters) > 1 and (pair := alike()):
            a, b, both = pair
            clusters[a] = both
            del clusters[b]

    join()
    if (moved := nearest(_labels(clusters, len(near)), near)).any():
        clusters[:] = [members for k in range(int(moved.max()) + 1) if len(members := np.flatnonzero(moved == k))]
        join()
    return _labels(clusters, len(near))


def _labels(clusters: list[Ints], n: int) -> Ints:
    labels = np.zeros(n, dtype=np.int64)
    for label, members in enumerate(clusters):
        labels[members] = label
    return labels


def nearest(labels: Ints, near: Floats) -> Ints:
    """The same clusters after clients have changed to the one that they are nearest to, on average over its others.

    A tree parts clients by pairs, of which each is noisy; whole clusters are not. All change at once, until nobody
    would, or would only change back. Who is alone stays.
    """
    seen: set[bytes] = set()
    while labels.tobytes() not in seen:
        seen.add(labels.tobytes())
        one = np.eye(int(labels.max()) + 1)[labels]
        others = one.sum(0) - one  # of each cluster, without oneself
        means = np.divide(near @ one, others, out=np.full_like(one, np.inf), where=others > 0)
        labels = np.where(others[one > 0] > 0, means.argmin(1), labels)
    return labels


def _pairs(clusters: list[Ints], distance: Floats) -> list[tuple[int, int]]:
    """Pairs of clusters a < b to compare, nearest first."""
    one = np.zeros((len(distance), len(clusters)))
    for k, members in enumerate(clusters):
        one[members, k] = 1 / len(members)
    means = one.T @ distance @ one
    pairs = set(combinations(range(len(clusters)), 2))
    if len(clusters) > ALL_PAIRS:
        order = np.argsort(means + np.diag(np.full(len(means), np.inf)), axis=1)[:, :NEIGHBOURS]
        pairs = {(min(a, int(b)), max(a, int(b))) for a, row in enumerate(order) for b in row}
    return sorted(pairs, key=lambda pair: (means[pair], pair))
