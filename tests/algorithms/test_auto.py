"""auto: the trial, the plan that is chosen, and how training goes on from there. The contract is in test_contract."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import LOCAL, SEED, SIZES, TRUTH, silence, tiny_model, tiny_population

from umbel import tree
from umbel.algorithms import Auto
from umbel.algorithms.auto import advised, said_of, worth_of
from umbel.algorithms.base import Local
from umbel.clustering.worth import PLANS
from umbel.engines import LoopEngine
from umbel.federation import ledger
from umbel.federation.door import Cohort
from umbel.runs import evaluate
from umbel.runs.run import rounds
from umbel.runs.simulate import simulate

EVERYBODY = torch.arange(len(SIZES))
AUTO = Auto(least=1, local=LOCAL)


def tiny():
    return LoopEngine(tiny_model(), tiny_population(), SEED)


def planned(name, fed):
    """A state whose trial chose the plan of this name, whatever it was worth."""
    state = AUTO.init(fed, SEED)
    tried = AUTO._tried(fed, state, Cohort(EVERYBODY, 0))
    place = next(k for k, plan in enumerate(PLANS) if plan.name == name)
    labels, models = torch.zeros(len(SIZES), dtype=torch.long), tree.take(tried.models, slice(0, 1))
    if PLANS[place].groups == "clusters":
        labels, models = state.evidence["tried"].clone(), tree.take(tried.models, slice(1, None))
    return replace(tried, labels=labels, models=models, evidence=state.evidence | {"plan": torch.tensor(place)})


def test_the_trial_starts_with_one_training_of_each_client():
    """After one round the first model is the mean of everybody, the others of their clusters, of the same trainings."""
    fed = tiny()
    state = AUTO._tried(fed, AUTO.init(fed, SEED), Cohort(EVERYBODY, 0))
    assert state.evidence["tried"].tolist() == [0, 1, 0, 1, 0, 1]
    assert tree.count(state.models) == 3
    fit = torch.tensor([len(fed.clients.rows(i, "fit")) for i in range(len(SIZES))], dtype=torch.double)
    weight = torch.stack([fit[::2].sum(), fit[1::2].sum()]) / fit.sum()
    flat = tree.flat(state.models).double()
    assert (weight @ flat[1:] - flat[0]).abs().max() < 1e-6


@pytest.mark.parametrize("name", [plan.name for plan in PLANS])
def test_every_plan_goes_on_from_the_trial(name):
    """What travels, who holds what, and which model clients use: what a client made its own, where the plan says so."""
    fed = tiny()
    state = planned(name, fed)
    plan = PLANS[int(state.evidence["plan"])]
    fed.ledger.drain()
    after = AUTO.round(fed, state, Cohort(EVERYBODY, 1))
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    model = 4 * fed.net.parameters
    assert (moved["down"], moved["up"]) == ((0, 48) if plan.groups == "alone" else (6 * model, 6 * (model + 8)))
    assert tree.count(after.models) == (2 if plan.groups == "clusters" else 1)
    pages = fed.memory()[0]
    assert {"last" in pages[client] for client in fed.names} == {plan.tuned}
    used = AUTO.personal(tree.take(after.models, 0), pages["c000"])
    scored = evaluate.current(fed, AUTO, after, 2)["clients"]["c000"]["loss"]
    x, y = fed.clients.gather(fed.clients.rows(0, "test"))
    assert scored == pytest.approx(float(torch.nn.functional.cross_entropy(fed.net.logits(used, x), y)), abs=1e-5)


def test_alone_goes_on_where_a_client_stopped():
    """Two rounds alone are the trial's and one more, not one from the first model."""
    fed = tiny()
    state = planned("everybody alone", fed)
    before = fed.memory()[0]["c001"]["alone"]
    AUTO.round(fed, state, Cohort(EVERYBODY, 1))
    after = fed.memory()[0]["c001"]["last"]
    first = fed.net.init(SEED)
    assert tree.flat(tree.stack([tree.minus(before, first)])).abs().max() > 0
    assert tree.flat(tree.stack([tree.minus(after, before)])).abs().max() > 0


def test_alike_clients_have_no_trial():
    """Nothing differs: one model from the first round on, and nothing is asked for a trial."""
    fed = simulate("digits", scenario="iid", clients=6, model="mlp", seed=1)
    done = list(rounds(Auto(local=Local(epochs=1, batch=50)), fed, rounds=2))
    assert said_of(done[-1].state) == "nothing differs"
    assert advised(done[-1].state) == "nothing differs: one model"
    assert worth_of(done[-1].state) is None
    assert all("sweep" not in each.record["bytes"] for each in done)


def test_a_trial_follows_the_run():
    """A tenth of the rounds, one at least; what was set stays."""
    assert [Auto().for_run(total).trial for total in (1, 10, 20, 45)] == [1, 1, 2, 4]
    assert Auto(trial=3).for_run(100).trial == 3


def test_clusters_that_pay_are_found_and_gone_on_with():
    """Turned digits: the four groups serve better than one model, and the sentence says it."""
    fed = simulate("digits", scenario="rotation-4", clients=12, model="mlp", seed=0)
    last = list(rounds(Auto(local=Local(lr=0.1, epochs=5, batch=10)), fed, rounds=3))[-1]
    assert said_of(last.state) == "clients differ in looks"
    assert PLANS[int(last.state.evidence["plan"])].groups == "clusters"
    assert evaluate.ari(last.state.labels.tolist(), fed.provenance.truth) == 1
    assert advised(last.state).startswith("4 clusters")
    assert "nothing" not in Auto().why(last.state)


def test_a_site_that_drops_out_in_the_trial_is_left_out_of_it():
    """It described itself, and answers no more: the others are compared without it, and it has a place all the same."""
    fed = tiny()
    state = AUTO.init(fed, SEED)
    state = AUTO.round(silence(fed, "c004"), state, Cohort(EVERYBODY, 0))
    assert "plan" in state.evidence
    assert 4 not in state.evidence["judged"].tolist()
    assert worth_of(state).over == 5


def test_who_comes_in_the_trial_holds_the_one_model_and_then_finds_its_cluster():
    """It is not compared, since it took no part; once clusters are the plan, its rows say where it belongs."""
    people = replace(tiny_population(), joins=np.array([0, 0, 0, 0, 0, 1]))
    fed = LoopEngine(tiny_model(), people, SEED)
    state = AUTO.init(fed, SEED)
    fed.arrive(1)
    newcomer = Cohort(torch.tensor([5]), 1, "admit")
    state = AUTO.admit(fed, state, newcomer)
    assert state.labels.tolist() == [0] * len(SIZES)
    state = AUTO._tried(fed, state, Cohort(EVERYBODY, 1))
    place = next(k for k, plan in enumerate(PLANS) if plan.groups == "clusters")
    labels, models = state.evidence["tried"].clone(), tree.take(state.models, slice(1, None))
    assert labels.tolist() == [0, 1, 0, 1, 0, -1]
    state = replace(state, labels=labels, models=models, evidence=state.evidence | {"plan": torch.tensor(place)})
    assert AUTO.admit(fed, state, newcomer).labels.tolist() == list(TRUTH)


def test_alone_is_not_tried_where_clients_models_do_not_fit(monkeypatch):
    """A simulation keeps no more than so many bytes of clients' own models: the other plans are compared."""
    monkeypatch.setattr("umbel.algorithms.auto.can_remember", lambda fed: False)
    fed = tiny()
    state = AUTO.round(fed, AUTO.init(fed, SEED), Cohort(EVERYBODY, 0))
    assert [PLANS[k].groups for k in state.evidence["judged_plans"].tolist()] == ["one", "one", "clusters", "clusters"]
    assert fed.memory()[0] == {}


def test_where_nobody_has_validation_rows_one_model_is_trained():
    """The trial ends without a score, and the sentence says why."""
    fed = tiny()
    state = AUTO.init(fed, SEED)
    fed.clients.population = replace(
        fed.clients.population, validation=[np.empty(0, dtype=np.int64)] * len(SIZES))
    fed.clients._cache.clear()
    after = AUTO.round(fed, state, Cohort(EVERYBODY, 0))
    assert after.labels.tolist() == [0] * len(SIZES)
    assert advised(after).startswith("too few validation rows (0)")
