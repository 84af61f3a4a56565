"""Numbers of clusters: which cluster is number 0, and which old number a new cluster goes on under."""

import torch
from torch import Tensor


def canonical(labels: Tensor, order: Tensor | None = None) -> Tensor:
    """The same clusters numbered 0, 1, ... by their first client, in this order of clients."""
    visited = labels if order is None else labels[order]
    numbers: dict[int, int] = {}
    for label in visited.tolist():
        numbers.setdefault(label, len(numbers))
    return torch.tensor([numbers[label] for label in labels.tolist()], dtype=torch.long)


def overlapping(new: Tensor, old: Tensor) -> Tensor:
    """New clusters under old numbers: each takes the label that most of its old members had, the largest first.

    Members without an old label (-1) do not vote; a cluster for which no old label is left gets the next number.
    """
    taken: dict[int, int] = {}  # new cluster -> its label
    unused = int(old.max()) + 1
    largest_first = sorted(set(new.tolist()), key=lambda cluster: -int((new == cluster).sum()))
    for cluster in largest_first:
        before = old[(new == cluster) & (old >= 0)].tolist()
        wishes = sorted(set(before) - set(taken.values()), key=lambda label: (-before.count(label), label))
        taken[cluster] = wishes[0] if wishes else unused
        unused += not wishes
    return torch.tensor([taken[cluster] for cluster in new.tolist()], dtype=torch.long)
