"""Dendrograms: distances in, a hierarchy out, and the labels of its cuts. Thin over scipy.

A hierarchy merges while the distance is <= the threshold. `average` is UPGMA, `weighted` is WPGMA (PACFL's code).
Zero or one client is one cluster; equal distances are merged in the order of clients.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from umbel.clustering.labels import canonical

IntArray = NDArray[np.int64]

AT_ONCE = 2**19  # numbers of one temporary array: 4 MB stay near a core
LINKAGES = ("single", "complete", "average", "weighted", "ward")


def linkage(distance: Tensor, method: str = "average") -> Tensor:
    """The dendrogram as scipy writes it, (n - 1, 4): two clusters, the height at which they merge, the new size."""
    if len(distance) < 2:
        return torch.zeros(0, 4, dtype=torch.float64)
    return torch.from_numpy(hierarchy.linkage(triangle(distance), method))  # type: ignore[arg-type]


def triangle(distance: Tensor) -> NDArray[np.float64]:
    """Distances of the pairs i < j, half the matrix: the only copy made here (scipy makes another)."""
    pairs: NDArray[np.float64] = squareform(distance.double().cpu().numpy(), checks=False)
    return pairs


def cut(links: Tensor, threshold: float) -> Tensor:
    """Clusters of all merges at heights <= threshold."""
    if not len(links):
        return torch.zeros(1, dtype=torch.long)
    labels = hierarchy.fcluster(links.numpy(), threshold, criterion="distance")
    return canonical(torch.from_numpy(labels.astype(np.int64)))


def into(links: Tensor, clusters: int) -> Tensor:
    """The dendrogram cut into this many clusters; equal heights are parted in the order of merging."""
    n = len(links) + 1
    if clusters >= n:
        return torch.arange(n)
    merged = links.clone()
    merged[:, 2] = torch.arange(n - 1)  # ranks instead of heights: exactly n - clusters merges are made
    return cut(merged, n - clusters - 1)


def heights(links: Tensor) -> Tensor:
    """Merging heights, ascending. Clipped from below: WPGMA never inverts, but rounding may by one last bit."""
    return links[:, 2].cummax(0).values if len(links) else links[:, 2]


def silhouettes(links: Tensor, distance: Tensor, most: int) -> list[float]:
    """Mean silhouette of the dendrogram cut into 1, 2, ... `most` clusters; 0 for one cluster.

    In one climb from `most` clusters upwards. A merge changes the nearest other cluster only of those who were next to
    one of the two, since a mean of two means is no smaller than the smaller one: n^2 steps in all, not for each cut.
    """
    n = len(distance)
    members: dict[int, list[int]] = {i: [i] for i in range(n)}  # by scipy's number of a cluster
    merges = [(int(a), int(b)) for a, b in links[:, :2].tolist()]
    for t, (a, b) in enumerate(merges[: n - most]):
        members[n + t] = members.pop(a) + members.pop(b)
    square = distance.double().cpu().numpy()
    column = {cluster: k for k, cluster in enumerate(members)}
    total = np.stack([square[inside].sum(0) for inside in members.values()])  # (k, n): to all members of each cluster
    size = np.array([len(inside) for inside in members.values()], dtype=np.float64)
    own = np.empty(n, dtype=np.int64)  # the row of `total` that is each client's cluster
    for k, inside in enumerate(members.values()):
        own[inside] = k
    near, apart = np.empty(n, dtype=np.int64), np.empty(n)  # each client's nearest other cluster, and how far it is

    def find_nearest(who: IntArray) -> None:
        for some in np.array_split(who, -(-len(who) * len(total) // AT_ONCE) or 1):
            means = total[:, some] / size[:, None]
            means[own[some], np.arange(len(some))] = np.inf
            near[some] = means.argmin(0)
            apart[some] = means[near[some], np.arange(len(some))]

    find_nearest(np.arange(n))
    scores = [0.0] * most
    for k in range(most, 1, -1):
        inner = total[own, np.arange(n)] / np.maximum(size[own] - 1, 1)  # mean distance to the own cluster's others
        widest = np.maximum(inner, apart)
        width = np.divide(apart - inner, widest, out=np.zeros(n), where=(widest > 0) & (size[own] > 1))
        scores[k - 1] = float(width.mean())
        a, b = (column[cluster] for cluster in merges[n - k])
        column[n + n - k] = a
        total[a] += total[b]
        size[a] += size[b]
        total[b] = np.inf  # gone: nearest to nobody
        own[own == b] = a
        if k > 2:
            find_nearest(np.flatnonzero((near == a) | (near == b)))
    return scores


def bipartition(distance: Tensor) -> Tensor:
    """Two clusters whose farthest members are as near as can be (complete linkage), as in Sattler's CFL."""
    return into(linkage(distance, "complete"), 2)
