"""Comparisons that are tuned or given equal shares, variations, and what is said of a draw."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from run_folders import fake_run
from terminal import SMALL, Umbel

import umbel as u
from umbel.errors import UmbelError
from umbel.pages import load, views
from umbel.runs import compare, drawn, series, vary
from umbel.runs.experiment import Experiment
from umbel.runs.sealed import Sealed

WORDS = ("--scenario", "rotation-4", *SMALL, "--clients", 8, "-q")


def lines(path: str) -> list[dict]:
    return json.loads(Path(path).read_text())


def test_each_method_takes_the_value_that_is_best_by_validation(umbel: Umbel) -> None:
    """All train on fit rows; what was tried and chosen is in the file and on the screen; the chosen are reported."""
    words = ("compare", "fedavg", "fedavg-ft", "solo", *WORDS, "--tune", "lr=0.001,0.1", "--out", "c")
    said = umbel(*words)
    assert said.code == 0
    for line in lines("c/compare.json"):
        tried = line["tuned"]["tried"]
        assert [one["settings"] for one in tried] == [{"lr": 0.001}, {"lr": 0.1}]
        best = max(tried, key=lambda one: one["validation"])
        assert line["tuned"]["chosen"] == best["settings"]
        assert line["runs"] == [f"{line['method']}-lr={best['settings']['lr']:g}-s0"]
        result = Sealed(Path("c") / line["runs"][0]).result()
        assert (result["validation"], result["params"]["rows"]) == (best["validation"], "fit")
        assert line["score"] == result["score"][line["headline"]]["value"]
    assert "fedavg: lr 0.1, by validation score (lr 0.001 " in said.out
    assert [path.name for path in load.expand(Path("c"))] == [line["runs"][0] for line in lines("c/compare.json")]
    before = Path("c/compare.json").read_bytes()
    (Path("c") / "fedavg-lr=0.1-s0" / "result.json").unlink()
    assert umbel(*words).code == 0  # one run is finished anew, the others are there
    assert [(one["score"], one["tuned"]) for one in lines("c/compare.json")] == [
        (one["score"], one["tuned"]) for one in json.loads(before)]


def test_fine_tuning_before_validation_leaves_its_rows_out() -> None:
    """Else a rate would be chosen by how well clients learn these rows by heart."""
    settings = {"rows": "fit", "epochs": 1, "lr": 0.1}
    for engine in ("loop", "simulator"):
        plan = Experiment(method="fedavg-ft", clients=2, rounds=1, fine_tune=3, engine=engine, device="cpu",
                          settings=settings).resolved()
        fed, method = plan.build(*plan.draw())
        asked: list[str] = []
        rows = fed.clients.rows
        fed.clients.rows = lambda i, which, now=0, rows=rows, asked=asked: (asked.append(which), rows(i, which, now))[1]
        result = u.run(method, fed, rounds=1, fine_tune=3)
        last = len(asked) - 1 - asked[::-1].index("validation")
        around = asked[asked.index("validation") : last + 1]
        assert set(around) <= {"fit", "validation"}
        assert result.info["validation"] == result.records[-1]["validation"]["value"]


def test_equal_rounds_count_those_before_clusters_are_formed(umbel: Umbel) -> None:
    """FedAvg trains 3, k-means 1 and 2; the table says how many in any case."""
    words = ("compare", "fedavg", "kmeans", *WORDS, "--rounds", 3, "--set", "pretrain=1")
    said = umbel(*words, "--equal", "rounds", "--out", "c")
    assert [(line["rounds"], line["pretrain"]) for line in lines("c/compare.json")] == [([3], 0), ([3], 1)]
    assert "All were given the same rounds: fedavg 3, kmeans 3." in said.out
    umbel(*words, "--out", "d")
    assert [line["rounds"] for line in lines("d/compare.json")] == [[3], [4]]
    assert "must be more. Got 3 instead." in umbel(*words, "--set", "pretrain=3", "--equal", "rounds").err


def test_equal_bytes_are_what_the_first_method_sent(umbel: Umbel) -> None:
    """IFCA with two models sends twice as much and more; FedAvg gets as many rounds as come nearest."""
    said = umbel("compare", "ifca", "fedavg", *WORDS, "--equal", "bytes", "--out", "c")
    ifca, fedavg = (line["bytes_down"] + line["bytes_up"] for line in lines("c/compare.json"))
    rounds = lines("c/compare.json")[1]["rounds"][0]
    assert rounds == round(ifca / (fedavg / rounds))
    assert rounds > 2
    assert "All were given the same bytes, as ifca" in said.out
    assert lines("c/fedavg-s0/result.json")["rounds"] == {"pretrain": 0, "after": rounds, "asked": 20}


def test_equal_steps_are_counted_in_batches(umbel: Umbel) -> None:
    """Two rounds of four clients with 36 batches each are 8 x 36; a method that trains before it groups gets less."""
    umbel("compare", "fedavg", "kmeans", *SMALL, "--batch", 10, "--set", "pretrain=1", "--set", "clusters=2", "-q",
          "--equal", "steps", "--out", "c")
    fedavg, kmeans = lines("c/compare.json")
    assert fedavg["steps"] == kmeans["steps"] == 2 * 4 * 36
    assert fedavg["rounds"] == kmeans["rounds"] == [2]


@pytest.mark.parametrize(("words", "sentence"), [
    ("compare fedavg --equal epochs", "What methods are given alike is rounds, steps or bytes. Got 'epochs' instead."),
    ("compare fedavg --tune lr", "is written NAME=VALUE,VALUE, as in --tune lr=0.01,0.1. Got 'lr' instead."),
    ("compare fedavg --tune lr=1,1", "--tune names each setting and each of its values once. Got 'lr=1,1' again."),
    ("compare fedavg --tune mu=1,2", "There is no setting of these methods named 'mu'."),
    ("compare fedavg --tune lr=1,2 --lr 1", "A setting is given or tuned. Got 'lr' for both."),
    ("compare fedavg solo --equal bytes --schedule cosine", "a schedule needs a horizon (--set horizon=20)."),
    ("vary fedavg", "Say what to vary, as in --over lr=0.01,0.1."),
    ("vary fedavg --over lrr=1,2", "There is no setting of fedavg or of the run named 'lrr'. Did you mean 'lr'?"),
    ("vary fedavg --over seed=1,2", "There is no setting of fedavg or of the run named 'seed'."),
    ("vary fedavg --over lr=0,1", "The 'lr' of local training must be greater than 0"),
    ("vary fedavg --over scenario.alpha=1,2", "There is no parameter of iid named 'alpha'."),
])
def test_a_wrong_series_is_refused_in_a_sentence(words: str, sentence: str, umbel: Umbel, tmp_path: Path) -> None:
    """Before a folder is made."""
    said = umbel(*words.split())
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert sentence in said.err
    assert not list(tmp_path.iterdir())


def test_a_variation_runs_all_combinations(umbel: Umbel) -> None:
    """A setting, a choice of the run and a number of its scenario; a table, two files, a figure for each on a page."""
    words = ("vary", "fedavg", *WORDS, "--over", "scenario.per_label=2,5", "--over", "lr=0.01,0.1", "--over",
             "fraction=1,0.5", "--seeds", 2, "--out", "v")
    said = umbel(*words)
    assert said.code == 0
    found = lines("v/vary.json")
    assert [tuple(line["settings"].values()) for line in found] == [
        (label, lr, share) for label in (2, 5) for lr in (0.01, 0.1) for share in (1.0, 0.5)]
    assert all(line["seeds"] == 2 and len(line["runs"]) == 2 for line in found)
    result = Sealed(Path("v") / "scenario.per_label=5,lr=0.1,fraction=0.5-s1").result()
    assert (result["params"]["lr"], result["fraction"], result["seed"]) == (0.1, 0.5, 1)
    assert result["scenario_facts"]["per_label"] == 5
    table = list(csv.DictReader(Path("v/vary.csv").read_text().splitlines()))
    assert [row["lr"] for row in table[:4]] == ["0.01", "0.01", "0.1", "0.1"]
    assert [float(row["score"]) for row in table] == [line["score"] for line in found]
    assert umbel("report", "v").code == 0
    page = Path("v/report.html").read_text()
    assert all(f"<h3>Accuracy against {name}</h3>" in page for name in ("lr", "fraction", "scenario"))
    before = Path("v/vary.json").read_bytes()
    assert umbel(*words).code == 0
    assert Path("v/vary.json").read_bytes() == before
    other = umbel(*words[:-2], "--keep", "best", "--set", "rows=fit", "--out", "v")
    assert "is from another recipe: its 'keep' is 'last'" in other.err


def test_a_setting_is_drawn_against_with_a_line_for_the_others_values(tmp_path: Path) -> None:
    """Values in the order of numbers; a setting that changes only with another one has no figure."""
    def run(lr: float, k: int, seed: int, gain: float) -> Path:
        return fake_run(tmp_path / f"{lr}-{k}-{seed}", "ifca", seed=seed, gain=gain, params={"lr": lr, "clusters": k})

    paths = [run(lr, k, seed, gain=(lr + k + seed) / 100) for lr in (0.1, 0.02) for k in (2, 10) for seed in (0, 1)]
    lr, k = views.varied(views.entrants([load.load(path) for path in paths]))
    assert (lr.name, lr.values, k.name, k.values) == ("lr", ["0.02", "0.1"], "clusters", ["2", "10"])
    assert list(lr.lines) == ["clusters 2", "clusters 10"]
    scores = lr.lines["clusters 2"]
    assert [len(scores[value]) for value in lr.values] == [2, 2]
    assert np.diff([np.mean(scores[value]) for value in lr.values]) == pytest.approx([0.0008])
    both = views.entrants([load.load(path) for path in (paths[0], paths[6])])
    assert views.varied(both) == []


def test_combinations_go_through_all_values() -> None:
    """The last name changes first; a limit keeps a slip from a million runs."""
    assert series.combinations(["a=1,2", "b=x"], "--over") == [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}]
    assert series.combinations([], "--over") == [{}]
    many = ",".join(map(str, range(40)))
    with pytest.raises(UmbelError, match=r"The 'combinations' of --over must be .* at most 1000. Got 1600 instead."):
        series.combinations([f"a={many}", f"b={many}"], "--over")


def test_a_number_of_a_scenario_is_varied_where_it_stands() -> None:
    """In the part that has it, instead of what stands there; the others are as they were."""
    plan = vary.planned(Experiment(scenario="flag:groups=3,alpha=2+rotation-4"), ["scenario.alpha=1,5"], 1)
    assert [run.scenario for run in plan.runs.values()] == [
        "flag:groups=3,alpha=1+rotation-4", "flag:groups=3,alpha=5+rotation-4"]


def test_what_was_drawn_is_said(umbel: Umbel) -> None:
    """Rows, labels, groups, what bent, and a warning where a client has too few rows; once a partition."""
    said = umbel("run", "fedavg", "--scenario", "rotation-4", *SMALL, "--clients", 48, "--rounds", 1)
    assert said.out.startswith(
        "Drawn: 48 clients, 14 training rows each (median 14), 10 labels, 4 true groups.\n"
        "The set is too small for per_label=100 with 48 clients: it was lowered to 2.\n")
    assert said.err == ("Warning: 48 of 48 clients have fewer training rows than a batch of 100; the smallest, c000,"
                        " has 14. Fewer clients would hold more each (--clients).\n")
    both = umbel("compare", "fedavg", "solo", *SMALL, "--batch", 10, "--seeds", 2)
    assert both.out.count("Drawn: ") == 2
    assert both.err == ""


def test_fewer_rows_than_classes_are_warned_of() -> None:
    """Of the clients that have too few the smallest is named."""
    people = u.Population(u.Pool(np.zeros((60, 4), np.float32), np.arange(60) % 10),
                          [np.arange(40), np.arange(40, 47), np.arange(50, 60)], [np.arange(3)] * 3,
                          np.zeros(3, int), 10)
    fed = u.simulate(people, device="cpu")
    assert drawn.warnings(fed, batch=0) == [
        "1 of 3 clients have fewer training rows than the 10 classes; the smallest, c001, has 7. Fewer clients would"
        " hold more each (--clients)."]
    assert drawn.said(fed) == ["Drawn: 3 clients, 7 to 40 training rows each (median 10), 7 to 10 labels."]


def test_python_compares_and_varies_alike(tmp_path: Path) -> None:
    """tune and equal from Python; a federation that is there has its data already."""
    both = u.compare(["fedavg", "solo"], data="digits", clients=2, rounds=1, device="cpu", settings={"epochs": 1},
                     tune=["lr=0.01,0.1"])
    assert [line["tuned"]["chosen"] for line in both.lines] == [{"lr": 0.1}, {"lr": 0.1}]
    fed = u.simulate("digits", clients=2, device="cpu")
    with pytest.raises(UmbelError, match=r"A comparison is tuned, or given equal shares, where it makes"):
        u.compare(["fedavg"], fed, rounds=1, tune=["lr=0.1,1"])
    plan = vary.planned(Experiment(), ["batch=5,10"], 1)
    assert [run.settings["batch"] for run in plan.runs.values()] == [5, 10]
    assert compare.planned(["fedavg"], Experiment(), {}, 2).tuned == {"fedavg-s0": {}, "fedavg-s1": {}}
