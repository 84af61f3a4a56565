"""Landmarks: a sample is grouped by its distances, everybody else joins it as a newcomer would."""

from dataclasses import dataclass, replace

import pytest
import torch
from helpers import ALL, LOCAL, SEED, SIZES, TRUTH, play, tiny_model, tiny_population, without
from torch import Tensor, tensor

import umbel
from umbel import tree
from umbel.algorithms import OneShot, flag
from umbel.engines import LoopEngine
from umbel.federation.door import Cohort
from umbel.runs.checkpoint import RunFolder
from umbel.runs.evaluate import agreement
from umbel.runs.run import rounds
from umbel.seeds import key

METHODS = ("pacfl", "flag", "fedclust", "flhc", "cflgt")
methods = pytest.mark.parametrize("name", METHODS)


def made(name, sample, cut="tested"):
    """A method with landmarks; `cut` "distances" is one of its rules that rest on no tests."""
    rule = {"tested": "tested", "distances": "gate" if name == "cflgt" else "gap"}[cut]
    return replace(ALL[name].make(LOCAL, TRUTH), landmarks=sample, cut=rule)


def tiny(order=(0, 1, 2, 3, 4, 5)):
    return LoopEngine(tiny_model(), tiny_population(order), SEED)


def test_every_one_shot_method_has_landmarks():
    """None is left out here."""
    own = {name for name, entry in ALL.items() if isinstance(entry.make(LOCAL, TRUTH), OneShot)}
    assert own == set(METHODS)


@methods
@pytest.mark.parametrize("sample", [len(SIZES), 99])
def test_with_everybody_in_the_sample_nothing_changes(name, sample):
    """Label for label, weight for weight, and the same evidence."""
    whole, all_chosen = play(made(name, 0), tiny()), play(made(name, sample), tiny())
    assert whole.labels.tolist() == all_chosen.labels.tolist()
    assert torch.equal(tree.flat(whole.models), tree.flat(all_chosen.models))
    a, b = tree.named(whole.evidence), tree.named(all_chosen.evidence)
    assert set(a) == set(b)
    assert all(torch.equal(a[leaf], b[leaf]) for leaf in a)


@methods
def test_the_sample_is_drawn_by_name_and_alone_is_kept(name):
    """Four of six, those whose keys come first; the matrix and the evidence are theirs, all six have a cluster."""
    fed = tiny()
    state = play(made(name, 4), fed)
    drawn = sorted(range(6), key=lambda i: key(SEED, "landmarks", fed.names[i]))[:4]
    assert state.evidence["who"][:4].tolist() == sorted(drawn)
    assert state.evidence["proximity"].shape == (4, 4)
    assert int(state.evidence["landmarks"]) == 4
    founded = tree.count(state.models) - len(set(state.labels[drawn].tolist()))
    assert tree.count(state.evidence["signature"]) == len(state.evidence["who"]) == 4 + founded
    assert (state.labels >= 0).all()


@methods
def test_another_order_of_clients_gives_the_same_clusters(name):
    """Who is drawn, and in which order the others join, depends on names."""
    order, sample = (4, 0, 5, 2, 1, 3), 3
    straight, shuffled = play(made(name, sample), tiny()), play(made(name, sample), tiny(order))
    assert agreement(straight.labels[list(order)].tolist(), shuffled.labels.tolist())["ari"] == 1


@methods
@pytest.mark.parametrize("sample", [0, 3])
@pytest.mark.parametrize("cut", ["tested", "distances"])
def test_newcomers_in_bulk_end_as_one_by_one(name, cut, sample):
    """Two come late: at once, or one after the other, they are placed alike and the same is remembered."""
    method = made(name, sample, cut)
    before = play(method, without(tiny(), 1, 4))
    assert before.labels[[1, 4]].tolist() == [-1, -1]
    fed = tiny()
    bulk = method.admit(fed, before, Cohort(tensor([4, 1]), 3, "admit"))
    single = method.admit(fed, before, Cohort(tensor([4]), 3, "admit"))
    single = method.admit(fed, single, Cohort(tensor([1]), 4, "admit"))
    assert bulk.labels.tolist() == single.labels.tolist()
    assert bulk.evidence["who"].tolist() == single.evidence["who"].tolist()
    assert tree.count(bulk.models) == tree.count(single.models)
    if sample:  # who joins a landmark's cluster is not remembered
        founded = tree.count(bulk.models) - tree.count(before.models)
        assert len(bulk.evidence["who"]) == len(before.evidence["who"]) + founded


def test_a_run_with_landmarks_goes_on_from_its_folder(tmp_path):
    """Resumed to the bit, and the evidence read back places newcomers as before."""
    method = made("fedclust", 3)
    whole = list(rounds(method, tiny(), rounds=4, fraction=0.5))[-1].state
    folder, fed = RunFolder.create(tmp_path / "run", {}), tiny()
    for done in rounds(method, fed, rounds=4, fraction=0.5):
        folder.commit(done.index, done.state, *fed.memory(), done.record)
        if done.index == 1:
            break
    last = list(rounds(method, tiny(), rounds=4, fraction=0.5, saved=folder.load(method.state)))[-1].state
    folder.close()
    assert torch.equal(tree.flat(whole.models), tree.flat(last.models))
    asked = Cohort(tensor([1, 4]), 4, "admit")
    assert torch.equal(method.admit(tiny(), whole, asked).labels, method.admit(tiny(), last, asked).labels)


COUNT = {"cut": "count", "clusters": 4, "local": umbel.Local(lr=0.05)}


@pytest.mark.parametrize("method", [
    umbel.FedClust(warmup=20, metric="cosine", **COUNT), umbel.FLAG(gradient_epochs=10, **COUNT),
    umbel.PACFL(rank=5, **COUNT), umbel.FLHC(pretrain=1, metric="cosine", **COUNT)], ids=lambda method: method.name)
def test_a_third_of_the_clients_finds_the_groups_as_all_do(method):
    """60 clients of digits in four rotations: 20 landmarks give the truth, and so does the matrix of all."""
    experiment = umbel.Experiment(data="digits", scenario="rotation-4", clients=60, device="cpu", seed=1).resolved()
    drawn = experiment.draw()
    for sample in (0, 20):
        fed, _ = experiment.build(*drawn)
        state = play(replace(method, landmarks=sample), fed, rounds=method.pretrain)
        assert agreement(state.labels.tolist(), [i // 15 for i in range(60)])["ari"] == 1
        assert len(state.evidence["who"]) == (sample or 60)


def test_a_sentence_says_that_it_was_a_sample():
    """Why the clusters are what they are."""
    method = made("pacfl", 5)
    assert method.why(play(method, tiny(), rounds=0)).startswith("in a sample of 5 clients, ")


def test_pacfl_reclusters_only_the_matrix_of_all():
    """One sentence for a wish that cannot be met."""
    with pytest.raises(umbel.UmbelError, match=r"'landmarks' must be 0\. Got 5 instead"):
        umbel.PACFL(recluster=True, landmarks=5)


@pytest.mark.parametrize("sample", [0, 4])
def test_flag_computes_each_of_its_matrices_once(sample, monkeypatch):
    """V and G of the first clients in one call each; with landmarks, one more for the others, one for who is far."""
    calls = []
    for name in ("class_angle", "update_angle"):
        inner = getattr(flag, name)
        monkeypatch.setattr(flag, name, lambda *given, name=name, inner=inner: calls.append(name) or inner(*given))
    replace(made("flag", sample), cut="gap").init(tiny(), SEED)
    assert calls[:2] == ["class_angle", "update_angle"]
    assert len(calls) == 2 if not sample else len(calls) in (4, 6)


@dataclass(frozen=True)
class BySize(OneShot):
    """A method that groups by its own rule: below and above 15 rows. It gives no cut, so nobody founds a cluster."""

    landmarks: int = umbel.number(0, ge=0)
    local: umbel.Local = umbel.training()

    def describe(self, fed: umbel.Federation, cohort: Cohort, anchor: dict) -> tuple[Tensor, dict]:
        heard = fed.map(umbel.signatures.class_counts, cohort)
        return heard.ids, {"rows": heard.answers["counts"].sum(1, keepdim=True).double()}

    def apart(self, a: dict, b: dict, evidence: dict) -> Tensor:
        return (a["rows"] - b["rows"].T).abs()

    def group(self, fed: umbel.Federation, who: Tensor, signature: dict, **look: object) -> umbel.grouping.Grouping:
        return umbel.grouping.Grouping((signature["rows"][:, 0] > 15).long(), {})


@pytest.mark.parametrize("sample", [0, 4])
def test_a_method_may_group_as_it_likes(sample):
    """Labels alone are enough: newcomers join the nearest, whether others were landmarks or all were grouped."""
    method = BySize(landmarks=sample, local=LOCAL)
    before = play(method, without(tiny(), 2), rounds=1)
    after = method.admit(tiny(), before, Cohort(tensor([2]), 1, "admit"))
    assert after.labels.tolist() == [int(size > 15) ^ int(SIZES[0] > 15) for size in SIZES]
