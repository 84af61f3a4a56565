"""docs/methods.md against the code: every option with its default, and who sees what labels mean."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import CLASSES, LOCAL, SEED, SHAPE, play, tiny_model

from umbel.algorithms import ALGORITHMS, FLAG, PACFL, Algorithm, FedClust, Local
from umbel.algorithms.oneshot import OneShot
from umbel.data.clients import Population
from umbel.engines import LoopEngine
from umbel.runs.evaluate import agreement
from umbel.runs.recipe import own_settings

TEXT = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
VALUE = r'"[\w-]+"|-?\d[\d.e-]*\d|\d|true|false'
TOLD = {"truth"}  # by the scenario, not by a person


def section(name: str) -> str:
    """The text below a heading."""
    return re.split(r"\n#{2,3} ", TEXT.split(f"\n### {name}\n")[1])[0]


def options(text: str) -> dict[str, tuple[str, list[str]]]:
    """`name` value ("other", ...) of a list of options: each default, and the other words that may be set."""
    found = re.findall(rf"`(\w+)` ({VALUE})(?:\s*\(([^()]*)\))?", " ".join(text.split()))
    return {name: (value, re.findall(r'"([\w-]+)"', others)) for name, value, others in found}


def listed(text: str) -> str:
    """The item that begins with **Options.**"""
    return "".join(re.findall(r"- \*\*Options\.\*\*(.*?)(?=\n- \*\*|\n\n|$)", text, re.S))


def shared_by_one_shot_methods() -> dict[str, tuple[str, list[str]]]:
    """What is said once of all of them."""
    return options(TEXT.split("## Grouped once, by signatures")[1].split("All have ")[1].split("\n\n")[0])


def meant(value: str) -> Any:
    """A default, read out of the documents."""
    return value.strip('"') if '"' in value else value == "true" if value in ("true", "false") else float(value)


def rows() -> dict[str, list[str]]:
    """The table on top, a row for each method."""
    top = TEXT.split("**Symbols.**")[0].splitlines()
    lines = [line.strip("|").split(" | ") for line in top if line.startswith("| `")]
    return {name: [cell.strip() for cell in cells] for cells in lines for name in re.findall(r"`([\w-]+)`", cells[0])}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_option_is_described_with_its_default(name: str) -> None:
    """No option of a method is missing, none has another default, and its words are those that it may be set to."""
    kind = ALGORITHMS[name]
    said = options(listed(section(name)))
    if issubclass(kind, OneShot):
        said = shared_by_one_shot_methods() | said
    known = {each.name: each for each in fields(kind) if each.name in own_settings(kind)}
    assert set(said) == set(known) - TOLD
    for setting, (default, others) in said.items():
        assert meant(default) == known[setting].default, setting
        words = set(known[setting].metadata.get("one_of", ())) - {known[setting].default}
        assert set(others) <= words, setting
        if setting in ("cut", "trial", "signature", "rule"):
            assert set(others) == words, setting


def test_the_table_names_defaults() -> None:
    """Where it says what a method's number rests on, it says what the code does."""
    table = rows()
    assert set(table) == set(ALGORITHMS)
    for name, cells in table.items():
        kind = ALGORITHMS[name]
        known = {each.name: each.default for each in fields(kind)}
        said = options(cells[4])
        assert {setting: meant(value) for setting, (value, _) in said.items()} == {
            setting: known[setting] for setting in said}
        assert ("cut" in known) == ("cut" in said), name
        assert ("found" in cells[4]) == (known.get("cut") == "tested" or known.get("clusters") == 0), name


def test_the_defaults_of_training_are_as_described() -> None:
    """Of what all methods have."""
    said = options(TEXT.split("**Options** are")[1].split("\n\n")[0])
    known = {each.name: each.default for each in fields(Local)}
    assert {"lr", "momentum", "epochs", "batch"} <= set(said)
    assert all(meant(said[name][0]) == known[name] for name in said if name in known)


# What labels mean


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_documents_say_who_sees_what_labels_mean(name: str) -> None:
    """As the class does, and `umbel list methods` with it: in the table, and in the method's own words."""
    meanings = ALGORITHMS[name].meanings
    assert rows()[name][6].strip("–") == meanings
    if "### " + name in TEXT and meanings not in ("", "told"):
        assert f"**Meanings.** {meanings.split(';')[0].capitalize()}" in section(name)


def federation(swapped: bool = True) -> LoopEngine:
    """Eight clients that look alike; `swapped`: to the last four the first two labels mean each other."""
    rng = np.random.default_rng(3)
    looks = 2 * rng.normal(size=(CLASSES, *SHAPE))
    sites = {}
    for i in range(8):
        shown = np.arange(100) % CLASSES
        x = (looks[shown] + 0.3 * rng.normal(size=(100, *SHAPE))).astype(np.float32)
        y = np.where(shown < 2, 1 - shown, shown) if swapped and i >= 4 else shown
        sites[f"c{i}"] = (x[:90], y[:90], x[90:], y[90:])
    return LoopEngine(tiny_model(), Population.of_sites(sites, CLASSES, [0] * 4 + [1] * 4), SEED)


BY_DISTANCES: dict[str, Any] = {"cut": "count", "clusters": 2, "local": LOCAL}


@pytest.mark.parametrize(("method", "sees"), [
    (FLAG(**BY_DISTANCES), True), (FedClust(**BY_DISTANCES), True), (PACFL(**BY_DISTANCES), True),
    (PACFL(angle="mean", **BY_DISTANCES), False), (PACFL(per_class=True, angle="column", **BY_DISTANCES), False),
    (PACFL(angle="mean", local=LOCAL), True),
], ids=["flag", "fedclust", "pacfl", "pacfl mean", "pacfl column", "pacfl mean, tests"])
def test_who_sees_meanings(method: Algorithm, sees: bool) -> None:
    """Two groups were asked for: a signature by class or of training finds them, one of all rows parts by chance."""
    labels = play(method, federation(), 1).labels.tolist()
    assert (agreement(labels, [0] * 4 + [1] * 4)["ari"] == 1) is sees


@pytest.mark.parametrize(("angle", "same"), [("mean", True), ("smallest", True), ("union", False)])
def test_a_signature_of_all_rows_knows_no_labels(angle: str, same: bool) -> None:
    """PACFL's distances are equal to the last bit whatever labels mean, but for those class by class."""
    apart = [play(PACFL(angle=angle, **BY_DISTANCES), federation(swapped), 1).evidence["proximity"]
             for swapped in (False, True)]
    assert apart[0].equal(apart[1]) is same
