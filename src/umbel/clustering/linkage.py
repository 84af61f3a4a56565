"""Distances in, labels out. Thin over scipy and scikit-learn; what they leave open is decided here.

A hierarchy merges while the distance is <= the threshold. `average` is UPGMA, `weighted` is WPGMA (PACFL's code).
Zero or one client is one cluster; equal distances are merged in the order of clients.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from sklearn.cluster import AffinityPropagation, KMeans, SpectralClustering
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

IntArray = NDArray[np.int64]

BLOCK = 2**19  # numbers of one temporary
MANY = 4000  # clients: above, affinity propagation's four matrices are float32, 1.6 GB for 10,000
LINKAGES = ("single", "complete", "average", "weighted", "ward")


def canonical(labels: Tensor, order: Tensor | None = None) -> Tensor:
    """The same clusters numbered 0, 1, ... by their first client, in this order of clients."""
    visited = labels if order is None else labels[order]
    numbers: dict[int, int] = {}
    for label in visited.tolist():
        numbers.setdefault(label, len(numbers))
    return torch.tensor([numbers[label] for label in labels.tolist()], dtype=torch.long)


def overlapping(found: Tensor, old: Tensor) -> Tensor:
    """New clusters under old names: each takes the label that most of its old members had, the largest first.

    Members without an old label (-1) do not vote; a cluster that finds no free label gets the next number.
    """
    taken: dict[int, int] = {}
    free = int(old.max()) + 1
    sizes = sorted(set(found.tolist()), key=lambda cluster: -int((found == cluster).sum()))
    for cluster in sizes:
        before = old[(found == cluster) & (old >= 0)].tolist()
        wishes = sorted(set(before) - set(taken.values()), key=lambda label: (-before.count(label), label))
        taken[cluster] = wishes[0] if wishes else free
        free += not wishes
    return torch.tensor([taken[cluster] for cluster in found.tolist()], dtype=torch.long)


def linkage(distance: Tensor, method: str = "average") -> Tensor:
    """The dendrogram as scipy writes it, (n - 1, 4): two clusters, the height at which they merge, the new size."""
    if len(distance) < 2:
        return torch.zeros(0, 4, dtype=torch.float64)
    return torch.from_numpy(hierarchy.linkage(_one_triangle(distance), method))  # type: ignore[arg-type]


def _one_triangle(distance: Tensor) -> NDArray[np.float64]:
    """Distances of the pairs i < j, half the matrix: the only copy that is made here; scipy works on one of its own."""
    pairs: NDArray[np.float64] = squareform(distance.double().cpu().numpy(), checks=False)
    return pairs


def cut(links: Tensor, threshold: float) -> Tensor:
    """Clusters of all merges at heights <= threshold."""
    if not len(links):
        return torch.zeros(1, dtype=torch.long)
    found = hierarchy.fcluster(links.numpy(), threshold, criterion="distance")
    return canonical(torch.from_numpy(found.astype(np.int64)))


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
    own = np.empty(n, dtype=np.int64)
    for k, inside in enumerate(members.values()):
        own[inside] = k
    near, apart = np.empty(n, dtype=np.int64), np.empty(n)

    def find_nearest(who: IntArray) -> None:
        for some in np.array_split(who, -(-len(who) * len(total) // BLOCK) or 1):
            means = total[:, some] / size[:, None]
            means[own[some], np.arange(len(some))] = np.inf
            near[some] = means.argmin(0)
            apart[some] = means[near[some], np.arange(len(some))]

    find_nearest(np.arange(n))
    found = [0.0] * most
    for k in range(most, 1, -1):
        inner = total[own, np.arange(n)] / np.maximum(size[own] - 1, 1)
        widest = np.maximum(inner, apart)
        width = np.divide(apart - inner, widest, out=np.zeros(n), where=(widest > 0) & (size[own] > 1))
        found[k - 1] = float(width.mean())
        a, b = (column[cluster] for cluster in merges[n - k])
        column[n + n - k] = a
        total[a] += total[b]
        size[a] += size[b]
        total[b] = np.inf
        own[own == b] = a
        if k > 2:
            find_nearest(np.flatnonzero((near == a) | (near == b)))
    return found


class Exemplars(NamedTuple):
    """What affinity propagation found."""

    labels: Tensor  # (n,)
    exemplars: Tensor  # (k,) the client that stands for each cluster
    converged: bool


def affinity_propagation(distance: Tensor, damping: float = 0.9, max_iter: int = 500, seed: int = 0) -> Exemplars:
    """Similarity -d, median preference. Where it does not converge damping is raised; at last one cluster remains."""
    n = len(distance)
    off = _one_triangle(distance) if n > 1 else np.zeros(0)
    if n < 2 or np.ptp(off) == 0:  # nothing tells clients apart
        return Exemplars(torch.zeros(n, dtype=torch.long), torch.zeros(1, dtype=torch.long), True)
    preference = -float(np.median(off, overwrite_input=True))
    del off
    kind = torch.float64 if n <= MANY else torch.float32
    for factor in (damping, 0.95, 0.98):
        model = AffinityPropagation(damping=factor, max_iter=max_iter, convergence_iter=15, affinity="precomputed",
                                    preference=preference, random_state=seed, copy=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit((-distance.to("cpu", kind)).numpy())
        if model.n_iter_ < max_iter and len(model.cluster_centers_indices_):
            labels = torch.from_numpy(model.labels_.astype(np.int64))
            renamed = canonical(labels)
            order = torch.stack([labels[renamed == k][0] for k in range(int(renamed.max()) + 1)])
            return Exemplars(renamed, torch.from_numpy(model.cluster_centers_indices_)[order], True)
    middle = int(distance.sum(1).argmin())
    return Exemplars(torch.zeros(n, dtype=torch.long), torch.tensor([middle]), False)


def kmeans(points: Tensor, clusters: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Labels, and the centres (k, d) in their order. Fewer distinct points than clusters give fewer clusters."""
    x = points.double().cpu().numpy()
    distinct = len(np.unique(x, axis=0))
    found = KMeans(min(clusters, distinct), n_init=10, random_state=seed).fit(x)
    labels = canonical(torch.from_numpy(found.labels_.astype(np.int64)))
    return labels, means(points, labels)


def means(points: Tensor, labels: Tensor) -> Tensor:
    """The centre of each cluster, (k, d), float64."""
    parts = [points.double()[(labels == k).to(points.device)] for k in range(int(labels.max()) + 1)]
    return torch.stack([part.mean(0) for part in parts])


def spectral(distance: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Spectral clustering of exp(-d^2 / 2 median^2), which never quite vanishes: the graph stays connected."""
    n = len(distance)
    if n <= clusters:
        return torch.arange(n)
    scale = distance[~torch.eye(n, dtype=torch.bool)].median().clamp(min=1e-12)
    affinity = torch.exp(-((distance / scale) ** 2) / 2).clamp(min=1e-9).double().cpu().numpy()
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="kmeans", random_state=seed)
    return canonical(torch.from_numpy(model.fit_predict(affinity).astype(np.int64)))


def bipartition(distance: Tensor) -> Tensor:
    """Two clusters whose farthest members are as near as can be (complete linkage), as in Sattler's CFL."""
    return into(linkage(distance, "complete"), 2)
