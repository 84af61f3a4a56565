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


def overlapping(found: Tensor, old: Tensor) -> Tensor:
    """New clusters under old names: each takes the label that most of its old members had, the largest first.

    Members without an old label (-1) do not vote; a cluster that finds no free label gets the next number.
    """
    taken: dict[int, int] = {}
    free = int(old.max()) + 1
    sizes = sorted(set(found.tolist()), key=lambda cluster: -int((found == cluster).sum()))
    for cluster in sizes:
        before = old[(found == cluster) & (old >= 0)].tolist()
        wishes = sorted(set(before) - set(taken.values()), key=lambda label: (-before.count(label), label))
        taken[cluster] = wishes[0] if wishes else free
        free += not wishes
    return torch.tensor([taken[cluster] for cluster in found.tolist()], dtype=torch.long)
