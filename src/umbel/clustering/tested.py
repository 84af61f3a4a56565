"""Which clients can be told apart? Tests on parts of their rows, and a cut of any tree that rests on them.

Null hypothesis: the rows of some clients are exchangeable. Under it three statistics are what random owners would make
of them, and each has a p-value by drawing such owners:

    looks   parts of one client and kind lie no closer than parts under random owners, within the kind
    absent  no kind is missing at a client that would surely have rows of it, even if its share were a third of others'
    shares  kinds are mixed alike at all clients

The first two do not mind in which proportions clients hold their kinds, only which ones, and how they look. They are
asked first; where they find no groups at all, and only there, clients are parted by shares.

A tree, any method's, is walked from its root: a node of k of n clients is split where a test rejects at (k - 1) /
(n - 1) of the level, which bounds the error over disjoint nodes of alike clients (Kimes et al. 2017). A node that is
split need not be split *well*, so clusters that no test tells apart are joined in the end, nearest first by the energy
distance of their parts. Below the root the nodes were chosen on the same rows: there the level is not proven, but was
kept in trials (LOG.md).
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from math import ceil, lgamma
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import cdist, squareform
from scipy.stats import random_table

from umbel.clustering.parts import Floats, Ints, Parts
from umbel.clustering.proximity import surprise

LEVEL = 0.03  # that alike clients are split: an exact 5 % would exceed 10 of 200 in two tries of five
TESTS = 3  # among which the level is divided
SAMPLE = 128  # clients of a node that are looked at: enough for any test, and memory stays bounded
ALL_PAIRS = 24  # clusters up to which each is compared with each; above, with its nearest NEIGHBOURS
NEIGHBOURS = 6
RARER = 3.0  # times: how much smaller a client's share of a kind may be than everybody's before its absence counts
SURE = 200  # draws after which a statistic that is TIGHT standard deviations away needs no more; of looks it needs none
SURE_OF_ALL = 3999  # of all clients: their p-values are told, and can be below 0.001
TIGHT = 9.0
SQUARES = 6.0  # more than the variance of one kind's square: 3 where parts are many
FAR = 0.6  # of the least distance between clusters: who is nearer to one than that founds none
ALONE = 0.1  # the same where there is but one cluster, in units of the mean distance between parts
STANDS = 64  # parts of a kind that stand for a cluster when somebody comes: a newcomer has at most 8
AT_ONCE = 2**21  # numbers that are gathered at a time
BOOTSTRAPS = 40
STEADY = 400  # clients up to which clusters are formed again from bootstraps

Test = Callable[[Parts, float, np.random.Generator, int], float]  # parts, level, draws that can suffice -> p


# Tests ------------------------------------------------------------------------------------------------------------


def looks(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often random owners make parts of one owner and kind as close as the true ones do.

    By how many standard deviations they are closer is asked kind by kind, and squared with its sign: a plain sum would
    drown a difference in two kinds of ten in the noise of the eight.
    """
    kinds = []
    for kind in np.unique(parts.kind):
        mine = parts.kind == kind
        owner, apart = parts.owner[mine], cdist(parts.vector[mine], parts.vector[mine])
        first, second = np.triu_indices(len(owner), 1)
        same = owner[first] == owner[second]
        if same.any() and not same.all() and apart.any():
            mean, variance = moments(apart, first[same], second[same])
            if variance > 1e-12 * mean**2:
                kinds.append((apart, first[same], second[same], mean, variance**0.5))
    if not kinds:
        return 1.0

    def closer(within: Floats, mean: float, deviation: float) -> Floats:
        deviations = (mean - within) / deviation
        answer: Floats = deviations * abs(deviations)
        return answer

    true = sum(float(closer(apart[a, b].sum(), mean, deviation)) for apart, a, b, mean, deviation in kinds)
    if sure <= SURE and true > TIGHT * (SQUARES * len(kinds)) ** 0.5:
        return min(level, 1 / (1 + sure))

    def drawn(count: int) -> Floats:
        total = np.zeros(count)
        for apart, a, b, mean, deviation in kinds:
            turn = rng.permuted(np.broadcast_to(np.arange(len(apart)), (count, len(apart))), axis=1)
            total += closer(apart[turn[:, a], turn[:, b]].sum(1), mean, deviation)
        return total

    return _share_above(true, drawn, level, sure, sum(len(apart) + len(a) for apart, a, *_ in kinds))


def moments(apart: Floats, first: Ints, second: Ints) -> tuple[float, float]:
    """Mean and variance of the sum of distances over these pairs of places, when all parts are dealt to places anew.

    Those of Mantel (1967): products of two distances from their mean are averaged over pairs of pairs that are the
    same, that have one part in common, and that have none.
    """
    n, pairs = len(apart), len(first)
    usual = apart.sum() / (n * (n - 1))
    rest = apart - usual
    np.fill_diagonal(rest, 0.0)
    met = np.bincount(first, minlength=n) + np.bincount(second, minlength=n)
    touching = float((met * (met - 1)).sum())
    squares = float((rest**2).sum())
    chained = float((rest.sum(1) ** 2).sum()) - squares
    variance = pairs * squares / (n * (n - 1))
    if n > 2:
        variance += touching * chained / (n * (n - 1) * (n - 2))
    if n > 3:
        disjoint = -2 * squares - 4 * chained  # all products together are 0
        variance += (pairs**2 - pairs - touching) * disjoint / (n * (n - 1) * (n - 2) * (n - 3))
    return pairs * usual, max(0.0, variance)


def absent(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often as much would be missing if each client's share of a kind were only a third of everybody's.

    Who holds little of a kind lacks it easily: that alone makes no group of those who happen to lack it, so this test
    grants that shares differ, and errs on the safe side where they do not. A kind that is missing counts by minus the
    log of its chance: in a small client its absence says little.
    """
    counts = parts.counts[parts.counts.sum(1) > 0]
    if len(counts) < 2:
        return 1.0
    share = counts.sum(0) / counts.sum() / RARER
    surprise = -np.outer(counts.sum(1), np.log1p(-share))
    true = float(surprise[counts == 0].sum())
    chance, weight = np.exp(-surprise[surprise > 0]), surprise[surprise > 0]
    if true <= 0:
        return 1.0

    def drawn(count: int) -> Floats:
        missing: Floats = (rng.random((count, len(weight))) < chance).astype(np.float64)
        return missing @ weight

    return _share_above(true, drawn, level, sure, len(weight))


def shares(parts: Parts, level: float, rng: np.random.Generator, sure: int = SURE) -> float:
    """How often dealing all rows out again mixes the kinds as unequally, in the same directions at several clients.

    Chi square adds up the squares of what the residuals vary by; here their fourth powers are added. Groups put all of
    it into few directions, and are seen even where clients of a group are more alike than chance would have them.
    """
    counts = parts.counts[parts.counts.sum(1) > 0][:, parts.counts.sum(0) > 0]
    if min(counts.shape, default=0) < 2:
        return 1.0
    due = np.outer(counts.sum(1), counts.sum(0)) / counts.sum()
    dealt = random_table(counts.sum(1), counts.sum(0))  # with the same sums of rows and columns

    def spread(tables: NDArray[Any]) -> Floats:
        residual = (tables - due) / due**0.5
        turned = residual.swapaxes(1, 2)
        gram = turned @ residual if counts.shape[0] > counts.shape[1] else residual @ turned
        answer: Floats = (gram**2).sum((1, 2))
        return answer

    true = float(spread(counts[None])[0])
    if true <= 0:
        return 1.0
    return _share_above(true, lambda count: spread(dealt.rvs(count, random_state=rng)), level, sure, 2 * counts.size)


def _share_above(true: float, drawn: Callable[[int], Floats], level: float, sure: int, each: int) -> float:
    """The p-value of a statistic: the share of draws that reach it. No more are made once the answer is clear."""
    draws, width = max(sure, ceil(20 / level) - 1), max(1, AT_ONCE // each)
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


# Distances between clients ----------------------------------------------------------------------------------------


def energy(parts: Parts) -> Floats:
    """(n, n) how much farther parts of two clients lie from each other than parts of one; 0 = alike, on average.

    The mean over the kinds that at least one of the two has. A kind that one of them lacks is at distance 1, weighed by
    how surprising that is (proximity.surprise).
    """
    apart: Floats = _energies(parts, np.ones((1, len(parts.owner))))[0]
    return apart


def _energies(parts: Parts, weights: Floats) -> Floats:
    """(b, n, n) the energy distances where parts count as often as each of b rows of weights says."""
    counts, n = parts.counts, len(parts.counts)
    total, kinds = np.zeros((len(weights), n, n)), np.zeros((len(weights), n, n))
    for kind in np.unique(parts.kind):
        mine = np.flatnonzero(parts.kind == kind)
        mine = mine[np.argsort(parts.owner[mine], kind="stable")]
        if len(mine) < 2:
            continue
        owner = parts.owner[mine]
        sums = _sums(parts.vector[mine], owner, weights[:, mine], n)
        for k, heavy in enumerate(weights[:, mine]):
            count, squares = np.bincount(owner, heavy, n), np.bincount(owner, heavy**2, n)
            pairs = count**2 - squares
            some = pairs > 0
            own = np.divide(np.diag(sums[k]), pairs, out=np.full(n, np.nan), where=some)
            own = np.where(some, own, own[some].mean() if some.any() else 1.0)
            both = np.outer(count, count)
            between = np.divide(sums[k], both, out=np.zeros((n, n)), where=both > 0)
            total[k] += np.where(both > 0, between - (own[:, None] + own) / 2, 0.0)
            kinds[k] += both > 0
    for kind in range(counts.shape[1]):
        lack = surprise(torch.from_numpy(counts), torch.from_numpy(counts), kind).numpy()
        total += lack
        kinds += lack
    apart = np.divide(total, kinds, out=np.ones_like(total), where=kinds > 0)
    apart[:, np.arange(n), np.arange(n)] = 0.0
    answer: Floats = (apart + apart.transpose(0, 2, 1)) / 2
    return answer


def _sums(vectors: Floats, owner: Ints, weights: Floats, n: int) -> Floats:
    """(b, n, n) weighted distances between parts of two clients, in units of the mean of all; by blocks of parts.

    Parts come sorted by their owner.
    """
    who, starts = np.unique(owner, return_index=True)
    sums, plain = np.zeros((len(weights), n, n)), 0.0
    width = max(1, AT_ONCE // len(vectors))
    for first in range(0, len(vectors), width):
        block = slice(first, first + width)
        apart = cdist(vectors[block], vectors)
        plain += float(apart.sum())
        here, begins = np.unique(owner[block], return_index=True)
        for k, heavy in enumerate(weights):
            rows = np.add.reduceat(apart * heavy, starts, axis=1) * heavy[block, None]
            sums[k][np.ix_(here, who)] += np.add.reduceat(rows, begins, axis=0)
    mean = plain / max(1, len(vectors) * (len(vectors) - 1))
    return sums / mean if mean > 0 else sums


def mixtures(counts: Ints) -> Floats:
    """(n, n) Hellinger's distances between clients' shares of kinds."""
    roots = np.sqrt(counts / counts.sum(1, keepdims=True).clip(min=1))
    apart = cdist(roots, roots) / 2**0.5
    return (apart + apart.T) / 2


def tree_of(apart: Floats) -> Floats:
    """The average-linkage tree of distances that may be a little below 0."""
    if len(apart) < 2:
        return np.zeros((0, 4))
    raised = apart - min(0.0, float(apart.min()))
    np.fill_diagonal(raised, 0.0)
    links: Floats = hierarchy.linkage(squareform(raised, checks=False), "average")
    return links


class Branch(NamedTuple):
    """Some clients, and how a method would part them in two."""

    members: Ints  # places
    halves: Callable[[], "tuple[Branch, Branch]"] | None  # None: a single client, or nothing to part them by


def by_links(links: Floats, members: Ints) -> Branch:
    """A dendrogram as scipy writes it, of clients at these places."""
    if len(members) < 2:
        return Branch(members, None)

    def branch(node: hierarchy.ClusterNode) -> Branch:
        inside = members[np.sort(np.array(node.pre_order()))]
        left, right = node.left, node.right
        return Branch(inside, None if left is None or right is None else lambda: (branch(left), branch(right)))

    return branch(hierarchy.to_tree(links))


def by_distance(apart: Floats, members: Ints | None = None) -> Branch:
    """The average-linkage tree of some clients, of all by default."""
    members = np.arange(len(apart)) if members is None else members
    return by_links(tree_of(apart[np.ix_(members, members)]), members)


def by_halving(halve: Callable[[Ints], tuple[Ints, Ints]], members: Ints) -> Branch:
    """Clients that are parted in two, and each half again; where one half is empty, all stay together."""
    if len(members) < 2:
        return Branch(members, None)

    def halves() -> tuple[Branch, Branch]:
        left, right = halve(members)
        return by_halving(halve, left), by_halving(halve, right)

    return Branch(members, halves)


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


# Newcomers --------------------------------------------------------------------------------------------------------


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


def words(test: Mapping[str, float], clients: int, clusters: int, trial: str = "") -> str:
    """Why there are so many clusters, in a sentence without its full stop: `test` has the fields of `Verdict`,
    `by_shares` and, where it is a number, `contrast`. `trial` is what a trial said of the clusters that were found.
    """
    p = min(1.0, TESTS * min(test["looks"], test["absent"], test["shares"]))
    if p <= LEVEL:
        if clusters > 1:
            return f"{_differences(test, p)}{'; ' if trial else ''}{trial}"
        return (f"the {clients} clients are not all alike ({p_said(p)}), but"
                f" {trial or 'no two clusters of them can be told apart'}")
    if clients == 1:
        reason = "there is one client"
    elif not test["enough"]:
        reason = f"too few rows to tell {clients} clients apart"
    else:
        reason = f"{clients} clients cannot be told apart ({p_said(p)})"
    return f"{reason}; newcomers that can be told from them founded the others" if clusters > 1 else reason


def _differences(test: Mapping[str, float], p: float) -> str:
    """In what clients of different clusters differ."""
    if test["by_shares"]:
        return f"clients hold their classes in different shares ({p_said(p)}), and look alike otherwise"
    several = []
    if "contrast" in test and TESTS * test["looks"] <= LEVEL:
        several.append(f"differ {test['contrast']:.1f} times as much as two parts of one client")
    if TESTS * test["absent"] <= LEVEL or not several:
        several.append("have other classes")
    return f"clients of different clusters {' and '.join(several)} ({p_said(p)})"


def p_said(p: float) -> str:
    """A p-value as sentences have it."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


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
        apart = list(_energies(parts, weights))
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


def told(cluster: Parts, one: Parts, rng: np.random.Generator, by_shares: bool = False) -> Verdict:
    """Whether a client can be told from those of a cluster: what `settle` asks."""
    both = _side_by_side([_as_one(cluster, rng), one])
    asked = (shares,) if by_shares else (absent, looks)
    p = {test.__name__: test(both, LEVEL / TESTS, rng, SURE_OF_ALL) for test in asked}
    return Verdict(**{"looks": 1.0, "absent": 1.0, "shares": 1.0} | p,
                   enough=min(p.values()) < 1 and (by_shares or reachable(both) <= LEVEL / TESTS))
