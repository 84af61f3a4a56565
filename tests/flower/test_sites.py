"""The apps that sites run: configuration, data, the run folder on the server, and going on after a death."""

import importlib.util
import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import TRUTH
from rich.console import Console

import umbel.flower
from umbel.clustering.signatures import class_counts
from umbel.errors import UmbelError
from umbel.federation.door import Cohort
from umbel.flower.apps import CONFIG, client_app, diagnose, model_of, play, server_app
from umbel.flower.inprocess import InProcessGrid
from umbel.flower.server import FlowerFederation
from umbel.nets.wrap import wrap
from umbel.pages import page
from umbel.pages.load import load

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower" / "app"
WISHES = {"model": "mlp", "shape": "1x3x3", "classes": 3, "min-nodes": 4, "rounds": 4, "settings": "lr=0.1 epochs=2"}
SITES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot")


@pytest.fixture(autouse=True)
def _quiet(caplog):
    caplog.set_level(logging.ERROR, logger="flwr")


def rows(group, seed, count=40):
    rng = np.random.default_rng(seed)
    looks = 2 * np.random.default_rng(group).normal(size=(3, 1, 3, 3))
    y = np.arange(count) % 3
    return (looks[y] + 0.3 * rng.normal(size=(count, 1, 3, 3))).astype(np.float32), y


def load_data(context):
    k = SITES.index(context.node_config["name"])
    return rows(TRUTH[k], k), rows(TRUTH[k], 100 + k)


@pytest.fixture
def grid(tmp_path):
    """Six sites, each with a folder of its own; the last two are not there yet."""
    made = InProcessGrid(client_app(load_data), run_config=WISHES)
    for name in SITES[:4]:
        made.connect(**{"name": name, "memory-dir": str(tmp_path / "memory" / name)})
    return made


def played(grid, tmp_path, **wishes):
    console = Console(file=io.StringIO(), width=120)
    session = play(grid, {**WISHES, "out": str(tmp_path / "run"), **wishes}, "1", console, clock=grid.clock)
    return session, console.file.getvalue()


@pytest.mark.parametrize("method", ["pacfl", "flag", "scaffold"])
def test_sites_run_to_a_result_on_the_server(grid, tmp_path, method):
    """The run folder holds what a simulation's holds, a report can be made of it, the log says who is with whom."""
    _, said = played(grid, tmp_path, method=method)
    assert "alpha" in page.write([load(tmp_path / "run")])
    info = json.loads((tmp_path / "run" / "result.json").read_text())
    assert info["clients"] == 4
    assert info["score"]["cluster_model"]["mean"] > 0.5
    if method == "pacfl":
        assert info["clusters"]["labels"] == dict(zip(SITES, TRUTH[:4], strict=False))
        assert "cluster 0: alpha, charlie" in said
    assert f"Run folder: {tmp_path / 'run'}" in said
    assert sorted(path.name for path in (tmp_path / "memory").iterdir()) == sorted(SITES[:4])


def diagnosed(tmp_path, policy):
    """Four sites with a policy, as a fresh diagnosis finds them."""
    (tmp_path / "policy.toml").write_text(policy)
    grid = InProcessGrid(client_app(load_data), run_config=WISHES)
    for name in SITES[:4]:
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / "memory" / name),
                        "policy": str(tmp_path / "policy.toml")})
    console = Console(file=io.StringIO(), width=120)
    wishes = {**WISHES, "out": str(tmp_path / "found"), "rounds": 10, "settings": "lr=0.1 epochs=2 least=16"}
    return grid, wishes, diagnose(grid, wishes, "1", console, clock=grid.clock), console.file.getvalue()


def test_sites_are_diagnosed_without_a_run(tmp_path):
    """What differs, what plans are worth and what it cost is printed and kept, as JSON and a page; nothing is run."""
    grid, wishes, found, said = diagnosed(tmp_path, "least_rows = 1")  # of validation rows these sites have a few
    info = json.loads((tmp_path / "found" / "diagnosis.json").read_text())
    assert said.startswith(found.advice)
    assert info == found.info
    assert info["clients"] == info["described"] == 4
    assert [each["plan"] for each in info["plans"]][::2] == ["one model", "2 clusters", "everybody alone"]
    assert info["cost"]["trial_rounds"] == 1
    assert "alpha" in (tmp_path / "found" / "diagnosis.html").read_text()
    assert not (tmp_path / "found" / "result.json").exists()
    with pytest.raises(UmbelError, match="There is a diagnosis in"):
        diagnose(grid, wishes, "2", Console(file=io.StringIO()), clock=grid.clock)


def test_sites_that_tell_no_score_are_diagnosed_in_words(tmp_path):
    """Nobody may be scored on fewer than ten rows, so no plan is judged; who did not answer, and why, is said."""
    *_, found, said = diagnosed(tmp_path, "least_rows = 10")
    assert found.info["plans"] == []
    assert found.advice.startswith("Too few validation rows (0) to say")
    assert set(found.info["lost"]) == set(SITES[:4])
    assert "10 different rows" in said


def test_the_wire_does_without_the_apps():
    """`umbel.flower` imports the apps when one of their names is asked for, and knows no other names."""
    code = ("import sys, umbel.flower.wire; assert 'umbel.flower.apps' not in sys.modules;"
            "from umbel.flower import CONFIG, server_app; assert 'umbel.flower.apps' in sys.modules")
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match=r"module 'umbel\.flower' has no attribute 'sever_app'"):
        umbel.flower.sever_app  # noqa: B018


class Killed(BaseException):
    """The server app dies between two rounds."""


def test_a_killed_server_goes_on_with_the_same_memberships(grid, tmp_path, monkeypatch):
    """A new run with resume= ends where an uninterrupted one ends; nodes are found by name, under other numbers."""
    whole, _ = played(grid, tmp_path, method="pacfl")
    fresh = InProcessGrid(client_app(load_data), run_config=WISHES)
    for name in SITES[:4]:
        fresh.connect(**{"name": name, "memory-dir": str(tmp_path / "again" / name)})

    def die(done, *_):
        if done.index == 1:
            raise Killed
        return {}

    monkeypatch.setattr("umbel.flower.apps._print_changes", die)
    with pytest.raises(Killed):
        played(fresh, tmp_path, method="pacfl", out=str(tmp_path / "dies"))
    monkeypatch.undo()
    later = InProcessGrid(client_app(load_data), run_config=WISHES)
    for name in reversed(SITES[:4]):  # other numbers, and in another order
        later.connect(**{"name": name, "memory-dir": str(tmp_path / "again" / name)})
    later.connect(**{"name": SITES[5], "memory-dir": str(tmp_path / "again" / SITES[5])})
    resumed, _ = played(later, tmp_path, resume=str(tmp_path / "dies"))
    labels = dict(zip(resumed.fed.names, resumed.saved.state.labels.tolist(), strict=True))
    assert {name: labels[name] for name in SITES[:4]} == dict(zip(whole.fed.names, whole.saved.state.labels.tolist(),
                                                                  strict=True))
    assert labels["foxtrot"] == 1  # a newcomer beside the old ones, in the cluster that it belongs to
    assert [record["round"] for record in resumed.saved.records] == [-1, 0, 1, 2, 3]


def test_a_newcomer_is_admitted_while_the_run_goes_on(grid, tmp_path, monkeypatch):
    """Between two rounds a fifth site connects: it is placed with those that are like it, and trains."""
    from umbel.flower import apps as flower

    print_changes = flower._print_changes

    def join(done, *rest):
        if done.index == 0:
            grid.connect(**{"name": "echo", "memory-dir": str(tmp_path / "memory" / "echo")})
        return print_changes(done, *rest)

    monkeypatch.setattr(flower, "_print_changes", join)
    session, said = played(grid, tmp_path, method="pacfl")
    assert dict(zip(session.fed.names, session.saved.state.labels.tolist(), strict=True))["echo"] == 0
    assert 4 in session.saved.records[-1]["trained"]
    assert "cluster 0: alpha, charlie, echo" in said


def test_a_node_that_was_renamed_is_met_anew(grid):
    """Its old name keeps its row and is away; under the new one it is a newcomer."""
    fed = FlowerFederation(model_of({**CONFIG, **WISHES}), grid, 0, run="run", clock=grid.clock)
    fed.arrive(0)
    grid.contexts[fed.nodes["bravo"]].node_config["name"] = "foxtrot"
    heard = fed.map(class_counts, Cohort(torch.arange(4), 0, "signature"))
    assert heard.lost == {"bravo": "answers under the name foxtrot"}
    fed.arrive(1)
    assert fed.names == ["alpha", "bravo", "charlie", "delta", "foxtrot"]
    assert fed.online.tolist() == [True, False, True, True, True]


@pytest.mark.parametrize(("wishes", "sentence"), [
    ({"method": "pacfll"}, "There is no method 'pacfll'. Did you mean 'pacfl'?"),
    ({"method": "oracle"}, "The method 'oracle' needs the true groups, and those of sites are not known."),
    ({"shape": "3by3"}, "A shape is written as in 1x28x28. Got '3by3' instead."),
    ({"rounds": "ten"}, "The 'rounds' of a run must be like 10. Got 'ten' instead."),
    ({"settings": "lr 0.1"}, 'Settings are written as in "rank=3 lr=0.05". Got'),
    ({"quorum": 2.0}, "The 'quorum' of a server must be greater than 0 and at most 1. Got 2.0"),
    ({"deadline": 1e9}, "The 'deadline' of a server must be greater than 0 and at most 10000000. Got 1000000000.0"),
    ({"poll": 0.0}, "The 'poll' of a server must be greater than 0 and at most 10000000. Got 0.0 instead."),
    ({"wait": 1e9}, "The 'wait' of a server must be at least 0 and at most 10000000. Got 1000000000.0 instead."),
    ({"min-nodes": 10**9}, "The 'min-nodes' of a server must be at least 1 and at most 1000000. Got 1000000000"),
    ({"classes": 10**9}, "The 'classes' of a classification must be at least 1 and at most 1000000. Got 1000000000"),
    ({"shape": "1x99999x1"}, "The 'shape' of a model must be at least 1 and at most 10000. Got 99999 instead."),
    ({"std": 0.0}, "The 'std' of a model must be greater than 0 and at most 1e+30. Got 0.0 instead."),
    ({"rounds": 10**10}, "The 'rounds' of the run must be at least 1 and at most 2147483647. Got 10000000000"),
    ({"min-nodes": 9, "wait": 5.0}, "After 5 s there are 4 nodes of the 9 with which the run begins"),
    ({"resume": "nowhere"}, "There is no run to resume in "),
])  # fmt: skip
def test_a_wrong_wish_is_one_sentence(grid, tmp_path, wishes, sentence):
    """Told on the server, before anything is asked of a site."""
    with pytest.raises(UmbelError) as caught:
        played(grid, tmp_path, **wishes)
    assert sentence in str(caught.value)


def test_a_finished_run_is_not_resumed(grid, tmp_path):
    """There is nothing to do, and it is said."""
    played(grid, tmp_path, method="fedavg", rounds=1)
    with pytest.raises(UmbelError, match="is finished: there is nothing to resume"):
        played(grid, tmp_path, resume=str(tmp_path / "run"))


@pytest.mark.parametrize(("data", "sentence"), [
    (((np.zeros((4, 2, 2)), np.zeros(4, int)), None),
     "The inputs of 'alpha' must be (1, 3, 3), as the model takes them. Got (2, 2) instead."),
    (((np.zeros((4, 3, 3)), np.zeros(3, int)), None),
     "Every row of 'alpha' needs a target. Got 4 rows and 3 targets."),
    (((np.zeros((4, 3, 3)), np.full(4, 7)), None),
     "The labels of 'alpha' must lie in 0 .. 2. Got 7 in row 0 instead."),
    (((np.full((4, 3, 3), 200.0), np.zeros(4, int)), None),
     "Got floats from 200 to 200: give uint8, or divide by 255."),
    (((np.zeros((4, 3, 3)), np.zeros(4, int)), (np.zeros((2, 3, 3)), np.full(2, 0.7))),
     "The labels of 'alpha' (test rows) must be whole numbers from 0 to 2. Got float64, as in 0.7"),
    (((np.zeros((4, 3, 3)), np.full(4, "yes")), None), "The labels of 'alpha' are texts, as in 'yes': number them"),
    (((np.zeros((4, 3, 3), int), np.zeros(4, int)), None),
     "The inputs of 'alpha' must be uint8 images or floats, as the model takes them. Got int64 instead."),
    (((np.zeros((0, 3, 3)), np.zeros(0, int)), None), "A client needs rows to train on, and 'alpha' has none."),
])  # fmt: skip
def test_a_site_with_wrong_data_is_told_so(tmp_path, data, sentence, caplog):
    """In the server's log, by the node that has it."""
    caplog.set_level(logging.WARNING, logger="flwr")
    grid = InProcessGrid(client_app(lambda context: data), run_config=WISHES)
    grid.connect(name="alpha")
    with pytest.raises(UmbelError, match="there are 0 nodes"):
        played(grid, tmp_path, wait=1.0)
    assert sentence in caplog.text


def test_a_site_that_is_mended_while_the_server_waits_comes_in(tmp_path):
    """It is asked again every half minute."""
    grid = InProcessGrid(client_app(load_data), run_config=WISHES)
    for name in (*SITES[:3], "two words"):
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / name)})
    sleep = grid.clock.sleep

    def mend(seconds):
        sleep(seconds)
        if grid.time > 40:
            grid.contexts[1003].node_config["name"] = SITES[3]

    grid.clock = grid.clock._replace(sleep=mend)
    session, _ = played(grid, tmp_path, method="fedavg", rounds=1)
    assert session.fed.names == list(SITES[:4])
    assert 60 <= grid.time < 62


def test_a_node_needs_a_name(tmp_path, caplog):
    """Flower's number for it is not one."""
    caplog.set_level(logging.WARNING, logger="flwr")
    grid = InProcessGrid(client_app(load_data), run_config=WISHES)
    grid.connect()
    with pytest.raises(UmbelError, match="there are 0 nodes"):
        played(grid, tmp_path, wait=1.0)
    assert "A node needs a name" in caplog.text


def test_sites_without_test_rows_are_not_scored(tmp_path):
    """They train and are clustered as the others; the accuracy is of those that can be scored."""
    def half(context):
        train, test = load_data(context)
        return train, test if context.node_config["name"] == "alpha" else None

    grid = InProcessGrid(client_app(half), run_config=WISHES)
    for name in SITES[:4]:
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / name)})
    session, _ = played(grid, tmp_path, method="pacfl")
    info = json.loads((tmp_path / "run" / "result.json").read_text())
    assert info["score"]["cluster_model"]["over"] == 1
    assert session.saved.records[-1]["trained"] == [0, 1, 2, 3]


def test_sites_without_any_test_rows_have_a_result(tmp_path):
    """Clusters and models, and no accuracy, with the reason."""
    grid = InProcessGrid(client_app(lambda context: (load_data(context)[0], None)), run_config=WISHES)
    for name in SITES[:4]:
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / name)})
    played(grid, tmp_path, method="pacfl", rounds=1)
    info = json.loads((tmp_path / "run" / "result.json").read_text())
    assert info["clusters"]["count"] == 2
    assert info["score"]["cluster_model"] is None
    assert info["score"]["missing"]["cluster_model"] == "no client that could be asked has test rows"


def test_a_model_of_your_own(tmp_path):
    """Both apps are given it; another one is refused by its fingerprint."""
    from torch import nn

    def network(width):
        return wrap(lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, width), nn.ReLU(), nn.Linear(width, 3)),
                           (1, 3, 3), 3)

    grid = InProcessGrid(client_app(load_data, network(8)))
    for name in SITES[:4]:
        grid.connect(**{"name": name, "memory-dir": str(tmp_path / name)})
    wishes = {"method": "fedavg", "rounds": 1, "min-nodes": 4, "wait": 1.0}
    console = Console(file=io.StringIO())
    play(grid, {**wishes, "out": str(tmp_path / "a")}, "1", console, network(8), grid.clock)
    assert json.loads((tmp_path / "a" / "result.json").read_text())["model"]["parameters"] == 107
    with pytest.raises(UmbelError, match="there are 0 nodes"):
        play(grid, {**wishes, "out": str(tmp_path / "b")}, "1", console, network(9), grid.clock)


def test_the_example_is_the_pair_of_apps(tmp_path, monkeypatch):
    """Its configuration has every key with a known type, its loader reads npz files and folders of images."""
    import tomllib

    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config.keys() == CONFIG.keys()
    assert {key: type(value) for key, value in config.items()} == {key: type(value) for key, value in CONFIG.items()}
    net = model_of({**config})
    assert (net.shape, net.classes) == ((1, 8, 8), 10)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in ("sites.server_app", "sites.client_app"):
        assert importlib.import_module(name).app is not None
    data = sys.modules["sites.data"]
    x, y = np.arange(5 * 64, dtype=np.uint8).reshape(5, 1, 8, 8), np.arange(5)
    np.savez(tmp_path / "site.npz", x_train=x, y_train=y)
    train, test = data.load_data(SimpleNamespace(node_config={"data": str(tmp_path / "site.npz")}, run_config=config))
    assert np.array_equal(train[0], x)
    assert test is None
    image = pytest.importorskip("PIL.Image")
    for k in range(4):
        folder = tmp_path / "images" / ("train" if k < 3 else "test") / str(k % 2)
        folder.mkdir(parents=True, exist_ok=True)
        image.fromarray(x[k, 0]).save(folder / f"{k}.png")
    train, test = data.load_data(SimpleNamespace(node_config={"data": str(tmp_path / "images")}, run_config=config))
    assert np.array_equal(train[0][:, 0], x[[0, 2, 1], 0])
    assert train[1].tolist() == [0, 0, 1]
    assert test[1].tolist() == [1]
    for name in [name for name in sys.modules if name.split(".")[0] == "sites"]:
        monkeypatch.delitem(sys.modules, name)


def test_the_server_app_is_flowers():
    """What `flwr run` looks for."""
    assert type(server_app()).__name__ == "ServerApp"
    assert type(client_app(load_data)).__name__ == "ClientApp"
