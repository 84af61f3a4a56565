"""Folders that version 1 of the files describes, as umbel 0.1 wrote them, are read everywhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run_folders import unsealed
from terminal import Umbel

import umbel as u
from umbel.nets.objective import ACCURACY
from umbel.reproduce.measures import MEASURES, Finished
from umbel.runs import compare, schema
from umbel.runs.experiment import Experiment
from umbel.runs.session import Session

METRIC = {"name": "accuracy", "unit": "%", "higher_is_better": True, "pooled": False}

OLD_RECORD: dict[str, Any] = json.loads("""
{"round": 1, "clusters": 1, "unplaced": 0, "trained": [0, 1], "bytes": {}, "seconds": {"wall": 0.1}, "lost": {},
 "final": {"cluster_model": {"c000": {"accuracy": 0.5, "loss": 2.25, "rows": 30},
                             "c001": {"accuracy": 0.1, "loss": 2.5, "rows": 10}},
           "fine_tuned": null, "last_local": {}},
 "accuracy": {"mean": 0.3, "std": 0.2, "worst_decile": 0.1, "weighted": 0.4, "over": 2},
 "validation": {"mean": 0.25, "std": 0.0, "worst_decile": 0.25, "weighted": 0.25, "over": 2},
 "asked": 2, "moved": 0, "waiting": {}, "lost_in_a_row": 0}
""")

OLD_RESULT: dict[str, Any] = json.loads("""
{"schema": 1, "status": "finished", "method": "fedavg", "headline": "cluster_model", "params": {}, "data": "digits",
 "data_part": "", "scenario": "iid", "scenario_facts": null, "partition_hash": null, "test_mode": null,
 "model": {"name": "mlp", "parameters": 9, "head": "3"}, "seed": 0, "clients": 2, "rounds": {"pretrain": 0, "after": 2},
 "fraction": 1.0, "engine": "loop", "device": "cpu", "precision": "float32",
 "clusters": {"count": 1, "labels": {"c000": 0, "c001": 0}, "truth": null, "ari": null, "ami": null,
              "homogeneity": null, "completeness": null, "v_measure": null, "unplaced": 0, "why": {}},
 "bytes": {"down": 0, "up": 0, "by_kind": {}, "evaluate": 0}, "lost": {}, "versions": {"umbel": "0.1.0"},
 "seconds": {"total": 1, "per_round": 1, "evaluate": 0, "signature": 0, "clustering": 0},
 "accuracy": {"cluster_model": {"mean": 0.3, "std": 0.2, "worst_decile": 0.1, "weighted": 0.4, "over": 2,
                                "rounds_averaged": 1},
              "fine_tuned": null, "last_local": null,
              "missing": {"fine_tuned": "fine-tuning was left out (fine_tune = 0)", "last_local": "none"}}}
""")

OLD_CLUSTERS: dict[str, Any] = json.loads("""
{"members": {"0": ["c000"]},
 "clients": [{"name": "c000", "cluster": 0, "truth": null, "accuracy": {"cluster_model": 0.5}, "holds": null}]}
""")


def test_an_old_record_in_todays_words() -> None:
    """Accuracy becomes the score of the metric accuracy; the value is its mean, what is pooled its weighted mean."""
    now = schema.record_of(OLD_RECORD, "line 3")
    score = {"mean": 0.3, "std": 0.2, "worst_decile": 0.1, "weighted": 0.4, "over": 2, "value": 0.3,
             "pooled": {"accuracy": 0.4}}
    assert now["score"] == score
    assert now["validation"]["value"] == 0.25
    assert now["metric"] == METRIC == ACCURACY._asdict()
    assert now["final"] == {
        "cluster_model": {"clients": {"c000": {"score": 0.5, "loss": 2.25, "rows": 30},
                                      "c001": {"score": 0.1, "loss": 2.5, "rows": 10}},
                          "pooled": {"accuracy": pytest.approx(0.4)}},
        "fine_tuned": None, "last_local": {"clients": {}, "pooled": {}}}
    assert "accuracy" not in now
    assert schema.record_of(now, "line 3") is now
    assert schema.record_of({**OLD_RECORD, "accuracy": {}}, "line 3")["score"] == {}


def test_a_record_of_one_reason_a_client() -> None:
    """Once a line held the last reason alone: now a list of one."""
    now = schema.record_of({**OLD_RECORD, "lost": {"c001": "late", "c000": ["late", "away"]}}, "line 3")
    assert now["lost"] == {"c001": ["late"], "c000": ["late", "away"]}


def test_an_old_result_in_todays_words() -> None:
    """The same of result.json and clusters.json; what is new already stays as it is."""
    now = schema.result_of(OLD_RESULT, "result.json")
    assert (now["schema"], now["metric"], now["score"]["cluster_model"]["value"]) == (2, METRIC, 0.3)
    assert now["score"]["fine_tuned"] is None
    assert now["score"]["missing"] == OLD_RESULT["accuracy"]["missing"]
    assert "accuracy" not in now
    assert schema.result_of(now, "result.json") is now
    client = schema.clusters_of(OLD_CLUSTERS, "a file")["clients"][0]
    assert client == {"name": "c000", "cluster": 0, "truth": None, "score": {"cluster_model": 0.5}, "holds": None}
    now = schema.clusters_of(OLD_CLUSTERS, "a file")
    assert schema.clusters_of(now, "a file") == now


def old(folder: Path) -> Path:
    """Write a run folder back into version 1, line by line and key by key."""
    def summary(score: dict[str, Any] | None) -> dict[str, Any] | None:
        return {k: v for k, v in score.items() if k not in ("value", "pooled")} if score else score

    def record(now: dict[str, Any]) -> dict[str, Any]:
        was = {{"score": "accuracy"}.get(k, k): v for k, v in now.items() if k != "metric"}
        was |= {k: summary(was[k]) for k in ("accuracy", "validation") if k in was}
        if "final" in was:
            was["final"] = {k: v and {name: {"accuracy": one["score"], "loss": one["loss"], "rows": one["rows"]}
                                      for name, one in v["clients"].items()} for k, v in was["final"].items()}
        return was

    lines = [record(json.loads(line)) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if (folder / "result.json").exists():
        info = json.loads((folder / "result.json").read_text())
        scores = {k: v if k == "missing" else summary(v) for k, v in info.pop("score").items()}
        del info["metric"]
        (folder / "result.json").write_text(json.dumps({**info, "schema": 1, "accuracy": scores}))
        table = json.loads((folder / "clusters.json").read_text())
        for client in table["clients"]:
            client["accuracy"] = client.pop("score")
        (folder / "clusters.json").write_text(json.dumps(table))
    unsealed(folder)
    assert '"score":' not in (folder / "rounds.jsonl").read_text()
    return folder


EXPERIMENT = Experiment(method="pacfl", data="digits", scenario="rotation-4", clients=4, rounds=2, device="cpu",
                        settings={"epochs": 1})
PLAN = compare.planned(["pacfl"], EXPERIMENT, {"epochs": 1}, 1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison's folder with one finished run, and its twin in version 1."""
    out = tmp_path_factory.mktemp("runs")
    for where in ("new", "old"):
        session = Session.start(EXPERIMENT, out / where / "pacfl-s0")
        list(session.rounds())
        session.finish()
    old(out / "old" / "pacfl-s0")
    return out


def test_an_old_folder_is_read_everywhere(runs: Path, tmp_path: Path, umbel: Umbel) -> None:
    """load, report, admit, compare and the command line say the same of it as of a new one."""
    new, was = (runs / where / "pacfl-s0" for where in ("new", "old"))
    now, then = u.load(new), u.load(was)
    assert (then.score, then.accuracy, then.metric) == (now.score, now.score, ACCURACY)
    assert then.curve == now.curve
    assert then.clusters == now.clusters
    for start in ("cluster_model", "fine_tuned", "last_local"):
        mine, theirs = then.info["score"][start], now.info["score"][start]
        assert mine.pop("pooled") == pytest.approx(theirs.pop("pooled"))
        assert mine == theirs
    assert {**compare.table(runs / "old", PLAN)[0], "seconds": 0} == {
        **compare.table(runs / "new", PLAN)[0], "seconds": 0}
    assert "Accuracy against rounds" in u.report(was, tmp_path / "page.html").read_text()
    rng = np.random.default_rng(0)
    rows = (rng.integers(0, 255, (20, 1, 8, 8)).astype(np.uint8), np.arange(20) % 10) * 2
    assert u.admit(was, rows).accuracy == u.admit(new, rows).accuracy
    for name in ("accuracy", "converged"):
        of, reading = MEASURES[name].of, {"judge": "last_local.weighted"}
        assert of is not None
        assert of(Finished(was, reading)) == of(Finished(new, reading))
    code, out, _ = umbel("run", "--resume", "--out", str(was))
    assert (code, "accuracy of" in out) == (0, True)


@pytest.mark.parametrize("rounds_before", [1, 2])
def test_an_old_run_goes_on(rounds_before: int, tmp_path: Path) -> None:
    """Stopped after some rounds in version 1, it ends as the run that was never stopped; its file holds both."""
    whole = Session.start(EXPERIMENT, tmp_path / "whole")
    list(whole.rounds())
    session = Session.start(EXPERIMENT, tmp_path / "run")
    for done in session.rounds():
        if done.index == rounds_before - 1:
            break
    session.close()
    old(tmp_path / "run")
    result = u.resume(tmp_path / "run")
    expected = whole.finish()
    assert result.score == expected.score
    assert result.curve == expected.curve
    assert result.info["schema"] == 2
    assert u.load(tmp_path / "run").score == expected.score
