"""Which clients can be told apart? Tests on parts of their rows, and a cut of any tree that rests on them.

Null hypothesis: the rows of some clients are exchangeable. Under it three statistics are what random owners would make
of them, and each has a permutation p-value, exact but for the number of draws:

    looks   parts of one client and kind lie no closer than parts under random owners, within the kind
    absent  no kind is missing at a client that would surely have rows of it, were they dealt out at random
    shares  kinds are mixed alike at all clients (chi square)

The first two do not mind in which proportions clients hold their kinds, only which ones, and how they look. They are
asked first; where they find no groups at all, and only there, clients are parted by shares.

A tree is walked from its root: a node of k of n clients is split where a test rejects at (k - 1) / (n - 1) of the
level, which bounds the error over disjoint nodes of alike clients (Kimes et al. 2017). A node that is split need not be
split *well*, so clusters that no test tells apart are joined in the end. Below the root the nodes were chosen on the
same rows: there the level is not proven, but was kept in trials (LOG.md).
"""

from collections.abc import Callable
from itertools import combinations
from math import ceil, lgamma
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import cdist, squareform
from scipy.stats import random_table

from umbel.clustering.parts import Floats, Ints, Parts

LEVEL = 0.03  # that alike clients are split: an exact 5 % would exceed 10 of 200 in two tries of five
TESTS = 3  # among which the level is divided
SAMPLE = 128  # clients of a node that are looked at: enough for any test, and memory stays bounded
ALL_PAIRS = 24  # clusters up to which each is compared with each; above, with its nearest NEIGHBOURS
NEIGHBOURS = 6
SURE = 200  # draws after which a statistic that is TIGHT standard deviations away needs no more of them
SURE_OF_ALL = 1000  # of all clients: their p-values are told
TIGHT = 9.0
AT_ONCE = 2**21  # numbers that are gathered at a time
BOOTSTRAPS = 50

Test = Callable[[Parts, float, np.random.Generator, int], float]  # parts, level, draws that can suffice -> p


# Tests ------------------------------------------------------------------------------------------------------------


def looks(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often random owners make parts of one owner and kind as close as the true ones do.

    Distances of a kind are divided by their mean, so that kinds of wide and of narrow looks count alike.
    """
    tables = []
    for kind in np.unique(parts.kind):
        mine = parts.kind == kind
        owner, apart = parts.owner[mine], _apart(parts.vector[mine])
        first, second = np.triu_indices(len(owner), 1)
        same = owner[first] == owner[second]
        if same.any() and not same.all() and apart.any():
            tables.append((apart, first[same], second[same]))
    if not tables:
        return 1.0
    true = -sum(float(apart[a, b].sum()) for apart, a, b in tables)

    def drawn(count: int) -> Floats:
        total = np.zeros(count)
        for apart, a, b in tables:
            turn = rng.permuted(np.broadcast_to(np.arange(len(apart)), (count, len(apart))), axis=1)
            total -= apart[turn[:, a], turn[:, b]].sum(1)
        return total

    return _share_above(true, drawn, level, sure, sum(len(apart) + len(a) for apart, a, _ in tables))


def absent(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often dealing all rows out again leaves as many missing that a client should have.

    A kind that is missing counts by the rows of it that were to be expected: in a small client its absence says little.
    """
    return _by_tables(parts.counts, level, rng, sure, lambda table, due: (due * (table == 0)).sum((1, 2)))


def shares(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often dealing all rows out again mixes the kinds as unequally (chi square)."""
    return _by_tables(parts.counts, level, rng, sure, lambda table, due: ((table - due) ** 2 / due).sum((1, 2)))


def _by_tables(counts: Ints, level: float, rng: np.random.Generator, sure: int,
               statistic: Callable[[NDArray[np.int64], Floats], Floats]) -> float:
    """Over tables with the same sums of rows and columns, which is what random deals of all rows make."""
    counts = counts[counts.sum(1) > 0][:, counts.sum(0) > 0]
    if min(counts.shape, default=0) < 2:
        return 1.0
    due = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    dealt = random_table(counts.sum(1), counts.sum(0))
    true = float(statistic(counts[None], due)[0])
    if true <= 0:
        return 1.0
    return _share_above(true, lambda count: statistic(dealt.rvs(count, random_state=rng).astype(np.int64), due), level,
                        sure, counts.size)


def _share_above(true: float, drawn: Callable[[int], Floats], level: float, sure: int, each: int) -> float:
    """The p-value of a statistic: the share of draws that reach it. No more are made once the answer is clear."""
    draws, width = ceil(20 / level) - 1, max(1, AT_ONCE // each)
    least = true - 1e-12 * abs(true)
    total, squares, high, done = 0.0, 0.0, 0, 0
    while done < draws:
        some = drawn(min(width, draws - done, 100 if not done else draws))
        high, done = high + int((some >= least).sum()), done + len(some)
        total, squares = total + float((some - true).sum()), squares + float(((some - true) ** 2).sum())
        if 1 + high > level * (1 + draws):
            return (1 + high) / (1 + done)
        mean, spread = total / done, max(0.0, squares / done - (total / done) ** 2) ** 0.5
        if done >= sure and not high and -mean > TIGHT * spread:
            return min(level, 1 / (1 + done))
    return (1 + high) / (1 + draws)


def reachable(parts: Parts) -> float:
    """The least p-value that `looks` can have: one over the number of ways to part the parts of each kind.

    Clients with equally many parts of a kind may be exchanged there: that is the same way.
    """
    ways = 0.0
    for kind in np.unique(parts.kind):
        count = np.bincount(parts.owner[parts.kind == kind])
        count = count[count > 0]
        ways += lgamma(count.sum() + 1) - sum(lgamma(each + 1) for each in count)
        ways -= sum(lgamma(alike + 1) for alike in np.bincount(count))
    return float(np.exp(-min(ways, 700.0)))


def _apart(vectors: Floats) -> Floats:
    """Distances between parts of a kind, in units of their mean."""
    apart: Floats = cdist(vectors, vectors)
    mean = apart.sum() / max(1, len(apart) * (len(apart) - 1))
    return apart / mean if mean > 0 else apart


# Distances between clients ----------------------------------------------------------------------------------------


def energy(parts: Parts, weight: Floats | None = None) -> Floats:
    """(n, n) how much farther parts of two clients lie from each other than parts of one; 0 = alike, on average.

    The mean over the kinds that at least one of the two has. A kind that one of them lacks is at distance 1, weighed by
    how surprising that is: if the two were alike, it would have had half as large a share of it as the other. `weight`
    says how often each part counts.
    """
    counts, n = parts.counts, len(parts.counts)
    weight = np.ones(len(parts.owner)) if weight is None else weight
    total, kinds = np.zeros((n, n)), np.zeros((n, n))
    for kind in np.unique(parts.kind):
        mine = parts.kind == kind
        if mine.sum() < 2:
            continue
        one = np.zeros((mine.sum(), n))
        one[np.arange(len(one)), parts.owner[mine]] = weight[mine]
        count, squares = one.sum(0), (one**2).sum(0)
        sums = one.T @ _apart(parts.vector[mine]) @ one
        pairs = count**2 - squares
        some = pairs > 0
        own = np.divide(np.diag(sums), pairs, out=np.full(n, np.nan), where=some)
        own = np.where(some, own, own[some].mean() if some.any() else 1.0)
        both = np.outer(count, count)
        between = np.divide(sums, both, out=np.zeros((n, n)), where=both > 0)
        total += np.where(both > 0, between - (own[:, None] + own) / 2, 0.0)
        kinds += both > 0
    size = counts.sum(1)
    for column in counts.T:
        lacks = column == 0
        odds = (1 - column / size.clip(min=1) / 2)[None] ** size[:, None]  # client i lacks what j has, by chance
        surprise = np.where(lacks[:, None] & ~lacks[None], 1 - odds, 0.0)
        surprise = np.maximum(surprise, surprise.T)
        total += surprise
        kinds += surprise
    apart = np.divide(total, kinds, out=np.ones((n, n)), where=kinds > 0)
    np.fill_diagonal(apart, 0.0)
    return (apart + apart.T) / 2


def mixtures(counts: Ints) -> Floats:
    """(n, n) Hellinger's distances between clients' shares of kinds."""
    roots = np.sqrt(counts / counts.sum(1, keepdims=True).clip(min=1))
    apart = cdist(roots, roots) / 2**0.5
    return (apart + apart.T) / 2


def tree_of(apart: Floats) -> Floats:
    """The average-linkage tree of distances that may be a little below 0."""
    n = len(apart)
    if n < 2:
        return np.zeros((0, 4))
    raised = apart - min(0.0, float(apart.min()))
    np.fill_diagonal(raised, 0.0)
    links: Floats = hierarchy.linkage(squareform(raised, checks=False), "average")
    return links


# A tree that is split while clients differ -----------------------------------------------------------------------


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


def tested(parts: Parts, start: list[Ints], distance: Floats, rng: np.random.Generator) -> Cut:
    """Split clusters of clients where they differ, along their trees by `distance`; join those that do not.

    `start`: the clusters to begin with, as places; one of everybody, as a rule.
    """
    n = len(parts.counts)
    everybody = np.arange(n)
    of_looks, of_absent, of_shares = (_ask(test, parts, everybody, rng, SURE_OF_ALL) for test in (looks, absent, shares))
    root = Verdict(of_looks, of_absent, of_shares, enough=True)
    if not root.differ:
        enough = min(root[:3]) < 1 and reachable(_sampled(parts, everybody, rng)) <= LEVEL / TESTS
        return Cut(np.zeros(n, dtype=np.int64), root._replace(enough=enough), by_shares=False)
    labels = _walk(parts, start, distance, (looks, absent), rng)
    if labels.any() or TESTS * root.shares > LEVEL:
        return Cut(labels, root, by_shares=False)
    return Cut(_walk(parts, [everybody], mixtures(parts.counts), (shares,), rng), root, by_shares=True)


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


def _walk(parts: Parts, start: list[Ints], distance: Floats, tests: tuple[Test, ...],
          rng: np.random.Generator) -> Ints:
    def differ(members: Ints) -> bool:
        return any(_ask(test, parts, members, rng) <= _due(parts, members) for test in tests)

    def split(members: Ints) -> list[Ints]:
        """Along the tree of these clients, as far down as they differ."""
        clusters = []
        todo = [hierarchy.to_tree(tree_of(distance[np.ix_(members, members)]))] if len(members) > 1 else []
        while todo:
            node = todo.pop()
            inside = members[np.sort(np.array(node.pre_order()))]
            if node.left is None or node.right is None or not differ(inside):
                clusters.append(inside)
            else:
                todo += [node.right, node.left]
        return clusters or [members]

    clusters = [cluster for members in start for cluster in split(members)]
    told: set[frozenset[int]] = set()  # unions of two clusters that differ

    def alike() -> tuple[int, int, Ints] | None:
        """The nearest two clusters that cannot be told apart, and their union."""
        for a, b in _nearest(clusters, distance):
            both = np.sort(np.concatenate([clusters[a], clusters[b]]))
            if (name := frozenset(both.tolist())) not in told:
                if not differ(both):
                    return a, b, both
                told.add(name)
        return None

    while len(clusters) > 1 and (pair := alike()):
        a, b, both = pair
        clusters[a] = both
        del clusters[b]
    labels = np.zeros(len(parts.counts), dtype=np.int64)
    for label, members in enumerate(clusters):
        labels[members] = label
    return labels


def _nearest(clusters: list[Ints], distance: Floats) -> list[tuple[int, int]]:
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


# Newcomers --------------------------------------------------------------------------------------------------------


def place(known: Parts, labels: Ints, newcomer: Parts, clusters: int, rng: np.random.Generator,
          by_shares: bool = False) -> int:
    """The cluster whose members a newcomer is most like; a new one, number `clusters`, where it is like none.

    Parts are of one size, so a newcomer's own size and the clusters' do not matter. Who has too few rows to be told
    apart from a cluster joins the nearest.
    """
    places = {label: np.flatnonzero(labels == label) for label in range(clusters)}
    places = {label: members for label, members in places.items() if len(members)}
    sampled = {label: _sampled(known, members, rng) for label, members in places.items()}
    groups = [_as_one(parts) for parts in sampled.values()] + [newcomer]
    owner = np.concatenate([np.full(len(parts.owner), k) for k, parts in enumerate(groups)])
    together = Parts(owner, np.concatenate([parts.kind for parts in groups]),
                     np.concatenate([parts.vector for parts in groups]), np.concatenate([parts.counts for parts in groups]))
    apart = mixtures(together.counts) if by_shares else energy(together)
    for k in np.argsort(apart[-1, :-1], kind="stable"):
        pair = together.of(np.array([k, len(groups) - 1]))
        due = LEVEL / TESTS
        if all(test(pair, due, rng, SURE) > due for test in ((shares,) if by_shares else (looks, absent))):
            return list(places)[int(k)]
    return clusters


def _as_one(parts: Parts) -> Parts:
    """Some clients as if they were one."""
    return Parts(np.zeros_like(parts.owner), parts.kind, parts.vector, parts.counts.sum(0, keepdims=True))


# What can be said of a cut ----------------------------------------------------------------------------------------


def contrast(parts: Parts, labels: Ints) -> float:
    """How many times farther apart parts of different clusters lie than two parts of one client, kind for kind.

    NaN where clusters have no kind in common.
    """
    ratios = []
    for kind in np.unique(parts.kind):
        mine = parts.kind == kind
        owner, apart = parts.owner[mine], cdist(parts.vector[mine], parts.vector[mine])
        same = owner[:, None] == owner[None]
        across = labels[owner][:, None] != labels[owner][None]
        np.fill_diagonal(same, False)
        if same.any() and across.any() and apart[same].mean() > 0:
            ratios.append(apart[across].mean() / apart[same].mean())
    return float(np.mean(ratios)) if ratios else float("nan")


def together(parts: Parts, labels: Ints, rng: np.random.Generator, by_shares: bool = False) -> Floats:
    """(n, n) in which share of bootstraps over its parts each pair of clients is in one of as many clusters."""
    n, clusters = len(labels), int(labels.max()) + 1
    pairs = np.zeros((n, n))
    mine: dict[tuple[int, int], list[int]] = {}
    for u, name in enumerate(zip(parts.owner.tolist(), parts.kind.tolist(), strict=True)):
        mine.setdefault(name, []).append(u)
    for _ in range(BOOTSTRAPS):
        if by_shares:
            rows = parts.counts.sum(1)
            drawn = [rng.multinomial(of, row / max(1, of)) for of, row in zip(rows, parts.counts, strict=True)]
            apart = mixtures(np.stack(drawn))
        else:
            weight = np.zeros(len(parts.owner))
            for places in mine.values():
                np.add.at(weight, rng.choice(places, len(places)), 1.0)
            apart = energy(parts, weight)
        again = hierarchy.fcluster(tree_of(apart), clusters, "maxclust")
        pairs += again[:, None] == again[None]
    return pairs / BOOTSTRAPS
