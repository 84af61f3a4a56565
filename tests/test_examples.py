"""The examples run, and the one by hand gives the library's numbers."""

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from terminal import SMALL, Umbel

import umbel

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("engine", [pytest.param("loop", marks=pytest.mark.slow), "simulator"])
def test_fedavg_by_hand_gives_the_librarys_numbers(engine):
    """The same data, seed and settings: equal accuracy, weights within 1e-5."""
    hand = load("fedavg_by_hand")
    x, y, train, test = hand.data()
    people = umbel.Population(umbel.Pool(x, y), train, test, np.zeros(hand.CLIENTS, dtype=np.int64), 10)
    fed = umbel.simulate(people, model=hand.network, seed=hand.SEED, engine=engine, device="cpu")
    local = umbel.Local(lr=hand.LR, momentum=hand.MOMENTUM, epochs=hand.EPOCHS, batch=hand.BATCH)
    result = umbel.run(umbel.FedAvg(local=local), fed, rounds=hand.ROUNDS, fine_tune=0)
    weights, accuracy = hand.fedavg()
    assert all(np.allclose(weights[name], result.models[name][0], atol=1e-5) for name in weights)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-6)
    assert accuracy > 0.8


@pytest.mark.parametrize("name", ["fedavg_by_hand", "your_data"])
def test_examples_run(name, capsys):
    """As a person would start them."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_regression_shows_what_groups_are_for(capsys):
    """Sites that count in opposite directions: one model says the mean, one for each group learns."""
    runpy.run_path(str(EXAMPLES / "regression.py"), run_name="__main__")
    errors = [float(line.split()[-2]) for line in capsys.readouterr().out.splitlines()]
    assert len(errors) == 3
    assert errors[2] < errors[0] - 10


def test_your_data_shows_what_groups_are_for():
    """One model cannot serve two scanners that contradict each other; one per group can."""
    example = load("your_data")
    one, groups = (umbel.run(method, example.federation(), rounds=5).accuracy
                   for method in (umbel.FedAvg(), umbel.Oracle(truth=example.TRUTH)))
    assert groups > one + 0.2


def test_own_table_shows_what_scaling_by_site_is_for(capsys, monkeypatch):
    """A hospital that counts in other units: scaled by its own numbers it is like the others."""
    pytest.importorskip("pandas")
    monkeypatch.setattr("sys.argv", ["own_table.py"])
    runpy.run_path(str(EXAMPLES / "own_table.py"), run_name="__main__")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = {(line[0], line[1]): float(line[3]) for line in lines}
    assert [*scores] == [(scaling, method) for scaling in ("federated", "site") for method in ("FedAvg", "Solo")]
    assert scores["site", "FedAvg"] > scores["federated", "FedAvg"] + 5


def test_own_text_shows_what_groups_are_for(capsys, monkeypatch, tmp_path):
    """One model for each of two languages foretells more than one for both; texts are read from a folder as well."""
    monkeypatch.setattr("sys.argv", ["own_text.py"])
    example = runpy.run_path(str(EXAMPLES / "own_text.py"), run_name="__main__")
    one, groups = (float(line.split()[3]) for line in capsys.readouterr().out.splitlines())
    assert groups > one + 2
    for name, text in example["texts"]().items():
        (tmp_path / f"{name}.txt").write_text(text)
    assert example["read"](tmp_path) == example["texts"]()


def test_your_method_finds_the_groups(capsys):
    """Thirty lines are a method: the true groups, a better model for each, and newcomers of old and new groups."""
    example = load("your_method")
    runpy.run_path(str(EXAMPLES / "your_method.py"), run_name="__main__")
    assert capsys.readouterr().out.count("accuracy") == 2
    one, groups = (umbel.run(method(local=example.LOCAL), example.federation(), rounds=example.ROUNDS, fine_tune=0)
                   for method in (umbel.FedAvg, example.ByClasses))
    assert groups.info["clusters"]["ari"] == 1.0
    assert groups.accuracy > one.accuracy + 0.2
    # Of five groups in blocks of four, the last is not there at the start, nor is one member of the fourth.
    setup = umbel.Experiment(scenario=example.SCENARIO, clients=example.CLIENTS, join="5@2").resolved()
    fed, _ = setup.build(*setup.draw())
    grown = umbel.run(example.ByClasses(local=example.LOCAL), fed, rounds=4, fine_tune=0)
    assert [(done["clusters"], done["unplaced"]) for done in grown.records] == [(4, 5), (4, 5), (4, 5), (5, 0), (5, 0)]
    assert grown.labels.tolist() == list(fed.provenance.truth)


def test_own_method_runs_by_file_name(umbel: Umbel, tmp_path: Path) -> None:
    """As its first lines say: a run with the method and the network, and one that goes on with it."""
    file = EXAMPLES / "own_method.py"
    words = ("run", f"{file}:Halves", "--model", f"{file}:net", *SMALL, "--set", "every=1", "-q", "--out", "a")
    said = umbel(*words)
    assert (said.code, said.err) == (0, "")
    assert "halves on digits, iid, 4 clients" in said.out
    assert umbel("run", "--resume", "--out", "a", "--rounds", 3, "-q", "--trust").code == 0
