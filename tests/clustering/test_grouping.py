"""Ways of grouping, and the rule for newcomers: in bulk as one after the other."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import tensor

from umbel import tree
from umbel.clustering import grouping
from umbel.clustering.cuts import CUTS
from umbel.clustering.grouping import FAR, Grouping, Known, centred, joined, landmarks, mean_distances, place, settle
from umbel.clustering.proximity import euclidean


def one_after_another(distance, labels, clusters, cut, again, stands, founders_only):
    """The rule as it reads: client by client, all distances and means anew. Distances are of signatures: n, then m."""
    n = len(labels)
    described = {i: i for i in range(n)}  # client -> its signature
    label, stand, found = dict(enumerate(labels)), dict(enumerate(stands)), []
    for p, place_before in enumerate(again):
        client = place_before if place_before >= 0 else n + p
        label[client] = -1
        means = []
        for k in range(clusters):
            members = [c for c in described if c != client and label[c] == k]
            speakers = [c for c in members if stand[c]] or members
            apart = [float(distance[n + p, described[c]]) for c in speakers]
            means.append(sum(apart) / len(apart) if apart else float("inf"))
        best = min(range(clusters), key=lambda k: means[k])
        founds = means[best] == float("inf") or means[best] > cut
        label[client] = clusters if founds else best
        clusters += founds
        if client in described or founds or not founders_only:
            described[client] = n + p
            stand[client] = stand.get(client, False) or (founds and founders_only)
        found.append(label[client])
    order = [i for i in described if i < n] + [i for i in described if i >= n]
    return found, [described[i] for i in order], [label[i] for i in order], [stand[i] for i in order]


@some.composite
def arrivals(draw):
    """Some known clients, some newcomers, distances in sixteenths, so that sums are exact and ties are frequent."""
    n, m, clusters = draw(some.integers(1, 7)), draw(some.integers(0, 9)), draw(some.integers(1, 4))
    numbers = some.integers(0, draw(some.sampled_from([1, 6, 64])))
    distance = tensor([[draw(numbers) / 16 for _ in range(n + m)] for _ in range(n + m)], dtype=torch.float64)
    labels = [draw(some.integers(-1, clusters - 1)) for _ in range(n)]
    old = draw(some.permutations(range(n)))
    again = [old.pop() if old and draw(some.booleans()) else -1 for _ in range(m)]
    stands = [draw(some.booleans()) for _ in range(n)] if draw(some.booleans()) else [draw(some.booleans())] * n
    return distance.view(n + m, n + m), labels, clusters, draw(numbers) / 16, again, stands, draw(some.booleans())


@settings(max_examples=400, deadline=None)
@given(arrivals())
def test_newcomers_in_bulk_are_placed_as_one_after_the_other(case):
    """Founders, ties, empty clusters, clients that come again, exemplars: the literal loop's labels."""
    distance, labels, clusters, cut, again, stands, founders_only = case
    n = len(labels)
    placed = place(distance[n:, :n], distance[n:, n:], tensor(labels), clusters, cut,
                   tensor(again, dtype=torch.long), tensor(stands), founders_only)
    literal = one_after_another(*case)[0]
    assert placed.labels.tolist() == literal
    assert placed.labels[placed.founders].tolist() == list(range(clusters, clusters + int(placed.founders.sum())))


@settings(max_examples=200, deadline=None)
@given(arrivals(), some.integers(1, 4))
def test_blocks_and_one_by_one_end_alike(case, block):
    """However many are placed at once: the same clusters, the same clients remembered, in the same order."""
    distance, labels, clusters, cut, again, stands, founders_only = case
    n = len(labels)
    known = Known({"id": torch.arange(n)}, tensor(labels), tensor(stands))
    before, grouping.BLOCK = grouping.BLOCK, block
    try:
        settled = settle(known, {"id": torch.arange(n, len(distance))}, lambda a, b: distance[a["id"]][:, b["id"]],
                         clusters, cut, tensor(again, dtype=torch.long), founders_only)
    finally:
        grouping.BLOCK = before
    found, described, label, stand = one_after_another(*case)
    assert settled.labels.tolist() == found
    assert settled.founded == max(0, max(found, default=0) + 1 - clusters)
    assert settled.known.rows["id"].tolist() == described
    assert (settled.known.labels.tolist(), settled.known.stands.tolist()) == (label, stand)


def test_the_nearest_cluster_is_so_on_average():
    """Mean distances 5 and 4, although the nearest member of all is in the first; an empty cluster is far from all."""
    across, labels = tensor([[1.0, 9.0, 4.0, 4.0, 0.0]]).double(), tensor([0, 0, 1, 1, -1])
    nobody, second = torch.zeros(5, dtype=torch.bool), tensor([False, True, False, False, False])
    assert mean_distances(across, labels, nobody, 3).tolist() == [[5.0, 4.0, torch.inf]]
    assert mean_distances(across, labels, second, 3).tolist() == [[9.0, 4.0, torch.inf]]  # it stands for its cluster
    alone = torch.zeros(1, 1).double()
    assert place(across, alone, labels, 3, cut=4.0).labels.tolist() == [1]
    assert place(across, alone, labels, 3, cut=3.9).labels.tolist() == [3]
    assert place(across, alone, torch.full((5,), -1), 2, cut=torch.inf).founders.tolist() == [True]


def test_an_earlier_newcomer_is_a_member_for_the_next():
    """On a line: 0 is known, 4 joins it with a cut of 5; 6 is 6 from 0 but 4 from both on average, and joins, too."""
    line = tensor([0.0, 4.0, 6.0, 20.0, 21.0]).double()
    apart = (line[:, None] - line).abs()
    placed = place(apart[1:, :1], apart[1:, 1:], tensor([0]), 1, cut=5.0)
    assert placed.labels.tolist() == [0, 0, 1, 1]
    assert place(apart[1:, :1], apart[1:, 1:], tensor([0]), 1, 5.0, founders_only=True,
                 stands=tensor([True])).labels.tolist() == [0, 1, 2, 2]  # those who join count for nobody


@pytest.mark.parametrize(("again", "who", "x"), [([1], [4, 2, 7], [1, 9, 3]), ([-1], [4, 2, 7, 5], [1, 2, 3, 9])])
def test_who_is_described_again_has_its_new_signature(again, who, x):
    """In the place of the old one; a newcomer's stands last."""
    rows = {"who": tensor([4, 2, 7]), "signature": {"x": tensor([[1.0], [2.0], [3.0]])}}
    known = Known(rows, torch.zeros(3, dtype=torch.long), torch.zeros(3, dtype=torch.bool))
    new = {"who": tensor([2 if again[0] >= 0 else 5]), "signature": {"x": tensor([[9.0]])}}
    after = settle(known, new, lambda a, b: euclidean(a["signature"]["x"], b["signature"]["x"]), 1, 99.0,
                   tensor(again)).known.rows
    assert (after["who"].tolist(), after["signature"]["x"].flatten().tolist()) == (who, x)


def test_the_shorter_signature_is_padded():
    """Clients with one and with two vectors side by side, whichever come first."""
    one, two = {"u": torch.ones(1, 1, 3)}, {"u": torch.ones(2, 2, 3)}
    assert joined(one, two)["u"].sum(2).tolist() == [[3, 0], [3, 3], [3, 3]]
    assert joined(two, one)["u"].sum(2).tolist() == [[3, 3], [3, 3], [3, 0]]


def test_a_dendrogram_answers_labels_and_what_a_report_draws():
    """Two pairs on a line, cut by value."""
    points = tensor([[0.0], [1.0], [9.0], [10.0]])
    made = grouping.dendrogram(euclidean(points, points), "average", CUTS["value"], threshold=2.0)
    assert made.labels.tolist() == [0, 0, 1, 1]
    assert made.evidence["proximity"][0].tolist() == [0, 1, 9, 10]
    assert made.evidence["linkage"][:, 2].tolist() == [1, 1, 9]
    assert float(made.evidence["cut"]) == 2


def test_centres_and_how_far_from_them_a_newcomer_may_be():
    """0 and 2 around 1, a member is 1 from it, from the other alone 2; the cut is 1.5 times the largest of these."""
    made = centred(tensor([[0.0], [2.0], [10.0]]), tensor([0, 0, 1]), euclidean)
    assert made.evidence["centres"].tolist() == [[1], [10]]
    assert float(made.evidence["cut"]) == FAR * 2
    order = tensor([2, 0, 1])  # who comes first by name has cluster 0
    assert grouping.kmeans(tensor([[0.0], [2.0], [10.0]]), 2, 0, order).labels.tolist() == [1, 1, 0]


def halves(rows):
    """Below and above 5; a newcomer may be 3 away."""
    return Grouping((rows["x"][:, 0] > 5).long(), {"cut": tensor(3.0)})


def test_landmarks_are_grouped_and_the_rest_join_or_found():
    """Known: 0 and 10. 1 and 9 join; 20 and 21 are like nobody and found one cluster; only its founder is kept."""
    rows = {"x": tensor([[20.0], [0.0], [1.0], [10.0], [9.0], [21.0]]).double()}
    asked = []

    def apart(a, b, evidence):
        asked.append((tree.count(a), tree.count(b)))
        return euclidean(a["x"], b["x"])

    made = landmarks(rows, tensor([1, 3]), tensor([2, 0, 5, 4]), halves, apart, lambda e: torch.ones(2).bool())
    assert made.labels.tolist() == [2, 0, 0, 1, 1, 2]
    assert made.evidence["x"].flatten().tolist() == [0, 10, 20]
    assert int(made.evidence["landmarks"]) == 2
    assert asked == [(4, 2), (4, 2)]  # the others with the landmarks, and with the two that may found; never all


def test_with_everybody_a_landmark_nothing_is_placed():
    """The grouping itself, with everybody's rows."""
    rows = {"x": tensor([[0.0], [10.0]])}
    made = landmarks(rows, torch.arange(2), torch.arange(0), halves, lambda *_: pytest.fail("asked"),
                     lambda e: pytest.fail("asked"))
    assert made.labels.tolist() == [0, 1]
    assert set(made.evidence) == {"cut", "x"}
