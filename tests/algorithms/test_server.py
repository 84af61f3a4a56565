"""Models that follow the mean of their members by a rule: FedAvgM, FedAdam and FedYogi inside every cluster."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    ALL,
    CLASSES,
    ENGINES,
    LOCAL,
    SEED,
    SHAPE,
    SIZES,
    TRUTH,
    gap,
    play,
    silence,
    stopped,
    tiny_model,
    tiny_population,
    without,
)
from terminal import Umbel
from torch import nn

import umbel as u
from umbel import tree
from umbel.algorithms import ALGORITHMS
from umbel.algorithms.server import AGGREGATES, SERVERS, Server, grown
from umbel.federation.training import train
from umbel.runs.run import rounds

ADAPTIVE = u.Local(lr=0.01, epochs=2, batch=5, optimiser="adam", schedule="cosine")
rules = pytest.mark.parametrize("rule", SERVERS[1:])


def fed(engine="loop", people=None):
    return ENGINES[engine](tiny_model(), people or tiny_population(), SEED)


def literal(rule, x, mean, slots, lr, beta1):
    """One round of one cluster and one tensor, as printed, in numpy."""
    delta = mean - x
    if rule == "fedavgm":
        slots["v"] = beta1 * slots.get("v", 0) + delta
        return x + lr * slots["v"]
    slots["m"] = beta1 * slots.get("m", 0) + (1 - beta1) * delta
    v = slots.get("v", np.full_like(x, 1e-3**2))
    slots["v"] = (0.99 * v + 0.01 * delta**2) if rule == "fedadam" else v - 0.01 * delta**2 * np.sign(v - delta**2)
    return x + lr * slots["m"] / (np.sqrt(slots["v"]) + 1e-3)


@rules
def test_three_rounds_in_two_clusters_are_the_printed_ones(rule):
    """Clients train as ever; the server's step is computed by hand, in float64, for each true group."""
    lr, beta1, there = 0.5, 0.8, fed()
    method = u.Oracle(truth=TRUTH, local=LOCAL, server=rule, server_lr=lr, server_momentum=beta1)
    state = u.run(method, fed(), rounds=3, fine_tune=0).state
    names = list(there.net.shapes)
    by_hand = [{name: leaf.double().numpy() for name, leaf in there.net.init(SEED).items()} for _ in range(2)]
    slots = [{name: {} for name in names} for _ in range(2)]
    for r in range(3):
        for z in range(2):
            ids = torch.tensor([i for i, group in enumerate(TRUTH) if group == z])
            model = {name: torch.from_numpy(by_hand[z][name]).float() for name in names}
            ends = there.map(train, u.Cohort(ids, r), work=LOCAL.work, shared={"model": model}, **LOCAL.at(r)).answers
            share = np.array([SIZES[i] for i in ids]) / sum(SIZES[i] for i in ids)
            for name in names:
                mean = np.tensordot(share, ends["model"][name].double().numpy(), 1)
                by_hand[z][name] = literal(rule, by_hand[z][name], mean, slots[z][name], lr, beta1)
    for z in range(2):
        for name in names:
            assert np.allclose(state.models[name][z].numpy(), by_hand[z][name], atol=1e-5)
    kept = {"fedavgm": {"velocity": "v"}, "fedadam": {"first": "m", "second": "v"},
            "fedyogi": {"first": "m", "second": "v"}}[rule]
    assert set(state.slots) == set(kept)
    for slot, letter in kept.items():
        for name in names:
            assert np.allclose(state.slots[slot][name][1].numpy(), slots[1][name][letter], atol=1e-5)


def test_defaults_are_the_papers():
    """beta_1 0.9; eta 1 for FedAvgM, whose first step is the mean itself."""
    rule = u.FedAvg(server="fedavgm").server_rule
    assert rule == Server("fedavgm", 1.0, 0.9)
    assert u.FedAvg(server="fedadam").server_rule == Server("fedadam", 0.01, 0.9)
    plain, first = (play(u.FedAvg(local=LOCAL, **server), fed(), rounds=1)
                    for server in ({}, {"server": "fedavgm"}))
    assert gap(plain.models, first.models) < 1e-6
    assert not plain.slots


def test_one_step_by_hand():
    """Delta 2 from 0: FedAdam's m 0.2, v 0.99e-6 + 0.04; FedYogi's v 1e-6 + 0.04, since v < Delta^2."""
    models, means = ({"w": torch.full((1, 1), value, dtype=torch.float64)} for value in (0, 2))
    for rule, second in (("fedadam", 0.99e-6 + 0.04), ("fedyogi", 1e-6 + 0.04)):
        after, slots = Server(rule, 0.1, 0.9).follow(models, means, torch.tensor([True]), {})
        assert slots["first"]["w"].item() == pytest.approx(0.2, abs=1e-12)
        assert slots["second"]["w"].item() == pytest.approx(second, abs=1e-12)
        assert after["w"].item() == pytest.approx(0.1 * 0.2 / (second**0.5 + 1e-3), abs=1e-12)


@rules
def test_a_cluster_that_was_not_heard_keeps_model_and_slots(rule):
    """Momentum would carry it on; it must not."""
    method = u.Oracle(truth=TRUTH, local=LOCAL, server=rule)
    first = play(method, fed(), rounds=1)
    away = method.round(fed(), first, u.Cohort(torch.tensor([0, 2, 4]), 1))  # group 0 alone
    for before, after in zip([first.models, *first.slots.values()], [away.models, *away.slots.values()], strict=True):
        for name, leaf in after.items():
            assert torch.equal(leaf[1], before[name][1])
            assert not torch.equal(leaf[0], before[name][0])


def test_the_rule_acts_on_what_is_named_and_the_rest_follows_the_mean():
    """Entries that no client trains have no slots."""
    models = {"w": torch.zeros(2, 3), "running": torch.zeros(2, 3)}
    means = {"w": torch.ones(2, 3), "running": torch.tensor([[5.0] * 3, [0.0] * 3])}
    after, slots = Server("fedadam", 0.1).follow(models, means, torch.tensor([True, False]), {}, ("w",))
    assert torch.equal(after["running"], means["running"])
    assert set(slots["first"]) == {"w"}
    assert not after["w"][1].any()
    assert after["w"][0].all()


def test_slots_grow_at_rest():
    """Second moments rest at tau^2, the others at 0; no slots stay none."""
    slots = Server("fedyogi").begin({"w": torch.ones(1, 2)})
    more = grown(tree.each(lambda leaf: leaf + 1, slots), 2)
    assert more["first"]["w"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert more["second"]["w"][1:].flatten().tolist() == [pytest.approx(1e-6)] * 4
    assert more["second"]["w"][0].tolist() == [pytest.approx(1 + 1e-6)] * 2
    assert grown({}, 3) == {}


def test_slots_grow_with_a_split():
    """CFL: who leaves starts at rest from the joint model; who stays keeps its memory."""
    method = u.CFL(settled=100.0, restless=0.0, smallest=4, patience=1, local=LOCAL, server="fedadam")
    there = fed()
    whole = play(method, there, rounds=1)
    after = method.round(there, whole, u.Cohort(torch.arange(6), 1))
    assert tree.count(after.models) == 2 == tree.count(after.slots)
    assert all(not leaf[1].any() and leaf[0].any() for leaf in after.slots["first"].values())
    assert all(bool((leaf[1] == 1e-6).all()) for leaf in after.slots["second"].values())
    assert torch.equal(tree.flat(after.models)[0], tree.flat(after.models)[1])


@pytest.mark.parametrize("method", [
    u.FLAG(gradient_epochs=2, cut="count", clusters=1, local=LOCAL, server="fedavgm"),
    u.FedGroup(1, steps=10, local=LOCAL, server="fedavgm")], ids=["flag", "fedgroup"])
def test_slots_grow_with_a_newcomer_that_founds_a_cluster(method):
    """One-shot methods and centres alike; then both clusters train."""
    there = without(fed(), 1)
    state = play(method, there, rounds=2)
    state = replace(state, evidence=state.evidence | {"cut": torch.tensor(-1.0)})  # everybody is like nobody
    there.online[1] = True
    state = method.admit(there, state, u.Cohort(torch.tensor([1]), 2, "admit"))
    assert tree.count(state.models) == 2 == tree.count(state.slots)
    assert all(not leaf[1].any() and leaf[0].any() for leaf in state.slots["velocity"].values())
    after = method.round(there, state, u.Cohort(torch.arange(6), 2))
    assert all(leaf[1].any() for leaf in after.slots["velocity"].values())


@pytest.mark.parametrize("name", ["flhc", "kmeans", "cflgt"])
def test_slots_are_dropped_when_models_are_formed_anew(name):
    """After pre-training all clusters start alike, at rest; before it there was a memory."""
    method = replace(ALL[name].make(LOCAL, TRUTH), server="fedadam", pretrain=2)
    there = fed()
    before = play(method, there, rounds=1)
    assert before.slots
    after = method.round(there, before, u.Cohort(torch.arange(6), 1))
    assert tree.count(after.models) == 2
    assert after.slots == {}


REFUSED = {
    "solo": "every client trains alone", "fedsoft": "its centres are means by shares of all clients",
    "fedsem": "its centres are the means of their members", "fednova": "it has a server's step of its own",
    "scaffold": "the control variates belong to the mean of the models",
    "auto": "the plans of its trial are compared by plain means",
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_methods_admit_a_server_or_say_why_not(name, umbel: Umbel):
    """Those that average inside clusters do; from Python and the command line alike."""
    if name not in REFUSED:
        assert ALGORITHMS[name].servers == SERVERS
        return
    with pytest.raises(u.UmbelError) as error:
        ALGORITHMS[name](server="fedadam")
    assert str(error.value) == f"The 'server' of {name} must be none, since {REFUSED[name]}. Got fedadam instead."
    assert umbel("run", name, "--set", "server=fedadam").err == f"Error: {error.value}\n"


@pytest.mark.parametrize("name", [name for name in ALL if name not in REFUSED])
def test_every_method_that_admits_a_server_uses_it(name):
    """The rule changes where the run ends, and a silent client harms nobody."""
    method = ALL[name].make(LOCAL, TRUTH)
    plain, ruled = (play(made, fed()) for made in (method, replace(method, server="fedavgm", server_momentum=0.5)))
    assert ruled.slots
    assert gap(plain.models, ruled.models) > 1e-4
    lost, away = (play(replace(method, server="fedadam"), one)
                  for one in (silence(fed(), "c001"), without(fed(), 1)))
    assert gap(lost.models, away.models) <= 1e-5


def test_a_rate_without_a_rule_is_refused():
    """It would vanish without a word."""
    with pytest.raises(u.UmbelError, match="The 'server_lr' of fedavg is the rate of a server's rule: set 'server' as"):
        u.FedAvg(server_lr=0.1)
    with pytest.raises(u.UmbelError, match=r"must be 'none' or 'fedavgm' or 'fedadam' or 'fedyogi'. Got 'fedadm' inst"):
        u.FedAvg(server="fedadm")


@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "flower"])
@pytest.mark.parametrize("method", [u.FedAvg, u.IFCA])
def test_stop_and_resume_with_adam_a_cosine_and_fedadam(method, engine, tmp_path):
    """Slots are part of the checkpoint: a run read back from its folder ends in the same bits."""
    algorithm = method(local=ADAPTIVE, server="fedadam")
    whole = list(rounds(algorithm, fed(engine), rounds=4, fraction=0.5))[-1].state
    saved = stopped(algorithm, fed(engine), tmp_path / "run")
    assert saved.state.slots
    last = list(rounds(algorithm, fed(engine), rounds=4, fraction=0.5, saved=saved))[-1].state
    for part in ("models", "slots"):
        ours, theirs = (tree.named(getattr(state, part)) for state in (whole, last))
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_answers_become_one_by_the_aggregate_of_the_settings(monkeypatch):
    """Another way to make one model of many answers is one function in AGGREGATES: here the largest answer wins."""
    def largest(models, labels, size, otherwise, faulty):
        first = {name: leaf[size.argmax()][None] for name, leaf in models.items()}
        return {name: torch.cat([first[name], otherwise[name][1:]]) for name in otherwise}

    monkeypatch.setitem(AGGREGATES, "mean", largest)
    there = fed()
    method = u.FedAvg(local=LOCAL)
    before = method.init(there, SEED)
    after = method.round(there, before, u.Cohort(torch.arange(6), 0))
    sizes = [len(rows) for rows in there.clients.population.train]
    one = u.Cohort(torch.tensor([sizes.index(max(sizes))]), 0)
    alone = there.map(train, one, work=LOCAL.work, shared={"model": tree.take(before.models, 0)}, **LOCAL.at(0))
    assert gap(tree.take(after.models, 0), tree.take(alone.answers["model"], 0)) < 1e-6


@pytest.mark.parametrize("name", ["fedavg", "kmeans", "cfl", "flhc", "perfedavg"])
def test_running_statistics_become_the_mean_whatever_the_rule(name):
    """A rule moves what is trained alone: after a round, BatchNorm's mean and variance are those without a server."""
    one = u.wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(),
                                       nn.Linear(8, CLASSES)), SHAPE, CLASSES)
    method = ALL[name].make(LOCAL, TRUTH)
    plain, ruled = (play(made, ENGINES["loop"](one, tiny_population(), SEED), rounds=1)
                    for made in (method, replace(method, server="fedadam")))
    assert set(one.statistics) == {"2.running_mean", "2.running_var"}
    for statistic in one.statistics:
        assert torch.equal(plain.models[statistic][0], ruled.models[statistic][0])
    assert gap({"w": plain.models["1.weight"][0]}, {"w": ruled.models["1.weight"][0]}) > 1e-4
