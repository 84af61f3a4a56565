"""Trials of partitions: short federations, side by side, whose models are thrown away.

`validate` scores each of many partitions, and clustering/cuts.py reads the scores; `pays` compares one with a single
model, and clustering/paying.py says whether it is better.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local, keeps_norms
from umbel.clustering.paying import Paid, paid
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import SWEEP
from umbel.federation.scoring import contrast, score
from umbel.federation.training import train
from umbel.seeds import key
from umbel.tree import Held, Stack

JUDGED = Work(rows="validation")


class Trial(NamedTuple):
    """Short federations at their end."""

    ids: Tensor  # (m,) the clients who answered in all of them
    models: Stack  # of every cluster of every partition, one behind the other
    holds: Tensor  # (partitions, m) which of them each client holds


def trial(fed: Federation, who: Tensor, local: Local, validators: int, rounds: int, partitions: list[Tensor],
          epochs: int = 1) -> Trial:
    """Some of `who` train a few rounds of some epochs in each partition of `who`, on their `fit` rows.

    All partitions run side by side: the same clients, batches and first model, so what is found in them is paired. In
    the first round they differ in nothing but who is averaged with whom: every client trains once.
    """
    if keeps_norms(fed.net, local):
        raise UmbelError("A trial of clusters averages whole models, and with norms=private BatchNorm layers do not"
                         " travel: take a cut without a trial, or norms=shared.")
    chosen = sorted(range(len(who)), key=lambda p: key(fed.seed, "validators", fed.names[int(who[p])]))[:validators]
    at = torch.tensor(sorted(chosen))
    counts = torch.tensor([int(labels.max()) + 1 for labels in partitions])
    holds = torch.stack([labels[at] for labels in partitions]) + (counts.cumsum(0) - counts)[:, None]
    models = tree.cat([tree.to(tree.stack([fed.net.init(fed.seed)]), fed.device)] * int(counts.sum()))
    ids, work = who[at], Work(epochs=epochs, batch=local.batch, rows="fit")
    for index in range(rounds):
        turns = len(partitions) if index else 1
        heard = fed.map(train, Cohort(ids.repeat(turns), index, SWEEP), work=work,
                        each={"model": Held(models, holds[:turns].flatten())}, keep=False, **local.at(0))
        whole, stay = _answered_in_all(fed, heard, ids)
        ids, holds = ids[stay], holds[:, stay]
        answers = tree.cat([tree.take(heard.answers, whole)] * (len(partitions) // turns))
        models = tree.mean_by(answers["model"], holds.flatten(), answers["size"], models)
    return Trial(ids, models, holds)


def validate(fed: Federation, who: Tensor, local: Local, validators: int, rounds: int,
             partitions: list[Tensor]) -> list[float]:
    """Mean validation score of some clients after a trial, for each partition of `who`."""
    ids, models, holds = trial(fed, who, local, validators, rounds, partitions)
    heard = fed.map(score, Cohort(ids.repeat(len(holds)), rounds, SWEEP), work=JUDGED,
                    each={"model": Held(models, holds.flatten())})
    whole, _ = _answered_in_all(fed, heard, ids)
    sums, size = tree.unstack(tree.take(heard.answers, whole)), heard.answers["size"][whole].tolist()
    merits = [fed.net.objective.merit(*each) for each in zip(sums, size, strict=True)]
    merit = torch.tensor(merits, dtype=torch.float64)
    return [float(part.mean()) for part in merit.view(len(partitions), -1)]


def pays(fed: Federation, who: Tensor, labels: Tensor, local: Local, validators: int = 30, rounds: int = 1,
         epochs: int = 10) -> Paid:
    """Whether clusters of `who` serve some of these clients better than one model, after a trial of both.

    With few epochs everything pays that makes clients differ, since nobody has had the time to learn from others: ten
    are enough to see where that is worth more (`benchmarks/paying.py`). One round of a client costs three models down
    and one up.
    Raises NobodyAnswered where no client answered from beginning to end.
    """
    ids, models, holds = trial(fed, who, local, validators, rounds, [torch.zeros_like(labels), labels], epochs)
    both = tree.take(models, holds.T.to(fed.device))  # (m, 2, ...): one model, the client's cluster
    heard = fed.map(contrast, Cohort(ids, rounds, SWEEP), work=JUDGED, each={"models": both})
    gain, squares, size = (heard.answers[name].double().cpu().numpy() for name in ("gain", "squares", "size"))
    return paid(len(set(labels.tolist())), gain, squares, size)


def _answered_in_all(fed: Federation, heard: Heard, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which answers count, and which clients go on: one that is lost in one partition leaves all."""
    whole, stay = (torch.tensor([fed.names[i] not in heard.lost for i in who.tolist()]) for who in (heard.ids, ids))
    if not bool(stay.any()):
        raise NobodyAnswered(heard.lost)
    return whole, stay
