"""The contract: what holds for every method, on every engine. A method joins it by one line in helpers.ALL."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ALL, ASKED, ENGINES, LOCAL, SEED, SIZES, TRUTH, gap, models_by_name, play, silence, stopped, without
from helpers import tiny_model as model
from helpers import tiny_population as people

from umbel import tree
from umbel.algorithms import ALGORITHMS, FedAvg
from umbel.data.clients import Work
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.federation.door import Cohort
from umbel.federation.scoring import score
from umbel.runs import evaluate
from umbel.runs.run import rounds

methods = pytest.mark.parametrize("name", ALL)
engines = pytest.mark.parametrize("engine", ENGINES)
engines_in_turn = pytest.mark.parametrize("engine", [  # Flower takes twice the time: what does not concern it is slow
    pytest.param(name, marks=pytest.mark.slow) if name == "flower" else name for name in ENGINES])


def made(name, truth=TRUTH):
    return ALL[name].make(LOCAL, truth)


def test_every_method_is_in_the_contract():
    """No method escapes."""
    assert set(ALL) == set(ALGORITHMS)


@engines_in_turn
@pytest.mark.parametrize("name", [name for name, entry in ALL.items() if entry.trivial])
def test_equals_fedavg_in_its_trivial_setting(name, engine):
    """In the setting that its entry names, a method is FedAvg, bit for bit."""
    n = len(SIZES)
    plain = play(FedAvg(local=LOCAL), ENGINES[engine](model(), people(), SEED))
    same = play(ALL[name].trivial(LOCAL, n), ENGINES[engine](model(), people(), SEED))
    assert torch.equal(tree.flat(plain.models), tree.flat(same.models))
    assert torch.equal(plain.labels, same.labels)


@methods
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "loop"])
def test_engines_agree(name, engine):
    """Labels equal, weights within 1e-5, the same bytes billed by the same lines."""
    reference = LoopEngine(model(), people(), SEED)
    other = ENGINES[engine](model(), people(), SEED)
    a, b = (play(made(name), fed, ids=(0, 2, 3, 5)) for fed in (reference, other))
    assert torch.equal(a.labels, b.labels)
    mine, theirs = models_by_name(reference, a), models_by_name(other, b)
    tolerance = 0 if engine in ("one-by-one", "flower") else 1e-5
    assert max(gap(mine[client], theirs[client]) for client in mine) <= tolerance
    assert ledger.totals(reference.ledger.lines) == ledger.totals(other.ledger.lines)


@methods
@engines
def test_scores_agree(name, engine):
    """All three scores are the same on every engine."""
    algorithm = made(name)
    found = []
    for make in (LoopEngine, ENGINES[engine]):
        fed = make(model(), people(), SEED)
        found.append(evaluate.final(fed, algorithm, play(algorithm, fed), 3, epochs=1))
    for kind in evaluate.STARTS:
        if found[0][kind] is None:
            assert found[1][kind] is None
            continue
        assert found[1][kind]["pooled"] == pytest.approx(found[0][kind]["pooled"], abs=1e-5)
        for client, scores in found[0][kind]["clients"].items():
            assert found[1][kind]["clients"][client] == pytest.approx(scores, abs=1e-5)


@methods
@engines
def test_stop_and_resume_equals_uninterrupted(name, engine, tmp_path):
    """A run read back from its folder ends in the same bits."""
    algorithm = made(name)

    def fresh():
        return ENGINES[engine](model(), people(), SEED)

    whole_fed = fresh()
    whole = list(rounds(algorithm, whole_fed, rounds=4, fraction=0.5))[-1]
    saved, again = stopped(algorithm, fresh(), tmp_path / "run"), fresh()
    last = list(rounds(algorithm, again, rounds=4, fraction=0.5, saved=saved))[-1]
    assert torch.equal(tree.flat(whole.state.models), tree.flat(last.state.models))
    assert torch.equal(whole.state.labels, last.state.labels)
    old, new = (models_by_name(each, last.state) for each in (whole_fed, again))
    assert all(gap(old[client], new[client]) == 0 for client in old)
    assert {**whole.record, "seconds": 0} == {**last.record, "seconds": 0}


@methods
@engines_in_turn
def test_renaming_clients_only_renames_labels(name, engine):
    """Clients in another order, under their own names: the same clusters and, within 1e-5, the same models."""
    order = (4, 0, 5, 2, 1, 3)
    straight = ENGINES[engine](model(), people(), SEED)
    shuffled = ENGINES[engine](model(), people(order), SEED)
    a = list(rounds(made(name), straight, rounds=3, fraction=0.5))[-1].state
    b = list(rounds(made(name, tuple(TRUTH[i] for i in order)), shuffled, rounds=3, fraction=0.5))[-1].state
    labels = dict(zip(shuffled.names, b.labels.tolist(), strict=True))
    assert evaluate.agreement(a.labels.tolist(), [labels[client] for client in straight.names])["ari"] == 1
    mine, theirs = models_by_name(straight, a), models_by_name(shuffled, b)
    assert max(gap(mine[client], theirs[client]) for client in mine) <= 1e-5


@methods
@engines
def test_the_ledger_equals_the_formula(name, engine):
    """Bytes down and up are what the method's entry says for every client asked."""
    fed = ENGINES[engine](model(), people(), SEED)
    play(made(name), fed, rounds=2, ids=ASKED)
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert (moved["down"], moved["up"]) == ALL[name].cost(4 * fed.net.parameters)


@methods
@engines_in_turn
def test_a_silent_client_harms_nobody(name, engine):
    """With one client's answers lost, the others end as if it had not been asked."""
    away = without(ENGINES[engine](model(), people(), SEED), 1)
    silent = silence(ENGINES[engine](model(), people(), SEED), "c001")
    a, b = play(made(name), away), play(made(name), silent)
    others = [0, 2, 3, 4, 5]
    assert torch.equal(a.labels[others], b.labels[others])
    assert gap(a.models, b.models) <= 1e-5
    assert {name: set(why) for name, why in silent.lost.items()} == {"c001": {"late"}}


@methods
@engines_in_turn
def test_a_client_that_answers_nan_harms_nobody(name, engine):
    """A client whose data are not numbers is dropped at the door; its bytes up are not believed either."""
    sick = people()
    sick.pool.x[sick.train[1]] = np.nan
    away = without(ENGINES[engine](model(), people(), SEED), 1)
    with_it = ENGINES[engine](model(), sick, SEED)
    a, b = play(made(name), away), play(made(name), with_it)
    assert gap(a.models, b.models) <= 1e-5
    assert all(bool(leaf.isfinite().all()) for leaf in b.models.values())
    assert {name: set(why) for name, why in with_it.lost.items()} == {"c001": {"not finite"}}
    assert all(bool(leaf.isfinite().all()) for leaf in tree.named(with_it.memory()[0]).values())


@methods
def test_admit_gives_a_known_client_the_cluster_it_has(name):
    """Forget a client's label and admit it again: it comes back to where it was."""
    fed = LoopEngine(model(), people(), SEED)
    algorithm = made(name)
    state = play(algorithm, fed)
    for i in range(len(fed.names)):
        forgotten = replace(state, labels=state.labels.index_fill(0, torch.tensor([i]), -1))
        again = algorithm.admit(fed, forgotten, Cohort(torch.tensor([i]), 3, "admit"))
        assert torch.equal(again.labels, state.labels)


@pytest.mark.parametrize("name", [name for name, entry in ALL.items() if entry.finds_truth])
def test_recovers_clear_groups(name):
    """On a federation with two clear groups a clustered method finds them."""
    state = play(made(name), LoopEngine(model(), people(), SEED))
    assert evaluate.agreement(state.labels.tolist(), TRUTH)["ari"] == 1


@methods
@engines_in_turn
def test_methods_never_see_test_rows(name, engine):
    """With all test rows turned to NaN, labels and weights do not change."""
    blind = people()
    for rows in blind.test:
        blind.pool.x[rows] = np.nan
    a, b = (play(made(name), ENGINES[engine](model(), held, SEED)) for held in (people(), blind))
    assert torch.equal(a.labels, b.labels)
    assert torch.equal(tree.flat(a.models), tree.flat(b.models))


@engines
def test_test_rows_are_refused_to_methods(engine):
    """The federation that a method holds does not give test rows."""
    fed = ENGINES[engine](model(), people(), SEED)
    with pytest.raises(UmbelError, match=r"fit, train, validation\. Got 'test'"):
        fed.map(score, Cohort(torch.tensor([0]), 0), work=Work(rows="test"), shared={"model": fed.net.init(0)})


def test_solo_equals_a_literal_loop():
    """SOLO is SGD with momentum on a client's own rows, restarted at rest each round, from the common first model."""
    fed = LoopEngine(model(), people(), SEED)
    play(made("solo"), fed, rounds=2)
    module = fed.net.make()
    module.load_state_dict(fed.net.init(SEED))
    for index in range(2):
        optimiser = torch.optim.SGD(module.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
        for batch in fed.clients.batches(fed.clients.plan(3, Cohort(torch.tensor([3]), index), LOCAL.work)):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(batch.x), batch.y).backward()
            optimiser.step()
    assert gap(module.state_dict(), fed.memory()[0]["c003"]["last"]) < 1e-6


@pytest.mark.parametrize("name", ["fedavg", "flag", "ifca"])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "loop"])
def test_engines_agree_on_adam_and_a_cosine(name, engine):
    """As with SGD at one rate: labels and bytes equal, weights within 1e-5, the same bits where one client trains."""
    local = replace(LOCAL, lr=0.01, optimiser="adam", schedule="cosine", horizon=4)
    reference, other = LoopEngine(model(), people(), SEED), ENGINES[engine](model(), people(), SEED)
    a, b = (play(ALL[name].make(local, TRUTH), fed, ids=(0, 2, 3, 5)) for fed in (reference, other))
    assert torch.equal(a.labels, b.labels)
    assert gap(a.models, b.models) <= (0 if engine in ("one-by-one", "flower") else 1e-5)
    assert ledger.totals(reference.ledger.lines) == ledger.totals(other.ledger.lines)
