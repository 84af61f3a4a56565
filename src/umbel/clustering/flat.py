"""Labels without a tree: k-means, affinity propagation, spectral clustering. Thin over scikit-learn.

scikit-learn is imported where it is used: that takes a second, and most methods do without it.
"""

import warnings
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from umbel.clustering.labels import canonical
from umbel.clustering.linkage import triangle

MANY_CLIENTS = 4000  # above, affinity propagation's four matrices are float32: 1.6 GB for 10,000 clients


class Exemplars(NamedTuple):
    """The answer of affinity propagation."""

    labels: Tensor  # (n,)
    exemplars: Tensor  # (k,) the client that stands for each cluster
    converged: bool


def affinity_propagation(distance: Tensor, damping: float = 0.9, max_iter: int = 500, seed: int = 0) -> Exemplars:
    """Similarity -d, preference at its median.

    Where it does not converge damping is raised; where that does not help the answer is one cluster.
    """
    from sklearn.cluster import AffinityPropagation
    from sklearn.exceptions import ConvergenceWarning

    n = len(distance)
    pairs = triangle(distance) if n > 1 else np.zeros(0)
    if n < 2 or np.ptp(pairs) == 0:  # all are equally far: nothing tells clients apart
        return Exemplars(torch.zeros(n, dtype=torch.long), torch.zeros(1, dtype=torch.long), True)
    preference = -float(np.median(pairs, overwrite_input=True))
    del pairs  # n^2 / 2 numbers, before scikit-learn takes four times n^2
    kind = torch.float64 if n <= MANY_CLIENTS else torch.float32
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
    from sklearn.cluster import KMeans

    x = points.double().cpu().numpy()
    distinct = len({row.tobytes() for row in x})
    if x.shape[1] > len(x):  # the same points, turned into the n directions that they span: whole models are wide
        x = np.linalg.qr(x.T).R.T
    model = KMeans(min(clusters, distinct), n_init=10, random_state=seed).fit(x)
    labels = canonical(torch.from_numpy(model.labels_.astype(np.int64)))
    return labels, means(points, labels)


def means(points: Tensor, labels: Tensor) -> Tensor:
    """The centre of each cluster, (k, d), float64."""
    parts = [points.double()[(labels == k).to(points.device)] for k in range(int(labels.max()) + 1)]
    return torch.stack([part.mean(0) for part in parts])


def spectral(distance: Tensor, clusters: int, seed: int = 0) -> Tensor:
    """Spectral clustering of exp(-d^2 / 2 median^2), which never quite vanishes: the graph stays connected."""
    from sklearn.cluster import SpectralClustering

    n = len(distance)
    if n <= clusters:
        return torch.arange(n)
    scale = distance[~torch.eye(n, dtype=torch.bool)].median().clamp(min=1e-12)
    affinity = torch.exp(-((distance / scale) ** 2) / 2).clamp(min=1e-9).double().cpu().numpy()
    model = SpectralClustering(clusters, affinity="precomputed", assign_labels="kmeans", random_state=seed)
    return canonical(torch.from_numpy(model.fit_predict(affinity).astype(np.int64)))
