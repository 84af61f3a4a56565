"""Partitions: who holds which rows."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.data import partition, testsets
from umbel.data.partition import Drawn
from umbel.errors import UmbelError
from umbel.seeds import generator

quick = settings(deadline=None, max_examples=25)
seeds = st.integers(0, 2**31)

# Every partition, with parameters that a set of 10 x 240 rows can serve for 4 to 40 clients.
ALL: dict[str, partition.Partitioner] = {
    "iid": partition.iid,
    "every_label": partition.every_label,
    "label_4": partition.label_4,
    "quantity_4": partition.quantity_4,
    "label_skew": partial(partition.label_skew, labels=0.3),
    "flag": partial(partition.flag, groups=4, alpha=0.25),
    "dirichlet": partial(partition.dirichlet, alpha=1.0, min_size=2),
    "dirichlet_clients": partition.dirichlet_clients,
    "combinations": partial(partition.combinations, count=5, labels=2, per_label=6),
}
OVERLAPPING = ("quantity_4",)


def labels(per_label: int, classes: int = 10, seed: int = 0) -> np.ndarray:
    return generator(seed, "test labels").permutation(np.repeat(np.arange(classes), per_label))


def counts(drawn: Drawn, y: np.ndarray) -> np.ndarray:
    """(clients, labels): rows of each label."""
    return np.array([np.bincount(y[rows], minlength=int(y.max()) + 1) for rows in drawn.rows])


def same(one: Drawn, other: Drawn) -> bool:
    return len(one.rows) == len(other.rows) and all(map(np.array_equal, one.rows, other.rows))


@pytest.mark.parametrize("name", ALL)
@quick
@given(clients=st.integers(4, 40), seed=seeds)
def test_rows_exist_and_are_held_once(name: str, clients: int, seed: int) -> None:
    """Each client has sorted, distinct, existing rows, and no two clients share one unless the partition says so."""
    y = labels(240)
    drawn = ALL[name](y, clients, generator(seed))
    assert len(drawn.rows) == len(drawn.truth) == clients
    for rows in drawn.rows:
        assert rows.dtype == np.int64
        assert len(rows) >= 1
        assert (np.diff(rows) > 0).all()
        assert rows[0] >= 0
        assert rows[-1] < len(y)
    if name not in OVERLAPPING:
        assert Counter(np.concatenate(drawn.rows).tolist()).most_common(1)[0][1] == 1
    assert drawn.groups == 0 or drawn.groups == len(np.unique(drawn.truth))
    assert drawn.truth.tolist() == partition.first_seen(drawn.truth.tolist()).tolist()


@pytest.mark.parametrize("name", ALL)
@quick
@given(clients=st.integers(4, 20), seed=seeds)
def test_a_seed_decides(name: str, clients: int, seed: int) -> None:
    """The same seed draws the same rows, another seed others."""
    y = labels(240)
    draw = partial(ALL[name], y, clients)
    assert same(draw(generator(seed)), draw(generator(seed)))
    assert not same(draw(generator(seed)), draw(generator(seed + 1)))


@quick
@given(rows=st.integers(1, 300), clients=st.integers(1, 300), seed=seeds)
def test_iid_shares_are_equal_and_whole(rows: int, clients: int, seed: int) -> None:
    """IID hands out every row in shares that differ by one at most, and refuses more clients than rows."""
    y = labels(1, rows)
    if clients > rows:
        with pytest.raises(UmbelError, match=f"at most {rows} clients"):
            partition.iid(y, clients, generator(seed))
        return
    sizes = [len(part) for part in partition.iid(y, clients, generator(seed)).rows]
    assert sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1


def test_every_label_has_the_papers_sizes() -> None:
    """48 clients hold 100 rows of each of ten labels, and all 48,000 rows are used."""
    y = labels(4800)
    drawn = partition.every_label(y, 48, generator(0))
    assert (counts(drawn, y) == 100).all()
    assert drawn.facts["per_label"] == 100
    assert len(np.unique(np.concatenate(drawn.rows))) == 48_000


@quick
@given(per_label=st.integers(2, 60), clients=st.integers(1, 40), seed=seeds)
def test_every_label_bends_to_the_set(per_label: int, clients: int, seed: int) -> None:
    """A small set gives fewer rows per label, in the facts; fewer than two are refused."""
    y = labels(per_label, 4)
    if per_label // clients < 2:
        with pytest.raises(UmbelError, match="at least 2 rows of every label"):
            partition.every_label(y, clients, generator(seed))
        return
    drawn = partition.every_label(y, clients, generator(seed))
    assert drawn.facts["per_label"] == per_label // clients
    assert (counts(drawn, y) == per_label // clients).all()


def test_the_three_taxonomy_partitions_read_the_same_shuffle() -> None:
    """Label-4 cuts what every_label gives; quantity-4's last class reads it from the start."""
    y = labels(4800)
    whole, label, quantity = (
        draw(y, 48, generator(0)) for draw in (partition.every_label, partition.label_4, partition.quantity_4)
    )
    assert all(np.isin(cut, rows).all() for cut, rows in zip(label.rows, whole.rows, strict=True))
    assert all(np.array_equal(quantity.rows[4 * turn + 3], whole.rows[turn]) for turn in range(12))


def test_label_4_keeps_two_labels_whole() -> None:
    """280 rows a client: 100 of {1,2}, {3,4}, {5,6}, {7,8} by blocks of 12, and 10 of all others."""
    y = labels(4800)
    drawn = partition.label_4(y, 48, generator(0))
    assert drawn.truth.tolist() == [0] * 12 + [1] * 12 + [2] * 12 + [3] * 12
    for group, have in zip(drawn.truth, counts(drawn, y), strict=True):
        kept = [2 * group + 1, 2 * group + 2]
        assert have.sum() == 280
        assert (have[kept] == 100).all()
        assert (np.delete(have, kept) == 10).all()


def test_quantity_4_goes_round_and_overlaps() -> None:
    """10, 20, 60, 100 rows per label in turn; clients of a class are disjoint, classes read the same rows."""
    y = labels(4800)
    drawn = partition.quantity_4(y, 48, generator(0))
    assert drawn.truth.tolist() == [0, 1, 2, 3] * 12
    assert (counts(drawn, y) == np.array([10, 20, 60, 100] * 12)[:, None]).all()
    for kind in range(4):
        rows = np.concatenate(drawn.rows[kind::4])
        assert len(np.unique(rows)) == len(rows)
    assert set(drawn.rows[0]) <= set(drawn.rows[1]) <= set(drawn.rows[2]) <= set(drawn.rows[3])


def test_quantity_4_refuses_equal_sizes() -> None:
    """Where rounding would make two of the four sizes equal there is nothing to find, so it is refused."""
    assert partition.quantity_4(labels(8), 4, generator(0)).facts["sizes"] == [1, 2, 5, 8]
    with pytest.raises(UmbelError, match="four different sizes"):
        partition.quantity_4(labels(7), 4, generator(0))


@quick
@given(share=st.sampled_from([0.1, 0.2, 0.3, 1.0]), clients=st.integers(1, 60), seed=seeds)
def test_label_skew_splits_labels_among_their_owners(share: float, clients: int, seed: int) -> None:
    """Client i holds label i mod 10 and its share of labels; owners of a label get equal parts of all its rows."""
    y = labels(70)
    drawn = partition.label_skew(y, clients, generator(seed), labels=share)
    have = counts(drawn, y)
    assert ((have > 0).sum(axis=1) == round(10 * share)).all()
    assert all(have[i, i % 10] > 0 for i in range(clients))
    for column in have.T:
        if (owned := column[column > 0]).size:
            assert owned.sum() == 70
            assert owned.max() - owned.min() <= 1
    sets = [tuple(np.flatnonzero(row)) for row in have]
    assert [sets[i] == sets[0] for i in range(clients)] == (drawn.truth == drawn.truth[0]).tolist()
    assert drawn.groups == len(set(sets))


def test_label_skew_refuses_more_owners_than_rows() -> None:
    """An owner of a label holds at least one row of it."""
    with pytest.raises(UmbelError, match=r"needs 5 rows of label 0 for the 5 clients that hold it. Got 4"):
        partition.label_skew(labels(4, 2), 10, generator(0), labels=0.5)


@quick
@given(
    alpha=st.sampled_from([0.05, 0.25, 1.0, 100.0]), groups=st.integers(1, 12), more=st.integers(0, 28),
    floor=st.integers(1, 5), seed=seeds,
)  # fmt: skip
def test_flag_groups_share_labels(alpha: float, groups: int, more: int, floor: int, seed: int) -> None:
    """Groups are blocks with different label sets; every owner has the floor, and a label held at all is used up."""
    y, clients = labels(400), groups + more
    drawn = partition.flag(y, clients, generator(seed), alpha=alpha, groups=groups, min_per_label=floor)
    have = counts(drawn, y)
    assert drawn.truth.tolist() == partition.blocks(clients, groups).tolist()
    assert drawn.groups == groups
    assert drawn.facts["min_per_label"] == floor  # 400 rows are enough
    sets = [tuple(np.flatnonzero(have[drawn.truth == group].sum(axis=0))) for group in range(groups)]
    assert len(set(sets)) == groups
    assert all(len(held) == 2 for held in sets)
    for group, row in zip(drawn.truth, have, strict=True):
        assert (row[list(sets[group])] >= floor).all()
        assert row.sum() == row[list(sets[group])].sum()
    assert set(have.sum(axis=0)) <= {0, 400}


def test_flag_is_uneven_inside_a_group() -> None:
    """A smaller alpha' makes quantities more unequal."""
    y = labels(4000)
    spread = [
        np.std([len(rows) for rows in partition.flag(y, 100, generator(0), alpha=alpha).rows])
        for alpha in (0.25, 1.0, 100.0)
    ]
    assert spread[0] > spread[1] > spread[2]


def test_flag_bends_its_floor_to_the_set() -> None:
    """Half of a label is left to the Dirichlet draw, if one row each leaves that; no row for somebody is refused."""
    one_set = partial(partition.flag, labels=1.0, groups=1)
    assert one_set(labels(60), 10, generator(0)).facts["min_per_label"] == 3
    assert one_set(labels(11), 10, generator(0)).facts["min_per_label"] == 1
    with pytest.raises(UmbelError, match="flag needs 10 rows of label 0 for the 10 clients"):
        one_set(labels(9), 10, generator(0))


def test_flag_without_a_floor_is_the_literal_draw() -> None:
    """With min_per_label=0 some owners hold nothing of one of their labels, as in a plain Dirichlet draw."""
    y = labels(400)
    drawn = partition.flag(y, 100, generator(0), alpha=0.25, min_per_label=0)
    assert drawn.facts["min_per_label"] == 0
    assert ((counts(drawn, y) > 0).sum(axis=1) < 2).any()


def test_flag_refuses_impossible_groups() -> None:
    """More groups than clients, or than label sets, or a share of no label, are refused with the numbers."""
    with pytest.raises(UmbelError, match="groups=10 and 9 clients"):
        partition.flag(labels(100), 9, generator(0))
    with pytest.raises(UmbelError, match=r"There are 10 sets of 1 out of 10 labels. Got 11 groups"):
        partition.flag(labels(100), 20, generator(0), labels=0.1, groups=11)
    with pytest.raises(UmbelError, match=r"at least one of 10 labels. Got 0.01"):
        partition.flag(labels(100), 20, generator(0), labels=0.01)


@quick
@given(alpha=st.sampled_from([0.3, 1.0, 10.0]), clients=st.integers(1, 20), seed=seeds)
def test_dirichlet_uses_every_row(alpha: float, clients: int, seed: int) -> None:
    """All rows are dealt out, and nobody has fewer than min_size."""
    y = labels(240)
    drawn = partition.dirichlet(y, clients, generator(seed), alpha=alpha)
    assert sorted(np.concatenate(drawn.rows)) == list(range(2400))
    assert min(len(rows) for rows in drawn.rows) >= 10
    assert drawn.groups == 0
    assert not drawn.truth.any()


def test_dirichlet_gives_up_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too few rows are refused at once, an alpha that never fits after so many draws."""
    with pytest.raises(UmbelError, match="needs 250 rows for 25 clients"):
        partition.dirichlet(labels(24), 25, generator(0))
    monkeypatch.setattr(partition, "REDRAWS", 5)
    with pytest.raises(UmbelError, match=r"made 5 draws, none .* 20 clients 10 rows at alpha=0.001"):
        partition.dirichlet(labels(24), 20, generator(0), alpha=0.001)


@quick
@given(alpha=st.sampled_from([0.01, 0.25, 5.0]), clients=st.integers(1, 60), seed=seeds)
def test_dirichlet_clients_are_equal_in_size(alpha: float, clients: int, seed: int) -> None:
    """Every client gets rows // clients rows, though labels run out on the way."""
    y = labels(30)
    drawn = partition.dirichlet_clients(y, clients, generator(seed), alpha=alpha)
    assert {len(rows) for rows in drawn.rows} == {300 // clients}
    assert drawn.groups == 0
    assert not drawn.truth.any()


def test_dirichlet_clients_differ_more_with_a_small_alpha() -> None:
    """A small alpha gives few labels a client, a large one the set's own shares."""
    y = labels(1000)
    held = [
        np.mean([len(np.unique(y[rows])) for rows in partition.dirichlet_clients(y, 50, generator(0), alpha=a).rows])
        for a in (0.25, 1000.0)
    ]
    assert held[0] < 3
    assert held[1] > 9


@quick
@given(shape=st.sampled_from([(5, 2), (5, 5), (20, 3)]), clients=st.integers(1, 60), seed=seeds)
def test_combinations_have_fixed_sizes(shape: tuple[int, int], clients: int, seed: int) -> None:
    """A client holds per_label rows of each label of one of the sets; the same set is the same group."""
    y, (count, size) = labels(300), shape
    drawn = partition.combinations(y, clients, generator(seed), count=count, labels=size, per_label=5)
    have = counts(drawn, y)
    assert set(have.ravel()) <= {0, 5}
    assert ((have > 0).sum(axis=1) == size).all()
    sets = [tuple(np.flatnonzero(row)) for row in have]
    assert drawn.truth.tolist() == partition.first_seen(sets).tolist()
    assert drawn.groups <= count


def test_combinations_run_out_aloud() -> None:
    """When a label runs out the sentence names it, and the step it offers works."""
    draw = partial(partition.combinations, labels(40), 30, count=5, labels=2)
    with pytest.raises(UmbelError, match=r"hold label \d and ask for 50 .* set per_label=(\d+)\.") as caught:
        draw(generator(0))
    offered = int(str(caught.value).rstrip(".").rpartition("=")[2])
    assert min(len(rows) for rows in draw(generator(0), per_label=offered).rows) == 2 * offered
    with pytest.raises(UmbelError):
        draw(generator(0), per_label=offered + 1)


@quick
@given(clients=st.integers(4, 150), seed=seeds)
def test_mix_4_scales_its_counts(clients: int, seed: int) -> None:
    """Each set has its share of the clients, at least one; a client holds all ten labels of its set, no row twice."""
    y = labels(12, 40)
    drawn = partition.mix_4(y, clients, generator(seed), per_label=7)
    sizes = np.bincount(drawn.truth, minlength=4)
    assert sizes.sum() == clients
    assert (sizes >= 1).all()
    assert (np.abs(sizes - np.array([32, 26, 28, 14]) / 100 * clients) < 1.01).all()
    for group, row in zip(drawn.truth, counts(drawn, y), strict=True):
        first = [10, 20, 30, 0][group]
        assert (row[first : first + 10] == 7).all()
        assert row.sum() == 70


def test_mix_4_has_the_published_counts() -> None:
    """100 clients: 32 CIFAR-10, 26 SVHN, 28 Fashion-MNIST, 14 USPS, 500 rows each; they draw independently."""
    y = labels(542, 40)
    drawn = partition.mix_4(y, 100, generator(0))
    assert np.bincount(drawn.truth).tolist() == [32, 26, 28, 14]
    assert {len(rows) for rows in drawn.rows} == {500}
    assert 0 < len(np.intersect1d(drawn.rows[0], drawn.rows[1])) < 500
    assert partition.mix_4(labels(20, 40), 8, generator(0)).facts["per_label"] == 20
    with pytest.raises(UmbelError, match=r"each of its 4 data sets. Got 3"):
        partition.mix_4(y, 3, generator(0))


@quick
@given(size=st.integers(0, 40), count=st.integers(1, 12))
def test_blocks_are_array_split(size: int, count: int) -> None:
    """Block numbers repeat as often as numpy's array_split has places."""
    lengths = [len(part) for part in np.array_split(np.arange(size), count)]
    assert partition.blocks(size, count).tolist() == np.repeat(np.arange(count), lengths).tolist()


# Test sets


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", [testsets.label_full, testsets.matched, testsets.holdout])
@settings(deadline=None, max_examples=10)
@given(seed=seeds)
def test_nobody_is_tested_on_its_training_rows(name: str, mode: testsets.Tester, seed: int) -> None:
    """Under every partition and mode a client's own training and test rows are disjoint, and neither is empty."""
    y, y_test = labels(240), labels(60, seed=1)
    drawn = ALL[name](y, 12, generator(seed))
    train, test = mode(y, y_test, drawn.rows, generator(seed, "test"))
    for held, learn, ask in zip(drawn.rows, train, test, strict=True):
        assert len(learn)
        assert (len(ask) or len(held) == 1)
        assert not np.intersect1d(learn, ask).size
        assert (np.diff(ask) > 0).all()
        assert set(np.concatenate([y, y_test])[ask]) <= set(y[held])


def test_label_full_is_every_test_row_of_a_held_label() -> None:
    """One stray training row of a label brings all its test rows."""
    y, y_test = np.array([0, 0, 0, 1, 2]), np.array([2, 1, 0, 1, 0])
    train, test = testsets.label_full(y, y_test, [np.array([0, 1, 3]), np.array([4])], generator(0))
    assert [rows.tolist() for rows in train] == [[0, 1, 3], [4]]
    assert [rows.tolist() for rows in test] == [[6, 7, 8, 9], [5]]


@quick
@given(share=st.integers(1, 9), seed=seeds)
def test_matched_follows_the_training_shares(share: int, seed: int) -> None:
    """Test rows come in the client's own proportions, and no two clients share one."""
    y, y_test = np.repeat([0, 1], 100), np.repeat([0, 1], 50)
    one = np.r_[: 10 * share, 100 : 200 - 10 * share]
    _, test = testsets.matched(y, y_test, [one, np.setdiff1d(np.arange(200), one)], generator(seed))
    assert np.bincount(y_test[test[0] - 200]).tolist() == [5 * share, 50 - 5 * share]
    assert len(np.unique(np.concatenate(test))) == 100


def test_matched_lends_a_row_when_there_are_too_few() -> None:
    """Three clients and two test rows: the third borrows one; a client whose label is never tested gets none."""
    y, y_test = np.array([0, 0, 0, 1]), np.array([0, 0])
    _, test = testsets.matched(y, y_test, [np.array([i]) for i in range(4)], generator(0))
    assert [len(rows) for rows in test] == [1, 1, 1, 0]


@quick
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), seed=seeds)
def test_holdout_is_a_stratified_30_percent(sizes: list[int], seed: int) -> None:
    """Of each label 30 % is held out, to within a row, and one row stays whenever there are two."""
    y = np.repeat(np.arange(len(sizes)), sizes)
    (train,), (test,) = testsets.holdout(y, y[:0], [np.arange(len(y))], generator(seed))
    assert sorted([*train, *test]) == list(range(len(y)))
    if len(y) > 1:
        assert len(test) >= 1
    if min(sizes) > 1:
        assert (np.bincount(y[train]) >= 1).all()
        out = np.bincount(y[test], minlength=len(sizes))
        assert (np.abs(out - 0.3 * np.array(sizes)) < 1).all()


def test_holdout_of_the_papers_client() -> None:
    """100 rows of each label part 70 to 30; 10 rows part 7 to 3."""
    y = np.repeat([0, 1], [100, 10])
    (train,), (test,) = testsets.holdout(y, y[:0], [np.arange(110)], generator(0))
    assert np.bincount(y[train]).tolist() == [70, 7]
    assert np.bincount(y[test]).tolist() == [30, 3]
