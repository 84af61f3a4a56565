"""What methods with cluster centres share: a newcomer joins the nearest centre, or is like nobody."""

from dataclasses import replace

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, State, train_to_describe
from umbel.clustering.grouping import Known, settle
from umbel.clustering.proximity import Pairwise, euclidean
from umbel.federation.door import Cohort, Federation
from umbel.federation.phases import SIGNATURE


def join_by_weights(fed: Federation, state: State, newcomers: Cohort, local: Local, round: int = 0) -> State:
    """Newcomers train from the model that the others' weights came from, and join the nearest centre.

    `round` is the one that these weights are of: its learning rate is taken.
    """
    heard = train_to_describe(fed, newcomers._replace(round=0, phase=SIGNATURE), local,
                              tree.to(state.evidence["anchor"], fed.device), round=round)
    return join_nearest(state, heard.ids, tree.flat(heard.answers["model"], fed.net.trained), euclidean)


def join_nearest(state: State, who: Tensor, points: Tensor, measure: Pairwise) -> State:
    """Each of `who` joins its nearest centre, or founds a cluster around itself, which the next one may join."""
    centres, labels = state.evidence["centres"], state.labels.clone()
    known = Known({"centres": centres}, torch.arange(len(centres)), torch.ones(len(centres), dtype=torch.bool))
    settled = settle(known, {"centres": points.to("cpu", centres.dtype)},
                     lambda a, b: measure(a["centres"], b["centres"]), len(centres), float(state.evidence["cut"]),
                     founders_only=True)
    labels[who] = settled.labels
    state = state.grow(state.evidence["anchor"], settled.founded)
    return replace(state, labels=labels, evidence=state.evidence | settled.known.rows)
