"""Where a dendrogram becomes clusters: by count, by value, by silhouette, by its largest gap, or by a validation sweep.

Every automatic choice can answer "one cluster". The whole curve of a choice is kept as evidence.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from umbel.clustering.linkage import cut, heights, into, silhouettes
from umbel.errors import UmbelError

SEPARATE = 0.3  # a silhouette counts from here: alike clients reach 0.25 at most (LOG.md)
CLEAR = 1.5  # a gap counts when the height above it is at least this many times the height below


class Choice(NamedTuple):
    """A cut and why."""

    labels: Tensor  # (n,)
    cut: float  # the threshold; newcomers farther than this found a cluster
    curve: Tensor  # (m, 4): threshold, clusters, score, 1 where chosen; one row a distinct partition


def by_value(links: Tensor, threshold: float) -> Choice:
    """Merge while the distance is at most `threshold`."""
    labels = cut(links, threshold)
    return Choice(labels, threshold, _curve([(threshold, int(labels.max()) + 1, 0.0)], 0))


def by_count(links: Tensor, clusters: int) -> Choice:
    """As many clusters as asked for; the threshold lies in the middle of the gap that this cut goes through."""
    n = len(links) + 1
    if clusters > n:
        raise UmbelError(f"There must be at least as many clients as clusters. Got {clusters} clusters of {n} clients.")
    labels = into(links, clusters)
    level = _level(heights(links), n - clusters)
    return Choice(labels, level, _curve([(level, clusters, 0.0)], 0))


def by_gap(links: Tensor, clear: float = CLEAR) -> Choice:
    """Cut through the largest gap between merging heights, or not at all where no gap is clear.

    Among alike clients merging heights grow evenly, and the largest gap is a few per cent of the heights beside it.
    Among groups the height above it is a multiple of the one below: a gap with less than `clear` times is no evidence,
    and the answer is one cluster. The score of a partition in the curve is the gap above its last merge.
    """
    found = heights(links)
    if not len(found):
        return by_value(links, 0.0)
    gaps = found.diff()
    n = len(found) + 1
    rows = [(_level(found, merges), n - merges, float(gaps[merges - 1])) for merges in range(1, len(found))]
    best = int(gaps.argmax()) if len(gaps) else -1
    evident = best >= 0 and float(found[best + 1]) >= clear * float(found[best]) and float(gaps[best]) > 0
    rows.append((float(found[-1]), 1, 0.0))
    chosen = best if evident else len(rows) - 1
    # One cluster: a newcomer is like nobody when it is farther than a clear gap above the highest merge.
    level = rows[chosen][0] if evident else clear * float(found[-1])
    return Choice(into(links, rows[chosen][1]), level, _curve(rows, chosen))


def by_silhouette(links: Tensor, distance: Tensor, least: float = SEPARATE) -> Choice:
    """The cut whose clients lie nearest to their own cluster compared with the next one (mean silhouette).

    It sees groups of unequal spread, which leave no gap in the heights. Among alike clients the best silhouette is
    small: below `least`, the answer is one cluster. The score of a partition in the curve is its silhouette.
    """
    n, found = len(distance), heights(links)
    scores = silhouettes(links, distance, n // 2) if n > 3 else [0.0]
    rows = [(_level(found, n - k), k, score) for k, score in enumerate(scores, 1)]
    best = max(range(len(rows)), key=lambda i: rows[i][2])
    chosen = best if rows[best][2] >= least else 0
    level = rows[chosen][0] if chosen else CLEAR * rows[0][0]
    return Choice(into(links, rows[chosen][1]), level, _curve(rows, chosen))


def _level(found: Tensor, merges: int) -> float:
    """A threshold that makes exactly this many merges: the middle of the gap, or the top height for all of them."""
    if merges <= 0:
        return float(found[0]) / 2 if len(found) else 0.0
    if merges >= len(found):
        return float(found[-1]) if len(found) else 0.0
    return float(found[merges - 1] + found[merges]) / 2


def partitions(links: Tensor, grid: Tensor) -> list[tuple[float, Tensor]]:
    """One cluster, and every *distinct* partition that the thresholds of a grid reach, once, fewest clusters first."""
    found: dict[int, tuple[float, Tensor]] = {}
    for threshold in sorted([*grid.tolist(), *heights(links)[-1:].tolist()], reverse=True):
        labels = cut(links, threshold)
        found.setdefault(int(labels.max()) + 1, (threshold, labels))
    return [found[clusters] for clusters in sorted(found)]


def sweep(links: Tensor, grid: Tensor, score: Callable[[list[Tensor]], list[float]],
          rule: Callable[[Tensor], int]) -> Choice:
    """Score every distinct partition of the grid (all in one call) and let `rule` choose a row of the curve.

    The curve has the highest threshold of the grid for each partition; newcomers are measured as after a gap.
    """
    rows = partitions(links, grid)
    scores = score([labels for _, labels in rows])
    scored = [(threshold, int(labels.max()) + 1, value)
              for (threshold, labels), value in zip(rows, scores, strict=True)]
    chosen = rule(_curve(scored, -1))
    labels, found = rows[chosen][1], heights(links)
    merges = len(labels) - scored[chosen][1]
    level = _level(found, merges) * (CLEAR if merges == len(found) else 1)
    return Choice(labels, level, _curve(scored, chosen))


def knee(curve: Tensor) -> int:
    """The partition farthest above the chord of score against clusters (kneedle); the first where none is above."""
    clusters, score = curve[:, 1], curve[:, 2]
    if len(curve) < 3 or float(score.max() - score.min()) == 0:
        return int(score.argmax()) if len(curve) < 3 else 0
    x = (clusters - clusters[0]) / (clusters[-1] - clusters[0])
    y = (score - score[0]) / (score.max() - score.min())
    above = y - x * y[-1]
    return int(above.argmax())


def fewest_within(curve: Tensor, tolerance: float) -> int:
    """The fewest clusters whose score is within `tolerance` of the best."""
    return int((curve[:, 2] >= curve[:, 2].max() - tolerance).nonzero()[0])


def _curve(rows: list[tuple[float, int, float]], chosen: int) -> Tensor:
    marked = [(level, clusters, score, float(i == chosen)) for i, (level, clusters, score) in enumerate(rows)]
    return torch.tensor(marked, dtype=torch.float64)
