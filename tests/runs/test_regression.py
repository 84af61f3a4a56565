"""A run that is judged by an error: everything that says a score says which, and the lower one is better."""

import io
import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console
from run_folders import fake_run
from sklearn.datasets import load_diabetes

import umbel
from umbel.data.clients import Pool, Population
from umbel.nets.objective import Classify, Regress
from umbel.pages import figures, panels, plots, summary, views
from umbel.pages.load import load
from umbel.pages.parts import Drawings
from umbel.runs import screen
from umbel.runs.session import described

LOCAL = umbel.Local(lr=0.05, epochs=2, batch=10)


def patients() -> Population:
    """Four clients of the diabetes data, in two groups; in the second one the target runs the other way."""
    x, y = load_diabetes(return_X_y=True)
    x, y = (20 * x[:400]).astype(np.float32), y[:400].astype(np.float32)
    y[200:] = 304 - y[200:]
    rows = np.split(np.arange(400), 4)
    return Population(Pool(x, y), [part[:80] for part in rows], [part[80:] for part in rows], np.array([0, 0, 1, 1]),
                      Regress(centre=152.0, scale=77.0, bins=4, unit="mg"), facts={"groups": 2})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FedAvg, IFCA and SOLO, two rounds each."""
    out = tmp_path_factory.mktemp("runs")
    for method in (umbel.FedAvg(local=LOCAL), umbel.IFCA(clusters=2, local=LOCAL), umbel.Solo(local=LOCAL)):
        umbel.run(method, umbel.simulate(patients()), rounds=2, out=out / method.name)
    return out


def shown(what: object) -> str:
    """What a terminal shows."""
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(what)
    return console.export_text()


def test_the_result_says_its_metric(runs: Path) -> None:
    """result.json, records and clusters.json: `score`, what it is, and the other metrics over all rows together."""
    info = json.loads((runs / "fedavg" / "result.json").read_text())
    assert info["metric"] == {"name": "MAE", "unit": "mg", "higher_is_better": False, "pooled": False}
    score = info["score"]["cluster_model"]
    assert score["value"] == score["mean"] <= score["worst_decile"]
    assert set(score["pooled"]) == {"mae", "rmse", "r2"}
    assert score["pooled"]["mae"] == pytest.approx(score["weighted"])
    lines = [json.loads(line) for line in (runs / "fedavg" / "rounds.jsonl").read_text().splitlines()]
    assert all(line["metric"] == info["metric"] for line in lines)
    people = json.loads((runs / "fedavg" / "clusters.json").read_text())["clients"]
    assert np.mean([each["score"]["cluster_model"] for each in people]) == pytest.approx(score["mean"])
    text = "".join((runs / name / file).read_text() for name in ("fedavg", "ifca", "solo")
                   for file in ("result.json", "rounds.jsonl", "clusters.json"))
    assert "accuracy" not in text


def test_predictions_are_in_the_targets_own_unit(runs: Path) -> None:
    """Their error on a client's test rows is the one that the result says; the module alone gives the same numbers."""
    result, people = umbel.load(runs / "fedavg"), patients()
    for i, client in enumerate(result.clusters["clients"]):
        x, y = people.pool.x[people.test[i]], people.pool.y[people.test[i]]
        guess = result.predict(x, client=client["name"])
        assert guess.shape == y.shape
        assert np.abs(guess - y).mean() == pytest.approx(client["score"]["cluster_model"], rel=1e-5)
        assert torch.equal(result.model(client=client["name"])(torch.from_numpy(x)).flatten(), torch.from_numpy(guess))
    assert result.predict(x[:0], cluster=0).shape == (0,)
    assert result.score < 100
    assert result.curve[2] == pytest.approx(result.score)
    assert repr(result).startswith("<Result fedavg on own, iid: MAE ")
    with pytest.raises(umbel.UmbelError, match=r"judged by MAE: ask for its \.score"):
        _ = result.accuracy


def test_the_terminal_says_it(runs: Path) -> None:
    """Table, lines, comparison and notebook: MAE in mg, four digits, no per cent."""
    result = umbel.load(runs / "fedavg")
    lines = umbel.compare([umbel.FedAvg(local=LOCAL), umbel.Solo(local=LOCAL)], umbel.simulate(patients()), rounds=1)
    told = [shown(screen.result_table(result.info)), "\n".join(screen.result_lines(result.info)), repr(lines),
            result._repr_html_()]
    assert re.search(r"^ *MAE of +mean ± std +worst tenth", told[0], re.MULTILINE)
    assert "MAE in mg (lower is better) on clients' own test rows" in told[0]
    assert f"{result.score:#.4g} ± " in told[0]
    assert re.search(r"Over all test rows together: MAE [\d.]+, RMSE [\d.]+, R2 -?[\d.]+\.", told[1])
    assert re.search(r"method +MAE ", told[2])
    assert "mean ± std over clients (mg)" in told[3]
    for text in told:
        assert "accuracy" not in text.lower()
        assert "%" not in text


def test_the_rounds_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    """A line a round, and the round itself."""
    fed = umbel.simulate(patients())
    umbel.run(umbel.FedAvg(local=LOCAL), fed, rounds=1, progress=True)
    assert re.search(r"fedavg  round 1/1  clusters 1  MAE [\d.]+ mg  ", capsys.readouterr().out)
    *_, last = umbel.rounds(umbel.FedAvg(local=LOCAL), fed, rounds=1)
    assert re.fullmatch(r"<round 0: 1 clusters, MAE [\d.]+ mg>", repr(last))
    with pytest.raises(umbel.UmbelError, match="judged by MAE"):
        _ = last.accuracy


def test_the_page_says_it(runs: Path, tmp_path: Path) -> None:
    """Texts, axes and tables speak of MAE; the word accuracy is nowhere on the page."""
    page = umbel.report([runs / name for name in ("fedavg", "ifca", "solo")], tmp_path / "page.html",
                        figures=tmp_path / "figures").read_text()
    body = unescape(page[page.index("<main"):page.index("plotly.js v")])
    assert "accuracy" not in body.lower()
    for words in ("MAE against rounds", "Mean over clients of the MAE", "MAE in mg (lower is better)",
                  '"title":{"text":"MAE, mg"', "far to the left"):
        assert words in body, words
    assert (tmp_path / "figures" / "mae-rounds.svg").exists()


def test_the_lower_error_is_the_better(tmp_path: Path) -> None:
    """The story names the lower one, gains are falls, the worst tenth is the highest, and tables sort upwards."""
    objective = Regress(unit="mg")
    plain = load(fake_run(tmp_path / "a", "fedavg", objective=objective))
    run = load(fake_run(tmp_path / "b", gain=-0.1, objective=objective))  # an error that is 0.1 lower
    entrants = views.entrants([plain, run])
    told = summary.summary(entrants, views.run_names(entrants))
    assert told.best == "pacfl"
    assert told.story.startswith("reaches an MAE of 0.6 mg on clients' own test rows")
    assert "That is 0.1 mg below one model for all (FedAvg, 0.7 mg)." in told.story
    assert told.cards[1][0] == "0.7818 mg"  # the two highest of twelve
    assert set(told.table.rising) == {"MAE", "worst tenth", "cluster's model", "fine-tuned", "last local"}
    gains = views.gains(run, plain)
    assert views.gain_sentence(gains, run.metric) == (
        "12 of 12 clients gain, 0 lose, 0 stay within 0.007 mg (a hundredth of FedAvg's mean); on average 0.1 mg"
        " better.")
    assert views.gain_sentence(views.gains(plain, run), run.metric).endswith("on average 0.1 mg worse.")
    won = next(trace for trace in plots.gains(gains, run.metric)["data"] if trace.get("name") == "gains")
    assert (len(won["x"]), won["marker"]["symbol"], won["marker"]["color"]) == (12, "triangle-down", "@c0")
    panel = panels.each_run(Drawings(), [plain, run], views.run_names(entrants))[1]
    assert "against FedAvg" in panel.clients.rising
    assert figures.write([plain, run], tmp_path / "figures")


def test_runs_of_two_metrics_are_two_reports(tmp_path: Path) -> None:
    """They have no common axis."""
    folders = [fake_run(tmp_path / "a"), fake_run(tmp_path / "b", objective=Regress())]
    with pytest.raises(umbel.UmbelError, match=r"judged by one metric. Got accuracy and MAE: make one report of each"):
        umbel.report(folders, tmp_path / "page.html")


def test_the_best_round_has_the_lowest_error(tmp_path: Path) -> None:
    """keep="best" keeps the round whose validation error is least, here neither the first nor the last."""
    method = umbel.FedAvg(local=umbel.Local(lr=0.05, epochs=2, batch=5, rows="fit"))
    result = umbel.run(method, umbel.simulate(patients()), rounds=5, keep="best", out=tmp_path / "run")
    errors = {each["round"]: each["validation"]["value"] for each in result.records if each["round"] >= 0}
    assert result.info["kept"] == {"round": min(errors, key=errors.__getitem__), "validation": min(errors.values())}
    assert result.info["kept"]["round"] not in (0, 4)


def test_a_site_of_one_class_harms_no_auc(tmp_path: Path) -> None:
    """Each client holds one class: no client has an AUC, the federation has one, and everything can be shown."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(-1, 1, (40, 3)), rng.normal(1, 1, (40, 3))]).astype(np.float32)
    rows = np.split(np.arange(80), 2)
    people = Population(Pool(x, np.repeat([0, 1], 40)), [part[:30] for part in rows], [part[30:] for part in rows],
                        np.zeros(2, dtype=np.int64), Classify(2, judged_by="auc", labels=("no", "yes")),
                        facts={"groups": 0})
    result = umbel.run(umbel.FedAvg(local=LOCAL), umbel.simulate(people), rounds=2, out=tmp_path / "run")
    score = result.info["score"]["cluster_model"]
    assert (score["mean"], score["over"]) == (None, 0)
    assert result.score == score["weighted"] == score["pooled"]["auc"] > 0.5
    assert set(score["pooled"]) == {"accuracy", "balanced_accuracy", "macro_f1", "auc"}
    assert all(client["score"] == {} for client in result.clusters["clients"])
    assert set(result.predict(x, cluster=0).tolist()) <= {"no", "yes"}
    assert re.search(r"AUC of +all rows together", shown(screen.result_table(result.info)))
    assert "AUC over all clients' test rows together" in unescape(
        umbel.report(tmp_path / "run", tmp_path / "page.html").read_text())
    assert described(result.net)["objective"]["judged_by"] == "auc"  # type: ignore[arg-type]
