"""From clients' distances or vectors to clusters, and the one rule that places more clients.

Three ways to group, one answer, a `Grouping`: `dendrogram` cuts the tree of all distances, `kmeans` finds centres of
vectors, `landmarks` groups a sample and places everybody else as a newcomer, block by block, so that no matrix is
larger than sample x block.

Newcomers are placed one after the other. Each joins the cluster whose members are nearest on average and is a member
for the next ones; one that is farther than the cut from all clusters founds a cluster. Some members *stand for* their
cluster (an exemplar, a centre, a landmark): where there are such, newcomers are compared with these alone.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from umbel import tree
from umbel.clustering import flat
from umbel.clustering.cuts import Cut, Dendrogram
from umbel.clustering.labels import canonical
from umbel.clustering.linkage import linkage
from umbel.clustering.proximity import Pairwise, euclidean
from umbel.clustering.tested import Cut as Tested
from umbel.tree import Tree

BLOCK = 1024  # newcomers whose distances are in memory at once
FAR = 1.5  # like nobody: this many times farther from every centre than the farthest member is from its own

Floats = NDArray[np.float64]
Apart: TypeAlias = Callable[[Tree, Tree], Tensor]  # rows of two trees -> their distances, (r, c)


class Grouping(NamedTuple):
    """Clusters, and what they rest on."""

    labels: Tensor  # (n,)
    evidence: Tree  # tensors: what a report draws, and by what newcomers are placed; `cut` = how far they may be
    test: Tested | None = None  # of clusters that rest on tests of parts of rows


# Three ways to group ----------------------------------------------------------------------------------------------


def dendrogram(distance: Tensor, method: str, rule: Cut, **look: Any) -> Grouping:
    """The tree of all distances (n, n), cut by a rule; `look` is what else the rule looks at, by cuts.Dendrogram."""
    links = linkage(distance, method)
    choice = rule.choose(Dendrogram(links, distance, **look))
    evidence: Tree = {"proximity": distance, "linkage": links}
    if choice.test is None:
        evidence |= {"cut": torch.tensor(choice.cut, dtype=torch.float64), "curve": choice.curve}
    return Grouping(choice.labels, evidence, choice.test)


def kmeans(points: Tensor, clusters: int, seed: int, order: Tensor) -> Grouping:
    """k-means of vectors (n, d); clusters are numbered by their first client in this order."""
    return centred(points, canonical(flat.kmeans(points, clusters, seed)[0], order), euclidean)


def centred(points: Tensor, labels: Tensor, measure: Pairwise) -> Grouping:
    """Clusters of points with their centres, and how far from these a newcomer may be.

    A member pulls its centre towards itself, a newcomer does not: from the centre of the others it is n / (n - 1)
    times farther.
    """
    centres = flat.means(points, labels)
    own = measure(points, centres)[torch.arange(len(points)), labels].double().cpu()
    members = torch.bincount(labels)[labels]
    cut = FAR * (own * members / (members - 1).clamp(min=1)).max()
    return Grouping(labels, {"centres": centres.cpu(), "cut": cut})


def landmarks(rows: Tree, chosen: Tensor, others: Tensor, group: Callable[[Tree], Grouping],
              apart: Callable[[Tree, Tree, Tree], Tensor], stands: Callable[[Tree], Tensor]) -> Grouping:
    """Group the `chosen` rows; place the `others` in their order. Evidence keeps the chosen rows, then the founders.

    `apart` takes the evidence as well; `stands` says which rows of the evidence stand for their cluster.
    """
    if not len(others):
        made = group(rows)
        return Grouping(made.labels, made.evidence | rows)
    some = tree.take(rows, chosen)
    made = group(some)
    evidence = made.evidence | some | {"landmarks": torch.tensor(len(chosen))}
    known = Known(some, made.labels, stands(evidence))
    settled = settle(known, tree.take(rows, others), lambda a, b: apart(a, b, evidence), int(made.labels.max()) + 1,
                     float(evidence.get("cut", torch.inf)), founders_only=True)
    labels = torch.empty(len(chosen) + len(others), dtype=torch.long)
    labels[chosen], labels[others] = made.labels, settled.labels
    return Grouping(labels, evidence | settled.known.rows)


# Newcomers --------------------------------------------------------------------------------------------------------


class Known(NamedTuple):
    """Those whom newcomers are compared with."""

    rows: Tree  # what is known of them: leaves have a leading axis of n
    labels: Tensor  # (n,); -1 = in no cluster now
    stands: Tensor  # (n,) bool: where a cluster has such members, only they count


class Settled(NamedTuple):
    """Newcomers with their clusters, and whom the next ones are compared with."""

    labels: Tensor  # (m,)
    founded: int  # clusters
    known: Known


def settle(known: Known, newcomers: Tree, apart: Apart, clusters: int, cut: float, again: Tensor | None = None,
           founders_only: bool = False) -> Settled:
    """Place newcomers, block by block: distances are computed once, and no block holds more than BLOCK x known.

    `again` (m,): where each of them stands among the known already, or -1. By `founders_only` those who join are not
    remembered and count for nobody; founders alone are, each standing for its cluster.
    """
    count, before, labels = tree.count(newcomers), clusters, []
    again = torch.full((count,), -1) if again is None else again
    for start in range(0, count, BLOCK):
        part = slice(start, start + BLOCK)
        some, back = tree.take(newcomers, part), again[part]
        across = apart(some, known.rows).double().cpu()
        if founders_only and not bool((back >= 0).any()):  # then only they can found who are far from all at first
            far = (mean_distances(across, known.labels, known.stands, clusters) > cut).all(1)
            among = torch.full((len(back), len(back)), torch.inf, dtype=torch.float64)
            if bool(far.any()):
                among[:, far] = apart(some, tree.take(some, far)).double().cpu()
        else:
            among = apart(some, some).double().cpu()
        placed = place(across, among, known.labels, clusters, cut, back, known.stands, founders_only)
        clusters += int(placed.founders.sum())
        labels.append(placed.labels)
        known = _remembered(known, some, placed, back, founders_only)
    return Settled(torch.cat([torch.zeros(0, dtype=torch.long), *labels]), clusters - before, known)


class Placed(NamedTuple):
    """The answer of the rule."""

    labels: Tensor  # (m,)
    founders: Tensor  # (m,) bool: who founded a cluster; these have the labels behind the known ones, in their order


def place(across: Tensor, among: Tensor, labels: Tensor, clusters: int, cut: float, again: Tensor | None = None,
          stands: Tensor | None = None, founders_only: bool = False) -> Placed:
    """The rule for newcomers, as a function of distances to the known (m, n) and of one newcomer to others (m, m).

    All float64. Of `among`, row i and column j is read where j came before i. `labels` (n,) of the known, -1 = in no
    cluster. A known client that comes again (`again`: its place among the known, or -1) leaves its cluster first. Sums
    of distances to each cluster are kept as members come: a newcomer costs O(m + clusters), however many are known.
    """
    m, n = across.shape
    stands = torch.zeros(n, dtype=torch.bool) if stands is None else stands
    again = torch.full((m,), -1) if again is None else again
    far, near, back, stand = across.numpy(), among.numpy(), again.numpy(), stands.numpy()
    old, new = labels.numpy().copy(), np.full(m, -1)  # members of clusters by now: of the known, of the newcomers
    leads = (back >= 0) & (stand[back] if n else False)  # newcomers that stand for their cluster
    kept = (back >= 0) | (not founders_only)  # newcomers that are members for others, as founders are
    led = np.zeros(clusters + m, dtype=bool)  # clusters that somebody stands for
    led[old[stand & (old >= 0)]] = True
    sums, size = np.full((clusters + m, m), np.inf), np.ones(clusters + m)  # nobody is infinitely far: infinity over 1
    sums[:clusters], size[:clusters] = _sums(across, labels, stands, clusters)
    answer, first = np.empty(m, dtype=np.int64), np.zeros(m, dtype=bool)

    def recount(label: int) -> None:
        """A cluster's sums all over again: somebody left, or is the first to stand for it."""
        known, come = old == label, new == label
        led[label] = (known & stand).any() or (come & leads).any()
        known, come = (known & stand, come & leads) if led[label] else (known, come)
        members = int(known.sum() + come.sum())
        sums[label] = far[:, known].sum(1) + near[:, come].sum(1) if members else np.inf
        size[label] = max(1, members)

    for p in range(m):
        if back[p] >= 0 and old[back[p]] >= 0:
            left, old[back[p]] = int(old[back[p]]), -1
            recount(left)
        means = sums[:clusters, p] / size[:clusters]
        label = int(means.argmin())
        first[p] = not np.isfinite(means[label]) or means[label] > cut
        if first[p]:
            label = clusters
            clusters += 1
            kept[p], leads[p] = True, leads[p] or founders_only
            sums[label], led[label] = near[:, p], leads[p]
        answer[p] = label
        new[p] = label if kept[p] else -1
        if kept[p] and not first[p]:
            if leads[p] and not led[label]:
                recount(label)
            elif leads[p] == led[label]:  # where others stand for the cluster, it is no member that counts
                sums[label] += near[:, p]
                size[label] += 1
    return Placed(torch.from_numpy(answer), torch.from_numpy(first))


def mean_distances(across: Tensor, labels: Tensor, stands: Tensor, clusters: int) -> Tensor:
    """How far newcomers are from each cluster's members on average, (m, k); infinitely far where there are none."""
    sums, size = _sums(across, labels, stands, clusters)
    return torch.from_numpy(sums / size[:, None]).T


def _sums(across: Tensor, labels: Tensor, stands: Tensor, clusters: int) -> tuple[Floats, Floats]:
    """Distances summed over the members that count, (k, m), and their number, (k,); infinity and 1 where none does."""
    led = torch.zeros(clusters + 1, dtype=torch.bool)
    inside = torch.where(labels >= 0, labels, clusters)
    led[inside[stands]] = True
    inside = torch.where(stands | ~led[inside], inside, clusters)  # who counts for nobody is summed behind the others
    sums = torch.zeros(clusters + 1, len(across), dtype=torch.float64).index_add_(0, inside, across.T)
    size = torch.bincount(inside, minlength=clusters + 1)[:clusters]
    return torch.where(size[:, None] > 0, sums[:clusters], torch.inf).numpy(), size.clamp(min=1).double().numpy()


def _remembered(known: Known, some: Tree, placed: Placed, again: Tensor, founders_only: bool) -> Known:
    """The known with a block of newcomers: in the places of those who come again, and behind; or founders alone."""
    n, fresh = len(known.labels), (again < 0) & (placed.founders | (not founders_only))
    back = (again >= 0).nonzero().flatten()
    if not len(back) and not bool(fresh.any()):
        return known
    order = torch.arange(n)
    order[again[back]] = n + back
    order = torch.cat([order, n + fresh.nonzero().flatten()])
    stood = placed.founders & founders_only
    stood[back] |= known.stands[again[back]]
    return Known(
        tree.take(joined(known.rows, some), order), torch.cat([known.labels, placed.labels])[order],
        torch.cat([known.stands, stood])[order],
    )


def joined(old: Tree, new: Tree) -> Tree:
    """What is known of more clients: rows below rows, the shorter padded along the second axis."""
    def one(a: Tensor, b: Tensor) -> Tensor:
        if a.dim() > 1 and a.shape[1] != b.shape[1]:
            longest = max(a.shape[1], b.shape[1])
            a, b = (pad(side, (0, 0) * (side.dim() - 2) + (0, longest - side.shape[1])) for side in (a, b))
        return torch.cat([a, b])

    return tree.each(one, old, new)
