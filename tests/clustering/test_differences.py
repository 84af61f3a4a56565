"""In what clients differ: each statistic on numbers that can be worked out by hand, and the set that is said."""

from math import log2

import numpy as np
import pytest

from umbel.clustering.differences import (
    KINDS,
    amounts,
    differences,
    farness,
    information,
    labels,
    match,
    outstanding,
    whitened,
)
from umbel.clustering.parts import Parts


def rng(seed=0):
    return np.random.default_rng(seed)


CENTRES = 6 * np.eye(4)  # four kinds far apart in four numbers


def federation(names, looks=None, counts=None, each=5, seed=0):
    """Clients with parts of four kinds; `names[i][k]`: what client i calls kind k; `looks[i]` is added to its parts."""
    draw, n = rng(seed), len(names)
    owner, kind, vector = [], [], []
    for i, own in enumerate(names):
        for k in range(4):
            for _ in range(each):
                owner.append(i), kind.append(own[k])
                vector.append(CENTRES[k] + draw.normal(size=4) + (0 if looks is None else looks[i][k]))
    counts = np.full((n, 4), 2 * each) if counts is None else np.asarray(counts)
    return Parts(np.array(owner), np.array(kind), np.array(vector), counts)


SAME, SWAPPED = (0, 1, 2, 3), (1, 0, 2, 3)


def said(parts):
    return {each.kind for each in differences(parts, rng(7), 4) if each.found}


def test_information_is_that_of_a_row_on_whose_it_is():
    """Two clients without a kind in common tell one bit a row; alike ones none."""
    assert information(np.array([[[4, 0], [0, 4]]])).tolist() == [[4.0, 4.0]]
    assert information(np.array([[[2, 6], [2, 6]]])).tolist() == [[0.0, 0.0]]
    assert information(np.array([[[3, 1], [1, 3]]]))[0] == pytest.approx([3 * log2(1.5) + log2(0.5)] * 2)


def test_labels_are_compared_with_rows_dealt_anew():
    """Clients of other kinds have the least p-value that the draws allow, those of equal counts the largest."""
    apart = labels(np.array([[20, 0], [0, 20]]), rng(), draws=99)
    assert apart.p == 0.01
    assert 0.9 < apart.strength < 1
    assert apart.out.all()
    alike = labels(np.array([[10, 10], [10, 10]]), rng(), draws=99)
    assert alike.p == 1
    assert alike.strength == 0
    assert not alike.out.any()


def test_who_stands_out_is_who_is_above_the_largest_of_chance():
    """One client far above its own draws; nobody where all are among them."""
    drawn = np.tile(np.arange(101.0)[:, None], (1, 3))
    assert outstanding(np.array([50.0, 97.5, 96.5]), drawn).tolist() == [False, True, False]
    assert not outstanding(np.full(3, 97.0), drawn).any()


def test_farness_is_in_variances_of_a_mean():
    """Two clients at -1 and 1 in every part: each mean of two is sqrt 2 deviations away, squared."""
    parts = Parts(np.array([0, 0, 1, 1]), np.zeros(4, int), np.array([[-1.0], [-1], [1], [1]]), np.full((2, 1), 4))
    true, drawn = farness(parts, rng(), draws=9)
    assert true.tolist() == [2.0, 2.0]
    assert set(drawn.flatten().tolist()) <= {0.0, 2.0}


def test_whitened_parts_have_the_unit_inside_clients():
    """The pooled covariance of parts of one client and kind, shrunk a little, becomes the unit."""
    draw = rng(1)
    vector = draw.normal(size=(4000, 2)) @ np.array([[3.0, 1.0], [0.0, 0.2]])
    parts = Parts(np.repeat(np.arange(40), 100), np.zeros(4000, int), vector, np.full((40, 1), 100))
    white = whitened(parts)
    inside = white.reshape(40, 100, 2) - white.reshape(40, 100, 2).mean(1, keepdims=True)
    covariance = np.einsum("abc,abd->cd", inside, inside) / (4000 - 40)
    assert covariance == pytest.approx(np.eye(2), abs=0.1)
    assert whitened(parts.of(np.array([0]))._replace(owner=np.arange(100))) is None  # a part each says nothing


def test_kinds_are_matched_by_looks():
    """Exchanged kinds are matched crosswise, and the gain is what that saves; a small gain changes no names."""
    one, other = np.array([[0.0], [4.0], [9.0]]), np.array([[4.0], [0.0], [9.0]])
    two = np.full(3, 2.0)
    found = match(one, two, other, two, wide=1)
    assert found.to.tolist() == [1, 0, 2]
    assert found.gain == 32  # 4^2 over 1/2 + 1/2, twice
    assert found.fits
    assert match(one, two, other, two, wide=1, least=33).to.tolist() == [0, 1, 2]
    assert not match(one, two, other + 50, two, wide=1).fits


def test_the_set_of_what_differs_is_said():
    """Nothing, labels, looks, meanings, and several of them."""
    alike, turned = [SAME] * 6, [SAME, SWAPPED] * 3
    uneven = [[30, 10, 10, 10], [10, 30, 10, 10]] * 3
    shifted = np.zeros((6, 4, 4))
    shifted[::2] = 4 * rng(3).normal(size=(4, 4))
    assert said(federation(alike)) == set()
    assert said(federation(alike, counts=uneven)) == {"labels"}
    assert said(federation(alike, looks=shifted)) == {"looks"}
    assert said(federation(turned)) == {"meanings"}
    assert said(federation(turned, counts=uneven)) == {"labels", "meanings"}
    assert said(federation([SAME, SAME, SWAPPED, SWAPPED] * 2, looks=np.tile(shifted[:2], (4, 1, 1)))) == {
        "looks", "meanings"}


def test_who_means_something_else_is_named():
    """The few stand out, with what the many call their kinds."""
    found = {each.kind: each for each in differences(federation([SAME] * 5 + [SWAPPED]), rng(), 4)}
    assert np.flatnonzero(found["meanings"].out).tolist() == [5]
    assert found["meanings"].renamed == ((5, 0, 1), (5, 1, 0))
    assert found["meanings"].strength == pytest.approx(1 / 6)


def test_the_majority_has_the_names(monkeypatch):
    """Whoever is looked at first; and of very many clients, those behind them are named by the groups that they fit."""
    first = {each.kind: each for each in differences(federation([SWAPPED] + [SAME] * 5), rng(), 4)}
    assert first["meanings"].renamed == ((0, 0, 1), (0, 1, 0))
    monkeypatch.setattr("umbel.clustering.differences.MANY", 4)
    last = {each.kind: each for each in differences(federation([SAME] * 3 + [SWAPPED, SAME, SWAPPED]), rng(), 4)}
    assert last["meanings"].renamed == ((3, 0, 1), (3, 1, 0), (5, 0, 1), (5, 1, 0))
    assert not last["looks"].found


def test_p_values_are_corrected_together():
    """Holm over three: the least one times three, and none below one that is smaller."""
    found = differences(federation([SAME] * 6, counts=[[30, 10, 10, 10], [10, 30, 10, 10]] * 3), rng(), 4)
    by_kind = {each.kind: each for each in found}
    assert by_kind["labels"].p == pytest.approx(3 * 0.001)
    assert all(by_kind[kind].p >= by_kind["labels"].p for kind in ("looks", "meanings"))
    assert by_kind["amounts"].p is None


def test_amounts_are_known():
    """Equal sizes do not differ; a tenth to ten tenths do, and the small ones stand out."""
    assert not amounts(np.array([50, 50, 60])).found
    found = amounts(np.array([10, 100, 100, 100, 300]))
    assert found.found
    assert found.strength == pytest.approx(np.std([10, 100, 100, 100, 300]) / 122)
    assert found.out.tolist() == [True, False, False, False, False]


def test_little_is_said_of_one_client_and_of_targets_of_one_kind():
    """A sentence instead of a number."""
    one = differences(federation([SAME]), rng(), 4)
    assert [each.kind for each in one] == list(KINDS)
    assert {each.unasked for each in one} == {"there is one client"}
    plain = federation([SAME] * 4)._replace(kind=np.zeros(80, int), counts=np.full((4, 1), 40))
    found = {each.kind: each for each in differences(plain, rng(), 1)}
    assert found["labels"].unasked == found["meanings"].unasked == "targets are of one kind"
    assert found["looks"].p == 1
