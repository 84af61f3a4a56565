"""How the answers of a cluster's members become one model: their mean, or what a few false ones cannot move far.

Median and trimmed mean: Yin et al. Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates. ICML 2018.
https://arxiv.org/abs/1803.01498
Krum: Blanchard et al. Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent. NeurIPS 2017.
https://arxiv.org/abs/1703.02757

The robust ones count every answer alike: who could give itself a weight would be the majority. Of one or two answers
they take the plain mean, since nobody can say which of two is false.
"""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from umbel import tree
from umbel.tree import Params, Stack

Aggregate: TypeAlias = Callable[[Stack, Tensor, Tensor, Stack, float], Stack]
"""Answers, their labels and sizes, the old models, the share that may be false -> a model for each label."""


def mean(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack, faulty: float = 0.0) -> Stack:
    """By size; a label that nobody holds keeps its old model, as in all of them."""
    return tree.mean_by(models, labels, size, otherwise)


def median(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack, faulty: float = 0.0) -> Stack:
    """Of each number by itself the one in the middle, or the mean of the two there."""
    return _each(models, labels, size, otherwise, lambda inside: _middle(inside, (tree.count(inside) - 1) // 2))


def trimmed(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack, faulty: float) -> Stack:
    """Of each number by itself the mean without the largest ones and as many of the smallest."""
    return _each(models, labels, size, otherwise,
                 lambda inside: _middle(inside, false_ones(tree.count(inside), faulty)))


def krum(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack, faulty: float) -> Stack:
    """The one answer that lies nearest to its m - f - 2 nearest others, f being how many may be false."""
    return _each(models, labels, size, otherwise, lambda inside: _nearest(inside, faulty))


AGGREGATES: dict[str, Aggregate] = {"mean": mean, "median": median, "trimmed": trimmed, "krum": krum}


def false_ones(m: int, faulty: float) -> int:
    """How many of m answers may be false: the share of them, one at least of three, and always less than half."""
    return max(min(int(faulty * m + 1e-9), (m - 1) // 2), 1 if m >= 3 and faulty > 0 else 0)


def _each(models: Stack, labels: Tensor, size: Tensor, otherwise: Stack, one: Callable[[Stack], Params]) -> Stack:
    """What `one` makes of each label's answers; of those without rows it hears nothing."""
    made = tree.each(torch.clone, otherwise)
    counts = size.cpu() > 0
    for label in sorted(set(labels[counts].tolist())):
        inside = (counts & (labels == label)).nonzero().flatten().to(tree.device_of(models))
        for name, leaf in one(tree.take(models, inside)).items():
            made[name][label] = leaf
    return made


def _middle(models: Stack, left_out: int) -> Params:
    """The mean of each number without so many at either end."""
    m = tree.count(models)
    return tree.each(lambda leaf: leaf.sort(dim=0).values[left_out : m - left_out].mean(0), models)


def _nearest(models: Stack, faulty: float) -> Params:
    m = tree.count(models)
    if m < 3:
        return _middle(models, 0)
    flat = tree.flat(models)
    apart = torch.stack([(flat - own).square().sum(1) for own in flat])  # (m, m); one row at a time: m d numbers
    near = max(1, m - false_ones(m, faulty) - 2)
    scores = apart.fill_diagonal_(torch.inf).sort(dim=1).values[:, :near].sum(1)
    return tree.take(models, int(scores.argmin()))
