"""The diagnosis of a federation: what it says, what it keeps, and what it answers where there is little to go by."""

import json

import numpy as np
import pytest
from helpers import ENGINES, LOCAL, SEED, TRUTH, silence, tiny_model, tiny_population

import umbel
from umbel.clustering.differences import Difference
from umbel.clustering.parts import Parts
from umbel.data.clients import Pool, Population
from umbel.diagnosis import screen
from umbel.diagnosis.diagnose import diagnose
from umbel.diagnosis.separating import kind_names, marks
from umbel.engines import LoopEngine
from umbel.errors import UmbelError
from umbel.federation.door import NobodyAnswered
from umbel.nets.objective import Classify, Regress

QUICK = umbel.Local(lr=0.1, epochs=5, batch=10)


@pytest.fixture(scope="module")
def turned():
    """Twelve clients whose digits are turned by four angles."""
    fed = umbel.simulate("digits", scenario="rotation-4", clients=12, model="mlp", seed=0)
    return diagnose(fed, local=QUICK, rounds=20)


def test_what_differs_who_is_together_and_what_to_train(turned):
    """Looks alone; the four angles; and clusters, with the reason."""
    assert turned.differ == ["looks"]
    assert [group["clients"] for group in turned.info["clusters"]] == [
        [f"c{3 * k + i:03d}" for i in range(3)] for k in range(4)]
    assert all(group["marks"].startswith("other looks, most of ") for group in turned.info["clusters"])
    assert turned.advice.startswith("4 clusters")
    assert "better than with one model (p" in turned.advice
    assert turned.advice.endswith(", paired over 12 clients).")


def test_the_cost_is_what_was_billed(turned):
    """Evidence below a tenth of a round of FedAvg; a trial with clusters, at most a quarter of the run."""
    cost, plans = turned.info["cost"], turned.info["plans"]
    assert 0 < cost["evidence_rounds"] < 0.1
    assert cost["trial_rounds"] == 2
    assert 0.24 < cost["trial_share"] <= 0.2501
    assert [plan["plan"] for plan in plans] == [
        "one model", "one model, fine-tuned", "4 clusters", "4 clusters, fine-tuned", "everybody alone"]
    assert [plan["bytes_a_round"] == 0 for plan in plans] == [False] * 4 + [True]
    assert sum(plan["chosen"] for plan in plans) == 1


def test_it_is_kept_as_json(turned, tmp_path):
    """What was said is what the file says, in plain numbers."""
    path = turned.save(tmp_path / "diagnosis.json")
    assert json.loads(path.read_text()) == turned.info
    assert repr(turned) == f"<Diagnosis of digits: looks. {turned.advice}>"


def test_nothing_differs():
    """Alike clients: no trial, no clusters, one model."""
    found = diagnose(umbel.simulate("digits", scenario="iid", clients=8, model="mlp", seed=2), local=QUICK)
    assert found.differ == []
    assert found.advice == "Nothing differs: one model."
    assert found.info["plans"] == []
    assert found.info["cost"]["trial_bytes"] == 0
    assert list(screen.clusters_lines(found)) == []
    assert screen.plans_table(found) is None


def test_without_a_trial_nothing_is_trained():
    """The evidence alone, and no word on what is worth more."""
    fed = LoopEngine(tiny_model(), tiny_population(), SEED)
    found = diagnose(fed, local=LOCAL, trial=False)
    assert found.differ == ["looks"]
    assert found.advice == "Clients differ, and what that is worth was not tried."
    assert [len(group["clients"]) for group in found.info["clusters"]] == [TRUTH.count(0), TRUTH.count(1)]
    assert found.info["cost"]["trial_bytes"] == 0


@pytest.mark.parametrize("engine", ["simulator", "flower"])
def test_all_engines_say_the_same(engine):
    """In the loop, side by side, and as Flower nodes: the same diagnosis, and the same bytes."""
    one, other = (diagnose(make(tiny_model(), tiny_population(), SEED), local=LOCAL, rounds=10)
                  for make in (LoopEngine, ENGINES[engine]))
    assert one.info == other.info


def test_too_few_validation_rows_are_said():
    """Nine rows decide nothing: the simplest plan, and why."""
    found = diagnose(LoopEngine(tiny_model(), tiny_population(), SEED), local=LOCAL, rounds=1)
    assert found.advice == (
        "Too few validation rows (9) to say which plan is worth more, so the simplest one: one model.")
    assert found.info["chosen"] is None


def test_numbers_to_be_predicted_have_bins():
    """A table with a number as its target: bins instead of labels, and no clusters where nothing differs."""
    found = diagnose(umbel.simulate("diabetes", scenario="iid", clients=6, seed=0), local=QUICK, rounds=5)
    assert found.info["labels"][0] == "bin 1"
    assert found.differ == []
    assert len(found.info["clusters"]) == 1
    assert found.info["reveals"].startswith("Each client sent how many rows of each bin of the target it holds")


def test_one_client():
    """A sentence, and no error."""
    people = tiny_population((0,))
    found = diagnose(LoopEngine(tiny_model(), people, SEED), local=LOCAL)
    assert found.advice == "There is one client to be heard: nothing can be compared, and it trains alone."
    assert {each["words"] for each in found.info["differences"]} == {"not asked: there is one client"}
    assert {screen.answered(each) for each in found.info["differences"]} == {"–"}


def test_a_site_that_drops_out_is_named():
    """It is silent from the trial on: the others are judged, and the diagnosis says who was not heard."""
    fed = LoopEngine(tiny_model(), tiny_population(), SEED)
    inner, asked = fed.map, []

    def leaves(task, cohort, **rest):
        asked.append(task.name)
        if task.name == "train" and asked.count("train") == 1:
            silence(fed, "c002")
        return inner(task, cohort, **rest)

    fed.map = leaves
    found = diagnose(fed, local=LOCAL)
    assert found.info["described"] == 6
    assert found.info["lost"] == {"c002": ["late"]}
    assert screen.lost_said(found) == "Not heard to the end: c002 (late)."


def test_where_all_drop_out_one_model_is_left():
    """Nobody ends the trial, or nobody answers at all: a sentence each."""
    fed = LoopEngine(tiny_model(), tiny_population(), SEED)
    inner = fed.map

    def alone(task, cohort, **rest):
        if task.name == "train":
            raise NobodyAnswered(dict.fromkeys(fed.names, "away"))
        return inner(task, cohort, **rest)

    fed.map = alone
    assert diagnose(fed, local=LOCAL).advice == (
        "Take one model: the trial of plans was lost, since none of 6 clients gave a usable answer (away).")
    away = silence(LoopEngine(tiny_model(), tiny_population(), SEED), *fed.names)
    with pytest.raises(UmbelError, match="Nothing can be said of these clients: none of 6 clients"):
        diagnose(away, local=LOCAL)


def test_a_metric_that_some_site_cannot_define():
    """A site with one class has no AUC: it is left out of the comparison, and the others are compared."""
    rng = np.random.default_rng(0)
    xs, ys, at = [], [], 0
    rows = []
    for i in range(4):
        y = np.zeros(240, dtype=np.int64) if i == 3 else rng.integers(0, 2, 240)
        xs.append(rng.normal(size=(240, 1, 3, 3)) + 2 * y[:, None, None, None] * (1 if i % 2 else -1))
        ys.append(y)
        rows.append(np.arange(at, at + 240))
        at += 240
    people = Population(Pool(np.concatenate(xs).astype(np.float32), np.concatenate(ys)), [own[:200] for own in rows],
                        [own[200:] for own in rows], np.zeros(4, dtype=np.int64), Classify(2, judged_by="auc"))
    found = diagnose(umbel.simulate(people, model="mlp", seed=0, device="cpu"), local=QUICK, rounds=5)
    assert set(found.differ) >= {"labels", "looks"}
    assert found.info["over"]["clients"] == 3
    assert found.metric.name == "AUC"


def test_rounds_are_checked():
    """Bad input is one sentence."""
    with pytest.raises(UmbelError, match="The 'rounds' of the run that is planned must be at least 1"):
        diagnose(LoopEngine(tiny_model(), tiny_population(), SEED), rounds=0)


# What marks a cluster ----------------------------------------------------------------------------------------------


def found(*kinds, renamed=()):
    nobody = np.zeros(4, dtype=bool)
    return {kind: Difference(kind, kind in kinds, 0.001, 1.0, nobody, "", renamed if kind == "meanings" else ())
            for kind in ("labels", "looks", "meanings", "amounts")}


def test_a_cluster_is_marked_by_what_it_has_more_of():
    """Labels by their shares, meanings by the names of most of its members, amounts by the median."""
    parts = Parts(np.array([0, 1, 2, 3]), np.zeros(4, int), np.zeros((4, 2)),
                  np.array([[9, 1], [8, 2], [2, 18], [0, 20]]))
    inside = np.array([True, True, False, False])
    assert marks(parts, inside, ["cat", "dog"], found("labels")) == "more of cat (85 % of rows, elsewhere 5 %)"
    assert marks(parts, ~inside, ["cat", "dog"], found("amounts")) == "20 rows each (median), elsewhere 10"
    other = found("meanings", renamed=((0, 0, 1), (1, 0, 1), (1, 1, 0)))
    assert marks(parts, inside, ["cat", "dog"], other) == "other meanings: its cat is what others call dog"
    assert marks(parts, ~inside, ["cat", "dog"], other) == ""


def test_looks_are_named_by_the_labels_that_lie_farthest():
    """Label 1 lies apart in units of its own spread, label 0 does not."""
    vector = np.array([[0.0], [1], [0], [1], [0], [1], [10], [11]])
    parts = Parts(np.array([0, 0, 1, 1] * 2), np.repeat([0, 1], 4), vector, np.full((2, 2), 4))
    assert marks(parts, np.array([True, False]), ["a", "b"], found("looks")) == "other looks, most of b and a"


def test_kinds_have_the_names_of_labels():
    """Texts where they are known, else numbers; bins are counted from 1."""
    assert kind_names(Classify(2, labels=("no", "yes"))) == ["no", "yes"]
    assert kind_names(Classify(3)) == ["0", "1", "2"]
    assert kind_names(Regress()) == ["bin 1"]


def test_gains_are_said_with_their_interval():
    """In the metric's own words; one model itself has a dash, a single client no interval."""
    plan = {"groups": "clusters", "tuned": False, "low": 0.1, "high": 0.3}
    metric = umbel.Classify(2).metric
    assert screen.gain_said(plan, metric) == "20.0 [10.0, 30.0]"
    assert screen.gain_said(plan | {"low": None, "high": None}, metric) == "not known"
    assert screen.gain_said(plan | {"groups": "one"}, metric) == "–"
    assert screen.some(["a", "b", "c"], most=2) == "a, b and 1 more"
