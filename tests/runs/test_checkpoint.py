"""Run folders: stopped anywhere and resumed, a run ends as if it had never been stopped."""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from run_folders import a_line, fake_run, outcome

from umbel import files
from umbel.algorithms import ALGORITHMS, State
from umbel.errors import UmbelError
from umbel.files import read_json, write_json
from umbel.runs import checkpoint
from umbel.runs.beside import Beside
from umbel.runs.checkpoint import RunFolder
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed
from umbel.runs.session import Session


def experiment(method: str = "fedavg", **changes: Any) -> Experiment:
    """Six clients on digits, half of them asked in a round."""
    fields: dict[str, Any] = {
        "method": method, "scenario": "rotation-4", "clients": 6, "rounds": 4, "fraction": 0.5, "fine_tune": 1,
        "settings": {"epochs": 1, "batch": 100}, "device": "cpu",
    }
    return Experiment(**{**fields, **changes})


def play(session: Session, stop: int | None = None) -> None:
    """Run to the end, or until round `stop` is done."""
    for done in session.rounds():
        if done.index == stop:
            return session.folder.close()
    session.finish()


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file under a folder."""
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@cache
def uninterrupted(method: str, place: Path, **changes: Any) -> dict[str, Any]:
    folder = place / f"{method}-whole"
    play(Session.start(experiment(method, **changes), folder))
    return outcome(folder)


MOVES = {"oracle": {"join": "1@1,1@2", "leave": "1@2"}}  # newcomers and leavers while the run is stopped


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_stopped_run_ends_as_if_it_had_not_been_stopped(
    method: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """State, memory, clusters, result and round lines are the same to the last bit, wherever the run stopped."""
    moves = MOVES.get(method, {})
    whole = uninterrupted(method, tmp_path_factory.getbasetemp(), **moves)
    for stop in (-1, 1, 3):
        folder = tmp_path / f"stopped-{stop}"
        play(Session.start(experiment(method, **moves), folder), stop)
        play(Session.resume(folder))
        assert outcome(folder) == whole


def test_a_run_may_be_stopped_after_every_round(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Many stops are as harmless as one."""
    folder = tmp_path / "run"
    play(Session.start(experiment(), folder), -1)
    for stop in range(4):
        play(Session.resume(folder), stop)
    play(Session.resume(folder))
    assert outcome(folder) == uninterrupted("fedavg", tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("method", ["fedavg", "flag", "ifca"])
def test_a_run_that_is_prolonged_ends_as_if_it_had_been_longer(
    method: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Two rounds and a result, then four, stopped in between: all is as after four, but for an evaluation more."""
    whole, folder = uninterrupted(method, tmp_path_factory.getbasetemp()), tmp_path / "run"
    play(Session.start(experiment(method, rounds=2), folder))
    (folder / "mine.safetensors").write_bytes(b"")  # not ours to remove
    play(Session.resume(folder, rounds=4), stop=read_json(folder / "checkpoint.json")["round"] + 1)
    assert not (folder / "result.json").exists()
    assert not (folder / "state.safetensors").exists()
    play(Session.resume(folder))
    (folder / "mine.safetensors").unlink()
    found = outcome(folder)
    assert (found["files"], found["names"]) == (whole["files"], whole["names"])
    results = [{**each["result"], "bytes": {**each["result"]["bytes"], "evaluate": 0}} for each in (found, whole)]
    assert results[0] == results[1]


def test_a_kill_while_a_run_is_prolonged_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write it hits, the run can be given its rounds again."""
    asked = experiment(rounds=2, clients=3, fine_tune=0)
    play(Session.start(asked, tmp_path / "whole"))
    whole, handles = outcome(tmp_path / "whole"), _descriptors()
    for n in range(100):
        folder = tmp_path / f"killed-{n}"
        play(Session.start(replace(asked, rounds=1), folder))
        with monkeypatch.context() as patch:
            writes = kill_at(patch, n)
            with suppress(Killed):
                play(Session.resume(folder, rounds=2))
            if writes() <= n:
                break
        for handle in _descriptors() - handles:
            os.close(handle)
        if not (folder / "result.json").exists():
            play(Session.resume(folder, rounds=2))
        assert outcome(folder)["files"] == whole["files"], f"killed in write {n}"
    assert 5 < n < 99


# A kill inside a write


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it to tidy up."""


def every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds here take milliseconds, and would share a checkpoint: let each have its own."""
    monkeypatch.setattr(Beside, "ready", lambda beside: not beside.wait())


def kill_at(monkeypatch: pytest.MonkeyPatch, n: int) -> Callable[[], int]:
    """Die in the middle of the n-th write, half of it on the disk, and be dead; returns how many writes there were."""
    count = -1
    whole_file, whole_line = files.write_atomically, files.append

    def dies() -> bool:
        nonlocal count
        count += 1
        if count > n >= 0:
            raise Killed("dead already")
        return count == n

    def write_file(path: Path, content: Any, **rest: Any) -> str:
        whole = content if isinstance(content, bytes) else b"".join(content)
        if dies():
            path.with_name(f".{path.name}.{'0' * 16}.part").write_bytes(whole[: len(whole) // 2])
            raise Killed(path.name)
        return whole_file(path, whole, **rest)

    def add(path: Path, content: bytes) -> None:
        if dies():
            with path.open("ab") as lines:
                lines.write(content[: len(content) // 2])
            raise Killed(path.name)
        whole_line(path, content)

    for module in (files, checkpoint):
        monkeypatch.setattr(module, "write_atomically", write_file)
    monkeypatch.setattr(files, "append", add)
    every_round(monkeypatch)
    return lambda: count + 1


def test_a_kill_inside_any_write_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recipe, partition, state, memory, round line, checkpoint, clusters, result: a kill in each can be resumed."""
    asked = experiment(rounds=2, clients=3, fine_tune=0)
    handles = _descriptors()
    with monkeypatch.context() as patch:
        writes = kill_at(patch, -1)
        play(Session.start(asked, tmp_path / "whole"))
        total = writes()
    whole = outcome(tmp_path / "whole")
    assert total > 15
    for n in range(total):
        folder = tmp_path / f"killed-{n}"
        with monkeypatch.context() as patch:
            kill_at(patch, n)
            with suppress(Killed):  # in the writer's thread it shows later
                play(Session.start(asked, folder))
        for handle in _descriptors() - handles:
            os.close(handle)  # as the end of a process does
        begun = (folder / "recipe.toml").exists()
        play(Session.resume(folder, asked) if begun else Session.start(asked, folder))
        assert outcome(folder) == whole, f"killed in write {n}"


@pytest.mark.parametrize("late", [False, True], ids=["before a line", "behind a line"])
def test_an_interruption_while_a_round_is_handed_over_harms_nothing(late: bool, tmp_path: Path,
                                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C may come between any two lines of code, and what is at hand is then written."""
    add_line = RunFolder.add_line

    def interrupted(folder: RunFolder, record: dict[str, Any]) -> None:
        if late or record["round"] != 2:
            add_line(folder, record)
        if record["round"] == 2:
            raise KeyboardInterrupt

    asked = experiment()
    session = Session.start(asked, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "add_line", interrupted)
        with pytest.raises(KeyboardInterrupt):
            play(session)
        session.close()
    play(Session.resume(tmp_path / "a", asked))
    assert outcome(tmp_path / "a") == uninterrupted("fedavg", tmp_path)


def test_nothing_is_written_after_a_round_that_could_not_be(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full for one write: what comes later would stand behind a gap, and the run ends with what it has."""
    every_round(monkeypatch)
    whole, folder = uninterrupted("fedavg", tmp_path_factory.getbasetemp()), tmp_path / "run"
    session = Session.start(experiment(), folder)
    append, tries = files.append, []

    def fails_once(path: Path, content: bytes) -> None:
        tries.append(path)
        if len(tries) == 2:
            raise UmbelError("no room")
        append(path, content)

    monkeypatch.setattr(files, "append", fails_once)
    with pytest.raises(UmbelError, match="no room"):
        play(session)
    session.close()
    assert len(tries) == 2
    play(Session.resume(folder))
    assert outcome(folder) == whole


def _descriptors() -> set[int]:
    """Open handles of this process that are folders: locks."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        target = Path(f"/proc/self/fd/{name}")
        if target.exists() and target.is_dir() and "pytest" in os.readlink(target):
            found.add(int(name))
    return found


def test_evidence_belongs_to_its_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill between new evidence and its checkpoint leaves the old evidence with the old state."""
    def state(value: float) -> State:
        return State({"w": torch.full((1, 2), value)}, torch.tensor([0]), {"norm": torch.tensor(value)})

    folder = RunFolder.create(tmp_path / "run", {"method": "fedavg"})
    first = state(1.0)
    folder.commit(-1, first, {}, {}, a_line(-1))
    folder.commit(0, replace(first, models={"w": torch.full((1, 2), 2.0)}), {}, {}, a_line(0), wait=True)
    assert [path.name for path in folder.path.glob("evidence*")] == ["evidence--1.safetensors"]  # not written twice
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            folder.commit(1, state(3.0), {}, {}, a_line(1), wait=True)
    with suppress(Killed):
        folder.close()
    again = RunFolder.open(tmp_path / "run")
    saved = again.load(State)
    assert saved is not None
    assert (saved.round, saved.state.models["w"].tolist()) == (0, [[2.0, 2.0]])
    assert saved.state.evidence["norm"].item() == 1.0
    again.commit(1, state(4.0), {}, {}, a_line(1))
    finished = Sealed(fake_run(tmp_path / "another"))
    again.finish(finished.result(), finished.clusters(), None)
    again.close()
    assert sorted(path.name for path in again.path.iterdir()) == [
        "checkpoint.json", "clusters.json", "evidence.safetensors", "recipe.toml", "result.json", "rounds.jsonl",
        "state.safetensors",
    ]


# Folders that cannot be resumed


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def damage_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "state cut": (lambda at: cut(at / "state-2.safetensors"), "state-2.safetensors must be as checkpoint.json"),
    "state missing": (lambda at: (at / "state-2.safetensors").unlink(), r"missing, cut short or changed \(0 bytes\)"),
    "memory cut": (lambda at: cut(at / "memory-2.safetensors"), "memory-2.safetensors must be as checkpoint.json"),
    "lines cut": (lambda at: cut(at / "rounds.jsonl"), "rounds.jsonl must hold every round up to 2"),
    "lines missing": (lambda at: (at / "rounds.jsonl").unlink(), "rounds.jsonl must hold every round up to 2"),
    "a line gone": (lambda at: (at / "rounds.jsonl").write_bytes(
        b"".join((at / "rounds.jsonl").read_bytes().splitlines(True)[1:])), "must hold every round up to 2"),
    "lines not text": (lambda at: (at / "rounds.jsonl").write_bytes(b"\xff\n" * 9), "must hold every round up to 2"),
    "lines not records": (lambda at: (at / "rounds.jsonl").write_bytes(b"1\n" * 9), "must hold every round up to 2"),
    "checkpoint cut": (lambda at: cut(at / "checkpoint.json"), "checkpoint.json must hold JSON"),
    "checkpoint not text": (lambda at: (at / "checkpoint.json").write_bytes(b"\xff"), "checkpoint.json must hold JSON"),
    "checkpoint missing": (lambda at: (at / "checkpoint.json").unlink(), "checkpoint.json must say where the run"),
    **{f"checkpoint {value}": (lambda at, value=value: damage_json(at / "checkpoint.json", value),
                               r"checkpoint.json must be (2|a table with schema, round,)")
       for value in ({}, [], 3, {"round": 2, "files": {}, "memory_rounds": {}, "seal": ""})},
    "recipe not TOML": (lambda at: (at / "recipe.toml").write_text("="), "recipe.toml must be TOML"),
    "partition cut": (lambda at: cut(at / "partition.npz"), "partition.npz must be as umbel wrote it. It was cut"),
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A run that stopped after round 2."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    play(Session.start(experiment(), folder), 2)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("damage", "sentence"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_folder_is_refused_and_left_as_it_is(
    damage: Callable[[Path], object], sentence: str, stopped: dict[str, bytes], tmp_path: Path,
) -> None:
    """What was cut short or changed is named; nothing in the folder is touched, and it can be tried again."""
    for name, content in stopped.items():
        (tmp_path / name).write_bytes(content)
    damage(tmp_path)
    before = snapshot(tmp_path)
    for _ in range(2):  # the first try gives the lock back
        with pytest.raises(UmbelError, match=sentence):
            Session.resume(tmp_path)
    assert snapshot(tmp_path) == before


def test_what_a_kill_wrote_after_the_checkpoint_is_cut_off(stopped: dict[str, bytes], tmp_path: Path) -> None:
    """Lines beyond the checkpoint's round, whole or torn, do not survive resuming."""
    for name, content in stopped.items():
        (tmp_path / name).write_bytes(content)
    with (tmp_path / "rounds.jsonl").open("ab") as lines:
        lines.write(b'{"round": 3}\n{"rou')
    session = Session.resume(tmp_path)
    session.folder.close()
    assert (tmp_path / "rounds.jsonl").read_bytes() == stopped["rounds.jsonl"]


def test_a_folder_from_another_recipe_is_refused(stopped: dict[str, bytes], tmp_path: Path) -> None:
    """The sentence says which choice differs, a method's setting as well as the experiment's own."""
    for name, content in stopped.items():
        (tmp_path / name).write_bytes(content)
    before = snapshot(tmp_path)
    for other, told in (
        (experiment(rounds=5), "its 'rounds' is 4, asked for is 5"),
        (experiment(settings={"epochs": 1, "batch": 100, "lr": 0.5}), "its 'lr' is 0.01, asked for is 0.5"),
        (experiment("fedprox"), "its 'method' is 'fedavg', asked for is 'fedprox'"),
    ):
        with pytest.raises(UmbelError, match=f"is from another recipe: {told}"):
            Session.resume(tmp_path, other)
    assert snapshot(tmp_path) == before
    Session.resume(tmp_path, experiment()).folder.close()


def test_a_folder_in_use_is_refused(stopped: dict[str, bytes], tmp_path: Path) -> None:
    """One process at a time; the lock goes with the handle that holds it."""
    for name, content in stopped.items():
        (tmp_path / name).write_bytes(content)
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(UmbelError, match="is in use by another process: wait for it, or use --out"):
        Session.resume(tmp_path)
    os.close(handle)
    Session.resume(tmp_path).folder.close()


def test_a_new_folder_is_locked_from_its_first_moment(tmp_path: Path) -> None:
    """Of two runs that start in the same folder one is refused."""
    first = RunFolder.create(tmp_path / "run", {})
    with pytest.raises(UmbelError, match="in use by another process"):
        RunFolder.create(tmp_path / "run", {})
    first.close()
    with pytest.raises(UmbelError, match="must be new or empty"):
        RunFolder.create(tmp_path / "run", {})


def test_json_never_holds_what_is_not_a_number(tmp_path: Path) -> None:
    """NaN is no JSON: it is refused, and the file stays as it was."""
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert read_json(tmp_path / "x.json") == {"a": 1}


# Who comes and goes


def test_newcomers_are_unplaced_before_and_placed_after(tmp_path: Path) -> None:
    """Who is not there yet has label -1 and is counted; who comes is placed; who leaves keeps its label."""
    session = Session.start(experiment("oracle", join="1@1,1@3", leave="1@2", fraction=1.0), tmp_path / "run")
    labels, unplaced, asked = {}, {}, {}
    for done in session.rounds():
        labels[done.index] = done.state.labels.tolist()
        unplaced[done.index] = done.record["unplaced"]
        asked[done.index] = done.record.get("asked")
    result = session.finish()
    truth = list(result.info["clusters"]["truth"].values())
    four, five = [*truth[:4], -1, -1], [*truth[:5], -1]
    assert labels == {-1: four, 0: four, 1: five, 2: five, 3: truth}
    assert unplaced == {-1: 2, 0: 2, 1: 1, 2: 1, 3: 0}
    assert asked == {-1: None, 0: 4, 1: 5, 2: 4, 3: 5}
    assert result.info["score"]["cluster_model"]["over"] == 5  # the one that left cannot be asked


def test_who_never_came_is_left_out_and_counted(tmp_path: Path) -> None:
    """A client that had not joined when the run was ended is unplaced: not in ARI, not in accuracy."""
    session = Session.start(experiment("oracle", join="2@3"), tmp_path / "run")
    for done in session.rounds():
        if done.index == 1:
            break
    session.finish()
    result = read_json(tmp_path / "run" / "result.json")
    assert result["clusters"]["unplaced"] == 2
    assert list(result["clusters"]["labels"].values())[4:] == [-1, -1]
    assert (result["clusters"]["ari"], result["score"]["cluster_model"]["over"]) == (1.0, 4)


# What is left


RESULT = {
    "schema", "status", "method", "params", "data", "data_part", "scenario", "scenario_facts", "partition_hash",
    "test_mode", "model", "seed", "clients", "rounds", "fraction", "uplink", "bound", "engine", "device", "precision",
    "workers", "headline", "clusters", "metric", "score", "bytes", "steps", "seconds", "lost", "versions",
}


@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_result_has_the_same_keys(method: str, tmp_path: Path) -> None:
    """One schema for all methods: what a method does not have is null, never NaN."""
    play(Session.start(experiment(method, rounds=1), tmp_path / "run"))
    text = (tmp_path / "run" / "result.json").read_text()
    result = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert set(result) == RESULT
    assert set(result["rounds"]) == {"pretrain", "after"}
    assert {"name", "parameters"} <= set(result["model"])
    assert set(result["clusters"]) == {"count", "labels", "truth", "ari", "ami", "homogeneity", "completeness",
                                       "v_measure", "unplaced", "why"}
    kinds = {"cluster_model", "fine_tuned", "last_local"}
    assert set(result["score"]) == kinds | {"missing"}
    for kind in kinds - set(result["score"]["missing"]):
        assert {"mean", "std", "worst_decile", "weighted", "over", "value", "pooled", "rounds_averaged"} <= set(
            result["score"][kind])
    assert result["score"][result["headline"]] is not None
    assert {"down", "up", "by_kind", "evaluate"} <= set(result["bytes"])
    assert {"total", "per_round", "signature", "clustering"} <= set(result["seconds"])
    assert {"umbel", "python", "torch", "numpy"} <= set(result["versions"])
    clusters = read_json(tmp_path / "run" / "clusters.json")
    assert [client["name"] for client in clusters["clients"]] == list(result["clusters"]["labels"])
