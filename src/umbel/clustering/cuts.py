"""Where a dendrogram becomes clusters. Every rule is one function in one registry, `CUTS`, with one kind of answer.

Rules read parts of clients' rows (`tested`), merging heights (`gap`), distances (`silhouette`), what the user asked for
(`count`, `value`), or the scores of short trainings (`both`, `knee`, `within`). Every automatic rule can answer "one
cluster". The whole curve of a choice is kept as evidence, and a sentence says why.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from umbel.clustering import tested
from umbel.clustering.branches import by_links
from umbel.clustering.linkage import cut, heights, into, silhouettes
from umbel.clustering.parts import Parts
from umbel.errors import UmbelError
from umbel.registry import Registry
from umbel.seeds import generator

SEPARATE = 0.3  # a silhouette counts from here: alike clients reach 0.25 at most (LOG.md)
CLEAR = 1.5  # a gap counts when the height above it is at least this many times the height below
GAIN = 0.02  # of the validation score: what clusters must win before they are worth having

Trial: TypeAlias = Callable[[list[Tensor]], list[float]]  # partitions -> a score for each, from short trainings
Rule: TypeAlias = Callable[[Tensor, Tensor], int]  # dendrogram, curve of a trial -> the row that is chosen


class Choice(NamedTuple):
    """A cut and why."""

    labels: Tensor  # (n,)
    cut: float  # the threshold; newcomers farther than this found a cluster
    curve: Tensor  # (m, 4): threshold, clusters, score, 1 where chosen; one row a distinct partition
    test: tested.Cut | None = None  # of a cut by tests, which has neither threshold nor curve


class Dendrogram(NamedTuple):
    """What a rule may look at."""

    links: Tensor  # (n - 1, 4) as scipy writes it
    distance: Tensor  # (n, n)
    clusters: int = 1  # as many as the user asked for: `count`
    threshold: float = 0.0  # the user's: `value`
    grid: Tensor = torch.zeros(0)  # thresholds that a trial goes through
    trial: Trial | None = None
    parts: Parts | None = None  # of the clients' rows
    seed: int = 0  # of the draws of tests


class Cut(NamedTuple):
    """A rule, what the scores of its curve are, and its reason as a sentence."""

    choose: Callable[[Dendrogram], Choice]
    score: str
    why: Callable[[Tensor], str]  # curve -> sentence
    needs_trial: bool = False
    needs_parts: bool = False


# By tests on parts of rows ----------------------------------------------------------------------------------------


def by_tests(tree: Dendrogram) -> Choice:
    """Split while clients below a node differ; join what no test tells apart (clustering/tested.py)."""
    if tree.parts is None:
        raise UmbelError("The cut 'tested' is by parts of clients' rows, and this method asks for none: take"
                         f" {' or '.join(BY_DISTANCE)}.")
    start = by_links(tree.links.numpy(), np.arange(len(tree.distance)))
    made = tested.tested(tree.parts, start, generator(tree.seed, "tests"))
    return Choice(torch.from_numpy(made.labels), float("inf"), torch.zeros(0, 4, dtype=torch.float64), made)


# By what the user asked for ---------------------------------------------------------------------------------------


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


# By heights and distances -----------------------------------------------------------------------------------------


def by_gap(links: Tensor, clear: float = CLEAR) -> Choice:
    """Cut through the largest gap between merging heights, or not at all where no gap is clear.

    Among alike clients merging heights grow evenly, and the largest gap is a few per cent of the heights beside it.
    Among groups the height above it is a multiple of the one below: a gap with less than `clear` times is no evidence,
    and the answer is one cluster. The score of a partition in the curve is the gap above its last merge.
    """
    height = heights(links)
    if not len(height):
        return by_value(links, 0.0)
    gaps = height.diff()
    n = len(height) + 1
    rows = [(_level(height, merges), n - merges, float(gaps[merges - 1])) for merges in range(1, len(height))]
    best = int(gaps.argmax()) if len(gaps) else -1
    evident = best >= 0 and float(height[best + 1]) >= clear * float(height[best]) and float(gaps[best]) > 0
    rows.append((float(height[-1]), 1, 0.0))
    chosen = best if evident else len(rows) - 1
    # One cluster: a newcomer is like nobody when it is farther than a clear gap above the highest merge.
    level = rows[chosen][0] if evident else clear * float(height[-1])
    return Choice(into(links, rows[chosen][1]), level, _curve(rows, chosen))


def by_silhouette(links: Tensor, distance: Tensor, least: float = SEPARATE) -> Choice:
    """The cut whose clients lie nearest to their own cluster compared with the next one (mean silhouette).

    It sees groups of unequal spread, which leave no gap in the heights. Among alike clients the best silhouette is
    small: below `least`, the answer is one cluster. The score of a partition in the curve is its silhouette.
    """
    n, height = len(distance), heights(links)
    scores = silhouettes(links, distance, n // 2) if n > 3 else [0.0]
    rows = [(_level(height, n - k), k, score) for k, score in enumerate(scores, 1)]
    best = max(range(len(rows)), key=lambda i: rows[i][2])
    chosen = best if rows[best][2] >= least else 0
    level = rows[chosen][0] if chosen else CLEAR * rows[0][0]
    return Choice(into(links, rows[chosen][1]), level, _curve(rows, chosen))


def _level(height: Tensor, merges: int) -> float:
    """A threshold that makes exactly this many merges: the middle of the gap, or the top height for all of them."""
    if merges <= 0:
        return float(height[0]) / 2 if len(height) else 0.0
    if merges >= len(height):
        return float(height[-1]) if len(height) else 0.0
    return float(height[merges - 1] + height[merges]) / 2


# By a trial -------------------------------------------------------------------------------------------------------


def partitions(links: Tensor, grid: Tensor) -> list[tuple[float, Tensor]]:
    """One cluster, and every *distinct* partition that the thresholds of a grid reach, once, fewest clusters first."""
    by_clusters: dict[int, tuple[float, Tensor]] = {}
    for threshold in sorted([*grid.tolist(), *heights(links)[-1:].tolist()], reverse=True):
        labels = cut(links, threshold)
        by_clusters.setdefault(int(labels.max()) + 1, (threshold, labels))
    return [by_clusters[clusters] for clusters in sorted(by_clusters)]


def by_trial(links: Tensor, grid: Tensor, trial: Trial, rule: Rule) -> Choice:
    """Score every distinct partition of the grid (all in one call) and let `rule` choose a row of the curve.

    The curve has the highest threshold of the grid for each partition; newcomers are measured as after a gap.
    """
    reached = partitions(links, grid)
    scores = trial([labels for _, labels in reached])
    rows = [(threshold, int(labels.max()) + 1, score)
            for (threshold, labels), score in zip(reached, scores, strict=True)]
    chosen = rule(links, _curve(rows, -1))
    labels, height = reached[chosen][1], heights(links)
    merges = len(labels) - rows[chosen][1]
    level = _level(height, merges) * (CLEAR if merges == len(height) else 1)
    return Choice(labels, level, _curve(rows, chosen))


def _above_chord(curve: Tensor) -> Tensor:
    """How far each score lies above the line from the first partition's to the last one's (kneedle)."""
    clusters, score = curve[:, 1], curve[:, 2]
    x = (clusters - clusters[0]) / (clusters[-1] - clusters[0]).clamp(min=1)
    return (score - score[0]) - x * (score[-1] - score[0])


def _gains(curve: Tensor) -> bool:
    """Whether some partition wins enough over one cluster."""
    return float(curve[:, 2].max() - curve[0, 2]) > GAIN


def knee(links: Tensor, curve: Tensor) -> int:
    """The printed elbow: farthest above the chord of score against clusters; one cluster where clusters gain nothing.

    Of two partitions there is no elbow: the better one.
    """
    if not _gains(curve):
        return 0
    return int(curve[:, 2].argmax()) if len(curve) < 3 else int(_above_chord(curve).argmax())


def within(links: Tensor, curve: Tensor) -> int:
    """The fewest clusters whose score is within 2 points of the best."""
    return int((curve[:, 2] >= curve[:, 2].max() - GAIN).nonzero()[0])


def both(links: Tensor, curve: Tensor) -> int:
    """Height above the chord, and gap of the dendrogram, each as a share of its best: the largest sum.

    Validation on a handful of rows is noisy but tells whether clusters pay; the dendrogram is steady but knows nothing
    of scores. One cluster where validation gains nothing.
    """
    if not _gains(curve):
        return 0
    above, gaps = _above_chord(curve).clamp(min=0), _log_gaps(links, curve)
    evidence = above / above.max().clamp(min=1e-12) + gaps / gaps.max().clamp(min=1e-12)
    return int(evidence.argmax())


def _log_gaps(links: Tensor, curve: Tensor) -> Tensor:
    """For each row of the curve, log of the height above its cut over the height below; 0 for one cluster."""
    height = heights(links).clamp(min=1e-9)
    merges = (len(height) + 1 - curve[:, 1]).long()
    inside = (merges > 0) & (merges < len(height))
    at = merges.clamp(1, max(1, len(height) - 1))
    return torch.where(inside, torch.log(height[at] / height[at - 1]), 0.0) if len(height) > 1 else curve[:, 1] * 0


def _curve(rows: list[tuple[float, int, float]], chosen: int) -> Tensor:
    marked = [(level, clusters, score, float(i == chosen)) for i, (level, clusters, score) in enumerate(rows)]
    return torch.tensor(marked, dtype=torch.float64)


# The registry, and why in a sentence ------------------------------------------------------------------------------


def _tried(rule: Rule) -> Callable[[Dendrogram], Choice]:
    def choose(tree: Dendrogram) -> Choice:
        if tree.trial is None:
            raise UmbelError(f"The cut '{rule.__name__}' is chosen by short trainings, and this method makes none: take"
                             f" {' or '.join(BY_DISTANCE)}.")
        return by_trial(tree.links, tree.grid, tree.trial, rule)

    return choose


def _row(curve: Tensor) -> tuple[float, int, float]:
    """Threshold, clusters and score of what was chosen."""
    level, clusters, score, _ = curve[curve[:, 3] == 1][0].tolist()
    return level, int(clusters), score


def plural(clusters: int) -> str:
    """As in: one cluster, 4 clusters."""
    return "one cluster" if clusters == 1 else f"{clusters} clusters"


def _why_gap(curve: Tensor) -> str:
    clusters = _row(curve)[1]
    if clusters == 1:
        return f"no gap between merging distances is {CLEAR:g} times as high above as below"
    return f"{plural(clusters)} lie below the largest gap between merging distances"


def _why_silhouette(curve: Tensor) -> str:
    _, clusters, score = _row(curve)
    if clusters > 1:
        return f"{plural(clusters)} have the best mean silhouette, {score:.2f} (groups count from {SEPARATE:g} on)"
    best = float(curve[:, 2].max())
    return f"the best mean silhouette of several clusters is {best:.2f}, and groups count from {SEPARATE:g} on"


def _why_trial(curve: Tensor) -> str:
    _, clusters, score = _row(curve)
    others = f"{len(curve)} partitions were tried" if len(curve) > 1 else "no other partition was in reach"
    if clusters > 1:
        return (f"{plural(clusters)} reach {100 * score:.1f} of 100 points on validation rows after a short training,"
                f" one cluster {100 * float(curve[0, 2]):.1f} ({others})")
    best = float(curve[:, 2].max())
    return (f"no partition wins more than {100 * GAIN:g} points over one cluster on validation rows"
            f" ({100 * best:.1f} against {100 * score:.1f} of 100; {others})")


CUTS: Registry[Cut] = Registry("cut", {
    "tested": Cut(by_tests, "", lambda curve: "", needs_parts=True),
    "silhouette": Cut(lambda tree: by_silhouette(tree.links, tree.distance), "mean silhouette", _why_silhouette),
    "gap": Cut(lambda tree: by_gap(tree.links), "gap above the cut", _why_gap),
    "count": Cut(lambda tree: by_count(tree.links, tree.clusters), "",
                 lambda curve: f"{plural(_row(curve)[1])} were asked for"),
    "value": Cut(lambda tree: by_value(tree.links, tree.threshold), "",
                 lambda curve: f"clients merge up to a distance of {_row(curve)[0]:.4g}, as asked for"),
    "both": Cut(_tried(both), "validation score", _why_trial, needs_trial=True),
    "knee": Cut(_tried(knee), "validation score", _why_trial, needs_trial=True),
    "within": Cut(_tried(within), "validation score", _why_trial, needs_trial=True),
})
BY_DISTANCE = tuple(name for name, rule in CUTS.items() if not rule.needs_trial and not rule.needs_parts)
BY_TRIAL = tuple(name for name, rule in CUTS.items() if rule.needs_trial)
