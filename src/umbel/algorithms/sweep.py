"""The trial of FLAG's cut: every clustering is scored by a short federation; clustering/cuts.py reads the scores."""

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local
from umbel.data.clients import Work
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import SWEEP
from umbel.federation.scoring import score
from umbel.federation.training import train
from umbel.seeds import key
from umbel.tree import Held


def validate(fed: Federation, who: Tensor, local: Local, validators: int, rounds: int,
             partitions: list[Tensor]) -> list[float]:
    """Mean validation score of some clients after a few rounds of one epoch, for each partition of `who`.

    All partitions run side by side: the same clients, batches and first model, so scores are paired. Clients train on
    their `fit` rows and are scored on their `validation` rows; the models are thrown away.
    """
    chosen = sorted(range(len(who)), key=lambda p: key(fed.seed, "validators", fed.names[int(who[p])]))[:validators]
    at = torch.tensor(sorted(chosen))
    first = 0
    index = []  # of every (partition, client): its model among those of all partitions
    for labels in partitions:
        index.append(first + labels[at])
        first += int(labels.max()) + 1
    holds, ids = torch.cat(index), who[at].repeat(len(partitions))
    models = tree.cat([tree.to(tree.stack([fed.net.init(fed.seed)]), fed.device)] * first)
    work = Work(epochs=1, batch=local.batch, rows="fit")
    for index_of_round in range(rounds):
        heard = fed.map(train, Cohort(ids, index_of_round, SWEEP), work=work,
                        each={"model": Held(models, holds)}, keep=False, **local.at(0))
        kept, ids, holds = _still_there(fed, heard, ids, holds)
        models = tree.mean_by(tree.take(heard.answers["model"], kept), holds, heard.answers["size"][kept], models)
    heard = fed.map(score, Cohort(ids, rounds, SWEEP), work=work._replace(rows="validation"),
                    each={"model": Held(models, holds)})
    kept, ids, holds = _still_there(fed, heard, ids, holds)
    sums, size = tree.unstack(tree.take(heard.answers, kept)), heard.answers["size"][kept].tolist()
    merits = [fed.net.objective.merit(*each) for each in zip(sums, size, strict=True)]
    merit = torch.tensor(merits, dtype=torch.float64)
    return [float(part.mean()) for part in merit.view(len(partitions), -1)]


def _still_there(fed: Federation, heard: Heard, ids: Tensor, holds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which answers count, and who goes on: a client lost in one partition leaves all, so that scores stay paired."""
    kept, stay = (torch.tensor([fed.names[i] not in heard.lost for i in who.tolist()]) for who in (heard.ids, ids))
    if not bool(stay.any()):
        raise NobodyAnswered(heard.lost)
    return kept, ids[stay], holds[stay]
