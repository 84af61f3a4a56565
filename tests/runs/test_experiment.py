"""Recipes as data: checked when they are made, written and read back, built into a federation."""

import math
import sys
import tomllib
from dataclasses import dataclass, fields, is_dataclass
from inspect import isabstract
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from umbel.algorithms import ALGORITHMS, FedAvg, Local, import_all
from umbel.algorithms.server import ServerSettings
from umbel.data.clients import Work
from umbel.errors import UmbelError
from umbel.fields import check, number
from umbel.runs.experiment import OF_TABLES, Experiment
from umbel.runs.recipe import read_toml, settable, to_toml, typed
from umbel.runs.session import run
from umbel.runs.simulate import simulate

SMALL: dict[str, Any] = {"clients": 8, "rounds": 4, "settings": {"epochs": 1}}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "fedagv"}, "There is no method 'fedagv'. Did you mean 'fedavg'?"),
    "data": ({"data": "mnits"}, "There is no data set 'mnits'. Did you mean 'mnist'?"),
    "scenario": ({"scenario": "rotation-3"}, "Did you mean 'rotation-4'?"),
    "scenario's parameter": ({"scenario": "flag:label=0.2"}, "labels"),
    "model": ({"model": "resnet"}, "There is no model 'resnet'. Did you mean 'resnet9'?"),
    "engine": ({"engine": "simulater"}, "There is no engine 'simulater'. Did you mean 'simulator'?"),
    "device": ({"device": "gpu"}, "'device' of the run must be 'auto' or 'cpu' or 'cuda'. Got 'gpu' instead."),
    "test mode": ({"test_mode": "full"}, "'test_mode' of the run must be 'label_full' or 'matched' or"),
    "setting": ({"settings": {"momentun": 0.1}}, "named 'momentun'. Did you mean 'momentum'?"),
    "setting's word": ({"method": "fedavg-ft", "settings": {"tuned_layers": "tail"}}, "must be 'head' or 'all'"),
    "fraction 0": ({"fraction": 0.0}, "greater than 0 and at most 1. Got 0.0 instead."),
    "fraction 2": ({"fraction": 2.0}, "greater than 0 and at most 1. Got 2.0 instead."),
    "fraction nan": ({"fraction": math.nan}, "'fraction' of the run must be a finite number. Got nan instead."),
    "rounds 0": ({"rounds": 0}, "The 'rounds' of the run must be at least 1 and at most 2147483647. Got 0 instead."),
    "rounds in words": ({"rounds": "ten"}, "'rounds' of the run must be a whole number. Got \"ten\" instead."),
    "rounds by half": ({"rounds": 1.5}, "'rounds' of the run must be a whole number. Got 1.5 instead."),
    "rounds true": ({"rounds": True}, "'rounds' of the run must be a whole number. Got true instead."),
    "pooled 1": ({"pooled": 1}, "'pooled' of the run must be true or false. Got 1 instead."),
    "clients 0": ({"clients": 0}, "The 'clients' of the run must be at least 1 and at most 100000. Got 0 instead."),
    "seed -1": ({"seed": -1}, "must be at least 0 and less than 4294967296. Got -1 instead."),
    "seed too large": ({"seed": 2**32}, "less than 4294967296. Got 4294967296 instead."),
    "lr 0": ({"settings": {"lr": 0.0}},
             "The 'lr' of local training must be greater than 0 and at most 1e+30. Got 0.0 instead."),
    "lr -1": ({"settings": {"lr": -1}},
              "The 'lr' of local training must be greater than 0 and at most 1e+30. Got -1.0 instead."),
    "lr inf": ({"settings": {"lr": "inf"}}, "The 'lr' of local training must be a finite number. Got inf instead."),
    "lr list": ({"settings": {"lr": [1, "a"]}}, "The 'lr' of local training must be a number. Got [1, 'a'] instead."),
    "momentum 1": ({"settings": {"momentum": 1}}, "at least 0 and less than 1. Got 1.0 instead."),
    "epochs 0": ({"settings": {"epochs": 0}},
                 "The 'epochs' of local training must be at least 1 and at most 10000. Got 0 instead."),
    "epochs in words": ({"settings": {"epochs": "two"}}, "must be a whole number. Got \"two\" instead."),
    "batch -1": ({"settings": {"batch": -1}},
                 "The 'batch' of local training must be at least 0 and at most 100000. Got -1 instead."),
    "mu of fedavg": ({"settings": {"mu": 1}}, "There is no setting of fedavg named 'mu'. Known: aggregate, batch,"),
    "truth": ({"method": "oracle", "settings": {"truth": [0]}}, "There is no setting of oracle named 'truth'."),
    "fine-tuning left out": ({"method": "fedavg-ft", "fine_tune": 0}, "'fine_tune' of fedavg-ft, judged by it"),
    "data beside mix-4": ({"scenario": "mix-4", "data": "digits"}, "its own data sets. Leave out data 'digits'."),
    **{f"join {text}": ({"join": text}, f"A join is written COUNT@ROUND, both at least 1, as in 20@50. Got '{text}'")
       for text in ("x", "0@3", "3@0", "3", "3@", "@3", "-1@3", "1@²", "1@99999999999999999999")},
    "leave 3": ({"leave": "3"}, "A leave is written COUNT@ROUND"),
}


@pytest.mark.parametrize(("fields", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_value_is_refused_in_a_sentence(fields: dict[str, Any], sentence: str) -> None:
    """A wrong value never becomes an experiment; the sentence names the thing, the rule and the value."""
    with pytest.raises(UmbelError) as caught:
        Experiment(**fields)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("moves", [
    {"join": "8@1"}, {"join": "20@1"}, {"leave": "8@3"}, {"leave": "5@1,3@2"}, {"join": "4@5", "leave": "4@2"},
])
def test_a_federation_is_never_empty(moves: dict[str, str]) -> None:
    """A join or leave after which nobody is there is refused, and the round is named."""
    experiment = Experiment(**SMALL, **moves).resolved()
    with pytest.raises(UmbelError, match=r"At least one client must be there in every round.*in round \d"):
        experiment.build(*experiment.draw())


@pytest.mark.parametrize("asker", [{"method": "oracle"}, {"pooled": True}], ids=["oracle", "pooled"])
def test_who_needs_true_groups_is_refused_where_there_are_none(asker: dict[str, Any]) -> None:
    """A scenario without groups has no oracle and no pooled groups."""
    experiment = Experiment(**SMALL, **asker, scenario="noise").resolved()
    with pytest.raises(UmbelError, match="needs true groups, and the scenario 'noise' has none"):
        experiment.build(*experiment.draw())


def test_a_huge_number_is_held_against_its_rule() -> None:
    """A number beyond floats is compared, not converted; one that Python would not write is told by its length."""
    with pytest.raises(UmbelError, match=r"less than 4294967296. Got a number of 1,329 bits instead"):
        Experiment(seed=10**400)
    with pytest.raises(UmbelError, match=r"at most 2147483647. Got a number of 1,329 bits instead"):
        Experiment(rounds=10**400)
    with pytest.raises(UmbelError, match=r"The .lr. of local training must be a finite number. Got inf instead"):
        Local(lr=10**5000)


def limited(kind: Any) -> list[str]:
    """Names of the fields that `number` made."""
    return [each.name for each in fields(kind) if set(each.metadata) & {"ge", "gt", "le", "lt"}]


def kinds_with_numbers() -> list[type]:
    """Every dataclass of umbel that can be made and has such a field; a server's settings are made as a method's."""
    import_all()
    named = {f"{kind.__module__}.{kind.__name__}": kind
             for name, module in sorted(sys.modules.items()) if name.startswith("umbel.")
             for kind in vars(module).values()
             if isinstance(kind, type) and is_dataclass(kind) and not isabstract(kind) and limited(kind)}
    return [kind for kind in named.values() if kind is not ServerSettings]


@pytest.mark.parametrize("kind", kinds_with_numbers(), ids=lambda kind: kind.__name__)
def test_every_number_has_an_upper_limit_which_its_sentence_says(kind: Any) -> None:
    """Also those of which the field says only how small they may be."""
    for name in limited(kind):
        huge = 1e31 if isinstance(next(each.default for each in fields(kind) if each.name == name), float) else 10**31
        if name == "server_lr":  # none, unless there is a rule
            huge = 1e31
        with pytest.raises(UmbelError, match=rf"^The '{name}' of .* must be .*(at most|less than) .*\. Got 1"):
            kind(**{name: huge})


def test_all_kinds_of_options_are_among_them() -> None:
    """The walk above meets methods, training, the run, events, objectives and uplinks."""
    met = {kind.__name__ for kind in kinds_with_numbers()}
    assert met >= {kind.__name__ for kind in map(ALGORITHMS.find, ALGORITHMS)} | {
        "Local", "RunOptions", "Experiment", "Event", "Classify", "Regress", "NextToken", "Clip", "TopK"}


@pytest.mark.parametrize("more", [{"epochs": 10_001}, {"steps": 1_000_001}, {"batch": 100_001}, {"epochs": -1}])
def test_work_that_nobody_could_draw_is_refused(more: dict[str, int]) -> None:
    """Whoever asks for it: a method of one's own, or a server that asks a site."""
    (name, value), = more.items()
    with pytest.raises(UmbelError, match=rf"The '{name}' of a client's work must be at least 0 and at most .*{value}"):
        Work(**more).checked()


@pytest.mark.parametrize("text", ["", "\udcff", "\0", "a\nb", "x" * 100_000, "x y " * 50_000],
                         ids=["empty", "no UTF-8", "zero", "two lines", "huge", "huge, in words"])
@pytest.mark.parametrize("name", ["method", "data", "scenario", "test_mode", "join", "leave", "change", "model",
                                  "engine", "device", "precision", "keep", "uplink"])
def test_texts_that_are_none_of_the_known_are_one_short_line(name: str, text: str) -> None:
    """Whatever is typed; only events and uplinks may be empty, which means none."""
    if text == "" and name in ("join", "leave", "change", "uplink"):
        assert getattr(Experiment(**{name: text}), name) == ""
        return
    with pytest.raises(UmbelError) as refused:
        Experiment(**{name: text}).resolved()
    assert len(str(refused.value)) < 2000
    assert str(refused.value).isprintable()


# Settings


def test_settings_reach_the_method_and_its_training() -> None:
    """A text from the command line becomes what the field wants, in the method or in its local training."""
    method = Experiment(method="fedprox", settings={"mu": "0.5", "lr": "0.2", "epochs": "3"}).algorithm()
    assert (method.mu, method.local.lr, method.local.epochs) == (0.5, 0.2, 3)  # type: ignore[attr-defined]
    assert method.local.momentum == Local().momentum


def test_none_and_words_are_read_as_the_field_wants() -> None:
    """`none`, `true` and numbers in words become values where a field takes them, and stay texts elsewhere."""

    @dataclass(frozen=True)
    class Toy(FedAvg):
        k: int | None = number(4, ge=1)
        exact: bool = True
        word: str = "x"

    given = typed(Toy, {"k": "none", "exact": "False", "word": "none"})
    assert given == {"k": None, "exact": False, "word": "none"}
    check(Toy(**given), "toy")
    assert typed(Toy, {"k": "7"}) == {"k": 7}


def test_a_setting_that_is_none_survives_the_recipe(tmp_path: Path) -> None:
    """None is left out of a recipe's head, where it is the default, and told in its settings, where it may not be."""
    path = tmp_path / "recipe.toml"
    path.write_text(to_toml({"clients": None, "settings": {"k": None, "lr": 0.1}}))
    assert read_toml(path) == {"settings": {"k": "none", "lr": 0.1}}


# Recipes


@pytest.mark.parametrize("method", ALGORITHMS)
def test_a_resolved_recipe_is_whole_and_reads_back(method: str, tmp_path: Path) -> None:
    """Resolving writes every default out, once and for all; the file holds the same experiment."""
    resolved = Experiment(method=method, scenario="rotation-4", settings={"lr": 1e-05}).resolved()
    path = tmp_path / "recipe.toml"
    path.write_text(resolved.to_toml())
    assert Experiment.from_toml(path) == resolved == resolved.resolved()
    assert set(resolved.settings) == set(settable(ALGORITHMS[method]))
    assert all(getattr(resolved, each.name) is not None for each in fields(resolved) if each.name not in (
        "partition", *OF_TABLES, "scaling", "preparation"))


texts = st.text() | st.sampled_from([
    '"', "\\", "\\u0041", "a\nb\r\n\tc", "é ∑ 🌼", "\x00\x1f\x7f\x85\u2028", "'''", '"""',
])


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), texts | st.integers(-9, 9) | st.booleans()
                       | st.floats(allow_nan=False) | st.lists(texts, max_size=3), max_size=5))
@settings(deadline=None, max_examples=60)
def test_any_text_survives_toml(table: dict[str, Any]) -> None:
    """Quotes, backslashes, newlines, control signs and any alphabet come back as they were."""
    assert tomllib.loads(to_toml({**table, "inner": table})) == {**table, "inner": table}


def test_changes_come_on_top_of_a_recipe(tmp_path: Path) -> None:
    """What is asked for now wins over the file, setting by setting."""
    path = tmp_path / "recipe.toml"
    path.write_text('method = "fedprox"\nrounds = 7\nseed = 3\n[settings]\nmu = 0.5\nlr = 0.2\n')
    changed = Experiment.from_toml(path, rounds=2, settings={"lr": 0.4})
    assert (changed.method, changed.rounds, changed.seed, changed.settings) == ("fedprox", 2, 3, {"mu": 0.5, "lr": 0.4})


@pytest.mark.parametrize(("text", "sentence"), [
    (b"rounds = ", "must be TOML"),
    (b"\xff\xfe", "must be TOML"),
    (b"rounds = " + b"9" * 5000, "must be TOML"),
    (b"round = 3", "There is no option in .* named 'round'. Did you mean 'rounds'?"),
    (b'settings = "lr"', r"The 'settings' in .* must be a table, as in \[settings\]"),
    (b"[settings]\nrate = 1", "There is no setting of fedavg named 'rate'"),
    (b"rounds = 2020-01-01", "must be a whole number. Got 2020-01-01 instead"),
    (b'rounds = "ten"', "must be a whole number"),
])
def test_a_bad_recipe_is_refused_in_a_sentence(text: bytes, sentence: str, tmp_path: Path) -> None:
    """A file that is no recipe says which rule it breaks."""
    path = tmp_path / "recipe.toml"
    path.write_bytes(text)
    with pytest.raises(UmbelError, match=sentence):
        Experiment.from_toml(path)


# Federations


def test_the_last_clients_join_and_the_first_leave() -> None:
    """`2@1,1@3` of eight: the last comes in round 3, the two before it in round 1; `1@2` takes the first away."""
    experiment = Experiment(**SMALL, join="2@1,1@3", leave="1@2").resolved()
    fed, _ = experiment.build(*experiment.draw())
    here = []
    for round in range(4):
        fed.arrive(round)
        here.append("".join("x" if there else "." for there in fed.online))
    assert here == ["xxxxx...", "xxxxxxx.", ".xxxxxx.", ".xxxxxxx"]


def test_simulate_and_a_recipe_make_the_same_federation() -> None:
    """Python and the command line agree on who holds what."""
    experiment = Experiment(scenario="rotation-4", clients=8, seed=2).resolved()
    built, _ = experiment.build(*experiment.draw())
    made = simulate(scenario="rotation-4", clients=8, seed=2)
    assert made.provenance.truth == built.provenance.truth
    assert all(np.array_equal(made.clients.rows(i, "train"), built.clients.rows(i, "train")) for i in range(8))


def test_a_saved_result_is_a_run_folder_that_runs_again(tmp_path: Path) -> None:
    """`result.save` keeps a complete recipe: how it was tested as well as how it was trained."""
    fed = simulate(scenario="rotation-4", clients=8, seed=1)
    result = run(FedAvg(local=Local(epochs=1)), fed, rounds=3, fraction=0.5, eval_every=2, average_last=2, fine_tune=2)
    folder = result.save(tmp_path / "mine")
    experiment = Experiment.from_toml(folder / "recipe.toml")
    again = run(
        experiment.algorithm(), experiment.build(*experiment.draw())[0], rounds=experiment.rounds,
        fraction=experiment.fraction, eval_every=experiment.eval_every, average_last=experiment.average_last,
        fine_tune=experiment.fine_tune,
    )
    assert {**again.info, "seconds": None} == {**result.info, "seconds": None}
    names = {path.name for path in folder.iterdir()}
    assert names >= {"recipe.toml", "env.json", "partition.npz", "rounds.jsonl", "result.json", "state.safetensors"}


RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_read(path):
    """Its settings are its method's, in range; it resolves, and what is resolved reads back the same."""
    resolved = Experiment.from_toml(path).resolved()
    assert resolved.method in path.read_text()
    assert resolved == resolved.resolved()
