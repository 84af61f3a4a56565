"""Labels without a tree: what scikit-learn leaves open."""

import numpy as np
import pytest
import torch
from torch import tensor

from umbel.clustering import flat
from umbel.clustering.flat import affinity_propagation, kmeans, means, spectral
from umbel.runs.evaluate import agreement


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
    monkeypatch.setattr(flat, "MANY_CLIENTS", 0)
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


# k-means, spectral ----------------------------------------------------------------------------------------


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


def test_affinity_propagation_leaves_the_distances_as_they_were():
    """The matrix is evidence: it is read, not used up."""
    points, _ = blobs(2, 3)
    distance = torch.cdist(points, points)
    before = distance.clone()
    affinity_propagation(distance)
    assert torch.equal(distance, before)
