"""Where a dendrogram is cut, on heights made by hand."""

import re

import pytest
import torch
from torch import tensor

from umbel.clustering.cuts import (
    BY_TRIAL,
    CLEAR,
    CUTS,
    GAIN,
    Dendrogram,
    both,
    by_count,
    by_gap,
    by_silhouette,
    by_trial,
    by_value,
    knee,
    partitions,
    within,
)
from umbel.clustering.linkage import LINKAGES, heights, into, linkage
from umbel.clustering.proximity import symmetric
from umbel.errors import UmbelError

# What a trial of FLAG gave on Fashion-MNIST with ten groups: score against clusters.
PRINTED = {1: 0.423, 2: 0.589, 3: 0.770, 5: 0.763, 6: 0.840, 8: 0.921, 9: 0.959, 10: 0.966, 12: 0.966, 16: 0.968,
           40: 0.970, 91: 0.968}


def chain(*found):
    """A dendrogram in which client after client joins the first two, at these heights."""
    n = len(found) + 1
    rows = [(0 if k == 0 else n + k - 1, k + 1, height, k + 2) for k, height in enumerate(found)]
    return tensor(rows, dtype=torch.float64).reshape(-1, 4)


def curve(scores):
    """Rows as a sweep hands them to a rule: threshold, clusters, score, 0."""
    return tensor([(1 - k / 100, k, score, 0) for k, score in scores.items()], dtype=torch.float64)


def alike(n, seed=0):
    """Distances among clients of one distribution: points around one centre in 50 dimensions."""
    points = torch.randn(n, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return symmetric(torch.cdist(points, points))


# Value, count, gap ------------------------------------------------------------------------------------------------


def test_by_value_cuts_where_it_is_told():
    """And keeps the threshold for newcomers."""
    choice = by_value(chain(1, 2, 9), 2.0)
    assert choice.labels.tolist() == [0, 0, 0, 1]
    assert choice.cut == 2
    assert choice.curve.tolist() == [[2, 2, 0, 1]]


@pytest.mark.parametrize(("clusters", "level"), [(1, 9), (2, 5.5), (3, 1.5), (4, 0.5)])
def test_by_count_cuts_in_the_middle_of_a_gap(clusters, level):
    """Heights 1, 2, 9: newcomers are measured by the middle; by the top for one cluster, half the lowest for four."""
    choice = by_count(chain(1, 2, 9), clusters)
    assert int(choice.labels.max()) + 1 == clusters
    assert choice.cut == level


def test_more_clusters_than_clients_is_one_sentence():
    """Named: the rule and both numbers."""
    with pytest.raises(UmbelError, match=r"at least as many clients as clusters\. Got 5 clusters of 4 clients\."):
        by_count(chain(1, 2, 9), 5)
    with pytest.raises(UmbelError, match="Got 2 clusters of 1 clients"):
        by_count(chain(), 2)


def test_by_gap_cuts_through_the_largest_gap():
    """1, 1.2, 1.4, 8, 9: the gap of 6.6 lies above the third merge, its middle at 4.7; three clusters."""
    choice = by_gap(chain(1, 1.2, 1.4, 8, 9))
    assert choice.labels.tolist() == [0, 0, 0, 0, 1, 2]
    assert choice.cut == pytest.approx(4.7)
    assert choice.curve[:, 1].tolist() == [5, 4, 3, 2, 1]
    assert choice.curve[:, 2].tolist() == pytest.approx([0.2, 0.2, 6.6, 1, 0])
    assert choice.curve[:, 3].tolist() == [0, 0, 1, 0, 0]


@pytest.mark.parametrize("found", [(1, 1.1, 1.2, 1.3, 1.4), (5, 5, 5, 5), (1, 1.4, 1.9, 2.4), (0, 0, 0), (0.1,), (0,)])
def test_by_gap_answers_one_cluster_where_no_gap_is_clear(found):
    """Evenly growing, equal or zero heights, two clients, two identical clients."""
    choice = by_gap(chain(*found))
    assert choice.labels.tolist() == [0] * (len(found) + 1)
    assert choice.cut == CLEAR * found[-1]
    assert choice.curve[-1].tolist() == [found[-1], 1, 0, 1]


def test_by_gap_of_one_client():
    """There is nothing to cut."""
    assert by_gap(chain()).labels.tolist() == [0]


def test_a_gap_is_clear_from_one_and_a_half_times_on():
    """Heights 2 and 3: 1.5 times. Heights 2 and 2.99: less."""
    assert by_gap(chain(2, 3)).labels.tolist() == [0, 0, 1]
    assert by_gap(chain(2, 2.99)).labels.tolist() == [0, 0, 0]


def test_groups_of_identical_clients_are_parted():
    """Heights 0, 0, 7: any gap above zero is clear."""
    choice = by_gap(chain(0, 0, 7))
    assert choice.labels.tolist() == [0, 0, 0, 1]
    assert choice.cut == 3.5


@pytest.mark.parametrize("method", [name for name in LINKAGES if name != "ward"])
@pytest.mark.parametrize("n", [8, 20, 60])
def test_alike_clients_are_one_cluster(method, n):
    """In 50 dimensions merging heights grow evenly."""
    for seed in range(5):
        assert int(by_gap(linkage(alike(n, seed), method)).labels.max()) == 0


# Silhouettes ------------------------------------------------------------------------------------------------------


def line(*points):
    """Distances of points on a line."""
    at = tensor(points, dtype=torch.float64)[:, None]
    return torch.cdist(at, at)


def test_by_silhouette_is_the_literal_mean():
    """s_i = (b - a) / max(a, b): a to the own cluster's others, b to the next cluster; the best mean is chosen."""
    points = (0.0, 1.0, 10.0, 12.0, 30.0, 31.0)
    distance = line(*points)
    choice = by_silhouette(linkage(distance), distance)
    assert choice.labels.tolist() == [0, 0, 1, 1, 2, 2]
    for clusters, score in choice.curve[1:, 1:3].tolist():
        labels = into(linkage(distance), int(clusters)).tolist()
        literal = []
        for i in range(6):
            apart = {k: [float(distance[i, j]) for j in range(6) if labels[j] == k and j != i] for k in set(labels)}
            a = sum(apart[labels[i]]) / len(apart[labels[i]])
            b = min(sum(away) / len(away) for k, away in apart.items() if k != labels[i])
            literal.append((b - a) / max(a, b))
        assert score == pytest.approx(sum(literal) / 6)
    assert choice.curve[:, 3].tolist() == [0, 0, 1]
    assert choice.cut == pytest.approx((2 + 10.5) / 2)


def test_by_silhouette_sees_groups_of_unequal_spread():
    """Two tight groups and a loose one nearly as wide as these are apart: no gap of the heights shows three."""
    distance = line(0, 0.1, 0.2, 5, 5.1, 5.2, 20, 23, 26)
    links = linkage(distance)
    assert by_gap(links).labels.tolist() == [0] * 6 + [1] * 3
    assert by_silhouette(links, distance).labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3


@pytest.mark.parametrize(
    "distance", [torch.zeros(1, 1), line(0, 5), line(0, 1, 9), torch.zeros(6, 6), 1 - torch.eye(6)])
def test_by_silhouette_answers_one_cluster_where_nothing_tells_clients_apart(distance):
    """One, two or three clients, identical ones, equal distances; no warning."""
    choice = by_silhouette(linkage(distance), distance)
    assert choice.labels.tolist() == [0] * len(distance)
    assert choice.cut == CLEAR * float(heights(linkage(distance))[-1:].sum())
    assert choice.curve[0, 3] == 1


@pytest.mark.parametrize("method", LINKAGES)
@pytest.mark.parametrize("n", [8, 20, 60])
def test_by_silhouette_leaves_alike_clients_together(method, n):
    """In 50 dimensions, whatever the linkage."""
    for seed in range(5):
        distance = alike(n, seed)
        assert int(by_silhouette(linkage(distance, method), distance).labels.max()) == 0


# The sweep --------------------------------------------------------------------------------------------------------

GRID = torch.arange(0, 21, dtype=torch.float64) / 20


def test_a_sweep_scores_each_distinct_partition_once():
    """21 thresholds reach four partitions; all are scored in one call, fewest clusters first."""
    calls = []

    def score(labels):
        calls.append([int(each.max()) + 1 for each in labels])
        return [0.1, 0.9, 0.8, 0.7]

    choice = by_trial(chain(0.22, 0.5, 0.9), GRID, score, lambda links, curve: int(curve[:, 2].argmax()))
    assert calls == [[1, 2, 3, 4]]
    assert choice.labels.tolist() == [0, 0, 0, 1]
    assert choice.cut == pytest.approx(0.7)  # newcomers: the middle of the gap between 0.5 and 0.9
    assert choice.curve[:, 0].tolist() == pytest.approx([1, 0.85, 0.45, 0.2])
    assert choice.curve[:, 1:].tolist() == [[1, 0.1, 0], [2, 0.9, 1], [3, 0.8, 0], [4, 0.7, 0]]


def test_a_sweep_that_ends_in_one_cluster_measures_newcomers_as_the_gap_does():
    """Like nobody is farther than a clear gap above the highest merge."""
    choice = by_trial(chain(0.22, 0.5, 0.8), GRID, lambda labels: [0.5] * 4, lambda links, curve: 0)
    assert choice.cut == pytest.approx(CLEAR * 0.8)


def test_a_sweep_always_tries_one_cluster():
    """Ward's heights, and rounding, reach beyond the grid's 1."""
    for top in (1.0, 1 + 1e-15, 3.0):
        assert [int(labels.max()) + 1 for _, labels in partitions(chain(0.2, top), GRID)] == [1, 2, 3]
    assert [labels.tolist() for _, labels in partitions(chain(), GRID)] == [[0]]


def test_the_knee_of_the_printed_curve_is_ten():
    """Ten groups, ten clusters: the farthest above the chord."""
    printed = curve(PRINTED)
    assert int(printed[knee(chain(), printed), 1]) == 10


def test_the_knee_is_a_literal_distance_above_the_chord():
    """Both axes are scaled to 1; the chord goes from the first to the last point."""
    scores = {1: 0.2, 2: 0.7, 4: 0.8, 11: 0.6}
    above = [(s - 0.2) / 0.6 - (k - 1) / 10 * (0.6 - 0.2) / 0.6 for k, s in scores.items()]
    assert knee(chain(), curve(scores)) == above.index(max(above)) == 2


@pytest.mark.parametrize("scores", [{1: 0.5}, {1: 0.5, 4: 0.5}, {1: 0.5, 2: 0.5, 9: 0.5}, {1: 0.9, 2: 0.7, 9: 0.1}])
def test_the_knee_of_a_flat_or_falling_curve_is_one_cluster(scores):
    """More clusters gain nothing."""
    assert knee(chain(), curve(scores)) == 0


def test_the_fewest_clusters_within_two_points_of_the_best():
    """Best is 0.970 at 40: the fewest within 0.02 is 9 (0.959)."""
    printed = curve(PRINTED)
    assert int(printed[within(chain(), printed), 1]) == 9


RULES = {"both": both, "knee": knee, "within": within}


@pytest.mark.parametrize("rule", BY_TRIAL)
@pytest.mark.parametrize("scores", [{1: 0.8}, {1: 0.8, 2: 0.8 + 0.9 * GAIN, 3: 0.6, 5: 0.2}, {1: 0.8, 2: 0.5},
                                    {1: 0.0, 3: 0.0, 5: 0.0}])
def test_every_rule_answers_one_cluster_where_clusters_gain_nothing(rule, scores):
    """However clear the gaps of the dendrogram are."""
    assert RULES[rule](chain(0.1, 0.1, 0.9, 1), curve(scores)) == 0


@pytest.mark.parametrize("rule", BY_TRIAL)
def test_every_rule_takes_clusters_that_pay(rule):
    """Two clusters gain 40 points, more gain nothing, and the dendrogram has its gap there."""
    assert RULES[rule](chain(0.1, 0.11, 0.12, 0.9), curve({1: 0.5, 2: 0.9, 3: 0.9, 4: 0.9, 5: 0.9})) == 1


def test_both_lets_the_dendrogram_speak_where_validation_is_noisy():
    """Scores of 4, 3 and 2 clusters differ by noise; the gap says 3."""
    links = chain(0.10, 0.11, 0.12, 0.60, 0.65)
    noisy = curve({1: 0.40, 2: 0.80, 3: 0.79, 4: 0.81, 5: 0.80, 6: 0.80})
    assert int(noisy[both(links, noisy), 1]) == 3


def test_a_sweep_with_a_rule_keeps_the_whole_curve():
    """The evidence shows every partition, its score, and which was chosen."""
    links = chain(0.11, 0.12, 0.9)
    choice = by_trial(links, GRID, lambda labels: [0.4, 0.9, 0.9], both)
    assert choice.curve[:, 1].tolist() == [1, 2, 4]
    assert choice.curve[:, 3].tolist() == [0, 1, 0]
    assert choice.labels.tolist() == [0, 0, 0, 1]


# The registry -----------------------------------------------------------------------------------------------------

GROUPS = symmetric(torch.tensor([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 1], [9, 9, 1, 0]]).double())
ALIKE = torch.ones(4, 4).double().fill_diagonal_(0)


@pytest.mark.parametrize("name", [name for name in CUTS if name != "tested"])  # which has no level (test_tested.py)
def test_every_rule_of_the_registry_answers_in_one_way(name):
    """Two groups of two clients: labels, a level between the groups' heights, one chosen row, a sentence."""
    asked = Dendrogram(linkage(GROUPS), GROUPS, clusters=2, threshold=4.0, grid=torch.arange(0, 10.0),
                       trial=lambda partitions: [0.9 if int(labels.max()) == 1 else 0.5 for labels in partitions])
    choice = CUTS[name].choose(asked)
    assert choice.labels.tolist() == [0, 0, 1, 1]
    assert 1 <= choice.cut <= 9
    assert choice.curve[:, 3].sum() == 1
    assert re.search("2 clusters|as asked for", CUTS[name].why(choice.curve))


@pytest.mark.parametrize(("name", "sentence"), [
    ("gap", "no gap between merging distances is 1.5 times as high above as below"),
    ("silhouette", "the best mean silhouette of several clusters is 0.00, and groups count from 0.3 on"),
    ("both", "no partition wins more than 2 points over one cluster on validation rows (50.0 against 50.0 of 100;"
             " 2 partitions were tried)"),
])
def test_one_cluster_is_explained(name, sentence):
    """Where nothing tells clients apart, the reason is what was missing."""
    asked = Dendrogram(linkage(ALIKE), ALIKE, grid=torch.tensor([0.0, 0.5, 1.0]),
                       trial=lambda partitions: [0.5] * len(partitions))
    choice = CUTS[name].choose(asked)
    assert choice.labels.tolist() == [0, 0, 0, 0]
    assert CUTS[name].why(choice.curve) == sentence
