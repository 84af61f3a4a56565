"""What a run is judged by and how its classes weigh, from choice to result, resumed, loaded, compared and reported."""

import json
from dataclasses import replace

import numpy as np
import pytest
from helpers import ENGINES, LOCAL, SEED, gap, play
from terminal import Umbel
from tokens import sentences

import umbel as u
from umbel import tree
from umbel.engines.on_disk import clients_from, write_clients
from umbel.runs.recipe import read_toml

SHORT = "--clients 4 --epochs 1 --rounds 2 --device cpu --quiet"


def unequal() -> u.Population:
    """Two sites with nine rows of class 0 for one of class 1; noise says little of which is which."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 3)).astype(np.float32), (np.arange(200) % 10 == 0).astype(np.int64)
    x[:, 0] += y
    return u.Population.of_sites({"a": (x[:60], y[:60], x[120:160], y[120:160]),
                                  "b": (x[60:120], y[60:120], x[160:], y[160:])}, 2)


@pytest.mark.parametrize(("metric", "name"), [("balanced_accuracy", "balanced accuracy"), ("auc", "AUC"),
                                              ("macro_f1", "macro F1")])
def test_a_metric_is_chosen_by_name(metric, name):
    """On digits as on one's own rows: the score is that figure, over all rows together."""
    for data in ("digits", unequal()):
        result = u.run("fedavg", u.simulate(data, clients=2 if data == "digits" else None, metric=metric, device="cpu"),
                       rounds=1, fine_tune=0)
        assert result.metric.name == name
        assert result.score == result.info["score"]["cluster_model"]["pooled"][metric]


def test_a_chosen_metric_is_in_recipe_result_resume_comparison_and_page(umbel: Umbel, tmp_path):
    """And a run is not resumed by another."""
    run = f"run fedavg {SHORT} --data diabetes --metric rmse --out one"
    assert umbel(*run.split()).code == 0
    assert read_toml(tmp_path / "one" / "recipe.toml")["metric"] == "rmse"
    info = json.loads((tmp_path / "one" / "result.json").read_text())
    assert (info["metric"]["name"], info["metric"]["higher_is_better"]) == ("RMSE", False)
    assert info["score"]["cluster_model"]["value"] == info["score"]["cluster_model"]["pooled"]["rmse"]
    loaded = u.load(tmp_path / "one")
    assert (loaded.metric.name, loaded.net.objective.judged_by) == ("RMSE", "rmse")
    assert "--resume" not in umbel(*f"{run} --resume".split()).err
    said = umbel(*f"{run.replace('rmse', 'r2')} --resume".split())
    assert "its 'metric' is 'rmse', asked for is 'r2'" in said.err
    more = umbel("run", "--resume", "--out", "one", "--rounds", "3", "--quiet")
    assert more.code == 0
    assert json.loads((tmp_path / "one" / "result.json").read_text())["metric"]["name"] == "RMSE"
    assert umbel(*f"compare fedavg solo {SHORT} --data diabetes --metric rmse --out both".split()).code == 0
    lines = json.loads((tmp_path / "both" / "compare.json").read_text())
    assert {line["metric"]["name"] for line in lines} == {"RMSE"}
    assert "RMSE against rounds" in u.report([tmp_path / "one"], tmp_path / "page.html").read_text()


def test_balanced_weights_are_counted_over_all_clients_and_stored(tmp_path):
    """Training rows: 108 of class 0, 12 of class 1. They are numbers in the model, its file and a worker's, and more
    rows of the rare class are found."""
    people = unequal()
    plain, weighed = (u.simulate(people, class_weights=weights, device="cpu") for weights in ("", "balanced"))
    assert weighed.net.objective.weights == (120 / (2 * 108), 120 / (2 * 12))
    local = u.Local(lr=0.1, epochs=10, batch=10)
    found = [u.run(u.FedAvg(local=local), fed, rounds=3, fine_tune=0, out=tmp_path / name)
             for name, fed in (("plain", plain), ("weighed", weighed))]
    guessed = [int((result.net.logits(tree.take(result.models, 0), weighed.clients.x).argmax(1) == 1).sum())
               for result in found]
    assert guessed[0] < 20 <= guessed[1]
    assert u.load(tmp_path / "weighed").net.objective == weighed.net.objective
    (tmp_path / "clients").mkdir()
    write_clients(tmp_path / "clients", people, weighed.net, SEED)
    assert clients_from(tmp_path / "clients")[1].objective == weighed.net.objective


def test_weights_are_alike_on_every_engine():
    """Models within 1e-5 of the loop's, on the simulator and in Flower's messages."""
    fed = u.simulate(unequal(), class_weights="1,9", device="cpu")
    ends = {engine: play(u.FedAvg(local=LOCAL), ENGINES[engine](fed.net, fed.clients.population, SEED)).models
            for engine in ("loop", "simulator", "flower")}
    assert all(gap(ends["loop"], models) < 1e-5 for models in ends.values())


def test_balanced_weights_of_a_model_alone_are_refused():
    """Nobody counts there."""
    with pytest.raises(u.UmbelError, match="Balanced weights are counted over the rows of a federation"):
        u.wrap(lambda: None, (3,), u.Classify(2, weights="balanced"))


def test_a_newcomer_is_weighed_as_the_clients_were(umbel: Umbel, tmp_path):
    """Its own rows, all of one class, do not change the weights of the run."""
    assert umbel(*f"run fedavg {SHORT} --class-weights balanced --metric macro_f1 --out run".split()).code == 0
    digits = u.open_dataset("digits")
    rows = np.flatnonzero(digits.y_train == 3)[:20]
    placed = u.admit(tmp_path / "run", (digits.x_train[rows], digits.y_train[rows]))
    assert placed.net.objective == u.load(tmp_path / "run").net.objective
    assert min(placed.net.objective.weights) > 0
    assert placed.net.objective.judged_by == "macro_f1"


def test_texts_are_read_by_a_gru_unless_another_is_named(tmp_path):
    """The vocabulary is the objective's; without one, the largest token's. A run by perplexity is loaded with it."""
    x, y = sentences(np.ones(60, dtype=np.int64), np.random.default_rng(0))
    people = u.Population.of_sites({"a": (x[:40], y[:40], x[40:], y[40:])}, u.NextToken(5, 6, judged_by="perplexity"))
    fed = u.simulate(people, device="cpu")
    assert (fed.net.name, fed.net.shapes["embedding.weight"].shape) == ("gru", (5, 4))
    result = u.run(u.FedAvg(local=u.Local(lr=0.5, epochs=5)), fed, rounds=2, fine_tune=0, out=tmp_path / "run")
    assert 1 < result.score < 2  # of five tokens, one follows
    again = u.load(tmp_path / "run")
    assert again.metric.name == "perplexity"
    assert (again.net.tokens, again.net.name, again.net.levels) == (True, "gru", ())
    with pytest.raises(u.UmbelError, match=r"The tokens in column 0 must be whole numbers in 0 \.\. 3\. Got 4 in row"):
        u.simulate(replace(people, pool=u.Pool(people.pool.x, 0 * people.pool.y), objective=u.NextToken(4, 6)))
    counted = u.simulate(u.Population.of_sites({"a": (x, (y[:, 0] > 2).astype(np.int64))}), model="tcn", device="cpu")
    assert (counted.net.levels, counted.net.shapes["embedding.weight"].shape) == ((5,) * 6, (5, 4))


def test_series_are_read_by_a_tcn_and_tables_by_an_mlp(tmp_path):
    """A table's categories are embedded, on disk and in workers too; a code that is none is refused."""
    rng = np.random.default_rng(0)
    series, y = rng.normal(size=(20, 4, 2)).astype(np.float32), rng.normal(size=20)
    assert u.simulate(u.Population.of_sites({"a": (series, y)}, u.Regress()), device="cpu").net.name == "tcn"
    x, rows = rng.integers(0, 3, (20, 2)).astype(np.float32), [np.arange(20)]
    people = u.Population(u.Pool(x, np.arange(20) % 2), rows, rows, np.zeros(1, dtype=np.int64), 2, levels=(0, 3))
    fed = u.simulate(people, device="cpu")
    assert (fed.net.name, fed.net.shapes["0.0.embeddings.1.weight"].shape) == ("mlp", (3, 3))
    u.run("fedavg", fed, rounds=1, fine_tune=0, out=tmp_path / "run")
    assert u.load(tmp_path / "run").net.levels == (0, 3)
    (tmp_path / "clients").mkdir()
    write_clients(tmp_path / "clients", people, fed.net, SEED)
    assert clients_from(tmp_path / "clients")[1].levels == (0, 3)
    x[7, 1] = 3
    people = replace(people, pool=u.Pool(x, people.pool.y))
    with pytest.raises(u.UmbelError, match=r"The codes in column 1 must be whole numbers in 0 \.\. 2\. Got 3 in row 7"):
        u.simulate(people, device="cpu")


def test_a_row_that_is_listed_twice_counts_twice():
    """Weights of rows: whole numbers, in the lists of rows."""
    people = unequal()
    again = u.Population(people.pool, [rows[[0, 0, 1]] for rows in people.train], people.test, people.truth, 2)
    one_more = (np.concatenate([part, part[:1]]) for part in people.pool[:2])
    other = u.Population(u.Pool(*one_more), [np.array([rows[0], rows[0] if k else 200, rows[1]])
                                for k, rows in enumerate(people.train)], people.test, people.truth, 2)
    ends = [play(u.FedAvg(local=u.Local(epochs=1, batch=0)), u.simulate(each, device="cpu"), rounds=1).models
            for each in (again, other)]
    assert gap(*ends) < 1e-6
