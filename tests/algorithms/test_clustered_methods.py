"""Each clustered method on tiny federations: what its paper says, and the traps that others fell into."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from helpers import (
    ALL,
    CLASSES,
    LOCAL,
    SEED,
    SHAPE,
    SIZES,
    TRUTH,
    gap,
    play,
    silence,
    tiny_model,
    tiny_population,
    without,
)
from torch import tensor
from torch.nn.functional import cross_entropy

from umbel import tree
from umbel.algorithms import (
    CFL,
    CFLGT,
    FLAG,
    FLHC,
    IFCA,
    PACFL,
    FedAvg,
    FedClust,
    FedGroup,
    FedProx,
    FedSEM,
    FedSoft,
    KMeans,
    Oracle,
    Solo,
)
from umbel.algorithms.sweep import trial, validate
from umbel.clustering.cuts import BY_TRIAL
from umbel.clustering.proximity import update_angle
from umbel.data.clients import Population, Work
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, NobodyAnswered, Silent
from umbel.runs.evaluate import agreement
from umbel.runs.run import rounds

FULL = replace(LOCAL, batch=0)  # all rows at once: equal data give equal updates
QUICK = replace(FULL, epochs=1)
EVERYBODY = torch.arange(len(SIZES))


def federation(truth, sizes=None, seed=3, edit=None, meanings=False):
    """Clients of several groups, each with its own looks; `edit(i, x, y)` may change a client's training rows.

    With `meanings` all groups look alike, and each calls the same look by another label: no one model serves two.
    """
    rng = np.random.default_rng(seed)
    looks = 2 * rng.normal(size=(max(truth) + 1, CLASSES, *SHAPE))
    if meanings:
        looks = np.stack([np.roll(looks[0], group, axis=0) for group in range(len(looks))])
    sites = {}
    for i, group in enumerate(truth):
        size = sizes[i] if sizes else 18
        shown = np.arange(size + 10) % CLASSES
        x = (looks[group][shown] + 0.3 * rng.normal(size=(size + 10, *SHAPE))).astype(np.float32)
        train = (x[:size], shown[:size]) if edit is None else edit(i, x[:size], shown[:size])
        sites[f"c{i:03d}"] = (*train, x[size:], shown[size:])
    return LoopEngine(tiny_model(), Population.of_sites(sites, CLASSES, truth), SEED)


def tiny():
    return LoopEngine(tiny_model(), tiny_population(), SEED)


def ari(state, truth):
    return agreement(state.labels.tolist(), list(truth))["ari"]


def trained(fed, start, i, cohort, work, lr=LOCAL.lr, momentum=LOCAL.momentum, extra=None):
    """A client's SGD by torch.optim, with an extra term of the loss."""
    module = fed.net.make()
    module.load_state_dict(start)
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum)
    for batch in fed.clients.batches(fed.clients.plan(i, cohort, work)):
        optimiser.zero_grad()
        loss = cross_entropy(module(batch.x), batch.y)
        (loss if extra is None else loss + extra(dict(module.named_parameters()))).backward()
        optimiser.step()
    return {name: leaf.detach() for name, leaf in module.named_parameters()}


def mean(models, weights):
    """A weighted mean of models, leaf by leaf."""
    total = sum(weights)
    return {name: sum(w * m[name] for w, m in zip(weights, models, strict=True)) / total for name in models[0]}


def lose(fed, phase, *names, rounds=None):
    """Lose the answers of some clients (all, when none is named) in one phase, in some rounds."""
    inner = fed.perform

    def perform(call):
        hit = call.cohort.phase == phase and (rounds is None or call.cohort.round in rounds)
        for chunk in inner(call):
            position = int(chunk.positions[0])
            gone = hit and (not names or fed.names[int(call.cohort.ids[position])] in names)
            yield Silent(position, "late") if gone else chunk

    fed.perform = perform
    return fed


# One-shot methods -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threshold", [0.0, 1e-3])
def test_pacfl_with_a_threshold_near_zero_is_solo(threshold):
    """Every client is a cluster, whose model is that client's own training, bit for bit."""
    fed, alone = tiny(), tiny()
    state = play(PACFL(cut="value", threshold=threshold, local=LOCAL), fed)
    play(Solo(local=LOCAL), alone)
    assert state.labels.tolist() == [0, 1, 2, 3, 4, 5]
    for i, name in enumerate(fed.names):
        assert gap(tree.take(state.models, i), alone.memory()[0][name]["last"]) == 0


def test_pacfl_with_a_large_threshold_is_fedavg():
    """No two subspaces are farther apart than 90 degrees."""
    a = play(PACFL(cut="value", threshold=90.0, local=LOCAL), tiny())
    b = play(FedAvg(local=LOCAL), tiny())
    assert torch.equal(tree.flat(a.models), tree.flat(b.models))


@pytest.mark.parametrize("settings", [
    {"angle": "smallest"}, {"angle": "column", "per_class": True, "linkage": "weighted"}, {"angle": "sum"},
    {"angle": "paired"}, {"per_class": True, "rank": 1}, {"linkage": "complete"}])
def test_pacfl_finds_groups_in_every_reading(settings):
    """The paper's, the public code's, and others; the count is given."""
    state = PACFL(cut="count", clusters=2, local=LOCAL, **settings).init(tiny(), SEED)
    assert ari(state, TRUTH) == 1


def test_pacfls_clusters_do_not_change_in_training():
    """Clustered once: labels and evidence are the same object after rounds."""
    fed = tiny()
    method = PACFL(local=LOCAL)
    before = method.init(fed, SEED)
    after = method.round(fed, before, Cohort(tensor([0, 1]), 0))
    assert after.labels is before.labels
    assert after.evidence is before.evidence


def test_evidence_tells_why():
    """Proximity, dendrogram, cut and curve of the clients that answered."""
    evidence = PACFL(cut="silhouette", local=LOCAL).init(tiny(), SEED).evidence
    assert evidence["proximity"].shape == (6, 6)
    assert evidence["proximity"].diagonal().tolist() == [0] * 6
    assert evidence["linkage"].shape == (5, 4)
    assert evidence["linkage"][3, 2] < evidence["cut"] < evidence["linkage"][4, 2]
    assert evidence["curve"].shape[1] == 4


def test_more_clusters_than_clients_is_refused():
    """In one sentence, before any training."""
    with pytest.raises(UmbelError, match="Got 7 clusters of 6 clients"):
        PACFL(cut="count", clusters=7, local=LOCAL).init(tiny(), SEED)


def test_an_empty_cluster_keeps_its_model():
    """Sampling is over all clients: a cluster of which nobody is in the cohort is not touched."""
    fed = tiny()
    method = PACFL(local=LOCAL)
    before = method.init(fed, SEED)
    after = method.round(fed, before, Cohort(tensor([0, 2]), 0))  # both of group 0
    assert gap(tree.take(after.models, 1), tree.take(before.models, 1)) == 0
    assert gap(tree.take(after.models, 0), tree.take(before.models, 0)) > 0.01


def test_a_cluster_is_the_size_weighted_mean_of_its_members_in_the_cohort():
    """sum n_i w_i / sum n_i over those who were asked, not over all members."""
    fed = tiny()
    method = PACFL(local=LOCAL)
    before = method.init(fed, SEED)
    cohort = Cohort(tensor([0, 1, 4]), 0)
    after = method.round(fed, before, cohort)
    start = tree.take(before.models, 0)
    ends = [trained(fed, start, i, cohort, LOCAL.work) for i in (0, 4)]
    assert gap(tree.take(after.models, 0), mean(ends, [SIZES[0], SIZES[4]])) < 1e-6


@pytest.mark.parametrize("start", ["shared", "random"])
def test_clusters_start_from_one_model_or_each_from_its_own(start):
    """FLAG as printed draws a random model for each."""
    state = FLAG(gradient_epochs=2, cut="count", clusters=2, start=start, local=LOCAL).init(tiny(), SEED)
    equal = gap(tree.take(state.models, 0), tree.take(state.models, 1)) == 0
    assert equal == (start == "shared")


@pytest.mark.parametrize("rule", BY_TRIAL)
def test_flags_sweep_finds_the_groups_and_keeps_its_curve(rule):
    """Every distinct clustering is scored once by a short federation; the chosen one is marked."""
    fed = federation(TRUTH, sizes=[60] * 6, meanings=True)
    state = FLAG(gradient_epochs=2, cut="sweep", rule=rule, local=LOCAL).init(fed, SEED)
    assert ari(state, TRUTH) == 1
    curve = state.evidence["curve"]
    assert curve[:, 1].tolist() == sorted(set(curve[:, 1].tolist()))
    assert curve[0, 1] == 1
    assert curve[:, 3].sum() == 1
    assert curve[curve[:, 3] == 1, 1].tolist() == [2]
    assert ((curve[:, 2] >= 0) & (curve[:, 2] <= 1)).all()


def test_flags_sweep_leaves_alike_clients_together():
    """One distribution, or two that one model serves: no clustering wins on validation rows."""
    for truth in ((0,) * 6, TRUTH):
        fed = federation(truth, sizes=[60] * 6)
        state = FLAG(gradient_epochs=2, cut="sweep", local=LOCAL).init(fed, SEED)
        assert state.labels.tolist() == [0] * 6


def test_flags_validation_equals_a_literal_federation():
    """Train on `fit` rows from the first model for some rounds of one epoch, score on `validation` rows, mean."""
    fed = tiny()
    partitions = [torch.zeros(6, dtype=torch.long), tensor([0, 1, 0, 1, 0, 1])]
    found = validate(fed, EVERYBODY, LOCAL, 30, 2, partitions)
    ended = trial(fed, EVERYBODY, LOCAL, 30, 2, partitions).models
    for partition, score, first in zip(partitions, found, (0, 1), strict=True):
        models = [fed.net.init(SEED)] * 2
        for index in range(2):
            ends = [trained(fed, models[k], i, Cohort(EVERYBODY, index, "sweep"), Work(epochs=1, batch=5, rows="fit"))
                    for i, k in enumerate(partition.tolist())]
            sizes = [len(fed.clients.rows(i, "fit")) for i in range(6)]
            inside = [[i for i in range(6) if partition[i] == k] for k in range(2)]
            models = [mean([ends[i] for i in who], [sizes[i] for i in who]) if who else None for who in inside]
        assert all(gap(tree.take(ended, first + k), models[k]) < 1e-5 for k in set(partition.tolist()))
        scores = []
        for i, k in enumerate(partition.tolist()):
            x, y = fed.clients.gather(fed.clients.rows(i, "validation"))
            scores.append(float((fed.net.logits(models[k], x).argmax(1) == y).double().mean()))
        assert score == pytest.approx(np.mean(scores))


@pytest.mark.parametrize("when", [None, {0}, {1}, {5}])
def test_a_validator_that_falls_silent_leaves_every_clustering(when):
    """Scores stay paired: lost once (in training or in scoring), it counts in none."""
    partitions = [torch.zeros(6, dtype=torch.long), tensor([0, 1, 0, 1, 0, 1]), torch.arange(6)]
    scores = validate(lose(tiny(), "sweep", "c003", rounds=when), EVERYBODY, LOCAL, 30, 5, partitions)
    assert len(scores) == 3
    if when in (None, {0}):
        others = tensor([0, 1, 2, 4, 5])
        without_it = validate(tiny(), others, LOCAL, 30, 5, [labels[others] for labels in partitions[:2]])
        assert scores[:2] == pytest.approx(without_it)


def test_flag_survives_a_silent_validator():
    """Its own membership does not depend on it."""
    fed = lose(federation(TRUTH, sizes=[60] * 6, meanings=True), "sweep", "c003")
    assert ari(FLAG(gradient_epochs=2, local=LOCAL).init(fed, SEED), TRUTH) == 1


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_flag_at_the_ends_of_beta(beta):
    """beta 1 is data alone, beta 0 gradients alone, each over its largest entry; what is not used is not asked for."""
    evidence = FLAG(beta=beta, gradient_epochs=2, cut="gap", local=LOCAL).init(tiny(), SEED).evidence
    assert float(evidence["proximity"].max()) == pytest.approx(1)
    assert ("update" in evidence["signature"], "basis" in evidence["signature"]) == (beta == 0, beta == 1)
    if beta == 0:
        updates = evidence["signature"]["update"]
        angles = update_angle(updates, updates).fill_diagonal_(0)
        assert torch.allclose(evidence["proximity"], angles / angles.max(), atol=1e-9)


def test_flag_mixes_normalised_distances():
    """A = beta V / max V + (1 - beta) G / max G: in [0, 1] with a zero diagonal, and linear in beta."""
    found = [FLAG(beta=beta, gradient_epochs=2, cut="gap", local=LOCAL).init(tiny(), SEED).evidence["proximity"]
             for beta in (0.0, 0.3, 1.0)]
    assert found[1].numpy() == pytest.approx((0.7 * found[0] + 0.3 * found[2]).numpy(), abs=1e-9)
    assert found[1].diagonal().tolist() == [0] * 6


@pytest.mark.parametrize("private", [{"weights": "uniform"}, {"delta": 0.0}])
def test_flags_private_modes_send_no_counts(private):
    """Nobody tells how many rows of a class it holds."""
    fed = tiny()
    FLAG(gradient_epochs=2, cut="gap", local=LOCAL, **private).init(fed, SEED)
    assert "counts" not in {line.kind for line in fed.ledger.lines}


def test_flag_describes_who_answered_everything():
    """c001 sends no vectors and c004 no update: both stay out, and all parts of a row are one client's."""
    def perform(call, inner):
        silent = {"class_vectors": "c001", "train": "c004"}.get(call.task.name)
        for chunk in inner(call):
            position = int(chunk.positions[0])
            yield Silent(position, "late") if fed.names[int(call.cohort.ids[position])] == silent else chunk

    fed, method, asked = tiny(), FLAG(gradient_epochs=2, local=LOCAL), Cohort(EVERYBODY, 0, "signature")
    whole = method.describe(fed, asked, fed.net.init(SEED))[1]
    fed.perform = partial(perform, inner=fed.perform)
    who, signature = method.describe(fed, asked, fed.net.init(SEED))
    assert who.tolist() == [0, 2, 3, 5]
    assert set(signature) == set(whole)
    for name in ("basis", "counts", "update"):
        assert torch.equal(signature[name], whole[name][who])


def test_flags_sweep_goes_from_one_cluster_to_everybody_alone():
    """Both ends of the grid count: alpha 1 merges all, alpha 0 nobody who differs."""
    curve = FLAG(gradient_epochs=2, cut="sweep", step=1.0, local=LOCAL).init(tiny(), SEED).evidence["curve"]
    assert curve[:, :2].tolist() == [[1, 1], [0, 6]]


def test_flag_trains_for_its_gradient_from_the_common_model():
    """Delta_i is t_g epochs of SGD from theta_0, end minus start."""
    fed = tiny()
    evidence = FLAG(gradient_epochs=3, cut="gap", local=LOCAL).init(fed, SEED).evidence
    start = fed.net.init(SEED)
    end = trained(fed, start, 3, Cohort(EVERYBODY, 0, "signature"), Work(epochs=3, batch=LOCAL.batch))
    literal = torch.cat([(end[name] - start[name]).flatten() for name in sorted(end)])
    assert evidence["signature"]["update"][3].tolist() == pytest.approx(literal.tolist(), abs=1e-6)


def test_fedclust_compares_the_classifier_alone():
    """||w_i - w_j|| of weight and bias of the last layer, after a warm-up from the common model."""
    fed = tiny()
    evidence = FedClust(warmup=2, cut="gap", local=LOCAL).init(fed, SEED).evidence
    work = Work(epochs=2, batch=LOCAL.batch)
    ends = [trained(fed, fed.net.init(SEED), i, Cohort(EVERYBODY, 0, "signature"), work) for i in range(6)]
    heads = [torch.cat([end["3.bias"], end["3.weight"].flatten()]) for end in ends]
    literal = [[float((a - b).norm()) for b in heads] for a in heads]
    assert evidence["proximity"].numpy() == pytest.approx(np.array(literal), abs=1e-5)
    assert {line.kind for line in fed.ledger.lines if line.direction == "up"} == {"model", "size"}


def test_cflgt_describes_clients_on_the_pretrained_model_and_starts_from_it():
    """The anchor is FedAvg's model after K rounds with everybody, and every cluster's first model."""
    fed = tiny()
    method = CFLGT(pretrain=2, cut="gate", gate=0.0, local=LOCAL)
    state = method.init(fed, SEED)
    for index in range(2):
        state = method.round(fed, state, Cohort(tensor([0, 3]), index))
    global_model = tree.take(play(FedAvg(local=LOCAL), tiny(), rounds=2).models, 0)
    assert gap(state.evidence["anchor"], global_model) == 0
    assert all(gap(tree.take(state.models, k), global_model) == 0 for k in range(tree.count(state.models)))
    assert state.labels[state.evidence["exemplars"]].tolist() == list(range(tree.count(state.models)))


def test_cflgts_gate_answers_one_cluster():
    """A Hopkins statistic of at most `gate` is no evidence of groups, whatever affinity propagation says."""
    state = play(CFLGT(pretrain=1, cut="gate", gate=1.0, local=LOCAL), tiny(), rounds=1)
    assert state.labels.tolist() == [0] * 6
    assert 0 < float(state.evidence["hopkins"]) <= 1


@pytest.mark.parametrize("make", [lambda: CFLGT(pretrain=2, local=LOCAL),
                                  lambda: FLHC(pretrain=2, local=LOCAL), lambda: KMeans(pretrain=2, local=LOCAL)])
def test_clusters_are_formed_a_round_later_when_the_last_of_pretraining_is_lost(make):
    """They are not given up: a method that never forms its clusters would be FedAvg in disguise."""
    fed = lose(tiny(), "train", rounds={1})
    done = list(rounds(make(), fed, rounds=2))
    assert [each.record["clusters"] for each in done[:3]] == [1, 1, 1]
    assert ari(done[-1].state, TRUTH) == 1


def test_affinity_propagations_clusters_are_joined_where_tests_cannot_tell_them_apart():
    """Of alike clients it finds several clusters, since it always does."""
    fed = federation((0,) * 12, sizes=[40] * 12)
    assert int(play(CFLGT(pretrain=1, cut="gate", gate=0.0, local=LOCAL), fed, rounds=1).labels.max()) > 1
    assert play(CFLGT(pretrain=1, local=LOCAL), fed, rounds=1).labels.tolist() == [0] * 12


def test_flhc_clusters_updates_from_the_model_that_was_sent():
    """End minus start of the last pre-training round; L2 between them here."""
    fed = tiny()
    evidence = play(FLHC(pretrain=1, local=LOCAL), fed, rounds=1).evidence
    updates = evidence["signature"]["update"].double()
    end, start = fed.memory()[0]["c003"]["last"], fed.net.init(SEED)
    moved = torch.cat([(end[name] - start[name]).flatten() for name in sorted(end)])
    assert updates[3].tolist() == pytest.approx(moved.tolist(), abs=1e-6)
    assert evidence["proximity"].numpy() == pytest.approx(torch.cdist(updates, updates).numpy(), abs=1e-9)


# k-means, FedSEM, FedGroup ----------------------------------------------------------------------------------------


def test_kmeans_clusters_the_local_weights_of_the_last_pretraining_round():
    """No extra round: centres are the means of what clients sent in it, and clusters start from the global model."""
    fed = tiny()
    state = play(KMeans(2, pretrain=2, local=LOCAL), fed, rounds=2)
    assert {line.phase for line in fed.ledger.lines} == {"train"}
    pages, written = fed.memory()
    assert set(written.values()) == {1}
    ends = torch.cat([tree.flat(tree.stack([pages[name]["last"]])) for name in fed.names]).double()
    for k in range(2):
        centre = ends[state.labels == k].mean(0)
        assert state.evidence["centres"][k].tolist() == pytest.approx(centre.tolist(), abs=1e-6)
    after = tree.take(play(FedAvg(local=LOCAL), tiny(), rounds=2).models, 0)
    assert gap(tree.take(state.models, 0), after) == gap(tree.take(state.models, 1), after) == 0
    assert ari(state, TRUTH) == 1


def test_kmeans_with_more_clusters_than_clients():
    """As many clusters as there are local models."""
    state = play(KMeans(40, pretrain=1, local=LOCAL), tiny(), rounds=2)
    assert tree.count(state.models) == 6


@pytest.mark.parametrize("make", [lambda: KMeans(pretrain=1, local=LOCAL), lambda: FedGroup(steps=20, local=LOCAL)])
@pytest.mark.parametrize("truth", [(0,) * 12, (0, 1, 2) * 4, (3, 0, 1, 2) * 3])
def test_where_no_number_is_given_halves_are_halved_until_tests_tell_nobody_apart(make, truth):
    """One, three, four groups: as many clusters, also where a half is no single group. Why is what tests said."""
    method, fed = make(), federation(truth, sizes=[40] * 12)
    state = play(method, fed, rounds=1)
    assert ari(state, truth) == 1
    assert tree.count(state.models) == len(set(truth))
    assert ("cannot be told apart" in method.why(state)) == (len(set(truth)) == 1)


@pytest.mark.parametrize("rows", [20, 120])
@pytest.mark.parametrize("make", [lambda: KMeans(pretrain=1, local=LOCAL), lambda: FedGroup(steps=20, local=LOCAL)])
def test_a_newcomers_size_does_not_matter_where_the_number_is_found(make, rows):
    """Members have 40 rows; whose weights moved less or more by its size joins its group all the same."""
    method, fed = make(), federation((0, 1) * 6, sizes=[40] * 10 + [rows] * 2)
    state = play(method, without(fed, 10, 11), rounds=1)
    fed.online[[10, 11]] = True
    assert method.admit(fed, state, Cohort(tensor([10, 11]), 1, "admit")).labels.tolist() == [0, 1] * 6


def test_where_the_number_is_found_fedgroup_asks_everybody_first():
    """Nothing says how many are enough."""
    assert int((FedGroup(sample=1, steps=5, local=LOCAL).init(tiny(), SEED).labels >= 0).sum()) == 6


def test_fedsem_is_em_by_hand():
    """One round after the first: train from the own centre, join the nearest, plain mean of the members."""
    fed = tiny()
    method = FedSEM(2, local=LOCAL)
    before = play(method, fed, rounds=1)
    cohort = Cohort(EVERYBODY, 1)
    after = method.round(fed, before, cohort)
    centres = [tree.take(before.models, k) for k in range(2)]
    ends = [trained(fed, centres[int(before.labels[i])], i, cohort, LOCAL.work) for i in range(6)]
    flat = [tree.flat(tree.stack([model])) for model in (*ends, *centres)]
    nearest = [int(torch.stack([(flat[i] - flat[6 + k]).norm() for k in range(2)]).argmin()) for i in range(6)]
    assert after.labels.tolist() == nearest
    for k in range(2):
        members = [ends[i] for i in range(6) if nearest[i] == k]
        assert gap(tree.take(after.models, k), mean(members, [1] * len(members))) < 1e-6


def test_fedsem_can_be_frozen():
    """After `freeze` rounds nobody moves, wherever its model goes."""
    fed = tiny()
    method = FedSEM(2, freeze=1, local=LOCAL)
    state = play(method, fed, rounds=1)
    swapped = replace(state, labels=1 - state.labels)
    assert torch.equal(method.round(fed, swapped, Cohort(EVERYBODY, 1)).labels, swapped.labels)


def test_fedgroup_leaves_clients_beyond_its_sample_unplaced():
    """Three clients for each of two clusters are asked; the others are admitted when they are met, to their groups."""
    fed = federation(WITH_STRANGERS[:10])
    method = FedGroup(2, sample=3, steps=50, local=LOCAL)
    state = method.init(fed, SEED)
    assert int((state.labels >= 0).sum()) == 6
    placed = method.admit(fed, state, Cohort((state.labels < 0).nonzero().flatten(), 0, "admit"))
    assert ari(placed, WITH_STRANGERS[:10]) == 1


# FedProx, IFCA, CFL, FedSoft --------------------------------------------------------------------------------------


def test_fedprox_holds_clients_near_a_copy_of_the_global_model():
    """F_i(w) + mu/2 ||w - w_g||^2 with a w_g that does not move along: a large mu must be felt."""
    fed = tiny()
    method = FedProx(1.0, local=LOCAL)
    before = method.init(fed, SEED)
    cohort = Cohort(tensor([3]), 0)
    anchor = {name: leaf.clone() for name, leaf in tree.take(before.models, 0).items()}

    def pull(params):
        return sum(((params[name] - anchor[name]) ** 2).sum() for name in anchor) / 2

    after = tree.take(method.round(fed, before, cohort).models, 0)
    assert gap(after, trained(fed, anchor, 3, cohort, LOCAL.work, extra=pull)) < 1e-6
    assert gap(after, trained(fed, anchor, 3, cohort, LOCAL.work)) > 1e-3
    assert gap(tree.take(before.models, 0), anchor) == 0


def test_ifca_assigns_by_training_loss_and_never_by_test_loss():
    """Each client's test rows belong to the other group: who chose by them would choose otherwise."""
    people = tiny_population()
    crossed = replace(people, test=[people.test[i] for i in (1, 0, 3, 2, 5, 4)])
    fed = LoopEngine(tiny_model(), crossed, SEED)
    told = play(Oracle(TRUTH, local=LOCAL), tiny())  # a model for each group
    state = replace(IFCA(2, local=LOCAL).init(fed, SEED), models=told.models)
    chosen = IFCA(2, local=LOCAL).admit(fed, state, Cohort(EVERYBODY, 0, "admit"))
    assert chosen.labels.tolist() == list(TRUTH)
    for which, expected in (("train", TRUTH), ("test", [1 - group for group in TRUTH])):
        for i in range(6):
            x, y = fed.clients.gather(fed.clients.rows(i, which))
            found = [float(cross_entropy(fed.net.logits(tree.take(told.models, k), x), y)) for k in range(2)]
            assert int(np.argmin(found)) == expected[i]


def test_ifca_chooses_anew_in_every_round():
    """Labels of the cohort follow the models; those of others stay."""
    fed = tiny()
    told = play(Oracle(TRUTH, local=LOCAL), tiny())
    swapped = replace(told, labels=1 - told.labels)
    after = IFCA(2, local=LOCAL).round(fed, swapped, Cohort(tensor([0, 1]), 1))
    assert after.labels.tolist() == [0, 1, 1, 0, 1, 0]


def test_ifca_may_begin_at_random_or_with_an_expert():
    """`expert` 1 is the truth, 0 is chance; in round 0 nobody chooses, in round 1 everybody does."""
    fed = tiny()
    assert IFCA(2, first="expert", expert=1.0, truth=TRUTH).init(fed, SEED).labels.tolist() == list(TRUTH)
    chance = IFCA(2, first="random").init(fed, SEED).labels
    assert set(chance.tolist()) <= {0, 1}
    assert torch.equal(chance, IFCA(2, first="random", truth=TRUTH).init(tiny(), SEED).labels)
    method = IFCA(2, first="random", local=LOCAL)
    state = method.init(fed, SEED)
    assert torch.equal(method.round(fed, state, Cohort(EVERYBODY, 0)).labels, chance)
    assert "losses" not in {line.kind for line in fed.ledger.lines}


@pytest.mark.parametrize("first", ["loss", "random", "expert"])
def test_ifca_places_nobody_who_is_not_there(first):
    """A client that comes later has no cluster yet, and chooses by loss when it comes."""
    fed = without(tiny(), 2)
    assert IFCA(2, first=first, truth=TRUTH).init(fed, SEED).labels[2] == -1


def test_ifca_with_one_broken_choice_keeps_the_old_label():
    """A client whose losses were lost trains on in the cluster it had."""
    fed = silence(tiny(), "c001")
    state = replace(IFCA(2, local=LOCAL).init(fed, SEED), labels=tensor([0, 1, 0, 1, 0, 1]))
    assert IFCA(2, local=LOCAL).admit(fed, state, Cohort(EVERYBODY, 1)).labels[1] == 1


FOUR_GROUPS = (2, 0, 3, 1, 0, 3, 1, 2)


def split_at_once(**settings):
    return CFL(**{"cut": "norms", "settled": 100.0, "restless": 0.0, "smallest": 3, "patience": 0, "local": LOCAL}
               | settings)


def test_cfl_keeps_client_ids_through_a_second_split():
    """Positions inside a cluster are not client ids: split after split no group is torn, until each is a cluster."""
    method, fed = split_at_once(), federation(FOUR_GROUPS)
    state = method.init(fed, SEED)
    for index in range(3):
        state = method.round(fed, state, Cohort(torch.arange(8), index))
        assert agreement(state.labels.tolist(), list(FOUR_GROUPS))["completeness"] == pytest.approx(1)
    assert tree.count(state.models) == 4
    assert ari(state, FOUR_GROUPS) == 1


def test_cfl_applies_no_stale_update():
    """A round's model is the mean of that round's cohort alone, also of those asked for a split or asked before."""
    fed = tiny()
    method = split_at_once(settled=0.0)  # never splits
    state = method.round(fed, method.init(fed, SEED), Cohort(EVERYBODY, 0))
    cohort = Cohort(tensor([2, 5]), 1)
    after = method.round(fed, state, cohort)
    ends = [trained(fed, tree.take(state.models, 0), i, cohort, LOCAL.work) for i in (2, 5)]
    assert gap(tree.take(after.models, 0), mean(ends, [SIZES[2], SIZES[5]])) < 1e-6

    split = split_at_once().round(fed, state, cohort)
    assert tree.count(split.models) == 2
    assert ari(split, TRUTH) == 1
    for k in range(2):
        assert gap(tree.take(split.models, k), tree.take(after.models, 0)) == 0
    asked = {name for line in fed.ledger.lines if line.phase == "split" for name in line.clients}
    assert asked == {"c000", "c001", "c003", "c004"}


def test_cfl_leaves_members_that_are_away_unplaced():
    """When their cluster splits without them; they choose by loss when they return."""
    fed = tiny()
    state = split_at_once().init(fed, SEED)
    split = split_at_once().round(without(fed, 3), state, Cohort(tensor([0, 1]), 0))
    assert split.labels[3] == -1
    fed.online[3] = True
    for index in range(1, 4):
        split = split_at_once(settled=0.0).round(fed, split, Cohort(tensor([0, 1, 2, 4, 5]), index))
    assert ari(split_at_once().admit(fed, split, Cohort(tensor([3]), 4, "admit")), TRUTH) == 1


@pytest.mark.parametrize("lr", [0.1, 0.001])
@pytest.mark.parametrize(("settled", "splits"), [(1.01, True), (0.99, False)])
def test_cfls_relative_thresholds_do_not_depend_on_the_learning_rate(lr, settled, splits):
    """In the first round norms are the largest seen: a share above 1 is passed, one below is not."""
    method = split_at_once(relative=True, settled=settled, restless=0.9, local=replace(LOCAL, lr=lr))
    assert tree.count(play(method, tiny(), rounds=1).models) == (2 if splits else 1)


def test_cfl_waits_and_leaves_small_clusters_whole():
    """No split before `patience` rounds, none of fewer than `smallest` members, none while the mean still moves."""
    for method in (split_at_once(patience=3), split_at_once(smallest=7), split_at_once(restless=100.0)):
        assert tree.count(play(method, tiny(), rounds=2).models) == 1


def test_fedsoft_equals_a_literal_round():
    """Shares by counted rows, training near the mixture from the own model, centres weighted by u_is n_i."""
    fed = tiny()
    method = FedSoft(2, pull=0.5, local=LOCAL)
    state = method.admit(fed, method.init(fed, SEED), Cohort(EVERYBODY, 0, "admit"))
    centres = [fed.net.init(SEED), fed.net.init(SEED + 1)]
    share = np.zeros((6, 2))
    for i in range(6):
        x, y = fed.clients.gather(fed.clients.rows(i, "train"))
        for row, label in zip(x, y, strict=True):
            found = [float(cross_entropy(fed.net.logits(c, row[None]), label[None])) for c in centres]
            share[i, int(np.argmin(found))] += 1 / len(y)
    share[share == 0] = 1e-4
    assert state.share.numpy() == pytest.approx(share, abs=1e-9)
    assert state.labels.tolist() == share.argmax(1).tolist()

    cohort, start = Cohort(tensor([0, 3, 5]), 0), fed.net.init(SEED)
    ends = []
    for i in cohort.ids.tolist():
        def pull(params, i=i):
            terms = [share[i, s] * ((params[name] - centres[s][name]) ** 2).sum() for s in range(2) for name in params]
            return 0.5 / 2 * sum(terms)

        ends.append(trained(fed, start, i, cohort, LOCAL.work, extra=pull))
    after = method.round(fed, state, cohort)
    for s in range(2):
        weights = [share[i, s] * SIZES[i] for i in cohort.ids.tolist()]
        assert gap(tree.take(after.models, s), mean(ends, weights)) < 1e-6
    assert gap(fed.memory()[0]["c003"]["last"], ends[1]) < 1e-6  # a client's own model


def test_fedsofts_least_share_is_that_of_a_centre_without_a_vote():
    """A centre that shuns label 0 gets no vote of a client that holds 0 alone, all votes of one that holds 1 alone."""
    shares = {"c000": [0] * 4, "c001": [1] * 4, "c002": [0, 1, 0, 1]}
    x = np.zeros((4, *SHAPE), np.float32)
    people = Population.of_sites({name: (x, np.array(y), x, np.array(y)) for name, y in shares.items()}, CLASSES)
    fed, method = LoopEngine(tiny_model(), people, SEED), FedSoft(2, least=0.01, local=LOCAL)
    fair = tree.zeros_like(fed.net.init(SEED))
    shuns = {**fair, "3.bias": tensor([-9.0, 0.0, 0.0])}
    state = replace(method.init(fed, SEED), models=tree.stack([fair, shuns]))
    after = method.admit(fed, state, Cohort(torch.arange(3), 0, "admit"))
    assert after.share.tolist() == [[1, 0.01], [0.01, 1], [0.5, 0.5]]
    assert after.labels.tolist() == [0, 1, 0]


# Newcomers --------------------------------------------------------------------------------------------------------


FOUNDERS = {
    "pacfl": lambda: PACFL(local=LOCAL),
    "pacfl by class": lambda: PACFL(per_class=True, angle="column", linkage="weighted", local=LOCAL),
    "flag": lambda: FLAG(gradient_epochs=5, cut="gap", local=LOCAL),
    "flag by sweep": lambda: FLAG(gradient_epochs=5, local=LOCAL),
    "fedclust": lambda: FedClust(warmup=10, local=LOCAL),
    "cflgt": lambda: CFLGT(pretrain=3, local=LOCAL),
    "cflgt by gate": lambda: CFLGT(pretrain=3, cut="gate", gate=0.0, local=LOCAL),
    "flhc": lambda: FLHC(pretrain=2, local=LOCAL),
    "kmeans": lambda: KMeans(pretrain=2, local=FULL),
    "kmeans of two": lambda: KMeans(2, pretrain=2, local=FULL),
    "fedsem": lambda: FedSEM(2, local=FULL),
    "fedgroup": lambda: FedGroup(steps=50, local=LOCAL),
    "fedgroup of two": lambda: FedGroup(2, steps=50, local=LOCAL),
}
CHOOSERS = {
    "ifca": lambda: IFCA(2, first="expert", expert=1.0, truth=WITH_STRANGERS, local=LOCAL),
    "cfl": lambda: split_at_once(smallest=7),
    "fedsoft": lambda: FedSoft(2, local=LOCAL),
}
WITH_STRANGERS = (0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 2, 2)  # 8 and 9 are of known groups, 10 and 11 of an unseen one


def with_strangers(name):
    """Twelve clients, of whom four are still away."""
    return without(federation(WITH_STRANGERS, sizes=[40] * 12, meanings=name == "flag by sweep"), 8, 9, 10, 11)


@cache
def grown(name):
    """The eight others' clusters after some rounds."""
    return play((FOUNDERS | CHOOSERS)[name](), with_strangers(name), rounds=4)


def settled(name):
    return (FOUNDERS | CHOOSERS)[name](), with_strangers(name), grown(name)


@pytest.mark.parametrize("name", [*FOUNDERS, *CHOOSERS])
def test_a_newcomer_of_a_known_group_joins_it(name):
    """And nobody else moves."""
    method, fed, state = settled(name)
    assert state.labels[8:].tolist() == [-1] * 4
    fed.online[[8, 9]] = True
    after = method.admit(fed, state, Cohort(tensor([8, 9]), 4, "admit"))
    assert after.labels[:8].tolist() == state.labels[:8].tolist()
    if name != "fedsoft":  # whose clusters are shares
        assert ari(replace(after, labels=after.labels[:10]), WITH_STRANGERS[:10]) == 1


@pytest.mark.parametrize("name", FOUNDERS)
def test_newcomers_like_nobody_found_a_cluster_together(name):
    """Farther than the cut from all: the first founds a cluster, the second of its kind joins it; nobody moves."""
    method, fed, state = settled(name)
    fed.online[:] = True
    after = method.admit(fed, state, Cohort(tensor([10, 11, 8]), 4, "admit"))
    assert after.labels[:8].tolist() == state.labels[:8].tolist()
    assert after.labels[10] == after.labels[11] == tree.count(state.models)
    assert after.labels[8] == after.labels[0]
    assert tree.count(after.models) == tree.count(state.models) + 1
    later = method.round(fed, after, Cohort(tensor([0, 8, 10, 11]), 5))  # and training goes on
    assert gap(tree.take(later.models, int(after.labels[10])), tree.take(after.models, int(after.labels[10]))) > 0


@pytest.mark.parametrize("name", FOUNDERS)
def test_newcomers_meet_the_new_cluster_later_too(name):
    """One stranger today, the next tomorrow: the second joins the first one's cluster."""
    method, fed, state = settled(name)
    fed.online[:] = True
    for client in (10, 11):
        state = method.admit(fed, state, Cohort(tensor([client]), 4, "admit"))
    assert state.labels[10] == state.labels[11] == 2


@pytest.mark.parametrize("name", CHOOSERS)
def test_methods_that_choose_by_loss_found_no_cluster(name):
    """Some model fits least badly."""
    method, fed, state = settled(name)
    fed.online[:] = True
    after = method.admit(fed, state, Cohort(tensor([10, 11]), 4, "admit"))
    assert tree.count(after.models) == tree.count(state.models)
    assert (after.labels[10:] >= 0).all()


@pytest.mark.parametrize("name", ["flhc", "cflgt", "kmeans", "fedsem"])
def test_a_newcomer_during_pretraining_joins_the_one_model(name):
    """There is nothing to choose from yet."""
    fed = without(tiny(), 5)
    method = FOUNDERS[name]()
    state = method.init(fed, SEED)
    fed.online[5] = True
    assert method.admit(fed, state, Cohort(tensor([5]), 0, "admit")).labels.tolist() == [0] * 6


# Odd clients ------------------------------------------------------------------------------------------------------

ODD = {
    "one sample": lambda x, y: (x[:1], y[:1]),
    "one class": lambda x, y: (x[y == 1], y[y == 1]),
    "an absent class": lambda x, y: (x[y != 0], y[y != 0]),
    "constant images": lambda x, y: (np.full_like(x, 0.7), y),
    "black images": lambda x, y: (np.zeros_like(x), y),
}
PLAIN = ("fedavg", "fedprox", "fedavg-ft", "solo", "oracle")
METHODS = {name: entry.make for name, entry in ALL.items() if name not in PLAIN} | {
    "flag by sweep": lambda local, truth: FLAG(gradient_epochs=2, local=local),
    "pacfl by class": lambda local, truth: PACFL(per_class=True, linkage="weighted", local=local),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", METHODS)
def test_an_odd_client_harms_nobody(name, odd):
    """It gets a cluster, models stay numbers, and no warning is raised."""
    truth = (0, 1, 0, 1, 0)
    fed = federation(truth, edit=lambda i, x, y: ODD[odd](x, y) if i == 4 else (x, y))
    state = play(METHODS[name](QUICK, truth), fed, rounds=2)
    assert (state.labels >= 0).all()
    assert all(bool(leaf.isfinite().all()) for leaf in tree.named(state.models).values())
    assert fed.lost == {}


@pytest.mark.parametrize("name", METHODS)
def test_a_federation_of_odd_clients_runs(name):
    """Black, constant, single: all at once."""
    kinds = list(ODD.values())
    fed = federation((0,) * 5, edit=lambda i, x, y: kinds[i](x, y))
    state = play(METHODS[name](QUICK, (0,) * 5), fed, rounds=2)
    assert all(bool(leaf.isfinite().all()) for leaf in tree.named(state.models).values())


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_one_or_two_clients_are_no_special_case(name, clients):
    """Every method runs; automatic cuts find one cluster."""
    fed = federation((0,) * clients)
    state = play(METHODS[name](QUICK, (0,) * clients), fed, rounds=2)
    assert (state.labels >= 0).all()
    if name in AUTOMATIC:
        assert state.labels.tolist() == [0] * clients


AUTOMATIC = {
    "pacfl": PACFL(local=FULL),
    "pacfl by class": PACFL(per_class=True, angle="column", local=FULL),
    "flag": FLAG(gradient_epochs=2, cut="gap", local=FULL),
    "flag by sweep": FLAG(gradient_epochs=2, cut="sweep", local=FULL),
    "flag by tests": FLAG(gradient_epochs=2, local=FULL),
    "pacfl by silhouette": PACFL(angle="mean", cut="silhouette", local=FULL),
    "fedclust": FedClust(warmup=2, local=FULL),
    "flhc": FLHC(pretrain=1, local=FULL),
    "cflgt": CFLGT(pretrain=1, local=FULL),
    "cflgt by gate": CFLGT(pretrain=1, cut="gate", local=FULL),
    "kmeans": KMeans(pretrain=1, local=FULL),
    "fedgroup": FedGroup(steps=10, local=FULL),
}


@pytest.mark.parametrize("name", AUTOMATIC)
def test_identical_clients_are_one_cluster(name):
    """The same rows for everybody, each in an order of its own."""
    held = {}

    def same(i, x, y):
        x, y = held.setdefault("rows", (x, y))
        order = np.random.default_rng(i).permutation(len(y))
        return x[order], y[order]

    state = play(AUTOMATIC[name], federation((0,) * 7, edit=same), rounds=2)
    assert state.labels.tolist() == [0] * 7


@pytest.mark.parametrize("name", AUTOMATIC)
def test_a_signature_that_is_not_finite_is_left_out(name):
    """The client stays unplaced, and the others' clusters are those without it."""
    sick = tiny_population()
    sick.pool.x[sick.train[1]] = np.nan
    fed = LoopEngine(tiny_model(), sick, SEED)
    method = AUTOMATIC[name]
    state = play(method, fed, rounds=2)
    other = play(method, without(tiny(), 1), rounds=2)
    assert state.labels.tolist() == other.labels.tolist()
    assert state.labels[1] <= 0
    assert all(bool(leaf.isfinite().all()) for leaf in tree.named(state.evidence).values())


def test_nobody_describes_itself():
    """With every signature lost there is no clustering to invent."""
    with pytest.raises(NobodyAnswered):
        PACFL(local=LOCAL).init(lose(tiny(), "signature"), SEED)
