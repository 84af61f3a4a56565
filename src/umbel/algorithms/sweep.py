"""FLAG's choice of a cut: every clustering is tried by a short federation, and a rule reads the curve."""

from collections.abc import Callable

import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms.base import Local
from umbel.clustering.cuts import fewest_within, knee
from umbel.clustering.linkage import heights
from umbel.data.clients import Work
from umbel.federation import tasks
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.seeds import key
from umbel.tree import Held

GAIN = 0.02  # of accuracy: what clusters must win on validation rows before they are worth having


def validate(fed: Federation, who: Tensor, local: Local, validators: int, rounds: int,
             partitions: list[Tensor]) -> list[float]:
    """Mean validation accuracy of some clients after a few rounds of one epoch, for each partition of `who`.

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
        heard = fed.map(tasks.train, Cohort(ids, index_of_round, "sweep"), work=work,
                        each={"model": Held(models, holds)}, keep=False, **local.options)
        kept, ids, holds = _still_there(fed, heard, ids, holds)
        models = tree.mean_by(tree.take(heard.answers["model"], kept), holds, heard.answers["size"][kept], models)
    heard = fed.map(tasks.score, Cohort(ids, rounds, "sweep"), work=work._replace(rows="validation"),
                    each={"model": Held(models, holds)})
    kept, ids, holds = _still_there(fed, heard, ids, holds)
    accuracy = heard.answers["hits"][kept].double() / heard.answers["size"][kept].clamp(min=1)
    return [float(part.mean()) for part in accuracy.view(len(partitions), -1)]


def _still_there(fed: Federation, heard: Heard, ids: Tensor, holds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which answers count, and who goes on: a client lost in one partition leaves all, so that scores stay paired."""
    kept, stay = (torch.tensor([fed.names[i] not in heard.lost for i in who.tolist()]) for who in (heard.ids, ids))
    if not bool(stay.any()):
        raise NobodyAnswered(heard.lost)
    return kept, ids[stay], holds[stay]


def _gaps(links: Tensor, curve: Tensor) -> Tensor:
    """For each row of the curve, log of the height above its cut over the height below; 0 for one cluster."""
    found = heights(links).clamp(min=1e-9)
    merges = (len(found) + 1 - curve[:, 1]).long()
    inside = (merges > 0) & (merges < len(found))
    at = merges.clamp(1, max(1, len(found) - 1))
    return torch.where(inside, torch.log(found[at] / found[at - 1]), 0.0) if len(found) > 1 else curve[:, 1] * 0


def by_knee(links: Tensor, curve: Tensor) -> int:
    """The printed elbow: farthest above the chord; one cluster where clusters gain nothing."""
    gain = float(curve[:, 2].max() - curve[0, 2])
    return knee(curve) if gain > GAIN else 0


def by_tolerance(links: Tensor, curve: Tensor) -> int:
    """The fewest clusters within 2 points of the best."""
    return fewest_within(curve, GAIN)


def by_both(links: Tensor, curve: Tensor) -> int:
    """Height above the chord, and gap of the dendrogram, each as a share of its best: the largest sum.

    Validation on a handful of rows is noisy but tells whether clusters pay; the dendrogram is steady but knows nothing
    of accuracy. One cluster where validation gains nothing.
    """
    if float(curve[:, 2].max() - curve[0, 2]) <= GAIN:
        return 0
    clusters, score = curve[:, 1], curve[:, 2]
    x = (clusters - clusters[0]) / (clusters[-1] - clusters[0]).clamp(min=1)
    y = (score - score[0]) / (score.max() - score[0])
    above = (y - x * y[-1]).clamp(min=0)
    gaps = _gaps(links, curve)
    evidence = above / above.max().clamp(min=1e-12) + gaps / gaps.max().clamp(min=1e-12)
    return int(evidence.argmax())


RULES: dict[str, Callable[[Tensor, Tensor], int]] = {"both": by_both, "knee": by_knee, "within": by_tolerance}
