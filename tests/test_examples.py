"""The examples run, and the one by hand gives the library's numbers."""

import importlib.util
import runpy
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import umbel

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("engine", ["loop", "simulator"])
def test_fedavg_by_hand_gives_the_librarys_numbers(engine):
    """The same data, seed and settings: equal accuracy, weights within 1e-5."""
    hand = load("fedavg_by_hand")
    x, y, train, test = hand.data()
    people = umbel.Population(umbel.Pool(x, y), train, test, np.zeros(hand.CLIENTS, dtype=np.int64), 10)
    fed = umbel.simulate(people, model=hand.network, seed=hand.SEED, engine=engine, device="cpu")
    local = umbel.Local(lr=hand.LR, momentum=hand.MOMENTUM, epochs=hand.EPOCHS, batch=hand.BATCH)
    result = umbel.run(umbel.FedAvg(local), fed, rounds=hand.ROUNDS, fine_tune=0)
    weights, accuracy = hand.fedavg()
    assert all(np.allclose(weights[name], result.models[name][0], atol=1e-5) for name in weights)
    assert result.accuracy == pytest.approx(accuracy, abs=1e-6)
    assert accuracy > 0.8


@pytest.mark.parametrize("name", ["fedavg_by_hand", "your_data"])
def test_examples_run(name, capsys):
    """As a person would start them."""
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


def test_your_data_shows_what_groups_are_for():
    """One model cannot serve two scanners that contradict each other; one per group can."""
    example = load("your_data")
    one, groups = (umbel.run(method, example.federation(), rounds=5).accuracy
                   for method in (umbel.FedAvg(), umbel.Oracle(truth=example.TRUTH)))
    assert groups > one + 0.2
