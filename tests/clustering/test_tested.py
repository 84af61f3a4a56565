"""Which clients can be told apart: tests, distances, cuts and newcomers, against enumeration and loops."""

from itertools import combinations, permutations, product
from math import comb, factorial

import numpy as np
import pytest
from scipy.stats import hypergeom

from umbel.clustering import tested
from umbel.clustering.bootstraps import together
from umbel.clustering.branches import by_distance, by_halving, tree_of
from umbel.clustering.energy import energy, mixtures
from umbel.clustering.exchangeable import LEVEL, RARER, TESTS, absent, looks, moments, reachable, shares
from umbel.clustering.newcomers import settle
from umbel.clustering.parts import Parts
from umbel.clustering.said import contrast
from umbel.clustering.tested import nearest


def rng(seed=0):
    return np.random.default_rng(seed)


def parts_of(points, counts=None):
    """Of {(owner, kind): [numbers of a part, ...]}; counts are twice as many rows as parts, unless given."""
    owner, kind, vector = [], [], []
    for (who, what), several in points.items():
        for numbers in several:
            owner.append(who)
            kind.append(what)
            vector.append(np.atleast_1d(numbers).astype(float))
    if counts is None:
        counts = np.zeros((max(owner) + 1, max(kind) + 1), dtype=int)
        np.add.at(counts, (owner, kind), 2)
    return Parts(np.array(owner), np.array(kind), np.stack(vector), np.asarray(counts))


def drawn(seed, groups, each=4, kinds=3, apart=0.0, width=4, rows=5):
    """Clients with so many parts of each kind, groups `apart` in looks; every part is of `rows` rows."""
    draw = rng(seed)
    centres = apart * draw.normal(size=(max(groups) + 1, kinds, width))
    points = {(i, k): centres[group, k] + draw.normal(size=(each, width))
              for i, group in enumerate(groups) for k in range(kinds)}
    return parts_of(points, draw.multinomial(rows * each * kinds, np.full(kinds, 1 / kinds), size=len(groups)))


def cut(parts, seed=0):
    return tested.tested(parts, by_distance(energy(parts)), rng(seed))


def same(labels, groups):
    """Whether clusters are exactly the groups, whatever their numbers."""
    return len(set(zip(labels.tolist(), groups, strict=True))) == len(set(groups)) == labels.max() + 1


def mean_p(test, parts, level=0.05, times=100):
    """What p-values are on average over draws: their noise is an eighth of that of a single one of 399 draws."""
    return np.mean([test(parts, level, rng(seed)) for seed in range(times)])


# Looks ------------------------------------------------------------------------------------------------------------


def owners_within(kind_points):
    """All ways to deal one kind's parts to their owners, as sums of distances inside, in units of the mean distance."""
    owner = [who for who, several in enumerate(kind_points) for _ in several]
    points = [np.atleast_1d(p).astype(float) for several in kind_points for p in several]
    away = {(a, b): float(np.linalg.norm(points[a] - points[b])) for a, b in combinations(range(len(points)), 2)}
    mean = sum(away.values()) / len(away)
    def inside(order):
        return sum(d for (a, b), d in away.items() if order[a] == order[b]) / mean
    return inside(owner), [inside(order) for order in permutations(owner)]


CLOSE = [[0.0, 0.3], [1.0, 1.4], [2.1, 2.9]]  # three clients, two parts each
MIXED = [[0.0, 2.0, 0.5], [0.4, 1.0], [2.2]]


@pytest.mark.parametrize("one", [CLOSE, MIXED])
def test_looks_is_the_share_of_all_dealings_that_are_as_close(one):
    """Every order of the parts counted out."""
    true, every = owners_within(one)
    exact = np.mean([each <= true + 1e-9 for each in every])
    found = mean_p(looks, parts_of({(i, 0): several for i, several in enumerate(one)}), times=200)
    assert found == pytest.approx((1 + 399 * exact) / 400, rel=0.1)


def closer(kind_points):
    """By how many standard deviations the true owners are closer, squared with its sign; and so all dealings."""
    true, every = owners_within(kind_points)
    away = (np.mean(every) - [true, *every]) / np.std(every)
    return (away * abs(away))[0], (away * abs(away))[1:]


def test_looks_adds_kinds_up_each_in_its_own_unit():
    """A kind ten thousand times as wide says no more than the other; parts stay within their kind."""
    true, every = zip(*(closer(one) for one in (CLOSE, MIXED)), strict=True)
    exact = np.mean([a + b >= sum(true) - 1e-9 for a, b in product(*every)])
    wide = [[1e4 * point for point in several] for several in MIXED]
    both = parts_of({(i, k): several for k, kind in enumerate((CLOSE, wide)) for i, several in enumerate(kind)})
    assert mean_p(looks, both, times=200) == pytest.approx((1 + 399 * exact) / 400, rel=0.1)


def test_a_difference_in_one_kind_of_ten_is_not_drowned_by_the_others():
    """Two groups that differ in one kind alone, among eighteen without any: a plain sum sees it in a few draws."""
    seen = 0
    for seed in range(20):
        draw = rng(seed)
        points = {(i, k): draw.normal(size=(4, 4)) + 3 * (i % 2) * (k == 0) for i in range(6) for k in range(19)}
        seen += looks(parts_of(points), 0.01, rng(seed)) <= 0.01
    assert seen >= 15


def test_clients_change_to_the_cluster_that_is_nearest_on_average():
    """The third on a line is nearer to the next two as a whole; nobody else changes, and who is alone stays."""
    places = np.array([0.0, 0.2, 1.7, 3.0, 3.1, 9.0])
    near = abs(places[:, None] - places)
    assert nearest(np.array([0, 0, 0, 1, 1, 2]), near).tolist() == [0, 0, 1, 1, 1, 2]
    assert nearest(np.array([0, 0, 1, 1, 1, 2]), near).tolist() == [0, 0, 1, 1, 1, 2]


def test_changing_sides_ends_where_all_would_change_back():
    """Two and two at the corners of a square, each nearer to those of the other side: it ends, with nobody lost."""
    near = np.array([[0, 9, 1, 1], [9, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0]], dtype=float)
    assert sorted(nearest(np.array([0, 0, 1, 1]), near).tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("one", [CLOSE, MIXED, [[0.0, 2.0], [1.0]], [[0.0, 0.5], [3.0, 1.1, 4.0], [7.0]]])
def test_the_moments_of_looks_are_those_of_all_dealings(one):
    """Mean and variance over every order of the parts, without drawing one."""
    points = np.array([[point] for several in one for point in several])
    apart = np.abs(points - points.T)
    apart *= len(apart) * (len(apart) - 1) / apart.sum()
    owner = np.repeat(range(len(one)), [len(several) for several in one])
    first, second = np.nonzero(np.triu(owner[:, None] == owner, 1))
    _, every = owners_within(one)
    assert moments(apart, first, second) == pytest.approx((np.mean(every), np.var(every)))


def test_looks_draws_nothing_where_the_answer_is_clear():
    """Far beyond what dealings vary by: the p-value is the level, or one over the draws that were not made."""
    clear = parts_of({(i, 0): [100.0 * (i // 4) + k for k in range(6)] for i in range(8)})
    assert looks(clear, 1e-4, None) == 1e-4
    assert looks(clear, 0.5, None) == 1 / 201
    assert looks(clear, 0.05, rng(), sure=999) == 1 / 1000


def test_looks_has_nothing_to_compare():
    """One client; parts of one kind at one client; one part each; all parts equal: p is 1."""
    for points in ({(0, 0): [1, 2, 3]}, {(0, 0): [1, 2], (1, 1): [1, 2]}, {(0, 0): [1], (1, 0): [2], (2, 0): [3]},
                   {(0, 0): [1, 1], (1, 0): [1, 1]}):
        assert looks(parts_of(points), 0.01, rng()) == 1
    nobody = Parts(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros((0, 2)), np.ones((3, 2), dtype=int))
    assert looks(nobody, 0.01, rng()) == 1


@pytest.mark.parametrize(("groups", "each"), [([0] * 3, 4), ([0] * 8, 3), ([0] * 4, 6)])
def test_p_values_of_alike_clients_are_uniform(groups, each):
    """At most so many at or below 1 and 10 % of 400 as the 99.9 % point of a binomial; and no fewer than its 0.1 %."""
    found = np.array([looks(drawn(seed, groups, each), 0.1, rng(seed)) for seed in range(400)])
    assert 22 <= (found <= 0.1).sum() <= 60
    assert (found <= 0.01).sum() <= 11


def test_unequal_amounts_are_no_difference():
    """Clients of two and of eight parts of one distribution: a fifth of the p-values are at or below 0.2."""
    found = []
    for seed in range(300):
        draw = rng(seed)
        points = {(i, k): draw.normal(size=(2 if i % 2 else 8, 3)) for i in range(5) for k in range(2)}
        found.append(looks(parts_of(points), 0.2, draw))
    assert 39 <= (np.array(found) <= 0.2).sum() <= 83


def test_groups_that_look_otherwise_are_seen():
    """At the least p-value that the level can ask for, and after few draws: the statistic is far outside."""
    parts = drawn(0, [0, 0, 0, 1, 1, 1], apart=5.0)
    assert looks(parts, 1e-6, rng()) <= 1e-6


# Absent kinds and shares ------------------------------------------------------------------------------------------


def with_counts(*counts):
    return Parts(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros((0, 1)), np.array(counts))


def every_table(counts):
    """All ways to deal the rows out to their owners, as tables."""
    kinds = np.repeat(range(len(counts[0])), np.sum(counts, 0)).tolist()
    owner = np.repeat(range(len(counts)), np.sum(counts, 1)).tolist()
    for order in set(permutations(kinds)):  # every order of equal rows is as likely
        table = np.zeros_like(counts)
        np.add.at(table, (owner, list(order)), 1)
        yield table


def expected(counts):
    return np.outer(np.sum(counts, 1), np.sum(counts, 0)) / np.sum(counts)


@pytest.mark.parametrize("counts", [[[14, 0], [1, 13]], [[13, 0, 1], [0, 12, 0], [11, 11, 0]]])
def test_absent_is_the_chance_of_as_much_surprise(counts):
    """Each absence has the chance (1 - share / 3) ^ rows; all ways in which kinds can be missing are added up."""
    share = np.sum(counts, 0) / np.sum(counts) / RARER
    chance = np.ravel([(1 - share) ** rows for rows in np.sum(counts, 1)])
    missing = np.ravel(counts) == 0
    true, exact = -np.log(chance)[missing].sum(), 0.0
    for which in product([False, True], repeat=len(chance)):
        if -np.log(chance)[list(which)].sum() >= true - 1e-9:
            exact += np.prod(np.where(which, chance, 1 - chance))
    assert 0.001 < exact < 0.5
    found = mean_p(absent, with_counts(*counts), times=400)
    assert found == pytest.approx((1 + 399 * exact) / 400, rel=0.1)


def test_absent_errs_less_than_its_level_says_where_rows_are_dealt_at_random():
    """Of 300 draws with kinds of which some clients have none, none is rejected at 5 %; exactly a third at most may."""
    shares_of = np.array([0.6, 0.3, 0.07, 0.03])
    tables = [rng(seed).multinomial(20, shares_of, size=6) for seed in range(300)]
    assert sum((table == 0).any() for table in tables) > 250
    assert sum(absent(with_counts(*table), 0.05, rng(seed)) <= 0.05 for seed, table in enumerate(tables)) <= 5


def test_a_kind_that_nobody_lacks_tells_nobody_apart():
    """Nor does one that a client of two rows lacks among clients of a hundred; of forty rows it does."""
    assert absent(with_counts([90, 1], [1, 90]), 0.01, rng()) == 1
    assert absent(with_counts([50, 50], [50, 50], [2, 0]), 0.01, rng()) > 0.1
    assert absent(with_counts([50, 50], [50, 50], [40, 0]), 0.01, rng()) < 0.01


def test_a_kind_that_is_rarer_at_some_clients_is_not_absent_by_nature():
    """Three of ten clients lack what makes 3 % of their rows and 12 % of all: one cluster, but for shares."""
    counts = np.array([[58, 2], [60, 0], [60, 0], [59, 1], [60, 0]] + [[48, 12]] * 5)
    assert absent(with_counts(*counts), 0.01, rng()) > 0.05
    assert shares(with_counts(*counts), 0.01, rng()) < 0.01


def test_shares_of_two_clients_and_kinds_is_fishers():
    """The hypergeometric distribution, added up where chi square is as large: in one direction both go together."""
    counts = [[6, 2], [3, 7]]
    due = expected(counts)
    def chi(table):
        return ((np.array(table) - due) ** 2 / due).sum()
    tables = [[[k, 8 - k], [9 - k, 1 + k]] for k in range(9)]
    exact = sum(hypergeom(18, 9, 8).pmf(k) for k, table in enumerate(tables) if chi(table) >= chi(counts) - 1e-9)
    assert 0.1 < exact < 0.2
    assert mean_p(shares, with_counts(*counts), times=200) == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize("counts", [[[2, 1, 0], [1, 2, 0], [0, 0, 2]], [[3, 0], [0, 3], [1, 1]]])
def test_shares_adds_fourth_powers_of_what_residuals_vary_by(counts):
    """Against all ways to deal the rows out, by singular values; with more clients than kinds, and as many."""
    due = expected(counts)
    def spread(table):
        return (np.linalg.svd((table - due) / due**0.5, compute_uv=False) ** 4).sum()
    exact = np.mean([spread(table) >= spread(np.array(counts)) - 1e-9 for table in every_table(counts)])
    assert 0.02 < exact < 0.6
    assert mean_p(shares, with_counts(*counts), times=200) == pytest.approx((1 + 399 * exact) / 400, rel=0.1)


def test_groups_that_are_balanced_inside_are_seen():
    """Nine clients each, all of a group with the very same counts: chi square over all is what chance makes of it."""
    counts = np.array([[1, 7, 7, *[1] * 7]] * 9 + [[1, 1, 1, 7, 7, *[1] * 5]] * 9)
    assert shares(with_counts(*counts), 0.001, rng()) <= 0.001


@pytest.mark.parametrize("test", [absent, shares])
def test_empty_clients_and_kinds_say_nothing(test):
    """Of one client with rows, or one kind: p is 1; a client without rows changes no p-value."""
    assert test(with_counts([3, 4]), 0.01, rng()) == 1
    assert test(with_counts([3, 4], [0, 0]), 0.01, rng()) == 1
    assert test(with_counts([3], [9]), 0.01, rng()) == 1
    assert test(with_counts([3, 0], [9, 0]), 0.01, rng()) == 1
    some = [8, 0, 3], [1, 9, 4]
    assert test(with_counts(*some), 0.01, rng()) == test(with_counts(*some, [0, 0, 0]), 0.01, rng())


# What can be reached ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "ways"), [
    ([2, 2], 3), ([4, 4], comb(8, 4) // 2), ([2, 1], 3), ([2, 2, 2], 15), ([3, 2], comb(5, 3)),
    ([3, 3, 3], factorial(9) // factorial(3) ** 4), ([2, 1, 1], 6), ([1, 1, 1], None), ([5], None)])
def test_the_least_p_value_is_one_over_the_ways_to_part_the_parts(held, ways):
    """Which client a set of parts belongs to does not matter, so clients that hold equally many may be exchanged."""
    parts = parts_of({(i, 0): list(range(many)) for i, many in enumerate(held)})
    assert reachable(parts) == pytest.approx(1 / (ways or 1))


def test_kinds_multiply():
    """Ways of one kind times those of the other."""
    parts = parts_of({(0, 0): [1, 2], (1, 0): [3, 4], (0, 1): [1, 2, 3], (1, 1): [4, 5]})
    assert reachable(parts) == pytest.approx(1 / (3 * 10))


def test_two_clients_with_few_parts_cannot_be_told_apart():
    """Whatever they look like, the answer is one cluster, and that rows were too few; with more parts they are two."""
    few = parts_of({(0, 0): [0, 1, 2, 3], (1, 0): [100, 101, 102, 103]})
    assert cut(few).labels.tolist() == [0, 0]
    assert not cut(few).root.enough
    many = parts_of({(0, 0): [*range(8)], (1, 0): [*range(100, 108)]})
    assert cut(many).labels.tolist() == [0, 1]
    assert cut(many).root.enough


# Distances --------------------------------------------------------------------------------------------------------


def literal_energy(parts):
    """Between two clients less the mean within each, over the kinds that one of them has; loops, no arrays."""
    n, many = parts.counts.shape
    answer = np.zeros((n, n))
    of = {(i, k): [v for o, c, v in zip(*parts[:3], strict=True) if (o, c) == (i, k)]
          for i in range(n) for k in range(many)}
    unit, typical = {}, {}
    for k in range(many):
        every = [v for i in range(n) for v in of[i, k]]
        away = [np.linalg.norm(a - b) for a, b in combinations(every, 2)]
        unit[k] = np.mean(away) if away else 1.0
    def within(i, k):
        return np.mean([np.linalg.norm(a - b) for a, b in combinations(of[i, k], 2)]) / unit[k]
    for k in range(many):
        several = [within(i, k) for i in range(n) if len(of[i, k]) > 1]
        typical[k] = np.mean(several) if several else 1.0
    for i, j in permutations(range(n), 2):
        sums, kinds = 0.0, 0.0
        for k in range(many):
            if of[i, k] and of[j, k]:
                own = [within(c, k) if len(of[c, k]) > 1 else typical[k] for c in (i, j)]
                between = np.mean([np.linalg.norm(a - b) for a, b in product(of[i, k], of[j, k])]) / unit[k]
                sums, kinds = sums + between - sum(own) / 2, kinds + 1
            for a, b in ((i, j), (j, i)):
                if parts.counts[a, k] == 0 < parts.counts[b, k]:
                    share = parts.counts[b, k] / parts.counts[b].sum()
                    surprise = 1 - (1 - share / 2) ** parts.counts[a].sum()
                    sums, kinds = sums + surprise, kinds + surprise
        answer[i, j] = sums / kinds if kinds else 1.0
    return answer


def test_energy_is_the_literal_mean_over_kinds():
    """Clients with two, with one and with no parts of a kind, with kinds of their own, and one without any part."""
    parts = parts_of({(0, 0): [[0, 1], [2, 1]], (1, 0): [[5, 5]], (2, 0): [[1, 1], [0, 0], [3, 1]],
                      (0, 1): [[1, 1], [1, 2]], (1, 1): [[4, 4], [4, 7]], (3, 2): [[1, 0], [0, 1]]},
                     [[4, 4, 0], [3, 4, 1], [6, 0, 0], [0, 0, 4], [1, 1, 1]])
    assert np.allclose(energy(parts), literal_energy(parts))


def test_energy_of_alike_clients_is_zero_on_average_whatever_their_sizes():
    """Unbiased: two parts or eight."""
    found = []
    for seed in range(200):
        draw = rng(seed)
        parts = parts_of({(i, 0): draw.normal(size=(many, 5)) for i, many in enumerate((2, 8, 2, 8))})
        found.append(energy(parts)[np.triu_indices(4, 1)])
    mean, error = np.mean(found, 0), np.std(found, 0) / 200**0.5
    assert (np.abs(mean) < 4 * error).all()


def test_what_a_small_client_lacks_by_chance_weighs_little():
    """Of 2 rows and of 40, where the other has a fifth of the kind: chances .19 and .985 that it is no accident."""
    for rows, weight in ((2, 1 - 0.9**2), (40, 1 - 0.9**40)):
        apart = energy(parts_of({(0, 0): [[0.0], [1.0]], (1, 0): [[0.0], [1.0]]}, [[rows, 0], [80, 20]]))[0, 1]
        own = np.mean([0, 0, 1, 1]) / np.mean([1, 0, 1, 1, 0, 1])  # between, and within, in units of the mean
        alike = np.mean([0, 1, 1, 0]) / np.mean([1, 0, 1, 1, 0, 1]) - 1 / np.mean([1, 0, 1, 1, 0, 1])
        assert own == pytest.approx(0.75)
        assert apart == pytest.approx((alike + weight) / (1 + weight))


def test_mixtures_are_hellingers():
    """1 where two clients share no kind, 0 where they mix them alike, whatever their sizes."""
    found = mixtures(np.array([[4, 0], [0, 9], [10, 10], [1, 1]]))
    assert found[0, 1] == pytest.approx(1)
    assert found[2, 3] == pytest.approx(0)
    assert found[0, 2] == pytest.approx((1 - 0.5**0.5) ** 0.5)
    assert np.isfinite(mixtures(np.array([[0, 0], [1, 2]]))).all()


def test_a_tree_of_distances_below_zero_is_that_of_distances_that_are_raised():
    """Energy of alike clients is as often below 0 as above; a shift changes no average-linkage tree."""
    apart = np.array([[0.0, -0.2, 0.5], [-0.2, 0.0, 0.6], [0.5, 0.6, 0.0]])
    links = tree_of(apart)
    assert links[:, :2].tolist() == [[0, 1], [2, 3]]
    assert links[:, 2] == pytest.approx([0, 0.75])
    assert len(tree_of(np.zeros((1, 1)))) == 0


# Cuts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [[0, 0, 1, 1], [0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 2], [0] * 5 + [1] * 20])
def test_groups_that_look_otherwise_are_found(groups):
    """Two clients each, one each, sizes apart: exactly the groups."""
    found = cut(drawn(1, groups, apart=4.0, each=6))
    assert same(found.labels, groups)
    assert not found.by_shares
    assert found.root.looks <= LEVEL / TESTS


def test_a_federation_of_alike_clients_is_one_cluster():
    """In 300 draws of 3, 6 and 12 clients at most 16 are split: the 99 % point of 3 %."""
    split = sum(cut(drawn(seed, [0] * n), seed).labels.any() for n in (3, 6, 12) for seed in range(100))
    assert split <= 16


def test_groups_that_lack_kinds_are_found():
    """Four kinds, two a group; looks say nothing, since no kind is at both."""
    draw = rng(0)
    groups = [0, 0, 0, 1, 1, 1]
    points = {(i, 2 * g + k): draw.normal(size=(4, 3)) for i, g in enumerate(groups) for k in range(2)}
    found = cut(parts_of(points, [[20, 20, 0, 0]] * 3 + [[0, 0, 20, 20]] * 3))
    assert same(found.labels, groups)
    assert not found.by_shares


def test_groups_that_mix_kinds_otherwise_are_found_last_of_all():
    """Where neither looks nor absent kinds find groups, and only there."""
    mixed = drawn(3, [0] * 6)._replace(counts=np.array([[60, 30, 10]] * 3 + [[10, 30, 60]] * 3))
    found = cut(mixed)
    assert same(found.labels, [0, 0, 0, 1, 1, 1])
    assert found.by_shares
    looks_too = drawn(3, [0, 1] * 3, apart=5.0)._replace(counts=mixed.counts)
    assert same(cut(looks_too).labels, [0, 1] * 3)
    assert not cut(looks_too).by_shares


def test_clusters_that_no_test_tells_apart_are_joined():
    """A start of three clusters of which two are alike ends as two; a start of singles as well."""
    groups = [0, 0, 0, 0, 1, 1]
    parts = drawn(2, groups, apart=4.0, each=6)
    for start in ([[0, 1], [2, 3], [4, 5]], [[i] for i in range(6)], [[0, 4], [1, 2, 3, 5]]):
        found = tested.tested(parts, [by_distance(energy(parts), np.array(one)) for one in start], rng()).labels
        assert same(found, groups)


def test_a_method_may_bring_a_tree_of_its_own():
    """Distances that part true groups at the top are taken; the tests decide how deep."""
    groups = [0, 0, 0, 1, 1, 1]
    parts = drawn(2, groups, apart=4.0, each=6)
    own = np.not_equal.outer(groups, groups) + 0.1 * rng().random((6, 6))
    found = tested.tested(parts, by_distance((own + own.T) * (1 - np.eye(6))), rng()).labels
    assert same(found, groups)


def test_the_same_draws_give_the_same_answer():
    """And p-values."""
    parts = drawn(4, [0, 0, 1, 1], apart=1.0)
    one, two = cut(parts, 7), cut(parts, 7)
    assert one.labels.tolist() == two.labels.tolist()
    assert one.root == two.root


@pytest.mark.parametrize("counts", [
    [[9, 9]],  # one client
    [[1, 0], [0, 1], [1, 0]],  # a row each
    [[0, 0], [0, 0]],  # no rows at all
    [[3, 3], [3, 3], [3, 3]],  # parts larger than a client: nobody has any
])
def test_too_few_rows_are_one_cluster_and_said(counts):
    """Never a split by chance."""
    nothing = Parts(np.zeros(0, dtype=int), np.zeros(0, dtype=int), np.zeros((0, 2)), np.array(counts))
    found = cut(nothing)
    assert not found.labels.any()
    assert not found.root.enough
    assert found.root.p == 1


def test_rows_that_are_all_equal_are_one_cluster():
    """Distances of 0 between all parts."""
    found = cut(parts_of({(i, 0): [1.0] * 6 for i in range(4)}))
    assert not found.labels.any()
    assert found.root.looks == 1


def test_clients_without_a_kind_in_common_are_told_apart_where_rows_suffice():
    """Ten rows each of another label are no accident; two rows are."""
    apart = parts_of({(0, 0): [1, 2, 3, 4, 5], (1, 1): [1, 2, 3, 4, 5]}, [[10, 0], [0, 10]])
    assert cut(apart).labels.tolist() == [0, 1]
    assert not cut(parts_of({(0, 0): [1], (1, 1): [1]}, [[2, 0], [0, 2]])).labels.any()


def test_a_client_without_parts_joins_somebody():
    """It has too few rows to be told apart from anybody."""
    parts = drawn(1, [0, 0, 0, 1, 1, 1, 1], apart=4.0, each=6)
    silent = parts.owner != 6
    parts = Parts(parts.owner[silent], parts.kind[silent], parts.vector[silent], parts.counts)
    parts.counts[6] = [1, 1, 0]
    assert same(cut(parts).labels[:6], [0, 0, 0, 1, 1, 1])
    assert cut(parts).labels.max() == 1


def test_clients_that_a_method_cannot_halve_stay_together():
    """They differ, but the method sees nothing to part them by: an empty half is no cluster."""
    parts, asked = drawn(0, (0, 0, 0, 1, 1, 1), apart=3), []
    found = tested.tested(parts, by_halving(lambda some: asked.append(some) or (some, some[:0]), np.arange(6)),
                          rng())
    assert found.root.differ
    assert found.labels.tolist() == [0] * 6
    assert len(asked) == 1


# Newcomers --------------------------------------------------------------------------------------------------------


def of_size(seed, group, each, apart=4.0):
    """A newcomer of a group of `drawn(1, ...)`, with so many parts of each kind; group 2 is new."""
    draw, centres = rng(seed), apart * rng(1).normal(size=(3, 3, 4))
    return parts_of({(0, k): centres[group, k] + draw.normal(size=(each, 4)) for k in range(3)}, [[5 * each] * 3])


@pytest.mark.parametrize("each", [2, 4, 8])
def test_a_newcomer_joins_its_like_whatever_its_size(each):
    """And founds a cluster where it is like nobody."""
    groups = [0, 0, 0, 1, 1, 1]
    known = drawn(1, [*groups, 2], apart=4.0).of(np.arange(6))  # its centres are those of `of_size`
    for group in (0, 1, 2):
        found = [settle(known, np.array(groups), of_size(seed, group, each), 2, rng(seed))[0] for seed in range(10)]
        assert found.count(group) >= 9


def test_a_newcomer_by_shares_joins_who_mixes_kinds_alike():
    """Where clients were parted by shares."""
    known = drawn(3, [0] * 6)._replace(counts=np.array([[60, 30, 10]] * 3 + [[10, 30, 60]] * 3))
    newcomer = of_size(0, 0, 4, apart=0.0)
    for counts, label in (
            ([60, 30, 10], 0), ([5, 20, 40], 1), ([5, 90, 5], 2), ([0, 90, 0], 2), ([500, 0, 0], 2)):
        comes = newcomer._replace(counts=np.array([counts]))
        assert settle(known, np.array([0, 0, 0, 1, 1, 1]), comes, 2, rng(), by_shares=True).tolist() == [label]


def test_newcomers_come_one_after_the_other():
    """Two strangers alike found one cluster, the second joining the first; one without parts joins the nearest."""
    known = drawn(1, [0, 0, 0, 1, 1, 1, 2], apart=4.0).of(np.arange(6))
    several = [of_size(0, 2, 4), of_size(1, 0, 4), of_size(2, 2, 4)]
    kind, vector, counts = (np.concatenate([getattr(one, name) for one in several])
                            for name in ("kind", "vector", "counts"))
    owner = np.concatenate([np.full(len(one.owner), i) for i, one in enumerate(several)])
    found = settle(known, np.array([0, 0, 0, 1, 1, 1]), Parts(owner, kind, vector, counts), 2, rng())
    assert found.tolist() == [2, 0, 2]
    silent = Parts(owner[:0], kind[:0], vector[:0], np.array([[1, 0, 1]]))
    assert settle(known, np.array([0, 0, 0, 1, 1, 1]), silent, 2, rng())[0] < 2


def test_a_cluster_that_lost_its_members_takes_no_newcomer():
    """Labels stay as they are; a new cluster gets the number behind the last."""
    known = drawn(1, [0, 0, 0, 2, 2, 2], apart=4.0)
    assert settle(known, np.array([0, 0, 0, 2, 2, 2]), of_size(0, 0, 4), 3, rng())[0] == 0
    assert settle(known, np.array([-1, -1, -1, 2, 2, 2]), of_size(0, 0, 4), 3, rng())[0] == 3


# What can be said -------------------------------------------------------------------------------------------------


def test_contrast_is_between_clusters_over_within_clients():
    """Two clients at 0 and 1, one at 10 and 12: within 1, 1 and 2, across 10, 12, 9 and 11 twice."""
    parts = parts_of({(0, 0): [0, 1], (1, 0): [0, 1], (2, 0): [10, 12]})
    assert contrast(parts, np.array([0, 0, 1])) == pytest.approx(10.5 / (4 / 3))
    assert np.isnan(contrast(parts, np.array([0, 0, 0])))
    assert np.isnan(contrast(parts_of({(0, 0): [0, 1], (1, 1): [0, 1]}), np.array([0, 1])))


def test_clear_groups_stay_together_and_unclear_ones_do_not():
    """The share of bootstraps in which two clients are in one cluster."""
    clear = together(drawn(1, [0, 0, 1, 1], apart=6.0, each=6), np.array([0, 0, 1, 1]), rng())
    assert clear.tolist() == np.equal.outer([0, 0, 1, 1], [0, 0, 1, 1]).tolist()
    vague = together(drawn(1, [0, 0, 0, 0]), np.array([0, 0, 1, 1]), rng())
    assert (np.diag(vague) == 1).all()
    assert 0 < vague[0, 1] < 1
