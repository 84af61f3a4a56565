"""Distances in, labels out: what scipy and scikit-learn leave open."""

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering
from sklearn.metrics import silhouette_score
from torch import tensor

from umbel.clustering import linkage as clusterers
from umbel.clustering.linkage import (
    LINKAGES,
    affinity_propagation,
    bipartition,
    canonical,
    cut,
    heights,
    into,
    kmeans,
    linkage,
    means,
    silhouettes,
    spectral,
)
from umbel.clustering.proximity import symmetric
from umbel.runs.evaluate import agreement

# 0 and 1 merge at 1, then 2 at (3 + 5) / 2 = 4; client 3 is 8, 10 and 12 away from them.
FOUR = tensor([[0.0, 1, 3, 8], [1, 0, 5, 10], [3, 5, 0, 12], [8, 10, 12, 0]])


def line(*points):
    """Distances of points on a line."""
    at = tensor(points, dtype=torch.float64)[:, None]
    return torch.cdist(at, at)


def blobs(groups, members, seed=0, spread=0.05):
    """Points in the plane around far centres, and their groups."""
    rng = np.random.default_rng(seed)
    centres = 10 * np.stack([np.cos(np.arange(groups)), np.sin(np.arange(groups))], 1)
    points = np.repeat(centres, members, axis=0) + spread * rng.normal(size=(groups * members, 2))
    return torch.from_numpy(points), np.repeat(np.arange(groups), members).tolist()


# Hierarchies ------------------------------------------------------------------------------------------------------


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


def test_labels_are_numbered_by_the_first_client():
    """In the order of positions, or in one that is given."""
    labels = tensor([7, 3, 7, 5])
    assert canonical(labels).tolist() == [0, 1, 0, 2]
    assert canonical(labels, tensor([3, 1, 0, 2])).tolist() == [2, 1, 2, 0]
    assert canonical(tensor([], dtype=torch.long)).tolist() == []


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
    affinity_propagation(before)
    assert torch.equal(before, FOUR.double())


# Affinity propagation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_affinity_propagation_finds_groups_and_their_exemplars(seed):
    """Every exemplar belongs to the cluster that it stands for, and nobody has a nearer one."""
    points, truth = blobs(4, 6, seed)
    distance = torch.cdist(points, points)
    found = affinity_propagation(distance)
    assert found.converged
    assert found.labels[found.exemplars].tolist() == list(range(len(found.exemplars)))
    assert agreement(found.labels.tolist(), truth)["homogeneity"] == pytest.approx(1)
    assert torch.equal(distance[:, found.exemplars].argmin(1), found.labels)


def test_many_clients_are_grouped_in_float32_alike(monkeypatch):
    """Half the memory, the same groups."""
    points, _ = blobs(3, 6)
    distance = torch.cdist(points, points)
    exact = affinity_propagation(distance)
    monkeypatch.setattr(clusterers, "MANY", 0)
    assert torch.equal(affinity_propagation(distance).labels, exact.labels)


def test_exemplars_follow_a_shuffle():
    """Labels are numbered by the first client, and exemplars with them."""
    points, _ = blobs(3, 6)
    order = torch.randperm(18, generator=torch.Generator().manual_seed(1))
    found = affinity_propagation(torch.cdist(points[order], points[order]))
    assert found.labels[0] == 0
    assert found.labels[found.exemplars].tolist() == list(range(len(found.exemplars)))


def test_affinity_propagation_that_does_not_converge_is_one_cluster():
    """Without a warning; the exemplar is the client nearest to all."""
    found = affinity_propagation(line(0, 1, 2, 10, 11), max_iter=3)
    assert found.labels.tolist() == [0] * 5
    assert found.exemplars.tolist() == [2]
    assert not found.converged


@pytest.mark.parametrize("distance", [torch.zeros(5, 5), 1 - torch.eye(5), torch.zeros(1, 1), line(0, 3)])
def test_clients_that_nothing_tells_apart_are_one_cluster(distance):
    """Identical, equally far, alone, or two."""
    found = affinity_propagation(distance)
    assert found.labels.tolist() == [0] * len(distance)
    assert found.converged


# k-means, spectral, halves ----------------------------------------------------------------------------------------


def test_kmeans_finds_groups_and_their_centres():
    """Centres are the members' means, in the order of labels."""
    points, truth = blobs(3, 5)
    labels, centres = kmeans(points, 3)
    assert labels.tolist() == truth
    for k in range(3):
        assert centres[k].tolist() == pytest.approx(points[labels == k].mean(0).tolist())


@pytest.mark.parametrize(("values", "expected"), [
    ([2.0, 2.0, 2.0], [0, 0, 0]), ([2.0, 5.0, 2.0], [0, 1, 0]), ([4.0], [0]), ([1.0, 1 + 1e-15, 1.0], None)])
def test_more_clusters_than_distinct_points(values, expected):
    """Fewer clusters then, without a warning."""
    labels, centres = kmeans(tensor(values, dtype=torch.float64)[:, None], 3)
    assert int(labels.max()) + 1 == len(centres)
    assert expected is None or labels.tolist() == expected


def test_kmeans_is_a_function_of_its_seed():
    """The same points and seed, the same labels."""
    points = torch.from_numpy(np.random.default_rng(0).random((30, 4)))
    assert torch.equal(kmeans(points, 5, seed=3)[0], kmeans(points, 5, seed=3)[0])


def test_means_are_float64():
    """(1 + 3) / 2 and 10."""
    assert means(tensor([[1.0], [10.0], [3.0]]), tensor([0, 1, 0])).tolist() == [[2], [10]]


@pytest.mark.parametrize("spread", [0.05, 1e-9])
def test_spectral_finds_groups(spread):
    """Also those so tight that the similarity between them is nil, without a warning."""
    points, truth = blobs(3, 8, spread=spread)
    assert spectral(torch.cdist(points, points), 3).tolist() == truth


def test_spectral_of_one_large_and_one_far_group():
    """The median distance lies inside the large one: the other is out of its reach."""
    found = spectral(line(0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 100, 100.1), 2)
    assert found.tolist() == [0] * 7 + [1] * 2


def test_spectral_of_few_clients():
    """As many clusters as clients, or more: each its own."""
    assert spectral(line(0, 1), 3).tolist() == [0, 1]
    assert spectral(line(0, 1, 2), 3).tolist() == [0, 1, 2]


def test_bipartition_is_complete_linkage():
    """Steps of 1, 1.1, 1.2, 1.3: single linkage takes the last client off, complete linkage halves the line."""
    assert into(linkage(line(0, 1, 2.1, 3.3, 4.6), "single"), 2).tolist() == [0, 0, 0, 0, 1]
    assert bipartition(line(0, 1, 2.1, 3.3, 4.6)).tolist() == [0, 0, 1, 1, 1]
    assert bipartition(line(0, 1)).tolist() == [0, 1]
    assert int(bipartition(torch.zeros(4, 4)).max()) == 1
