"""auto: find out in what clients differ, try what could be trained, go on with what serves them best.

Before the first round clients describe parts of their rows (alike.py), by which it is tested in what they differ
(clustering/differences.py) and which clusters they fall into. Where nothing differs, one model is trained. Else the
first rounds are a trial: one model, those clusters and everybody alone, side by side on rows that are not for
validation. Then each client's validation rows say what every plan is worth (clustering/worth.py), and the rounds that
are left go on from the trial's models.

Evidence, beside that of tests: `differ`, three numbers of each kind of difference; `tried`, the cluster of each client
in the trial, -1 for who did not take part; `plan`, what was chosen, once it is; `scores` and `known`, (plans, clients)
of `judged`, by which it was.
"""

import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from umbel import tree
from umbel.algorithms import alike
from umbel.algorithms.alike import PartsSettings
from umbel.algorithms.base import (
    Algorithm,
    Local,
    State,
    can_remember,
    clustered_round,
    name_order,
    one_cluster,
    training,
)
from umbel.clustering.branches import by_distance
from umbel.clustering.differences import KINDS, differences
from umbel.clustering.energy import energy
from umbel.clustering.labels import canonical
from umbel.clustering.parts import read
from umbel.clustering.worth import FEW_ROWS, ONE, PLANS, Worth, advice, worth
from umbel.data.clients import Work
from umbel.federation.door import Cohort, Federation, Heard, NobodyAnswered
from umbel.federation.phases import CLUSTERING, SWEEP
from umbel.federation.scoring import score
from umbel.federation.tasks import COUNT, Client, Loop, Plain, Reply, register
from umbel.federation.training import STEP, begin_training, train, train_step
from umbel.fields import number
from umbel.nets.model import Model
from umbel.nets.objective import METRICS, Metric, judged
from umbel.seeds import generator
from umbel.tree import Held, Params, Tree

SHARE = 10  # the trial takes one round in so many: of 12 rounds and more at most a quarter of the run's bytes


def _begin(net: Model, client: Client, **options: Any) -> tuple[Tree, Tree]:
    options.pop("used", None)
    return begin_training(net, client, model=client.memory["alone"], **options)


def _step(net: Model, carry: Tree, fixed: Tree, batch: Any, **options: Any) -> Tree:
    options.pop("used", None)
    return train_step(net, carry, fixed, batch, **options)


def _finish(net: Model, client: Client, carry: Tree, fixed: Tree, *, used: bool = False, **_: Any) -> Reply:
    model = carry["model"]
    return Reply({"size": client.size}, keep={"alone": model} | ({"last": model} if used else {}))


def _first_model(net: Model, seed: int) -> Tree:
    return {"alone": net.init(seed)}


def _alone(net: Model, client: Client, **_: Any) -> Reply:
    return Reply({"model": client.memory["alone"], "size": client.size})


try_alone = register(Loop("try_alone", _begin, _step, _finish, answers=lambda net, **_: {"size": COUNT},
                          memory=_first_model, options=(*STEP, "used")))
"""Train on, from where the client stopped by itself; with `used`, that is the model it uses from now on."""

alone = register(Plain("alone", _alone, memory=_first_model))
"""The model that a client has trained by itself, instead of the one that was sent."""


@dataclass(frozen=True)
class Auto(PartsSettings, Algorithm):
    """Diagnose, try, go on with what is worth most."""

    trial: int = number(0, ge=0)  # rounds of the trial; 0 = a tenth of the run's, and one at least
    least: int = number(FEW_ROWS, ge=1)  # validation rows of all clients together below which plans are not compared
    local: Local = training()

    name: ClassVar[str] = "auto"
    own: ClassVar[tuple[str, ...]] = ("remembered",)  # of a plan without fine-tuning clients remember nothing
    headline: ClassVar[str] = "last_local"
    meanings: ClassVar[str] = "by class"
    servers_because: ClassVar[str] = "the plans of its trial are compared by plain means"
    private_norms: ClassVar[bool] = False

    def for_run(self, total: int) -> Self:
        """The trial's length follows the run's."""
        bound = super().for_run(total)
        if not bound.trial:
            bound = copy.copy(bound)
            object.__setattr__(bound, "trial", max(1, total // SHARE))
        return bound

    def personal(self, sent: Params, kept: Tree) -> Params:
        """The model that the client has made its own, where the plan is that it does."""
        last: Params = kept.get("last", sent)
        return last

    @property
    def tells(self) -> tuple[str, ...]:
        """Parts of rows, by which it diagnoses."""
        return alike.PARTS_TELL

    def init(self, fed: Federation, seed: int) -> State:
        """Ask in what clients differ; where they do, get ready for the trial."""
        state = one_cluster(fed, seed)
        anchor = tree.take(state.models, 0)
        who, answers, sized = alike.described(fed, fed.online.nonzero().flatten(), self.local, anchor, self.signature)
        with fed.timing(CLUSTERING):
            order = name_order(fed, who)  # draws must not depend on where clients stand
            parts = read(tree.take(answers, order))
            found = differences(parts, generator(fed.seed, "differences"), max(1, fed.net.objective.groups))
            cut = alike.cut_by_tests(parts, by_distance(energy(parts)), fed.seed)
            evidence = alike.kept(cut, who[order], tree.take(answers, order), sized, fed.seed)
        tried, differ = torch.full((len(fed.names),), -1), any(each.found for each in found)
        tried[who[order]] = canonical(torch.from_numpy(cut.labels)) if differ else 0
        numbers = [[float(each.found), -1.0 if each.p is None else each.p, each.strength] for each in found]
        evidence |= {"anchor": tree.to(anchor, "cpu"), "tried": tried, "differ": torch.tensor(numbers).double()}
        if not differ:
            return replace(state, evidence=evidence | {"plan": torch.tensor(ONE)})
        return replace(state, evidence=evidence).grow(anchor, clusters_of(tried) if clusters_of(tried) > 1 else 0)

    def round(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """A round of the trial, or of the plan that was chosen."""
        if "plan" in state.evidence:
            return self._planned(fed, state, cohort)
        state = self._tried(fed, state, cohort)
        return self._chosen(fed, state, cohort.round + 1) if cohort.round >= max(1, self.trial) - 1 else state

    def _planned(self, fed: Federation, state: State, cohort: Cohort) -> State:
        plan = PLANS[int(state.evidence["plan"])]
        if plan.groups != "alone":
            return clustered_round(fed, state, cohort, self.local, keep=plan.tuned)
        fed.map(try_alone, cohort, work=self.local.work, used=True, **self.local.at(cohort.round))
        return state

    def _tried(self, fed: Federation, state: State, cohort: Cohort) -> State:
        """One round of all plans: the first model is everybody's, the others are the clusters'.

        In the first round they differ in nothing but who is averaged with whom: every client trains once.
        """
        ids = cohort.ids[state.evidence["tried"][cohort.ids] >= 0]
        holds = _holds(state, ids)
        turns = len(holds) if cohort.round else 1
        options = self.local.at(cohort.round)
        work = self.local.work._replace(rows="fit")
        heard = fed.map(train, Cohort(ids.repeat(turns), cohort.round, SWEEP), work=work, keep=False,
                        each={"model": Held(state.models, holds[:turns].flatten())}, **options)
        whole, stay = answered_in_all(fed, heard, ids)
        answers = tree.cat([tree.take(heard.answers, whole)] * (len(holds) // turns))
        models = tree.mean_by(answers["model"], holds[:, stay].flatten(), answers["size"], state.models)
        if can_remember(fed):
            with suppress(NobodyAnswered):
                fed.map(try_alone, Cohort(ids[stay], cohort.round, SWEEP), work=work, **options)
        return replace(state, models=models)

    def _chosen(self, fed: Federation, state: State, now: int) -> State:
        """Judge all plans, and keep the models of the best one."""
        evidence = state.evidence
        asked = torch.tensor([i for i in evidence["who"].tolist() if fed.online[i]], dtype=torch.long)
        tried, who, scores, rows = self._scored(fed, state, asked, now)
        found = worth(tried, scores, rows, fed.net.objective.metric, self.least)
        evidence = evidence | {
            "plan": torch.tensor(found.chosen), "judged": who, "metric": torch.tensor(_place(fed.net.objective.metric)),
            "judged_plans": torch.tensor(tried, dtype=torch.long),
            "judged_rows": torch.from_numpy(rows), "least": torch.tensor(self.least),
            "known": torch.from_numpy(np.isfinite(scores)), "scores": torch.from_numpy(np.nan_to_num(scores))}
        labels, models = torch.where(state.labels < 0, -1, 0), tree.take(state.models, slice(0, 1))
        if PLANS[found.chosen].groups == "clusters":
            labels, models = evidence["tried"].clone(), tree.take(state.models, slice(1, None))
        return replace(state, labels=labels, models=models, evidence=evidence)

    def _scored(self, fed: Federation, state: State, ids: Tensor,
                now: int) -> tuple[list[int], Tensor, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Which plans were tried, who scored them all, (plans, clients) scores and (clients,) validation rows."""
        holds, found = _holds(state, ids), {}
        groups = ["one", "clusters"][: len(holds)] + (["alone"] if can_remember(fed) else [])
        with suppress(NobodyAnswered):
            for place, plan in enumerate(PLANS):
                if plan.groups not in groups:
                    continue
                alone_too = plan.groups == "alone"
                become = ("alone",) if alone_too else ("fine_tune",) if plan.tuned else ()
                work = Work(epochs=0 if alone_too or not plan.tuned else self.local.epochs, batch=self.local.batch,
                            rows="validation")
                sent = {} if alone_too else {"model": Held(state.models, holds[groups.index(plan.groups)])}
                heard = fed.map(score, Cohort(ids, now, SWEEP), work=work, each=sent, become=become,
                                **self.local.at(0))
                found[place] = _each(fed, heard)
        clients = [i for i in ids.tolist() if found and all(i in each for each in found.values())]
        scores = np.array([[each[i][0] for i in clients] for each in found.values()]).reshape(len(found), len(clients))
        rows = np.array([next(iter(found.values()))[i][1] for i in clients], dtype=np.int64)
        return list(found), torch.tensor(clients, dtype=torch.long), scores, rows

    def admit(self, fed: Federation, state: State, newcomers: Cohort) -> State:
        """Into the cluster whose rows are like theirs, where the plan has clusters; else there is one model."""
        if "plan" in state.evidence and PLANS[int(state.evidence["plan"])].groups == "clusters":
            return alike.join(fed, state, newcomers, self.local, self.signature)
        return super().admit(fed, state, newcomers)

    def why(self, state: State) -> str:
        """What differs, and why this plan."""
        differ = said_of(state)
        return f"{differ}; {advised(state)}" if "scores" in state.evidence else differ


def clusters_of(tried: Tensor) -> int:
    """How many clusters were tried."""
    return int(tried.max()) + 1


def _holds(state: State, ids: Tensor) -> Tensor:
    """(partitions, m) which of the trial's models each of these clients holds."""
    one = torch.zeros(1, len(ids), dtype=torch.long)
    return one if tree.count(state.models) == 1 else torch.cat([one, 1 + state.evidence["tried"][ids][None]])


def answered_in_all(fed: Federation, heard: Heard, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which answers count, and which clients: one that is lost in one partition is left out of all."""
    whole, stay = (torch.tensor([fed.names[i] not in heard.lost for i in who.tolist()]) for who in (heard.ids, ids))
    if not bool(stay.any()):
        raise NobodyAnswered(heard.lost)
    return whole, stay


def _each(fed: Federation, heard: Heard) -> dict[int, tuple[float, int]]:
    """Each client's score by the run's metric, NaN where its rows alone define none, and its rows."""
    goal = fed.net.objective
    found = {}
    for i, sums, size in zip(heard.ids.tolist(), tree.unstack(heard.answers), heard.answers["size"].tolist(),
                             strict=True):
        value = judged(goal, goal.summary(sums, size)) if size else None
        found[i] = (float("nan") if value is None else value, size)
    return found


def _place(metric: Metric) -> int:
    """Of a metric among METRICS; -1 for one of a person's own."""
    known = list(METRICS.values())
    return known.index(metric) if metric in known else -1


def said_of(state: State) -> str:
    """What clients differ in, in a few words."""
    found = [kind for kind, (is_found, *_) in zip(KINDS, state.evidence["differ"].tolist(), strict=True) if is_found]
    if not found:
        return "nothing differs"
    return f"clients differ in {', '.join(found[:-1])}{' and ' if found[1:] else ''}{found[-1]}"


def metric_of(state: State) -> Metric:
    """What plans were judged by; one of a person's own is called score."""
    at = int(state.evidence["metric"])
    return list(METRICS.values())[at] if at >= 0 else Metric("score")


def worth_of(state: State) -> Worth | None:
    """What the trial said; None where there was none, or it is not over."""
    evidence = state.evidence
    if "scores" not in evidence:
        return None
    scores = np.where(evidence["known"].numpy(), evidence["scores"].numpy(), np.nan)
    return worth(evidence["judged_plans"].tolist(), scores, evidence["judged_rows"].numpy(), metric_of(state),
                 int(evidence["least"]))


def advised(state: State) -> str:
    """What to train, and why, in a sentence without its full stop."""
    found = worth_of(state)
    if found is None:
        return "nothing differs: one model" if "plan" in state.evidence else "the trial of plans is not over"
    return advice(found, clusters_of(state.evidence["tried"]), metric_of(state))
