"""How far clients are apart, by parts of their rows: as they look, or as they mix kinds."""

import numpy as np
import torch
from scipy.spatial.distance import cdist

from umbel.clustering.exchangeable import AT_ONCE
from umbel.clustering.parts import Floats, Ints, Parts
from umbel.clustering.proximity import surprise


def energy(parts: Parts) -> Floats:
    """(n, n) how much farther parts of two clients lie from each other than parts of one; 0 = alike, on average.

    The mean over the kinds that at least one of the two has. A kind that one of them lacks is at distance 1, weighed by
    how surprising that is (proximity.surprise).
    """
    apart: Floats = energies(parts, np.ones((1, len(parts.owner))))[0]
    return apart


def energies(parts: Parts, weights: Floats) -> Floats:
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
