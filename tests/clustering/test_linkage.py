"""Dendrograms: what scipy leaves open."""

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import silhouette_score
from torch import tensor

from umbel.clustering.linkage import LINKAGES, bipartition, cut, heights, into, linkage, silhouettes
from umbel.clustering.proximity import symmetric
from umbel.runs.evaluate import agreement

# 0 and 1 merge at 1, then 2 at (3 + 5) / 2 = 4; client 3 is 8, 10 and 12 away from them.
FOUR = tensor([[0.0, 1, 3, 8], [1, 0, 5, 10], [3, 5, 0, 12], [8, 10, 12, 0]])


def line(*points):
    """Distances of points on a line."""
    at = tensor(points, dtype=torch.float64)[:, None]
    return torch.cdist(at, at)


def test_average_is_upgma_and_weighted_is_wpgma():
    """By hand: client 3 joins at (8 + 10 + 12) / 3 = 10, or at ((8 + 10) / 2 + 12) / 2 = 10.5."""
    assert heights(linkage(FOUR, "average")).tolist() == [1, 4, 10]
    assert heights(linkage(FOUR, "weighted")).tolist() == [1, 4, 10.5]
    assert cut(linkage(FOUR, "average"), 10.2).tolist() == [0, 0, 0, 0]
    assert cut(linkage(FOUR, "weighted"), 10.2).tolist() == [0, 0, 0, 1]


def test_upgma_is_the_default():
    """What methods call average linkage."""
    assert torch.equal(linkage(FOUR), linkage(FOUR, "average"))


def test_wpgma_is_the_loop_of_pacfls_code():
    """Merge the nearest pair, replace both by the plain mean of their rows, while the distance is <= the threshold."""
    rng = np.random.default_rng(4)
    distance = symmetric(torch.from_numpy(rng.random((9, 9))) * 20)
    for threshold in (3.0, 6.0, 9.0, 12.0):
        table = distance.clone().fill_diagonal_(torch.inf).numpy()
        members = [[i] for i in range(9)]
        while len(members) > 1 and table.min() <= threshold:
            i, j = sorted(np.unravel_index(table.argmin(), table.shape))
            table[i] = table[:, i] = (table[i] + table[j]) / 2
            table[i, i] = np.inf
            table = np.delete(np.delete(table, j, 0), j, 1)
            members[i] += members.pop(j)
        literal = [next(k for k, inside in enumerate(members) if i in inside) for i in range(9)]
        found = cut(linkage(distance, "weighted"), threshold)
        assert agreement(found.tolist(), literal)["ari"] == 1, threshold


def test_a_merge_exactly_at_the_threshold_happens():
    """Merging goes on while the distance is <= the threshold; scikit-learn's distance_threshold stops there."""
    links = linkage(FOUR)
    assert cut(links, 4.0).tolist() == [0, 0, 0, 1]
    assert cut(links, 4 - 1e-9).tolist() == [0, 0, 1, 2]
    theirs = AgglomerativeClustering(None, metric="precomputed", linkage="average", distance_threshold=4.0)
    assert len(set(theirs.fit_predict(FOUR.numpy()))) == 3


def test_a_threshold_of_zero_merges_equal_clients_only():
    """And a threshold above all heights merges everybody."""
    links = linkage(line(0, 0, 5, 9))
    assert cut(links, 0.0).tolist() == [0, 0, 1, 2]
    assert cut(links, 1e9).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("method", LINKAGES)
def test_few_clients(method):
    """None or one is one cluster; two merge at their distance."""
    assert linkage(torch.zeros(0, 0), method).shape == linkage(torch.zeros(1, 1), method).shape == (0, 4)
    assert cut(linkage(torch.zeros(1, 1), method), 0.0).tolist() == [0]
    assert into(linkage(torch.zeros(1, 1), method), 1).tolist() == [0]
    links = linkage(line(0, 3), method)
    assert heights(links).tolist() == [3]
    assert cut(links, 3.0).tolist() == [0, 0]
    assert cut(links, 2.9).tolist() == [0, 1]
    assert heights(linkage(torch.zeros(1, 1), method)).tolist() == []


@pytest.mark.parametrize("method", LINKAGES)
@pytest.mark.parametrize("clusters", range(1, 7))
def test_into_gives_exactly_as_many(method, clusters):
    """Also among equal distances, where a threshold could not."""
    for distance in (1 - torch.eye(6), torch.zeros(6, 6), line(0, 1, 2, 3, 4, 5)):
        assert int(into(linkage(distance, method), clusters).max()) + 1 == clusters


def test_into_of_more_than_there_are():
    """Each client is a cluster then."""
    assert into(linkage(FOUR), 9).tolist() == [0, 1, 2, 3]


def test_into_cuts_the_same_dendrogram():
    """Two clusters of FOUR: the last merge is undone."""
    assert into(linkage(FOUR), 2).tolist() == [0, 0, 0, 1]
    assert into(linkage(FOUR), 3).tolist() == [0, 0, 1, 2]


def test_equal_distances_are_one_cluster_or_none():
    """All merges are at the same height."""
    links = linkage(1 - torch.eye(5, dtype=torch.float64))
    assert cut(links, 1.0).tolist() == [0] * 5
    assert cut(links, 0.99).tolist() == [0, 1, 2, 3, 4]


def test_a_dendrogram_that_is_not_a_number_is_no_silent_cluster():
    """NaN never comes this far (the door drops it); if it did, it is an error and not a label."""
    broken = FOUR.clone()
    broken[0, 1] = broken[1, 0] = torch.nan
    with pytest.raises(ValueError, match="finite"):
        linkage(broken)


@pytest.mark.parametrize("method", LINKAGES)
@pytest.mark.parametrize("n", [4, 9, 40])
def test_silhouettes_of_all_cuts_are_scikit_learns(method, n):
    """One climb of the dendrogram scores every cut as one call for each would; singletons and equal clients too."""
    for seed in range(3):
        points = torch.from_numpy(np.random.default_rng(seed).normal(size=(n, 3)).round(1 if seed else 9))
        points[1] = points[0]
        distance = symmetric(torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist"))
        links = linkage(distance, method)
        found = silhouettes(links, distance, n - 1)
        theirs = [silhouette_score(distance.numpy(), into(links, k).numpy(), metric="precomputed") for k in range(2, n)]
        assert found == pytest.approx([0.0, *theirs], abs=1e-9)


def test_a_dendrogram_leaves_the_distances_as_they_were():
    """The matrix is evidence: it is read, not used up."""
    before = FOUR.double()
    linkage(before)
    silhouettes(linkage(before), before, 2)
    assert torch.equal(before, FOUR.double())


def test_bipartition_is_complete_linkage():
    """Steps of 1, 1.1, 1.2, 1.3: single linkage takes the last client off, complete linkage halves the line."""
    assert into(linkage(line(0, 1, 2.1, 3.3, 4.6), "single"), 2).tolist() == [0, 0, 0, 0, 1]
    assert bipartition(line(0, 1, 2.1, 3.3, 4.6)).tolist() == [0, 0, 1, 1, 1]
    assert bipartition(line(0, 1)).tolist() == [0, 1]
    assert int(bipartition(torch.zeros(4, 4)).max()) == 1
