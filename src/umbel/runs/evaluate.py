"""How good the models are for the clients, and how near the clusters come to the truth.

The only module that sees test rows. Three scores, one task from three starting points: the cluster's model as it was
sent, the same after fine-tuning, and what the client was left with after its own last training.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import isfinite
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from sklearn.metrics import (
    adjusted_mutual_info_score,
    adjusted_rand_score,
    homogeneity_completeness_v_measure,
)

from umbel import tree
from umbel.algorithms.base import Algorithm, State, can_remember, travelling
from umbel.data.clients import Work
from umbel.engines.local import LocalEngine
from umbel.federation.door import Cohort, Federation, NobodyAnswered
from umbel.federation.phases import EVALUATE
from umbel.federation.scoring import score
from umbel.nets.model import Model
from umbel.nets.objective import Objective, Regress, judged
from umbel.tree import Held

STARTS = ("cluster_model", "fine_tuned", "last_local")  # where the three scores start from


class ClientScore(TypedDict):
    """One client on its own rows."""

    score: float | None  # by the objective's metric; None where its rows alone do not define it (AUC of one class)
    loss: float
    rows: int


class Scores(TypedDict):
    """Clients by name, and all metrics of the objective over their rows together."""

    clients: dict[str, ClientScore]
    pooled: dict[str, float | None]


class Foreseen(NamedTuple):
    """How much forecasts.json holds at most."""

    sites: int
    rows: int  # of a site
    outputs: int  # numbers of a row


FORESEEN = Foreseen(12, 200, 12)


def _sent(algorithm: Algorithm, net: Model) -> tuple[str, ...]:
    """What a cluster's model needs to be one: its norms, where clients keep these."""
    return tuple(name for name in algorithm.uses(net) if name == "with_norms")


def scores(fed: Federation, algorithm: Algorithm, state: State, round: int, become: tuple[str, ...] = (),
           epochs: int = 0, rows: str = "test") -> Scores:
    """How well every placed client that can be asked, and lies to nobody, is served after `round` rounds."""
    ids = (fed.online & fed.honest & (state.labels >= 0)).nonzero().flatten()
    if not len(ids):
        return {"clients": {}, "pooled": {}}
    only = fed.net.head_names if algorithm.tuned_layers == "head" else ()
    try:
        heard = (fed.testing() if rows == "test" else fed).map(
            score, Cohort(ids, round, EVALUATE), work=Work(epochs=epochs, batch=algorithm.local.batch, rows=rows),
            each={"model": Held(travelling(fed.net, algorithm.local, state.models), state.labels[ids])}, become=become,
            only=only, **algorithm.local.at(0),
        )
    except NobodyAnswered:  # a round that nobody could score is no reason to end a run
        return {"clients": {}, "pooled": {}}
    objective = fed.net.objective
    sums, size, loss = tree.unstack(heard.answers), heard.answers["size"].tolist(), heard.answers["loss"].tolist()
    clients: dict[str, ClientScore] = {
        fed.names[i]: {"score": judged(objective, objective.summary(own, count)), "loss": each, "rows": count}
        for i, own, count, each in zip(heard.ids.tolist(), sums, size, loss, strict=True)
        if count  # a site of a real federation may have no test rows: it is not scored
    }
    together = {name: heard.answers[name].sum(0) for name in objective.sums}
    return {"clients": clients, "pooled": objective.summary(together, sum(size))}


def current(fed: Federation, algorithm: Algorithm, state: State, round: int, rows: str = "test") -> Scores:
    """What clients would use now: the cluster's model, or what the method makes of it."""
    return scores(fed, algorithm, state, round, algorithm.uses(fed.net), rows=rows)


def final(fed: Federation, algorithm: Algorithm, state: State, round: int, epochs: int,
          remembered: bool = True) -> dict[str, Scores | None]:
    """The three scores of every client; what does not exist is None. `epochs` = 0 leaves out fine-tuning.

    Not `remembered`: what clients keep is of another round than the state.
    """
    own = algorithm.uses(fed.net)
    sent = _sent(algorithm, fed.net)
    remembers = remembered and (can_remember(fed) or "remembered" in algorithm.own)  # such a method always keeps it
    return {
        "cluster_model": scores(fed, algorithm, state, round, sent) if algorithm.has_cluster_model else None,
        "fine_tuned": scores(fed, algorithm, state, round, (*own, "fine_tune"), epochs) if epochs else None,
        "last_local": scores(fed, algorithm, state, round, ("remembered",)) if remembers else None,
    }


def forecasts(fed: Federation, algorithm: Algorithm, state: State, round: int, epochs: int) -> dict[str, Any] | None:
    """What forecasts.json holds: a few sites' first test rows as they are and as they are foretold after `round`.

    By the models that the method is judged by. Of a regression in a simulation of this process alone: the rows of a
    real site stay there. Rows keep their order, so that a series reads as one.
    """
    objective = fed.net.objective
    if not isinstance(objective, Regress) or not isinstance(fed, LocalEngine):
        return None
    become = {"cluster_model": _sent(algorithm, fed.net), "last_local": ("remembered",),
              "fine_tuned": (*algorithm.uses(fed.net), "fine_tune")}[algorithm.headline]
    options = {"become": become, "only": fed.net.head_names if algorithm.tuned_layers == "head" else (),
               **algorithm.local.at(0)}
    work = Work(epochs=epochs, batch=algorithm.local.batch, rows="test")
    models = travelling(fed.net, algorithm.local, state.models)
    shown = objective.columns if objective.columns < FORESEEN.outputs else FORESEEN.outputs
    labels = state.labels.tolist()
    sites: dict[str, Any] = {}
    for i in _in_turn(labels, fed.clients.population.present(round).tolist()):
        cohort = Cohort(torch.tensor([i]), round + 1, EVALUATE)
        y, out = fed.clients.foretold(fed.net, i, cohort, work, tree.take(models, labels[i]), options, round,
                                      FORESEEN.rows)
        if not len(y):
            continue
        foretold = out.double() * objective.scale + objective.centre
        sites[fed.names[i]] = {
            "cluster": labels[i], "rows": len(fed.clients.rows(i, "test", round)),
            "truth": [_plain(line) for line in y.double().reshape(len(y), -1).T.tolist()[:shown]],
            "forecast": [_plain(line) for line in foretold.reshape(len(y), -1).T.tolist()[:shown]],
        }
    named = objective.labels or tuple(f"number {k + 1}" if shown > 1 else "target" for k in range(shown))
    return {"outputs": list(named[:shown]), "unit": objective.unit, "model": algorithm.headline,
            "sites": sites} if sites else None


def _in_turn(labels: Sequence[int], here: Sequence[bool]) -> list[int]:
    """Positions of a few clients that are placed and here, one of each cluster in turn, in the order of the clients."""
    members: dict[int, list[int]] = {}
    for i, label in enumerate(labels):
        if label >= 0 and here[i]:
            members.setdefault(label, []).append(i)
    rows = zip_longest(*(members[label] for label in sorted(members)))
    return sorted([i for row in rows for i in row if i is not None][: FORESEEN.sites])


def _plain(values: Sequence[float]) -> list[float | None]:
    """Six digits of each number; None for what is none."""
    return [float(f"{value:.6g}") if isfinite(value) else None for value in values]


def current_of(final: Mapping[str, Scores | None], algorithm: Algorithm) -> Scores | None:
    """`current`, where one of the three scores is the same question; it is not asked twice."""
    same = {(): "cluster_model", ("remembered",): "last_local"}.get(algorithm.own)
    return final[same] if same else None


def summary(scored: Scores, objective: Objective) -> dict[str, Any]:
    """Over clients: mean, standard deviation, mean of the worst tenth; `weighted`, over all their rows together.

    `value` is what the run is judged by: the mean, or `weighted` where the metric is no mean over rows. Clients whose
    rows do not define the metric count in `weighted` alone; where no rows define it there is no summary, but {}.
    """
    metric = objective.metric
    known = [client for client in scored["clients"].values() if client["score"] is not None]
    each, rows = np.array([client["score"] for client in known]), np.array([client["rows"] for client in known])
    over: dict[str, float | None] = dict.fromkeys(("mean", "std", "worst_decile"))
    if known:
        worst = np.sort(each)[:: 1 if metric.higher_is_better else -1][: -(-len(each) // 10)]
        over = {"mean": float(each.mean()), "std": float(each.std()), "worst_decile": float(worst.mean())}
    if metric.pooled:
        weighted = judged(objective, scored["pooled"]) if scored["clients"] else None
    else:
        weighted = float((each * rows).sum() / max(1, rows.sum())) if known else None
    if weighted is None:
        return {}
    return {**over, "weighted": weighted, "over": len(known), "value": weighted if metric.pooled else over["mean"],
            "pooled": scored["pooled"]}


def ari(labels: Sequence[int], truth: Sequence[int]) -> float:
    """The adjusted Rand index of clusters and true groups: 1 is perfect, 0 is chance."""
    return float(adjusted_rand_score(truth, labels))


def agreement(labels: Sequence[int], truth: Sequence[int]) -> dict[str, float]:
    """How far clusters and true groups agree: 1 is perfect; chance is 0 for the adjusted scores."""
    homogeneity, completeness, v_measure = homogeneity_completeness_v_measure(truth, labels)
    return {
        "ari": ari(labels, truth),
        "ami": float(adjusted_mutual_info_score(truth, labels)),
        "homogeneity": float(homogeneity),
        "completeness": float(completeness),
        "v_measure": float(v_measure),
    }
