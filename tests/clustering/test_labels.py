"""Numbers of clusters."""

import torch
from torch import tensor

from umbel.clustering.labels import canonical


def test_labels_are_numbered_by_the_first_client():
    """In the order of positions, or in one that is given."""
    labels = tensor([7, 3, 7, 5])
    assert canonical(labels).tolist() == [0, 1, 0, 2]
    assert canonical(labels, tensor([3, 1, 0, 2])).tolist() == [2, 1, 2, 0]
    assert canonical(tensor([], dtype=torch.long)).tolist() == []
