"""Do clusters pay: one model against clusters in a short federation, on every engine and against a literal one."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import ENGINES, LOCAL, SEED, SHAPE, SIZES, TRUTH, silence, tiny_model, tiny_population
from scipy import stats
from torch import nn, tensor
from torch.nn.functional import cross_entropy

from umbel import tree
from umbel.algorithms.sweep import pays, trial, validate
from umbel.clustering.paying import words
from umbel.data.clients import Population, Work
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, NobodyAnswered
from umbel.federation.scoring import contrast
from umbel.federation.training import train
from umbel.nets.wrap import wrap

EVERYBODY, LABELS = torch.arange(len(SIZES)), tensor(TRUTH)


def tiny(engine="loop"):
    return ENGINES[engine](tiny_model(), tiny_population(), SEED)


def many(meanings=2, clients=12, rows=40, seed=3):
    """Clients of one look in as many groups as there are meanings of it; in order 0, 1, ... 0, 1, ..."""
    rng = np.random.default_rng(seed)
    looks = 2 * rng.normal(size=(3, *SHAPE))
    sites = {}
    for i in range(clients):
        shown = rng.integers(0, 3, rows)
        x = (looks[shown] + rng.normal(size=(rows, *SHAPE))).astype(np.float32)
        sites[f"c{i:03d}"] = (x, (shown + i % meanings) % 3, x[:5], shown[:5])
    return LoopEngine(tiny_model(), Population.of_sites(sites, 3), SEED)


def end_of_round(fed, model, i, index, epochs=10):
    """A client's answer after some epochs on its `fit` rows."""
    heard = fed.map(train, Cohort(tensor([i]), index, "sweep"), work=Work(epochs=epochs, batch=LOCAL.batch, rows="fit"),
                    shared={"model": model}, **LOCAL.at(0))
    return tree.take(heard.answers["model"], 0), int(heard.answers["size"])


def mean(ends):
    total = sum(size for _, size in ends)
    return {name: sum(model[name] * (size / total) for model, size in ends) for name in ends[0][0]}


def row_losses(fed, model, i):
    x, y = fed.clients.gather(fed.clients.rows(i, "validation"))
    with torch.no_grad():
        return cross_entropy(fed.net.logits(model, x), y, reduction="none").double().numpy()


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 10), (3, 1)])
def test_it_equals_a_literal_comparison(rounds, epochs):
    """Two federations from the first model, averaged by size, and every client's rows under both."""
    fed = tiny()
    one, own = fed.net.init(SEED), [fed.net.init(SEED)] * 2
    for index in range(rounds):
        one, own = mean([end_of_round(fed, one, i, index, epochs) for i in range(6)]), [
            mean([end_of_round(fed, own[k], i, index, epochs) for i in range(6) if TRUTH[i] == k]) for k in (0, 1)]
    gains = [row_losses(fed, one, i) - row_losses(fed, own[k], i) for i, k in enumerate(TRUTH)]
    found = pays(tiny(), EVERYBODY, LABELS, LOCAL, rounds=rounds, epochs=epochs)
    means = [each.mean() for each in gains]
    spread = sum(((each - each.mean()) ** 2).sum() for each in gains) / sum(len(each) - 1 for each in gains)
    error = np.sqrt(spread * sum(1 / len(each) for each in gains)) / 6
    assert found.gain == pytest.approx(np.mean(means), rel=1e-4)
    assert found.error == pytest.approx(error, rel=1e-4)
    assert (found.clusters, found.clients, found.rows) == (2, 6, sum(map(len, gains)))


def test_many_clients_are_compared_client_by_client():
    """Student's test on the means of what each client's rows gain."""
    fed = many()
    labels = torch.arange(12) % 2
    one, own = mean([end_of_round(fed, fed.net.init(SEED), i, 0) for i in range(12)]), [
        mean([end_of_round(fed, fed.net.init(SEED), i, 0) for i in range(12) if i % 2 == k]) for k in (0, 1)]
    gains = [(row_losses(fed, one, i) - row_losses(fed, own[i % 2], i)).mean() for i in range(12)]
    found = pays(many(), torch.arange(12), labels, LOCAL, rounds=1)
    assert found.p == pytest.approx(stats.ttest_1samp(gains, 0).pvalue, rel=1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_finds_the_same(engine):
    """Sums of losses in float32 models: within 1e-4."""
    slow, found = (pays(tiny(each), EVERYBODY, LABELS, LOCAL, rounds=2) for each in ("loop", engine))
    assert found == pytest.approx(slow, rel=1e-4)
    if engine == "one-by-one":
        assert found == slow


def test_what_a_client_tells():
    """Three numbers: the sum of the row-wise differences of two models' losses, of their squares, and the rows."""
    fed = tiny()
    models = tree.stack([fed.net.init(1), fed.net.init(2)])
    heard = fed.map(contrast, Cohort(EVERYBODY, 0), work=Work(rows="validation"), shared={"models": models})
    for i in range(6):
        gains = row_losses(fed, fed.net.init(1), i) - row_losses(fed, fed.net.init(2), i)
        assert float(heard.answers["gain"][i]) == pytest.approx(gains.sum())
        assert float(heard.answers["squares"][i]) == pytest.approx((gains**2).sum())
        assert int(heard.answers["size"][i]) == len(gains)
    assert set(heard.answers) == {"gain", "squares", "size"}


def test_a_model_that_gives_no_numbers_is_compared_and_loses():
    """Its rows count a loss of a million each, as in every score, and the answer stays a number."""
    fed = tiny()
    broken = {name: leaf * torch.nan for name, leaf in fed.net.init(2).items()}
    heard = fed.map(contrast, Cohort(EVERYBODY, 0), work=Work(rows="validation"),
                    shared={"models": tree.stack([fed.net.init(1), broken])})
    assert not heard.lost
    assert heard.answers["gain"].double().numpy() == pytest.approx(-1e6 * heard.answers["size"].numpy(), rel=1e-4)


def test_groups_with_other_meanings_pay_and_one_model_serves_alike_clients_best():
    """Three answers: clusters pay where labels mean other things, a client alone learns less, chance says nothing."""
    true = torch.arange(12) % 2
    found = pays(many(), torch.arange(12), true, LOCAL)
    assert found.better
    assert words(found).startswith("2 clusters lower validation loss by ")
    assert pays(many(meanings=1, clients=24, rows=8), torch.arange(24), torch.arange(24), LOCAL, rounds=2).worse
    chance = pays(many(meanings=1), torch.arange(12), true, LOCAL)
    assert not chance.better
    assert not chance.worse


def test_one_cluster_is_one_model():
    """No difference at all, to the last bit."""
    found = pays(tiny(), EVERYBODY, torch.zeros(6, dtype=torch.long), LOCAL, rounds=2)
    assert (found.gain, found.p, found.clusters) == (0, 1, 1)


def test_a_cluster_whose_members_were_not_drawn_changes_nothing():
    """Clients that validate are drawn by name; clusters without any stay as they began, and nobody is judged by one."""
    fed = tiny()
    drawn = trial(fed, EVERYBODY, LOCAL, 2, 1, [torch.zeros(6, dtype=torch.long)]).ids
    labels = torch.full((6,), 2)
    labels[drawn] = tensor([0, 1])
    found = pays(tiny(), EVERYBODY, labels, LOCAL, validators=2, rounds=2)
    assert found.clients == 2
    assert found.clusters == 3
    assert found[:3] == pytest.approx(pays(tiny(), drawn, tensor([0, 1]), LOCAL, rounds=2)[:3])


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_client_that_is_lost_leaves_both_sides(rounds):
    """As if it had not been there."""
    others = tensor([0, 1, 2, 4, 5])
    found = pays(silence(tiny(), "c003"), EVERYBODY, LABELS, LOCAL, rounds=rounds)
    assert found == pytest.approx(pays(tiny(), others, LABELS[others], LOCAL, rounds=rounds))


def test_where_nobody_answers_nothing_is_found():
    """The caller knows whether to wait."""
    with pytest.raises(NobodyAnswered):
        pays(silence(tiny(), *tiny().names), EVERYBODY, LABELS, LOCAL)


def test_clients_without_validation_rows_tell_nothing():
    """An only row is trained on; there is nothing to compare by, and no chance to split."""
    rng = np.random.default_rng(0)
    sites = {f"c{i}": (rng.normal(size=(1, *SHAPE)).astype(np.float32), np.arange(1)) for i in range(4)}
    fed = LoopEngine(tiny_model(), Population.of_sites(sites, 3), SEED)
    found = pays(fed, torch.arange(4), torch.arange(4) % 2, LOCAL)
    assert (found.p, found.clients) == (1, 0)


@pytest.mark.parametrize("rounds", [1, 3])
def test_what_it_costs(rounds):
    """Each client: one training in the first round, two in each later one, two models to be judged by."""
    fed = tiny()
    pays(fed, EVERYBODY, LABELS, LOCAL, rounds=rounds)
    model = 4 * fed.net.parameters
    sent = {way: sum(sum(line.bytes) for line in fed.ledger.lines if line.direction == way) for way in ("down", "up")}
    trainings = 1 + 2 * (rounds - 1)
    assert sent == {"down": 6 * (trainings + 2) * model, "up": 6 * (trainings * (model + 8) + 24)}
    assert {line.phase for line in fed.ledger.lines} == {"sweep"}


def test_partitions_part_after_the_first_round():
    """A sweep trains each client once in its first round, and its scores are those of partitions tried alone."""
    fed, alone = tiny(), tiny()
    partitions = [torch.zeros(6, dtype=torch.long), LABELS, torch.arange(6)]
    together = validate(fed, EVERYBODY, LOCAL, 30, 2, partitions)
    assert together == [validate(alone, EVERYBODY, LOCAL, 30, 2, [each])[0] for each in partitions]
    rounds = [line.round for line in fed.ledger.lines if line.direction == "up" and line.kind == "model"]
    assert (rounds.count(0), rounds.count(1)) == (6, 18)


def test_norms_that_stay_at_clients_are_refused():
    """Their clusters' models are not whole at the server."""
    net = wrap(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(9), nn.Linear(9, 3)), SHAPE, 3)
    fed = LoopEngine(net, tiny_population(), SEED)
    with pytest.raises(UmbelError, match="norms=private"):
        pays(fed, EVERYBODY, LABELS, replace(LOCAL, norms="private"))


def test_no_test_row_is_seen():
    """Other test rows, the same answer."""
    people = tiny_population()
    found = pays(LoopEngine(tiny_model(), people, SEED), EVERYBODY, LABELS, LOCAL, rounds=2)
    bare = replace(people, test=[rows[:1] for rows in people.test])
    assert pays(LoopEngine(tiny_model(), bare, SEED), EVERYBODY, LABELS, LOCAL, rounds=2) == found
