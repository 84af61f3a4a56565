"""In what do clients differ? In labels, looks, meanings or amounts: the answer is a set, which may be empty.

    labels     P(y): which kinds they hold, and in which shares
    looks      P(x) beyond what labels explain: rows of one kind look other at other clients
    meanings   P(y|x) where P(x) is alike: what one client calls a 1, another calls a 7
    amounts    how many rows they have

The first three are tests of the parts of clients' rows (parts.py), so that nothing else leaves a client; their p-values
are corrected together (Holm). An amount is no sample: it is known, and only said.

Looks and meanings both make rows of one kind differ. They are told apart by pairs of clients: kinds of the two are
matched by how they look (the cheapest assignment). Where the match is another than the names', and fits as well as
chance lets parts of one kind fit, the two look alike and mean different things. Looks are asked once the kinds that
mean different things were given one name.
"""

from collections.abc import Callable
from math import ceil, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.stats import random_table

from umbel.clustering.exchangeable import LEVEL, SURE_OF_ALL, looks
from umbel.clustering.parts import Floats, Ints, Parts

KINDS = ("labels", "looks", "meanings", "amounts")
SAMPLED = ("labels", "looks", "meanings")  # have a p-value
UNEVEN = 0.5  # coefficient of variation of rows from which amounts are said to differ: sizes from 1 to 4 have 0.4
DRAWS = 999
MATCHED = 399  # draws of the test of meanings, each of which matches all pairs
MANY = 128  # clients that are looked at pair by pair
PAIRED = 400  # kinds of all clients together that a draw matches
SLACK = 0.5  # of the residual of a match beyond chance: kinds do not spread alike
AT_ONCE = 2**21  # numbers of tables drawn at a time

Bools = NDArray[np.bool_]


class Difference(NamedTuple):
    """One kind of difference."""

    kind: str
    found: bool
    p: float | None  # None: known and not sampled, or not asked
    strength: float  # labels: bits; looks: times; meanings: share of clients; amounts: coefficient of variation
    out: Bools  # (n,) clients that stand out from the others by themselves
    unasked: str = ""  # why it could not be asked
    renamed: tuple[tuple[int, int, int], ...] = ()  # meanings: client, its kind, what most others call it


def differences(parts: Parts, rng: np.random.Generator, kinds: int) -> list[Difference]:
    """What differs among clients, of each of `KINDS`; `kinds` of rows, 1 where targets have none."""
    n = len(parts.counts)
    if n < 2:
        nobody = np.zeros(n, dtype=bool)
        return [Difference(kind, False, None, 0.0, nobody, "there is one client") for kind in KINDS]
    due = LEVEL / len(SAMPLED)
    of_labels = labels(parts.counts, rng) if kinds > 1 else _unasked("labels", n, "targets are of one kind")
    of_meanings, same = meanings(parts, rng, due) if kinds > 1 else (
        _unasked("meanings", n, "targets are of one kind"), parts)
    found = [of_labels, of_looks(same, rng, due), of_meanings]
    return [*_holm(found), amounts(parts.counts.sum(1))]


def _unasked(kind: str, n: int, why: str) -> Difference:
    return Difference(kind, False, None, 0.0, np.zeros(n, dtype=bool), why)


def _holm(found: list[Difference]) -> list[Difference]:
    """The same with p-values corrected for how many were asked, and what is found at the level."""
    asked = sorted((each.p, k) for k, each in enumerate(found) if each.p is not None)
    worst = 0.0
    for turn, (p, k) in enumerate(asked):
        worst = max(worst, min(1.0, p * (len(asked) - turn)))
        is_found = worst <= LEVEL
        found[k] = found[k]._replace(p=worst, found=is_found, out=found[k].out & is_found,
                                     renamed=found[k].renamed if is_found else ())
    return found


# Labels -----------------------------------------------------------------------------------------------------------


def labels(counts: Ints, rng: np.random.Generator, draws: int = DRAWS) -> Difference:
    """How often dealing all rows out again mixes kinds as unequally at clients; strength in bits a row, chance's less.

    The statistic is the likelihood ratio G, which is the rows' information on whose they are.
    """
    n = len(counts)
    held = counts.sum(1) > 0
    table = counts[held][:, counts.sum(0) > 0]
    if min(table.shape, default=0) < 2:
        return Difference("labels", False, 1.0, 0.0, np.zeros(n, dtype=bool))
    dealt = random_table(table.sum(1), table.sum(0))  # the same sums of rows and of columns
    true = information(table[None])[0]
    width = max(1, AT_ONCE // table.size)
    drawn = np.concatenate([information(dealt.rvs(min(width, draws - start), random_state=rng))
                            for start in range(0, draws, width)])
    p = (1 + int((drawn.sum(1) >= true.sum() - 1e-9).sum())) / (1 + draws)
    out = np.zeros(n, dtype=bool)
    out[held] = outstanding(true, drawn)
    return Difference("labels", False, p, max(0.0, float((true.sum() - drawn.sum(1).mean()) / table.sum())), out)


def information(tables: NDArray[np.generic]) -> Floats:
    """(b, n) bits that the kinds of each client's rows tell about whose they are, for tables (b, n, k)."""
    rows = tables.astype(np.float64)
    due = rows.sum(2, keepdims=True) * rows.sum(1, keepdims=True) / rows.sum((1, 2), keepdims=True)
    ratio = np.divide(rows, due, out=np.ones_like(rows), where=rows > 0)
    answer: Floats = (rows * np.log2(ratio)).sum(2)
    return answer


def outstanding(true: Floats, drawn: Floats) -> Bools:
    """(n,) who is farther above its own draws (b, n) than anybody is in all but a LEVEL of these.

    The largest over clients is what counts, so that one is named among alike clients no more often than the level says.
    """
    spread = np.maximum(drawn.std(0), 1e-9)
    tall = ((drawn - drawn.mean(0)) / spread).max(1)
    answer: Bools = (true - drawn.mean(0)) / spread > max(np.quantile(tall, 1 - LEVEL), 1e-6)
    return answer


# Looks ------------------------------------------------------------------------------------------------------------


def of_looks(parts: Parts, rng: np.random.Generator, due: float) -> Difference:
    """Whether parts of one kind are nearer to each other inside clients.

    Strength: the share of the variance of a kind's parts that comes from whose they are, chance's less.
    """
    p = looks(_sampled(parts, rng, MANY), due, rng, SURE_OF_ALL)
    true, drawn = farness(parts, rng)
    usual = float(drawn.sum(1).mean())
    strength = (float(true.sum()) - usual) / max(1.0, len(parts.owner) - usual)
    out = outstanding(true, drawn) if drawn.any() else np.zeros(len(true), dtype=bool)
    return Difference("looks", False, p, max(0.0, strength), out)


def farness(parts: Parts, rng: np.random.Generator, draws: int = 99) -> tuple[Floats, Floats]:
    """(n,) how far clients' mean parts of a kind are from everybody's, in variances of such a mean and added up over
    kinds; and (draws, n) the same of random owners.
    """
    n = len(parts.counts)
    kinds = [np.flatnonzero(parts.kind == kind) for kind in np.unique(parts.kind)]

    def far(turn: Callable[[Ints], Ints]) -> Floats:
        total = np.zeros(n)
        for places in kinds:
            owner, vector = parts.owner[places], parts.vector[turn(places)]
            rest = vector - vector.mean(0)
            usual = float((rest**2).sum(1).mean())
            count = np.bincount(owner, minlength=n)
            sums = np.zeros((n, vector.shape[1]))
            np.add.at(sums, owner, rest)
            if usual > 0:
                total += np.divide((sums**2).sum(1), count * usual, out=np.zeros(n), where=count > 0)
        return total

    return far(lambda places: places), np.stack([far(rng.permutation) for _ in range(draws)])


def _sampled(parts: Parts, rng: np.random.Generator, most: int) -> Parts:
    n = len(parts.counts)
    return parts if n <= most else parts.of(np.sort(rng.choice(n, most, replace=False)))


# Meanings ---------------------------------------------------------------------------------------------------------


class Means(NamedTuple):
    """Clients' mean parts of each kind, scaled so that parts of one client and kind have a variance of 1."""

    of: Floats  # (n, k, d)
    parts: Floats  # (n, k) how many; 0 = the client has none of the kind


class Match(NamedTuple):
    """Kinds of two clients, matched by how they look."""

    to: Ints  # (s,) of kinds both have, the place of the one that each fits
    gain: float  # how much better than by their names; chi squares
    fits: bool  # as well as chance lets parts of one kind fit


def meanings(parts: Parts, rng: np.random.Generator, due: float) -> tuple[Difference, Parts]:
    """Whether kinds go under other names at some clients; and the parts with these under the names most others use.

    The gains of all pairs that fit, added up, against what random owners of each kind's parts make of them.
    """
    n, k = parts.counts.shape
    nobody = np.zeros(n, dtype=bool)
    vector = whitened(parts)
    if vector is None:
        return Difference("meanings", False, None, 0.0, nobody, "too few parts of a kind"), parts
    scaled = parts._replace(vector=vector)
    asked = _sampled(scaled, rng, int(np.clip(PAIRED // k, 6, 40)))
    true, high = _gained(asked), 0
    if not true:
        return Difference("meanings", False, 1.0, 0.0, nobody), parts
    for draw in range(1, MATCHED + 1):
        high += _gained(_dealt_anew(asked, rng)) >= true - 1e-9
        if 1 + high > ceil(due * (1 + MATCHED)):
            return Difference("meanings", False, (1 + high) / (1 + draw), 0.0, nobody), parts
    p = (1 + high) / (1 + MATCHED)
    named, renamed = _one_name(scaled, 2 * log(n * k**2 / LEVEL))
    out = np.isin(np.arange(n), [client for client, *_ in renamed])
    if not renamed:
        return Difference("meanings", False, 1.0, 0.0, nobody), parts
    return (Difference("meanings", False, p, float(out.mean()), out, renamed=tuple(renamed)),
            parts._replace(kind=named))


def whitened(parts: Parts) -> Floats | None:
    """Vectors in which parts of one client and kind have the unit as their covariance; None where too few say it."""
    name = parts.owner * (parts.counts.shape[1] + 1) + parts.kind
    _, group, count = np.unique(name, return_inverse=True, return_counts=True)
    sums = np.zeros((len(count), parts.vector.shape[1]))
    np.add.at(sums, group, parts.vector)
    rest = parts.vector - (sums / count[:, None])[group]
    free, wide = len(group) - len(count), parts.vector.shape[1]
    if free < 2:
        return None
    covariance = rest.T @ rest / free
    usual = float(np.trace(covariance)) / wide
    if usual <= 0:
        return None
    shrunk = (free * covariance + wide * usual * np.eye(wide)) / (free + wide)
    values, vectors = np.linalg.eigh(shrunk)
    answer: Floats = parts.vector @ vectors / np.sqrt(np.maximum(values, 1e-9 * usual))
    return answer


def means_of(parts: Parts) -> Means:
    """The mean of each client's parts of each kind."""
    n, k = parts.counts.shape
    sums, count = np.zeros((n, k, parts.vector.shape[1])), np.zeros((n, k))
    np.add.at(sums, (parts.owner, parts.kind), parts.vector)
    np.add.at(count, (parts.owner, parts.kind), 1.0)
    return Means(sums / count.clip(min=1)[..., None], count)


def matches(means: Means) -> dict[tuple[int, int], Match]:
    """Of each pair of clients that have two kinds in common."""
    n, _, wide = means.of.shape
    found = {}
    for i in range(n):
        for j in range(i + 1, n):
            both = np.flatnonzero((means.parts[i] > 0) & (means.parts[j] > 0))
            if len(both) > 1:
                found[i, j] = match(means.of[i, both], means.parts[i, both], means.of[j, both], means.parts[j, both],
                                    wide)
    return found


def match(one: Floats, of_one: Floats, other: Floats, of_other: Floats, wide: int, least: float = 0.0) -> Match:
    """The cheapest assignment of kinds (s, d) to kinds; what gains no more than `least` a change keeps its name."""
    apart = ((one**2).sum(1)[:, None] + (other**2).sum(1) - 2 * one @ other.T) / (1 / of_one[:, None] + 1 / of_other)
    to = linear_sum_assignment(apart)[1]
    same, at = np.arange(len(to)), apart.diagonal()
    gain = at - apart[same, to]
    if least and (to != same).any():
        for circle in _circles(to):
            if gain[circle].sum() <= least * (len(circle) - 1):
                to[circle] = circle
        gain = at - apart[same, to]
    free = wide * len(to)
    fits = float(apart[same, to].sum()) <= free * (1 + SLACK) + 4 * (2 * free) ** 0.5
    return Match(to, max(0.0, float(gain.sum())), fits)


def _circles(to: Ints) -> list[list[int]]:
    """The kinds that change places with each other, as lists of two and more."""
    seen: set[int] = set()
    found = []
    for first in range(len(to)):
        circle = []
        while first not in seen:
            seen.add(first)
            circle.append(first)
            first = int(to[first])
        if len(circle) > 1:
            found.append(circle)
    return found


def _gained(parts: Parts) -> float:
    """Gains of all pairs that fit, added up."""
    return sum(each.gain for each in matches(means_of(parts)).values() if each.fits)


def _dealt_anew(parts: Parts, rng: np.random.Generator) -> Parts:
    """Parts of each kind under random owners, who have as many as before."""
    vector = parts.vector.copy()
    for kind in np.unique(parts.kind):
        places = np.flatnonzero(parts.kind == kind)
        vector[places] = vector[rng.permutation(places)]
    return parts._replace(vector=vector)


def _one_name(parts: Parts, least: float) -> tuple[Ints, list[tuple[int, int, int]]]:
    """(u,) kinds under the names that most clients use; and who uses another: client, its kind, the others' name.

    Clients that look alike are named together: around the one whom most fit, then around the mean of these.
    """
    means = means_of(parts)
    n, k, wide = means.of.shape
    name = np.tile(np.arange(k), (n, 1))  # what each client's kinds are called by the others
    near = min(n, MANY)  # who is looked at pair by pair
    fits = {pair for pair, each in matches(Means(means.of[:near], means.parts[:near])).items() if each.fits}
    left, middles = set(range(near)), []
    while left:
        root = max(sorted(left), key=lambda i: sum((min(i, j), max(i, j)) in fits for j in left - {i}))
        group = sorted(j for j in left if j == root or (min(root, j), max(root, j)) in fits)
        left -= set(group)
        middle, weight = means.of[root], means.parts[root]
        for _ in range(3):
            for i in group:
                name[i] = _named(means.of[i], means.parts[i], middle, weight, wide, least)[0]
            middle, weight = _middle(means, group, name)
        usual = np.array([np.bincount(name[group, own], minlength=k).argmax() for own in range(k)])
        if len(set(usual.tolist())) == k:
            name[group], middle, weight = np.argsort(usual)[name[group]], middle[usual], weight[usual]
        middles.append((middle, weight))
    for i in range(near, n):  # by the first group that it fits
        for middle, weight in middles:
            names, it_fits = _named(means.of[i], means.parts[i], middle, weight, wide, least)
            if it_fits:
                name[i] = names
                break
    renamed = [(i, own, int(name[i, own])) for i in range(n) for own in range(k)
               if name[i, own] != own and means.parts[i, own] > 0]
    return name[parts.owner, parts.kind], renamed


def _named(own: Floats, of_own: Floats, middle: Floats, weight: Floats, wide: int, least: float) -> tuple[Ints, bool]:
    """(k,) names of a client's kinds by the middle of others, and whether it fits there."""
    names = np.arange(len(own))
    both = np.flatnonzero((of_own > 0) & (weight > 0))
    if len(both) < 2:
        return names, False
    found = match(own[both], of_own[both], middle[both], weight[both], wide, least)
    names[both] = both[found.to]
    return names, found.fits


def _middle(means: Means, group: list[int], name: Ints) -> tuple[Floats, Floats]:
    """Mean parts of a group under its names, and how many parts they are of."""
    sums, count = np.zeros_like(means.of[0]), np.zeros(len(means.of[0]))
    for i in group:
        np.add.at(sums, name[i], means.of[i] * means.parts[i][:, None])
        np.add.at(count, name[i], means.parts[i])
    return sums / count.clip(min=1)[:, None], count


# Amounts ----------------------------------------------------------------------------------------------------------


def amounts(rows: Ints) -> Difference:
    """How unequal clients' rows are in number; who has less than a third or more than three times the middle one's."""
    usual = float(np.median(rows))
    spread = float(rows.std() / rows.mean()) if rows.any() else 0.0
    found = spread >= UNEVEN
    out = ((rows * 3 < usual) | (rows > 3 * usual)) & found
    return Difference("amounts", found, None, spread, out)
