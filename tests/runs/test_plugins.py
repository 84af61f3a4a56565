"""Methods, models, data and objectives from a person's own file, and from packages that add them."""

import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from terminal import SMALL, Umbel

import umbel as u
from umbel import plugins
from umbel.algorithms import ALGORITHMS, FedAvg
from umbel.data.own import is_own
from umbel.errors import UmbelError
from umbel.registry import Registry
from umbel.runs.recipe import read_toml

MINE = '''
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from torch import nn
import umbel

Path("imported").write_text("here")

@dataclass(frozen=True)
class Mine(umbel.FedAvg):
    bonus: int = 3
    name = "mine"

class Failing(Mine):
    def round(self, fed, state, cohort):
        return state / 2

def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def load():
    x = np.zeros((40, 1, 8, 8), dtype=np.float32)
    y = np.arange(40) % 10
    return umbel.Dataset("forty", x, y, x, y, classes=10)

class Halved(umbel.Classify):
    def row_loss(self, out, y):
        return super().row_loss(out, y) / 2

def halved():
    return Halved(10)

number = 7

def owned():
    x = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    y, of = np.arange(40) % 2, np.arange(40) // 20
    return umbel.Dataset("owned", x, y, x, y, classes=2, clients=("north", "south"), owners=(of, of))

def table():
    import pandas
    return umbel.from_frame(pandas.read_csv("patients.csv"), client="hospital", target="death")

def tokens():
    x = np.random.default_rng(0).integers(0, 9, (40, 6))
    y = np.arange(40) % 2
    return umbel.Dataset("tokens", x, y, x, y, classes=2)

def two():
    return Halved(2)
'''
ALL = ("run", "mine.py:Mine", "--model", "mine.py:net", "--objective", "mine.py:halved", *SMALL, "--set", "bonus=4",
       "-q", "--out", "a")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file in the current folder that leaves a mark when it is imported, and is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path / "mine.py"
    forget()


def patients() -> Any:
    """A table of two hospitals, of whose patients one in four is ill."""
    pandas = pytest.importorskip("pandas")
    rows = np.arange(80)
    frame = pandas.DataFrame({"age": rows % 7 + 0.5, "dose": rows % 5 + 0.5, "death": (rows % 4 == 0).astype(int),
                              "hospital": np.where(rows < 40, "north", "south")})
    frame.to_csv("patients.csv", index=False)
    return frame


def forget() -> None:
    """As if this were another process."""
    plugins._imported.clear()
    for registry in (ALGORITHMS, u.MODELS, *(sys.modules[home].__dict__[name] for home, name in (
            ("umbel.nets.objective", "GOALS"), ("umbel.data.sources", "OWN")))):
        registry._brought.clear()
    for name in [name for name in sys.modules if name.startswith("umbel_plugin_")]:
        del sys.modules[name]
    Path("imported").unlink(missing_ok=True)


def test_a_run_of_ones_own_method_model_and_objective_goes_on_when_it_is_trusted(umbel: Umbel, mine: Path) -> None:
    """The recipe keeps files and digests; another command imports nothing that it does not name, unless told to."""
    said = umbel(*ALL)
    assert (said.code, said.err) == (0, "")
    recipe = read_toml(Path("a/recipe.toml"))
    assert [recipe[name] for name in ("method", "model", "objective")] == ["mine.py:Mine", "mine.py:net",
                                                                           "mine.py:halved"]
    assert recipe["plugins"] == plugins.digests(["mine.py:Mine"])
    assert recipe["settings"]["bonus"] == 4
    forget()
    more = ("run", "--resume", "--out", "a", "--rounds", 3, "-q")
    refused = umbel(*more)
    assert refused.code == 2
    assert "code of the file mine.py, which this command does not name" in refused.err
    assert "--trust" in refused.err
    assert not Path("imported").exists()
    assert umbel("report", "a").code == 0
    with pytest.raises(UmbelError, match=r"algorithm=...\), or trust=True, which imports mine.py"):
        u.load("a")
    assert not Path("imported").exists()
    assert umbel(*more, "--trust").code == 0
    result = u.load("a")  # the file is imported now
    assert (type(result.algorithm).__name__, result.net.name, len(result.records)) == ("Mine", "mine.py:net", 4)
    rows = (np.zeros((20, 1, 8, 8), np.uint8), np.arange(20) % 10)
    np.savez("client.npz", x_train=rows[0], y_train=rows[1])
    forget()
    assert "which this command does not name" in umbel("admit", "a", "client.npz").err
    assert "joins cluster 0" in umbel("admit", "a", "client.npz", "--trust").out


def test_a_recipe_runs_from_another_folder_and_a_changed_file_is_refused(umbel: Umbel, mine: Path) -> None:
    """A file is looked for from the recipe's folder first; its digest must be the one that was kept."""
    assert umbel(*ALL).code == 0
    Path("away").mkdir()
    shutil.copy("a/recipe.toml", "away/recipe.toml")
    shutil.move("mine.py", "away/mine.py")
    forget()
    assert umbel("run", "away/recipe.toml", "--trust", "-q", "--out", "b").code == 0
    assert read_toml(Path("b/recipe.toml"))["method"] == "away/mine.py:Mine"
    forget()
    with Path("away/mine.py").open("a") as file:
        file.write("# another line\n")
    refused = umbel("run", "--resume", "--out", "b", "--rounds", 3, "--trust")
    assert refused.code == 2
    assert "The file away/mine.py must be the one that the recipe was written with" in refused.err
    assert not Path("imported").exists()
    Path("away/mine.py").unlink()
    assert "There is none: put it there" in umbel("run", "--resume", "--out", "b", "--rounds", 3, "--trust").err


def test_data_of_ones_own_are_dealt_out(umbel: Umbel, mine: Path) -> None:
    """A function that returns a Dataset; its inputs are not scaled."""
    assert umbel("run", "fedavg", "--data", "mine.py:load", *SMALL, "-q", "--out", "a").code == 0
    recipe, result = read_toml(Path("a/recipe.toml")), u.load("a")
    assert (recipe["data"], recipe["normalise"], result.info["data"]) == ("mine.py:load", False, "forty")
    assert "leave out --normalise" in umbel("run", "fedavg", "--data", "mine.py:load", "--normalise").err


@pytest.mark.parametrize(("name", "model", "scenario", "clients"), [
    ("owned", "mlp", "natural", 2), ("table", "mlp", "natural", 2), ("tokens", "gru", "iid", 20),
    ("load", "lenet5", "iid", 20),
])
def test_what_data_of_ones_own_are_decides_what_is_usual(name: str, model: str, scenario: str, clients: int,
                                                         mine: Path) -> None:
    """Network, scenario and number of clients are those of any set; a folder of the same name is not meant."""
    patients()
    Path(f"mine.py:{name}").mkdir()
    assert not is_own(f"mine.py:{name}")
    usual = u.Experiment(data=f"mine.py:{name}").resolved()
    assert (usual.model, usual.scenario, usual.clients, usual.normalise) == (model, scenario, clients, False)
    assert usual.scaling == ("federated" if name == "table" else None)


@pytest.mark.parametrize("data", [
    ("patients.csv", "--client-column", "hospital", "--target-column", "death"), ("mine.py:table",),
])
def test_an_objective_of_ones_own_learns_a_table(data: tuple[str, ...], umbel: Umbel, mine: Path) -> None:
    """With weights as they were counted, for a newcomer too, who is prepared as the others were."""
    frame = patients()
    frame.drop(columns="hospital").to_csv("new.csv", index=False)
    said = umbel("run", "fedavg", "--data", *data, "--objective", "mine.py:two", "--class-weights", "balanced",
                 "--rounds", 1, "--epochs", 1, "-q", "--out", "a")
    assert (said.code, said.err) == (0, "")
    assert read_toml(Path("a/recipe.toml"))["objective"] == "mine.py:two"
    placed = u.admit("a", "new.csv")
    goal = placed.net.objective
    assert type(goal).__name__ == "Halved"
    assert isinstance(goal, u.Classify)
    assert goal == u.load("a").net.objective
    assert goal.weights[1] > 2 * goal.weights[0]  # one in four is ill
    forget()
    assert type(u.load("a").net.objective) is u.Classify  # read back as what it is a subclass of


@pytest.mark.parametrize(("objective", "sentence"), [
    ("clasify", "There is no objective 'clasify'. Did you mean 'classify'?"),
    ("regress", "The 'objective' regress of a run is for data of your own, as in --data patients.csv. Got data"),
])
def test_an_objective_is_one_of_a_table_or_a_known_one(objective: str, sentence: str) -> None:
    """classify and regress are said of a target that umbel reads; a set by name has an objective."""
    with pytest.raises(UmbelError, match=sentence.replace("?", r"\?")):
        u.Experiment(objective=objective)


@pytest.mark.parametrize(("place", "content", "sentence"), [
    ("mine.py:Min", None, "There is no 'Min' in the file mine.py. Did you mean 'Mine'?"),
    ("mine.py:number", None, "A method must be a class, a frozen dataclass that is a umbel.Algorithm. Got"),
    ("none.py:Mine", None, "There is no file none.py to import."),
    ("bad.py:X", "x = 1\ny = x / 0\n", "bad.py, line 2: ZeroDivisionError: division by zero."),
    ("bad.py:X", "x = 1\nif x\n", "bad.py, line 2: SyntaxError: expected ':'."),
    ("mine.py:Failing", None, "line 17: TypeError: unsupported operand type(s) for /: 'State' and 'int'."),
])
def test_an_error_in_ones_own_file_is_a_sentence(place: str, content: str | None, sentence: str, umbel: Umbel,
                                                 mine: Path) -> None:
    """With the file and the line; nothing is left behind by what could not begin."""
    if content is not None:
        Path("bad.py").write_text(content)
    said = umbel("run", place, *SMALL, "-q")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert sentence in said.err


@pytest.mark.parametrize(("option", "place", "sentence"), [
    ("--model", "mine.py:number", "A model must be an nn.Module, or a function that makes one"),
    ("--data", "mine.py:number", "A data set must be a umbel.Dataset, or a function that returns one"),
    ("--objective", "mine.py:net", "An objective must be one of Classify, Regress, NextToken or a subclass"),
])
def test_what_is_not_what_it_should_be_is_refused(option: str, place: str, sentence: str, umbel: Umbel,
                                                  mine: Path) -> None:
    """In a sentence that says what it should be."""
    said = umbel("run", "fedavg", option, place, *SMALL, "-q")
    assert said.code == 2
    assert sentence in said.err


def test_ones_own_objective_is_used_and_stays_in_this_process(mine: Path) -> None:
    """Half the loss is half the step; workers and nodes would read it back as what it is a subclass of."""
    setup = u.Experiment(clients=2, objective="mine.py:halved", model="mlp", device="cpu").resolved()
    fed, _ = setup.build(*setup.draw())
    assert type(fed.net.objective).__name__ == "Halved"
    assert not fed.net.registered
    plain = u.Experiment(clients=2, model="mlp", device="cpu").resolved()
    assert plain.build(*plain.draw())[0].net.registered


def test_a_class_of_a_file_is_found_again_from_python(tmp_path: Path) -> None:
    """What was run from Python keeps file and object, where the class is not inside a function."""
    class Inside(FedAvg):
        name = "inside"

    assert plugins.place_of(Registry) is None  # umbel's own
    assert plugins.place_of(Inside) is None
    assert plugins.place_of(InFile) == f"{plugins._from_here(Path(__file__))}:InFile"
    fed = u.simulate("digits", clients=2, device="cpu")
    kept = u.run(InFile(local=u.Local(epochs=1)), fed, rounds=1, fine_tune=0).save(tmp_path / "a")
    recipe = read_toml(kept / "recipe.toml")
    assert recipe["method"].endswith("test_plugins.py:InFile")
    assert list(recipe["plugins"].values()) == list(plugins.digests([recipe["method"]]).values())
    assert u.resume(kept, rounds=2).info["rounds"]["after"] == 2


class InFile(FedAvg):
    """FedAvg under another name."""

    name = "in-file"


def test_packages_add_names_that_are_imported_when_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point is known by name, does not hide umbel's own, and is imported by `find` alone."""
    added = [EntryPoint("extra", "collections:Counter", "umbel.things"),
             EntryPoint("own", "no_such_module:x", "umbel.things"),
             EntryPoint("broken", "no_such_module:x", "umbel.things")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: added if group == "umbel.things" else [])
    shelf: Registry[object] = Registry("thing", {"own": "decimal:Decimal"}, group="umbel.things")
    assert list(shelf) == ["own"]
    assert list(shelf.added) == ["extra", "broken"]
    assert "extra" in shelf
    assert shelf.find("own").__name__ == "Decimal"  # type: ignore[attr-defined]
    assert shelf.find("extra").__name__ == "Counter"  # type: ignore[attr-defined]
    with pytest.raises(UmbelError, match=r"The thing 'broken' of an installed package \(no_such_module:x\) cannot be"):
        shelf.find("broken")
    with pytest.raises(UmbelError, match=r"There is no thing 'extr'. Did you mean 'extra'\?"):
        shelf.find("extr")
