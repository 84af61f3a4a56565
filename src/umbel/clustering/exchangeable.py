"""Are the rows of some clients exchangeable? Three tests on parts of their rows.

Under that null hypothesis three statistics are what random owners would make of them, and each has a p-value by drawing
such owners:

    looks   parts of one client and kind lie no closer than parts under random owners, within the kind
    absent  no kind is missing at a client that would surely have rows of it, even if its share were a third of others'
    shares  kinds are mixed alike at all clients

The first two do not mind in which proportions clients hold their kinds, only which ones, and how they look.
"""

from collections.abc import Callable
from math import ceil, lgamma
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import random_table

from umbel.clustering.parts import Floats, Ints, Parts

LEVEL = 0.03  # that alike clients are split: an exact 5 % would exceed 10 of 200 in two tries of five
TESTS = 3  # among which the level is divided
RARER = 3.0  # times: how much smaller a client's share of a kind may be than everybody's before its absence counts
SURE = 200  # draws after which a statistic that is TIGHT standard deviations away needs no more; of looks it needs none
SURE_OF_ALL = 3999  # of all clients: their p-values are told, and can be below 0.001
TIGHT = 9.0
SQUARES = 6.0  # more than the variance of one kind's square: 3 where parts are many
AT_ONCE = 2**21  # numbers that are gathered at a time

Test = Callable[[Parts, float, np.random.Generator, int], float]  # parts, level, draws that can suffice -> p


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
