"""The round loop: who is asked when, who is asked again, and what a record says."""

import pytest
import torch
from helpers import LOCAL, SEED, TRUTH, silence, tampered, tiny_model, tiny_population

import umbel as u
from umbel import tree
from umbel.algorithms import PACFL, FedAvg, Oracle
from umbel.engines import LoopEngine
from umbel.federation.door import Silent
from umbel.nets.objective import Metric
from umbel.runs.checkpoint import Saved
from umbel.runs.run import better, rounds, sample

METHOD = PACFL(local=LOCAL)  # a client is placed by its signature


def tiny():
    return LoopEngine(tiny_model(), tiny_population(), SEED)


def lose_training(fed, *lost, names=()):
    """Nobody's training, or that of those named, is heard in these rounds."""
    inner = fed.perform

    def perform(call):
        for chunk in inner(call):
            who = fed.names[int(call.cohort.ids[chunk.positions[0]])]
            gone = call.cohort.phase == "train" and call.cohort.round in lost and who in (names or fed.names)
            yield Silent(int(chunk.positions[0]), "late") if gone else chunk

    fed.perform = perform
    return fed


def asked(done):
    """The rounds in which the unplaced client c001 was asked, and lost."""
    return [each.index for each in done if each.index >= 0 and "c001" in each.record["lost"]]


def test_who_cannot_be_placed_is_asked_again_after_1_2_4_rounds():
    """Asked in rounds 0, 1, 3 and 7; in between it is left alone."""
    done = list(rounds(METHOD, silence(tiny(), "c001"), rounds=9, fine_tune=0))
    assert asked(done) == [0, 1, 3, 7]
    assert [each.record["waiting"]["c001"] for each in done[1:5]] == [[1, 1], [2, 3], [2, 3], [3, 7]]


def test_a_resumed_run_knows_who_is_waiting():
    """Stopped after round 4, it asks again in round 7, as it would have."""
    fed = silence(tiny(), "c001")
    done = list(rounds(METHOD, fed, rounds=5, fine_tune=0))
    saved = Saved(4, done[-1].state, *fed.memory(), [each.record for each in done])
    assert asked(rounds(METHOD, silence(tiny(), "c001"), rounds=9, fine_tune=0, saved=saved)) == [7]


def test_lost_rounds_end_a_run_only_in_a_row():
    """Four of seven rounds are lost, never three of them one after the other."""
    done = list(rounds(FedAvg(local=LOCAL), lose_training(tiny(), 0, 2, 4, 5), rounds=7, fine_tune=0))
    assert [each.record["lost_in_a_row"] for each in done[1:]] == [1, 0, 1, 0, 1, 2, 0]


@pytest.mark.parametrize(("total", "said"), [(1, "The only round was lost, because none of 6"),
                                             (2, "2 rounds in a row were lost, the last because none of 6")])
def test_a_short_run_of_lost_rounds_alone_ends_as_a_long_one(total, said):
    """There is no result of no usable round, however few were asked for."""
    with pytest.raises(u.UmbelError, match=said):
        u.run(FedAvg(local=LOCAL), lose_training(tiny(), 0, 1), rounds=total)


def test_one_usable_round_is_a_result():
    """The second of two was lost: the first counts."""
    assert u.run(FedAvg(local=LOCAL), lose_training(tiny(), 1), rounds=2).records[-1]["lost_in_a_row"] == 1


def test_a_run_that_is_stopped_before_a_usable_round_has_no_result(tmp_path):
    """A loop that was left early is no result either; its folder can be gone on with."""
    with pytest.raises(u.UmbelError, match="Each one so far was lost, the last because of: late"):
        u.run(FedAvg(local=LOCAL), lose_training(tiny(), 0), rounds=9, out=tmp_path / "run", stop=lambda done: True)
    assert not (tmp_path / "run" / "result.json").exists()
    again = u.resume(tmp_path / "run", fed=tiny())
    assert [each["lost_in_a_row"] for each in again.records[1:]] == [1, 0, 0, 0, 0, 0, 0, 0, 0]


def test_a_resumed_run_counts_the_rounds_that_were_lost_before(tmp_path):
    """Killed after its first round was lost, a run of two ends at the second; one of three rounds goes on."""
    for total in (2, 3):
        def kill(done):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            u.run(FedAvg(local=LOCAL), lose_training(tiny(), 0), rounds=total, out=tmp_path / str(total), on_round=kill)
    with pytest.raises(u.UmbelError, match="2 rounds in a row were lost"):
        u.resume(tmp_path / "2", fed=lose_training(tiny(), 1))
    longer = u.resume(tmp_path / "3", fed=lose_training(tiny(), 1))
    assert [each["lost_in_a_row"] for each in longer.records[1:]] == [1, 2, 0]


def large(fed, *rounds, number=3.4e38, names=()):
    """In these rounds the numbers that all clients send after training, or some, are as large as this."""
    def change(call, send):
        return send if call.cohort.phase != "train" or call.cohort.round not in rounds else tree.each(
            lambda leaf: torch.full_like(leaf, number) if leaf.is_floating_point() else leaf, send)

    return tampered(fed, change, *names)


def test_what_the_server_makes_of_answers_must_be_finite():
    """Answers of 3.4e38 are numbers, twice that is none: the round is lost, with a reason, and the state stays."""
    method = FedAvg(local=LOCAL, server="fedavgm", server_lr=2.0)
    start, first, lost, last = rounds(method, large(tiny(), 1), rounds=3, fine_tune=0, bound=0)
    assert [each.record["lost_in_a_row"] for each in (first, lost, last)] == [0, 1, 0]
    assert set(lost.record["lost"]) == {f"c{i:03d}" for i in range(6)}
    assert list(lost.record["lost"].values()) == [["finite, but not what they make together"]] * 6
    assert all(torch.equal(first.state.models[name], leaf) for name, leaf in lost.state.models.items())
    assert all(bool(leaf.isfinite().all()) for each in (start, last) for leaf in each.state.models.values())
    with pytest.raises(u.UmbelError, match=r"The only round was lost, because none of 6 clients gave a usable answer"
                                           r" \(finite, but not what they make together\)"):
        list(rounds(method, large(tiny(), 0), rounds=1, bound=0))


def test_a_model_that_has_no_length_is_not_kept():
    """Numbers of 3.4e38 are finite, and nobody can train from them: the old model stays, and the run goes on."""
    first, lost, last = list(rounds(FedAvg(local=LOCAL), large(tiny(), 1), rounds=3, fine_tune=0, bound=0))[1:]
    assert [each.record["lost_in_a_row"] for each in (first, lost, last)] == [0, 1, 0]
    assert all(torch.equal(first.state.models[name], leaf) for name, leaf in lost.state.models.items())
    assert 0 < float(tree.flat(last.state.models).norm()) < 100


def test_a_cluster_keeps_its_model_where_the_new_one_is_unusable():
    """Once 1e30 without a bound: its own cluster stays as it was, the other goes on, its three members are named."""
    method = Oracle(TRUTH, local=LOCAL, server="fedavgm")
    fed = large(tiny(), 1, number=1e30, names=("c002",))
    first, spoilt, last = list(rounds(method, fed, rounds=3, fine_tune=0, bound=0))[1:]
    why = ["finite, but not what they make together"]
    assert spoilt.record["lost"] == {"c000": why, "c002": why, "c004": why}
    for part in ("models", "slots"):
        was, now = (tree.named(getattr(each.state, part)) for each in (first, spoilt))
        assert all(torch.equal(was[name][0], leaf[0]) and not torch.equal(was[name][1], leaf[1])
                   for name, leaf in now.items())
    assert (last.record["lost"], last.record["lost_in_a_row"]) == ({}, 0)


def test_one_large_number_is_left_out_and_its_sender_named():
    """With the bound, 1e30 costs its sender the round and nobody else: as if it had been late."""
    done = [list(rounds(FedAvg(local=LOCAL), fed, rounds=3, fine_tune=0))
            for fed in (large(tiny(), 1, number=1e30, names=("c002",)), lose_training(tiny(), 1, names=("c002",)))]
    assert done[0][2].record["lost"] == {"c002": ["update more than 10 times as long as usual"]}
    assert all(torch.equal(leaf, done[1][-1].state.models[name])
               for name, leaf in done[0][-1].state.models.items())


def test_a_cohort_is_a_share_of_those_who_are_placed_and_there():
    """Halves are rounded up, one is the least; who is away or unplaced is not asked."""
    fed = tiny()
    state = FedAvg().init(fed, SEED)
    assert [len(sample(fed, state, 0, fraction).ids) for fraction in (0.01, 0.25, 0.5, 1.0)] == [1, 2, 3, 6]
    fed.online[4] = False
    state.labels[2] = -1
    assert sample(fed, state, 0, 1.0).ids.tolist() == [0, 1, 3, 5]


def test_every_round_draws_a_cohort_of_its_own():
    """Of 20 pairs of six clients in 20 rounds, more than half of the 15 there are; the run's seed counts as well."""
    def drawn(seed):
        fed = LoopEngine(tiny_model(), tiny_population(), seed)
        state = FedAvg().init(fed, SEED)
        return [tuple(sample(fed, state, index, 1 / 3).ids.tolist()) for index in range(20)]

    assert len(set(drawn(0))) > 7
    assert drawn(0) == drawn(0) != drawn(1)


def test_the_last_round_is_tested_once():
    """Three scores are three models sent to each; what clients would use now is one of them, not a fourth."""
    fed = tiny()
    first, last = (each.record["bytes"]["evaluate"]["down"]["model"]
                   for each in list(rounds(FedAvg(local=LOCAL), fed, rounds=2))[1:])
    everybody = len(fed.names) * 4 * fed.net.parameters
    assert (first, last) == (everybody, 3 * everybody)


@pytest.mark.parametrize(("now", "best", "answer"), [(0.6, None, True), (0.6, 0.5, True), (0.5, 0.5, False),
                                                     (0.4, 0.5, False), (None, None, False), (None, 0.5, False)])
def test_the_better_round_has_the_higher_validation_score(now, best, answer):
    """Of equal ones the first counts; a round without a score never does; the lower one where the metric says so."""
    def record(score, higher):
        metric = Metric("", higher_is_better=higher)._asdict()
        return {} if score is None else {"validation": {"value": score}, "metric": metric}

    assert better(record(now, True), record(best, True) or None) == answer
    if best is not None and now is not None and now != best:  # an error turns the order round
        assert better(record(now, False), record(best, False)) != answer


@pytest.mark.parametrize("method", [u.Oracle(), u.IFCA(first="expert")], ids=["oracle", "ifca"])
def test_who_must_know_the_truth_is_told_it(method) -> None:
    """A method that was given no groups says so in a sentence; by its name alone it is told those of the federation."""
    fed = u.simulate("digits", scenario="rotation-4", clients=4)
    with pytest.raises(u.UmbelError, match="true group of each of the 4 clients"):
        u.run(method, fed, rounds=1)
    assert u.run("oracle", fed, rounds=1, fine_tune=0).info["clusters"]["ari"] == 1
