"""Norms that stay at the clients: what is averaged, billed, remembered and judged."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import CLASSES, LOCAL, SEED, SIZES, gap, play, stopped, tiny_population
from torch import nn
from torch.nn.functional import cross_entropy

import umbel
from umbel import tree
from umbel.algorithms import FLAG, IFCA, FedAvg, FedBN, FedNova
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation import ledger
from umbel.federation.door import Cohort
from umbel.nets.model import Model
from umbel.nets.wrap import wrap
from umbel.runs import evaluate
from umbel.runs.result import finish
from umbel.runs.run import rounds


def normed() -> Model:
    """9 - 8 - 3 with a BatchNorm of 16 parameters and 16 statistics."""
    return wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(),
                                      nn.Linear(8, CLASSES)), (1, 3, 3), CLASSES)


def fresh() -> LoopEngine:
    return LoopEngine(normed(), tiny_population(), SEED)


def literal(people: list[int], index: int, starts: dict[int, dict], fed: LoopEngine) -> dict[int, dict]:
    """One round of plain torch at each client, from its own start; a batch of one row is of no use to BatchNorm."""
    ends = {}
    for i in people:
        module = fed.net.make()
        module.load_state_dict(starts[i], strict=False)
        optimiser = torch.optim.SGD(module.parameters(), lr=LOCAL.lr, momentum=LOCAL.momentum)
        for batch in fed.clients.batches(fed.clients.plan(i, Cohort(torch.tensor([i]), index), LOCAL.work)):
            module.train(len(batch.y) > 1)
            optimiser.zero_grad()
            cross_entropy(module(batch.x), batch.y).backward()
            optimiser.step()
        ends[i] = {name: leaf.detach() for name, leaf in module.state_dict().items() if "tracked" not in name}
    return ends


@pytest.mark.parametrize("private", [False, True])
def test_two_rounds_equal_plain_torch(private):
    """FedAvg averages statistics by size with the rest; FedBN averages all but norms, which go on at each client."""
    fed, who = fresh(), [0, 1, 4]
    state = play((FedBN if private else FedAvg)(local=LOCAL), fed, rounds=2, ids=tuple(who))
    first = fed.net.init(SEED)
    starts = dict.fromkeys(who, first)
    total = sum(SIZES[i] for i in who)
    for index in range(2):
        ends = literal(who, index, starts, fed)
        mean = {name: sum(SIZES[i] / total * ends[i][name] for i in who) for name in first}
        starts = {i: {**mean, **(tree.part(ends[i], fed.net.norms) if private else {})} for i in who}
    shared = tree.without(mean, fed.net.norms) if private else mean
    assert set(fed.net.norms) == {"2.weight", "2.bias", "2.running_mean", "2.running_var"}
    assert gap(shared, tree.take(state.models, 0)) < 1e-5
    if private:
        pages, _ = fed.memory()
        assert all(gap(pages[f"c00{i}"]["norms"], ends[i]) < 1e-5 for i in who)
        assert gap(first, {**first, **tree.part(tree.take(state.models, 0), fed.net.norms)}) == 0  # never averaged


def test_private_norms_are_not_billed():
    """Down and up go 80 + 27 weights and no norm, in training, signatures and evaluation."""
    fed = fresh()
    play(FedBN(local=LOCAL), fed, rounds=2, ids=(0, 1))
    moved = ledger.summary(ledger.totals(fed.ledger.lines))
    assert (moved["down"], moved["up"]) == (4 * 4 * 107, 4 * (4 * 107 + 8))
    fed = fresh()
    algorithm = FLAG(gradient_epochs=1, cut="gap", local=replace(LOCAL, norms="private"))
    evaluate.current(fed, algorithm, play(algorithm, fed, rounds=1), 1)
    sent = {line.bytes[0] for line in fed.ledger.lines if line.kind == "model"}
    assert sent == {4 * 107}
    assert fed.memory()[1] == dict.fromkeys(fed.names, 0)  # of the round, not of the signature


def test_the_score_is_the_clusters_model_with_the_clients_norms():
    """And so is the model that a client takes away; a whole cluster has none."""
    fed, algorithm = fresh(), FedBN(local=LOCAL)
    records = []
    for done in rounds(algorithm, fed, rounds=2):
        records.append(done.record)
    result = finish(algorithm, fed, done.state, records)
    pages, people = fed.memory()[0], tiny_population()
    for i, name in enumerate(fed.names):
        own = {**tree.take(done.state.models, 0), **pages[name]["norms"]}
        x, y = (torch.from_numpy(part[people.test[i]]) for part in (people.pool.x, people.pool.y))
        right = float((fed.net.logits(own, x).argmax(1) == y).double().mean())
        assert records[-1]["final"]["cluster_model"]["clients"][name]["score"] == pytest.approx(right)
        assert (result.predict(x, client=name) == y.numpy()).mean() == pytest.approx(right)
    assert result.info["headline"] == "cluster_model"
    with pytest.raises(UmbelError, match="has no model for a whole cluster"):
        result.model(0)


def test_norms_survive_a_stop(tmp_path):
    """A run read back from its folder ends in the same bits, those of private norms included."""
    algorithm, whole = FedBN(local=LOCAL), fresh()
    last = list(rounds(algorithm, whole, rounds=4, fraction=0.5))[-1]
    saved, again = stopped(algorithm, fresh(), tmp_path / "run"), fresh()
    end = list(rounds(algorithm, again, rounds=4, fraction=0.5, saved=saved))[-1]
    assert gap(last.state.models, end.state.models) == 0
    old, new = whole.memory()[0], again.memory()[0]
    assert all(gap(old[name]["norms"], new[name]["norms"]) == 0 for name in old)


def test_fednova_takes_no_steps_with_statistics():
    """A variance is averaged by size: steps beyond the mean could make it negative."""
    fed = fresh()
    state = FedNova(local=LOCAL).init(fed, SEED)
    after = FedNova(local=LOCAL).round(fed, state, Cohort(torch.arange(len(SIZES)), 0))
    other = fresh()
    plain = FedAvg(local=LOCAL).round(other, state, Cohort(torch.arange(len(SIZES)), 0))
    assert gap(tree.part(after.models, fed.net.statistics), plain.models) < 1e-6
    assert gap(tree.part(after.models, fed.net.trained), plain.models) > 1e-4


def test_fedbn_is_fedavg_with_private_norms_whatever_local_says():
    """The setting is the method."""
    assert FedBN(local=LOCAL).local.norms == "private"
    private = FedAvg(local=replace(LOCAL, norms="private"))
    assert gap(play(FedBN(local=LOCAL), fresh()).models, play(private, fresh()).models) == 0


def test_who_cannot_keep_norms_says_so():
    """Python and the command line refuse alike."""
    with pytest.raises(UmbelError, match="'norms' of ifca"):
        IFCA(local=replace(LOCAL, norms="private"))
    with pytest.raises(UmbelError, match="FLAG's trial of cuts averages whole models, and with norms=private"):
        FLAG(cut="sweep", local=replace(LOCAL, norms="private")).init(fresh(), SEED)
    with pytest.raises(UmbelError, match="set trial=none of flag, or norms=shared"):
        FLAG(local=replace(LOCAL, norms="private")).init(fresh(), SEED)
    with pytest.raises(UmbelError, match="must be 'shared' or 'private'"):
        replace(LOCAL, norms="own")
    with pytest.raises(UmbelError, match="'keep' of fedbn, whose clients keep"):
        umbel.run(FedBN(local=replace(LOCAL, rows="fit")), fresh(), rounds=1, keep="best")


def test_clients_are_grouped_by_what_is_trained():
    """Statistics are no weights: an update for clustering has one number for each trained parameter."""
    fed = fresh()
    state = play(FLAG(gradient_epochs=1, cut="gap", local=LOCAL), fed, rounds=1)
    assert state.evidence["signature"]["update"].shape == (len(SIZES), 107 + 16)
    assert np.isfinite(state.evidence["proximity"].numpy()).all()
