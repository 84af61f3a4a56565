"""What methods with cluster centres share: the nearest centre, and when a newcomer is like nobody."""

from dataclasses import replace

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, State, name_order, train_to_describe
from umbel.clustering.flat import means
from umbel.clustering.labels import canonical
from umbel.clustering.proximity import Pairwise, euclidean
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import SIGNATURE
from umbel.tree import Tree

FAR = 1.5  # like nobody: this many times farther from every centre than the farthest member is from its own


def centred(fed: Federation, ids: Tensor, points: Tensor, groups: Tensor, anchor: Tree,
            measure: Pairwise) -> tuple[Tensor, Tree]:
    """Clusters of points numbered by their clients' names, and what newcomers are measured by.

    A member pulls its centre towards itself, a newcomer does not: from the centre of the others it is n / (n - 1)
    times farther.
    """
    labels = canonical(groups, name_order(fed, ids))
    centres = means(points, labels)
    own = measure(points, centres)[torch.arange(len(points)), labels].double().cpu()
    members = torch.bincount(labels)[labels]
    cut = FAR * (own * members / (members - 1).clamp(min=1)).max()
    return labels, {"centres": centres.cpu(), "cut": cut, "anchor": tree.to(anchor, "cpu")}


def join_by_weights(fed: Federation, state: State, newcomers: Cohort, local: Local) -> State:
    """Newcomers train from the model that the others' weights came from, and join the nearest centre."""
    heard = train_to_describe(fed, newcomers._replace(round=0, phase=SIGNATURE), local,
                              tree.to(state.evidence["anchor"], fed.device))
    return join_nearest(fed, state, heard.ids, tree.flat(heard.answers["model"], fed.net.trained), euclidean)


def join_nearest(fed: Federation, state: State, who: Tensor, points: Tensor, measure: Pairwise) -> State:
    """Each of `who` joins its nearest centre, or founds a cluster around itself, which the next one may join."""
    labels, evidence, known = state.labels.clone(), state.evidence, len(state.evidence["centres"])
    centres = evidence["centres"]
    for client, point in zip(who.tolist(), points.cpu()[:, None], strict=True):
        apart = measure(point, centres)[0]
        labels[client] = int(apart.argmin())
        if float(apart.min()) > float(evidence["cut"]):
            labels[client] = len(centres)
            centres = torch.cat([centres, point.to(centres.dtype)])
    if len(centres) > known:
        state = state.grow(evidence["anchor"], len(centres) - known)
        evidence = evidence | {"centres": centres}
    return replace(state, labels=labels, evidence=evidence)
