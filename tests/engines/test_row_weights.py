"""Weights of rows: losses in training are multiplied by them, alike on every engine; they go with their rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ALL, ENGINES, LOCAL, SEED, TRUTH, gap, play, tiny_model, tiny_population
from terminal import Umbel

import umbel as u
from umbel.data.clients import Population
from umbel.data.plans import realise
from umbel.data.scenarios import draw
from umbel.engines import LoopEngine
from umbel.engines.on_disk import clients_from, write_clients
from umbel.federation.door import Cohort


def weighed(people: Population) -> Population:
    """The same clients with a weight from 0 to 3 for each row."""
    weight = np.random.default_rng(0).integers(0, 4, len(people.pool.y)).astype(np.float32)
    return replace(people, pool=people.pool._replace(weight=weight))


@pytest.mark.parametrize("model", ["own", "mlp"])
def test_training_equals_a_literal_loop(model: str) -> None:
    """(1 / b) sum w_i l_i, step by step; `mlp` is replayed from a tape after some of them."""
    people, local = weighed(tiny_population()), replace(LOCAL, epochs=12)
    fed = u.simulate(people, model=tiny_model().make if model == "own" else model, device="cpu", engine="loop")
    u.run(u.Solo(local=local), fed, rounds=1, fine_tune=0)
    module = fed.net.make()
    module.load_state_dict(fed.net.init(0))
    optimiser = torch.optim.SGD(module.parameters(), lr=local.lr, momentum=local.momentum)
    for rows in fed.clients.plan(3, Cohort(torch.tensor([3]), 0), local.work):
        own = rows[rows >= 0]
        optimiser.zero_grad()
        x, y = fed.clients.gather(own)
        losses = torch.nn.functional.cross_entropy(module(x), y, reduction="none")
        (losses * torch.from_numpy(people.pool.weight[own])).mean().backward()
        optimiser.step()
    assert gap(module.state_dict(), fed.memory()[0]["c003"]["last"]) < 1e-6


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "scaffold", "perfedavg", "fedsoft", "ifca"])
def test_engines_agree_on_weights(method: str) -> None:
    """Models within 1e-5 of the loop's, and others than without weights."""
    people = weighed(tiny_population())
    ends = {engine: play(ALL[method].make(LOCAL, TRUTH), make(tiny_model(), people, SEED))
            for engine, make in ENGINES.items()}
    plain = play(ALL[method].make(LOCAL, TRUTH), LoopEngine(tiny_model(), tiny_population(), SEED))
    assert all(gap(ends["loop"].models, end.models) <= 1e-5 for end in ends.values())
    assert gap(ends["loop"].models, plain.models) > 1e-3


def test_weights_of_one_change_nothing_but_the_digest() -> None:
    """The same models; and who brings weights has other clients."""
    people = tiny_population()
    ones = replace(people, pool=people.pool._replace(weight=np.ones(len(people.pool.y), dtype=np.float32)))
    a, b = (play(u.FedAvg(local=LOCAL), LoopEngine(tiny_model(), each, SEED)) for each in (people, ones))
    assert gap(a.models, b.models) < 1e-6
    assert people.hash != ones.hash


def test_a_worker_has_the_weights(tmp_path: Path) -> None:
    """On disk as in memory."""
    people = weighed(tiny_population())
    fed = u.simulate(people, model="mlp", device="cpu")
    write_clients(tmp_path, people, fed.net, SEED)
    clients, _ = clients_from(tmp_path)
    assert clients.weight is not None
    assert clients.weight.tolist() == people.pool.weight.tolist()


def table(**more: object) -> object:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"hospital": ["b", "a"] * 6, "age": [float(k % 5) for k in range(12)],
                             "death": ["no", "yes", "no"] * 4, "w": [k / 2 for k in range(12)], **more})


@pytest.mark.parametrize("scaling", ["federated", "site"])
@pytest.mark.parametrize("scenario", ["natural", "iid"])
def test_weights_of_a_table_go_with_their_rows(scaling: str, scenario: str) -> None:
    """The column is no input; who deals the rows anew, and who scales by site, keeps each with its row."""
    data = u.from_frame(table(place=range(12)), client="hospital", target="death", weight="w")
    assert (data.columns, data.understood["weight"]) == (("age", "place"), "w")
    assert data.weights.tolist() == (data.x_train[:, 1] / 2).tolist()
    raw = realise(draw(scenario, data, clients=2), data)
    people = u.simulate(data, scenario=scenario, clients=2, scaling=scaling, device="cpu").clients.population
    for before, after in zip(raw.train, people.train, strict=True):
        assert people.pool.weight[after].tolist() == (raw.pool.x[before, 1] / 2).tolist()


@pytest.mark.parametrize(("weights", "sentence"), [
    ([1.0] * 11 + [-1], "The weights in the column 'w' of frame must be numbers from 0 and below 1,000,000. Got '-1.0'"
                        " in row 12"),
    (["1"] * 11 + ["x"], "Got 'x' in row 12"), ([1.0] * 11 + [np.nan], "Got 'nan' in row 12"),
    ([0.0] * 12, "The weights of the set 'frame' must be above 0 for some row to train on. All of them are 0"),
])
def test_weights_that_are_none_are_refused(weights: list[object], sentence: str) -> None:
    """One sentence with the row."""
    with pytest.raises(u.UmbelError, match=sentence):
        u.from_frame(table(w=weights), client="hospital", target="death", weight="w")


def test_weights_of_ones_own_clients_are_checked() -> None:
    """As many as rows, and numbers."""
    people = tiny_population()
    for weight, got in ((np.ones(3, dtype=np.float32), "Got float32 of the shape"),
                        (np.full(len(people.pool.y), np.nan), "Got nan in row 0")):
        with pytest.raises(u.UmbelError, match=got):
            u.simulate(replace(people, pool=people.pool._replace(weight=weight)), device="cpu")


def test_a_weight_column_by_command(umbel: Umbel, tmp_path: Path) -> None:
    """In the recipe, said on the screen; a missing column is named, and a set by name has none."""
    table().to_csv(tmp_path / "t.csv", index=False)
    words = "run fedavg --data t.csv --client-column hospital --target-column death --rounds 1 --epochs 1"
    said = umbel(*f"{words} --weight-column w --out a".split())
    assert said.code == 0
    assert "Rows weigh in the loss by w." in said.out
    assert 'weight_column = "w"' in (tmp_path / "a" / "recipe.toml").read_text()
    wrong = umbel(*f"{words} --weight-column v --out b".split())
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "There is no column in t.csv named 'v'" in wrong.err
    named = umbel("run", "fedavg", "--weight-column", "w", "--out", "b")
    assert "The 'weight_column' of a run is for data of your own" in named.err
    assert not (tmp_path / "b").exists()
