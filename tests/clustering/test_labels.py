"""Numbers of clusters."""

import torch
from torch import tensor

from umbel.clustering.labels import canonical, overlapping


def test_labels_are_numbered_by_the_first_client():
    """In the order of positions, or in one that is given."""
    labels = tensor([7, 3, 7, 5])
    assert canonical(labels).tolist() == [0, 1, 0, 2]
    assert canonical(labels, tensor([3, 1, 0, 2])).tolist() == [2, 1, 2, 0]
    assert canonical(tensor([], dtype=torch.long)).tolist() == []


def test_new_clusters_go_on_under_old_labels():
    """The larger cluster chooses first; one whose members' labels are all taken, or that has none, is new."""
    old = tensor([1, 1, 1, 0, 0, -1, 1])
    assert overlapping(tensor([0, 0, 0, 1, 1, 1, 0]), old).tolist() == [1, 1, 1, 0, 0, 0, 1]
    assert overlapping(tensor([0, 0, 0, 1, 1, 2, 3]), old).tolist() == [1, 1, 1, 0, 0, 2, 3]
