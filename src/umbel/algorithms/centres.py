"""What methods with cluster centres share: the nearest centre, and when a newcomer is like nobody."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import State
from umbel.federation import Federation
from umbel.tree import Tree

FAR = 1.5  # like nobody: this many times farther from every centre than the farthest member is from its own


def centre_evidence(points: Tensor, labels: Tensor, centres: Tensor, away: Tensor, anchor: Tree) -> Tree:
    """What newcomers are measured by; `away` (n, k) are the members' distances to all centres.

    A member pulls its centre towards itself, a newcomer does not: from the centre of the others it is n / (n - 1)
    times farther.
    """
    own = away[torch.arange(len(points)), labels].double().cpu()
    members = torch.bincount(labels)[labels]
    cut = FAR * (own * members / (members - 1).clamp(min=1)).max()
    return {"centres": centres.cpu(), "cut": cut, "anchor": tree.to(anchor, "cpu")}


def join_nearest(fed: Federation, state: State, who: Tensor, points: Tensor,
                 measure: Callable[[Tensor, Tensor], Tensor]) -> State:
    """Each of `who` joins its nearest centre, or founds a cluster around itself, which the next one may join."""
    labels, models, evidence = state.labels.clone(), state.models, state.evidence
    centres = evidence["centres"]
    for client, point in zip(who.tolist(), points.cpu()[:, None], strict=True):
        apart = measure(point, centres)[0]
        labels[client] = int(apart.argmin())
        if float(apart.min()) > float(evidence["cut"]):
            labels[client] = len(centres)
            centres = torch.cat([centres, point.to(centres.dtype)])
            models = tree.cat([models, tree.to(tree.stack([evidence["anchor"]]), fed.device)])
    if len(centres) > len(evidence["centres"]):
        evidence = evidence | {"centres": centres}
    return replace(state, labels=labels, models=models, evidence=evidence)
