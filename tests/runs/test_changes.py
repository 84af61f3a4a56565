"""Clients that change while a run goes on: every engine, every kind of task, truth and scores by round, resuming."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import CLASSES, ENGINES, LOCAL, SEED, SHAPE, chunked, flower, one_by_one, tiny_population, vectorised

from umbel import tree
from umbel.algorithms import IFCA, FedAvg, Local, Oracle
from umbel.clustering.signatures import class_counts, losses, principal_vectors
from umbel.data.clients import Change, Population, Work
from umbel.engines import LoopEngine, Simulator, simulator
from umbel.errors import UmbelError
from umbel.federation.door import Cohort, Federation
from umbel.federation.scoring import score
from umbel.federation.training import train
from umbel.files import read_json
from umbel.nets.model import Model
from umbel.nets.wrap import build
from umbel.runs.experiment import Experiment
from umbel.runs.run import rounds
from umbel.runs.session import Session, run
from umbel.tree import Ragged

EVERYBODY = torch.arange(6)


def workers(net: Model, population: Population, seed: int = 0) -> Simulator:
    made = Simulator(net, population, seed, vectorise=False)
    made.workers = 2
    return made


MAKE: dict[str, Callable[..., Federation]] = {**ENGINES, "workers": workers}


@pytest.fixture(autouse=True)
def _always_worth_a_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "WORTH", 0.0)


def changing() -> Population:
    """At round 2 client 0 takes the rows of client 1 and client 3 fewer of its own; at 4 client 0 has its own again."""
    people = tiny_population()
    return replace(people, changes=(
        Change(2, 0, people.train[1], people.test[1], 1), Change(2, 3, people.train[3][:11], people.test[3][:4], 1),
        Change(4, 0, people.train[0], people.test[0], 0),
    ))


def answers(fed: Federation, round: int) -> list[torch.Tensor]:
    """Of all kinds of tasks, asked as methods and evaluation ask; the cohort's round is always 0, as a signature's."""
    model, cohort = fed.net.init(0), Cohort(EVERYBODY, 0)
    fed.arrive(round)
    asked = [
        fed.map(train, cohort, work=LOCAL.work, shared={"model": model}, **LOCAL.at(0)),
        fed.map(train, cohort, work=Work(epochs=1, rows="fit"), shared={"model": model}, **LOCAL.at(0)),
        fed.map(losses, cohort, work=Work(rows="validation"), shared={"models": tree.stack([model])}, k=1),
        fed.map(class_counts, cohort), fed.map(principal_vectors, cohort, rank=1),
        fed.testing().map(score, cohort._replace(round=round + 1), work=Work(epochs=1, batch=5, rows="test"),
                          shared={"model": model}, become=("fine_tune",), **LOCAL.at(0)),
        fed.testing().map(score, cohort, work=Work(rows="test"), shared={"model": model}),
    ]
    leaves = [leaf for heard in asked for leaf in tree.named(heard.answers).values()]
    return [part for leaf in leaves for part in (leaf if isinstance(leaf, Ragged) else [leaf])]


@pytest.mark.parametrize("name", MAKE)
def test_every_task_sees_the_rows_of_the_round(name: str) -> None:
    """Bit for bit, a federation in some round is one whose clients always held what they hold then."""
    net = build("mlp", SHAPE, CLASSES)
    people = changing()
    fed = MAKE[name](net, people, SEED)
    try:
        for round in (0, 1, 2, 3, 4, 2, 0):
            then = people.at(round)
            still = replace(people, train=then.train, test=then.test, truth=then.truth, changes=())
            engine = {"workers": one_by_one}.get(name, MAKE[name])  # these two agree to the last bit
            for mine, theirs in zip(answers(fed, round), answers(engine(net, still, SEED), round), strict=True):
                assert torch.equal(mine, theirs)
        assert name != "workers" or fed.crews  # type: ignore[attr-defined]
    finally:
        fed.close()


def test_a_call_without_a_round_is_of_the_start() -> None:
    """`now` is 0 until `arrive` says otherwise, whatever round a cohort has."""
    fed = LoopEngine(build("mlp", SHAPE, CLASSES), changing(), SEED)
    assert fed.now == 0
    counts = fed.map(class_counts, Cohort(EVERYBODY, 9)).answers
    assert counts["counts"].sum(1).tolist() == [13, 20, 7, 20, 16, 9]
    fed.arrive(2)
    assert fed.testing().now == 2
    assert fed.map(class_counts, Cohort(EVERYBODY, 0)).answers["counts"].sum(1).tolist() == [20, 20, 7, 11, 16, 9]


def test_validation_rows_part_the_new_rows() -> None:
    """Fit and validation are of what a client holds now, and the same ones again when it gets its old rows back."""
    clients = LoopEngine(build("mlp", SHAPE, CLASSES), changing(), SEED).clients
    fit, held = clients.rows(0, "fit", 3), clients.rows(0, "validation", 3)
    assert sorted([*fit, *held]) == sorted(clients.population.train[1])
    assert len(held) > 0
    assert np.array_equal(clients.rows(0, "fit", 1), clients.rows(0, "fit", 4))
    assert not set(clients.rows(0, "train", 1)) & set(fit)


# Digits, of which one client is turned in round 3


def experiment(method: str = "fedavg", **changes: Any) -> Experiment:
    fields: dict[str, Any] = {
        "method": method, "scenario": "rotation-4", "clients": 8, "rounds": 6, "change": "1@3:rotate:90", "seed": 2,
        "device": "cpu", "fine_tune": 0, "settings": {"epochs": 3, "lr": 0.05},
    }
    fields["settings"] = fields["settings"] | changes.pop("settings", {})
    return Experiment(**{**fields, **changes}).resolved()


@cache
def turned() -> Population:
    fed, _ = experiment().build(*experiment().draw())
    return fed.clients.population  # type: ignore[attr-defined, no-any-return]


def test_a_change_turns_the_first_client() -> None:
    """Its images are turned from round 3 on, in training and test rows; labels and all others stay."""
    people = turned()
    before, after = people.at(2), people.at(3)
    for which in ("train", "test"):
        old, new = getattr(before, which), getattr(after, which)
        assert np.array_equal(people.pool.x[new[0]], np.rot90(people.pool.x[old[0]], 1, axes=(-2, -1)))
        assert np.array_equal(people.pool.y[new[0]], people.pool.y[old[0]])
        assert all(map(np.array_equal, old[1:], new[1:]))
    assert (before.truth.tolist(), after.truth.tolist()) == ([0, 0, 1, 1, 2, 2, 3, 3], [1, 0, 1, 1, 2, 2, 3, 3])


def test_places_count_after_the_shuffle() -> None:
    """With --shuffle the client at the first place changes, whoever it is; all others stay."""
    fed, _ = experiment(shuffle=True).build(*experiment().draw())
    people = fed.clients.population  # type: ignore[attr-defined]
    assert people.truth.tolist() != turned().truth.tolist()
    assert [change.client for change in people.changes] == [0]
    new, old = people.at(3).train[0], people.train[0]
    assert np.array_equal(people.pool.x[new], np.rot90(people.pool.x[old], 1, axes=(-2, -1)))
    assert people.at(3).truth[0] == (people.truth[0] + 1) % 4


EXPERT = IFCA(4, first="expert", expert=1.0, truth=(0, 0, 1, 1, 2, 2, 3, 3), local=Local(lr=0.05, epochs=3))


def walk(make: Callable[..., Federation]) -> tuple[list[Any], torch.Tensor, list[Any]]:
    """Labels after every round, the last models, and the accuracy of every round."""
    fed = make(build("mlp", turned().shape, 10), turned(), SEED)
    try:
        done = list(rounds(EXPERT, fed, rounds=5, fine_tune=0))
    finally:
        fed.close()
    return ([each.state.labels.tolist() for each in done], tree.flat(done[-1].state.models),
            [each.accuracy for each in done[1:]])


@cache
def reference() -> tuple[list[Any], torch.Tensor, list[Any]]:
    return walk(LoopEngine)


@pytest.mark.parametrize("name", ["simulator", "chunked", "one-by-one", "workers", "flower"])
def test_engines_agree_when_a_client_is_turned(name: str) -> None:
    """IFCA moves the client in round 3 on all of them; bits are equal where clients are trained one by one."""
    make = {"simulator": vectorised, "chunked": chunked, "one-by-one": one_by_one, "workers": workers, "flower": flower}
    labels, models, scores = walk(make[name])
    assert [each[0] for each in labels[1:]] == [0, 0, 0, 1, 1]
    assert labels == reference()[0]
    if name in ("simulator", "chunked"):
        assert float((models - reference()[1]).abs().max()) < 1e-5
        assert scores == pytest.approx(reference()[2], abs=1e-2)
    else:
        assert torch.equal(models, reference()[1])
        assert scores == reference()[2]


def test_truth_and_agreement_follow_the_round() -> None:
    """FedAvg agrees with nobody; who stays in the groups of the start agrees until round 3, the oracle throughout."""
    fed, oracle = experiment("oracle").build(*experiment().draw())
    assert [fed.provenance.truth_at(round)[0] for round in (0, 2, 3, 9)] == [0, 0, 1, 1]  # type: ignore[index]
    assert fed.provenance.truth == (0, 0, 1, 1, 2, 2, 3, 3)
    told = run(oracle, fed, rounds=4, fine_tune=0)
    assert [record["ari"] for record in told.records] == [1.0] * 5
    assert [record.get("moved") for record in told.records] == [None, 0, 0, 0, 1]
    assert told.info["clusters"]["ari"] == 1
    assert told.labels.tolist() == [1, 0, 1, 1, 2, 2, 3, 3] == list(told.info["clusters"]["truth"].values())
    assert [client["truth"] for client in told.clusters["clients"]] == [1, 0, 1, 1, 2, 2, 3, 3]
    stays = run(Oracle(fed.provenance.truth, local=oracle.local), fed, rounds=4, fine_tune=0)
    moved = stays.records[-1]["ari"]
    assert [record["ari"] for record in stays.records] == [1, 1, 1, 1, pytest.approx(32 / 53)]
    assert stays.info["clusters"]["ari"] == moved
    assert [record["ari"] for record in run("fedavg", fed, rounds=1, fine_tune=0).records] == [0, 0]


def test_agreement_is_of_those_who_are_here() -> None:
    """Who left or has not come yet is not counted; without true groups there is nothing to agree with."""
    away = experiment("oracle", leave="1@3", rounds=4)
    fed, oracle = away.build(*away.draw())
    stays = run(Oracle(fed.provenance.truth or (), local=oracle.local), fed, rounds=4, fine_tune=0)
    assert [record["ari"] for record in stays.records] == [1] * 5  # the client that changes has just gone
    none = experiment(scenario="noise", rounds=1)
    fed, method = none.build(*none.draw())
    assert fed.provenance.truth_at(5) is None
    assert [record["ari"] for record in run(method, fed, rounds=1, fine_tune=0).records] == [None, None]


def test_the_oracle_founds_a_group_from_the_model_that_its_founder_had() -> None:
    """In round 2 client 0 goes to a group that was not there, which starts from the model of group 0."""
    fed = LoopEngine(build("mlp", SHAPE, CLASSES), tiny_population(), SEED)
    oracle = Oracle((0, 1, 0, 1, 0, 1), ((2, 0, 2),), local=LOCAL)
    done = list(rounds(oracle, fed, rounds=3, fine_tune=0))
    assert [tree.count(each.state.models) for each in done] == [2, 2, 2, 3]
    assert done[-1].state.labels.tolist() == [2, 1, 0, 1, 0, 1]
    before = tree.take(done[-2].state.models, 0)
    alone = fed.map(train, Cohort(torch.tensor([0]), 2), work=LOCAL.work, shared={"model": before}, **LOCAL.at(0))
    assert torch.equal(tree.flat(alone.answers["model"])[0], tree.flat(done[-1].state.models)[2])


def test_evaluation_is_on_the_rows_of_the_round() -> None:
    """After round 2 the first client is tested as it was, after round 3 turned: by hand, row by row."""
    fed, method = experiment().build(*experiment().draw())
    people = turned()
    seen = []
    for done in rounds(method, fed, rounds=4, fine_tune=0):
        if done.index in (2, 3):
            then, model = people.at(done.index), tree.take(done.state.models, 0)
            hits = []
            for rows in then.test:
                x = torch.from_numpy(people.pool.x[rows]).float() / 255
                hits.append((fed.net.logits(model, x).argmax(1).numpy() == people.pool.y[rows]).mean())
            assert done.accuracy == pytest.approx(np.mean(hits))
            seen.append(hits[0])
    assert seen[0] != seen[1]


def test_what_clients_hold_is_told_of_the_last_round() -> None:
    """A client whose labels 1 and 7 change places holds as many of both together."""
    swapped = experiment(scenario="label-4:per_label=20", change="1@1:swap:1-0", clients=4, rounds=2)
    fed, method = swapped.build(*swapped.draw())
    before = fed.provenance.label_counts[0]  # type: ignore[index]
    result = run(method, fed, rounds=2, fine_tune=0)
    holds = result.clusters["clients"][0]["holds"]
    assert before[0] != before[1]
    assert (holds["0"], holds["1"], holds["2"]) == (before[1], before[0], before[2])


# Folders


def outcome(folder: Path) -> tuple[dict[str, bytes], list[dict[str, Any]], dict[str, Any]]:
    files = {name: (folder / name).read_bytes() for name in ("state.safetensors", "memory.safetensors")}
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    result = read_json(folder / "result.json")
    for each in (*lines, result):
        each.pop("seconds")
    return files, lines, result


def play(session: Session, stop: int | None = None) -> None:
    for done in session.rounds():
        if done.index == stop:
            return session.close()
    session.finish()


@pytest.mark.parametrize("method", ["oracle", "ifca", "pacfl"])
def test_a_run_that_is_stopped_around_a_change_ends_as_if_it_had_not_been(method: str, tmp_path: Path) -> None:
    """To the last bit, whether it stopped before the change, at it or behind it."""
    more = {"ifca": {"clusters": 4}, "pacfl": {"recluster": True, "cut": "silhouette"}}.get(method, {})
    asked = partial(experiment, method, settings={"epochs": 1, "batch": 50, **more}, shuffle=True, join="1@4")
    play(Session.start(asked(), tmp_path / "whole"))
    for stop in (2, 3, 4):
        folder = tmp_path / f"stopped-{stop}"
        play(Session.start(asked(), folder), stop)
        play(Session.resume(folder, asked()))
        assert outcome(folder) == outcome(tmp_path / "whole")


def test_a_run_that_is_stopped_behind_its_last_round_is_tested_on_the_rows_of_that_round(tmp_path: Path) -> None:
    """The best round's models are tested at the end, by a process that has seen no round."""
    asked = experiment(keep="best", settings={"rows": "fit"}, leave="1@3", rounds=4, change="2@3:rotate:90")
    play(Session.start(asked, tmp_path / "whole"))
    play(Session.start(asked, tmp_path / "stopped"), 3)
    play(Session.resume(tmp_path / "stopped"))
    assert outcome(tmp_path / "stopped") == outcome(tmp_path / "whole")


def test_a_recipe_tells_of_changes(tmp_path: Path) -> None:
    """The file has them, and a wrong one is refused like any other option."""
    (tmp_path / "recipe.toml").write_text(experiment().to_toml())
    assert Experiment.from_toml(tmp_path / "recipe.toml").change == "1@3:rotate:90"
    with pytest.raises(UmbelError, match="A change is written COUNT@ROUND:SHIFT"):
        Experiment(change="1@3")
    pooled = experiment("solo", pooled=True)
    with pytest.raises(UmbelError, match="Only groups that stay the same can be pooled"):
        pooled.build(*pooled.draw())


def test_methods_without_groups_run_through_a_change() -> None:
    """Nothing but rows changes for them."""
    fed, method = experiment(rounds=4).build(*experiment().draw())
    assert isinstance(method, FedAvg)
    assert len(run(method, fed, rounds=4, fine_tune=1).curve) == 4
